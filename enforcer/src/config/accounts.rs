//! Looks up users and groups by name in this machine's own files.
//!
//! It does not use the name service. That may query servers, for which a daemon that starts early must not wait, and a
//! statically linked program has none.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use super::Account;

/// The file of users.
pub(super) const USERS: &str = "/etc/passwd";
/// The file of groups.
pub(super) const GROUPS: &str = "/etc/group";

/// The most bytes to read from either file.
const MAX_BYTES: u64 = 4 << 20;

/// Never a user or group: to the kernel it means "leave it".
const NOBODY: u32 = u32::MAX;

/// A user by name or number.
pub(super) fn user(file: &Path, text: &str) -> Result<Account, String> {
    account(file, text, "user")
}

/// A group by name or number.
pub(super) fn group(file: &Path, text: &str) -> Result<Account, String> {
    account(file, text, "group")
}

fn account(file: &Path, text: &str, what: &str) -> Result<Account, String> {
    let found = |id: u32| Account { name: text.to_owned(), id };
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let id = text.parse().ok().filter(|id| *id != NOBODY);
        return id
            .map(found)
            .ok_or_else(|| format!("{text:?} is not the number of a {what}: write 0 to 4294967294"));
    }
    let listed = read(file).map_err(|error| {
        format!("cannot look {text:?} up in {}: {error}; write the {what}'s number", file.display())
    })?;
    number(&listed, text).map(found).ok_or_else(|| {
        format!("there is no {what} {text:?} in {}: create it, or write the number of one", file.display())
    })
}

/// The third field of the line whose first field is `name`: `name:password:number:…` in both files.
fn number(listed: &[u8], name: &str) -> Option<u32> {
    listed.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        let is_it = fields.next()? == name.as_bytes() && !name.is_empty();
        let number = std::str::from_utf8(fields.nth(1)?).ok()?.parse().ok();
        number.filter(|id| is_it && *id != NOBODY)
    })
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut listed = Vec::new();
    File::open(file)?.take(MAX_BYTES).read_to_end(&mut listed)?;
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "root:x:0:\n# a comment\n+nis::::\nbroken\nadm:x:many:\nadm:x:4:syslog,a\nlast:x:4294967295:\n\u{fffd}:x:7:";

    #[test]
    fn an_account_is_found_by_name_or_number_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("group");
        std::fs::write(&file, LISTED).unwrap();
        let id = |text: &str| group(&file, text).map(|account| account.id);
        assert_eq!(id("root"), Ok(0));
        assert_eq!(id("adm"), Ok(4), "a line that is wrong is passed over");
        assert_eq!(id("4294967294"), Ok(4_294_967_294), "a number need not be listed");
        assert_eq!(group(&file, "adm").unwrap().name, "adm");
        assert!(id("amd").unwrap_err().starts_with("there is no group \"amd\" in "));
        for wrong in ["", "last", "4294967295", "99999999999", "-1", "+nis", "# a comment", "broken"] {
            assert!(id(wrong).is_err(), "{wrong}");
        }
        assert!(user(Path::new("/no/such/file"), "root").unwrap_err().contains("write the user's number"));
    }
}
