//! The sockets' files and permissions.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown},
    path::Path,
};

use tokio::net::UnixListener;

use super::Error;
use crate::trust::{self, Untrusted};

/// A user or a group of this machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Account {
    /// As written in the configuration: a name or the number.
    pub name: String,
    /// The numeric id.
    pub id: u32,
}

/// The owner of a socket; `None` means the daemon's own user or group.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Access {
    /// The user.
    pub owner: Option<Account>,
    /// The group.
    pub group: Option<Account>,
}

/// The owners of the sockets.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Sockets {
    /// `observeSocketOwner` and `observeSocketGroup`.
    pub observe: Access,
    /// `adminSocketOwner` and `adminSocketGroup`.
    pub admin: Access,
}

/// The mode of the run directory: the group may not write.
const DIR_MODE: u32 = 0o750;

/// A mode that lets everyone reach a socket in the run directory, but not list it.
const GO_THROUGH: u32 = 0o711;

/// Creates the run directory if it does not exist, fails if others may change it, and lets the owners of the sockets
/// reach them. A wider existing mode stays.
pub(super) fn prepare(run_dir: &Path, sockets: &Sockets) -> Result<(), Error> {
    let failed = |source| Error::RunDir { path: run_dir.display().to_string(), source };
    fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(run_dir).map_err(failed)?;
    let metadata = fs::metadata(run_dir).map_err(failed)?;
    // The next process trusts the state in this directory: it restores caps and reports kills from it.
    trust::check(run_dir, metadata.uid(), metadata.mode()).map_err(|Untrusted { why, remedy }| {
        Error::UnsafeRunDir { path: run_dir.display().to_string(), why, remedy }
    })?;
    let Sockets { observe, admin } = sockets;
    let mut groups: Vec<u32> =
        [observe, admin].iter().filter_map(|access| Some(access.group.as_ref()?.id)).collect();
    groups.dedup();
    let has_owner = [observe, admin].iter().any(|access| access.owner.is_some());
    let mode = match groups.as_slice() {
        [] if !has_owner => return Ok(()),
        // A single group gets access as the directory's own group.
        [group] if !has_owner => {
            if metadata.gid() != *group {
                chown(run_dir, None, Some(*group)).map_err(failed)?;
            }
            DIR_MODE
        }
        _ => GO_THROUGH,
    };
    let wanted = (metadata.permissions().mode() & 0o7777) | mode;
    fs::set_permissions(run_dir, fs::Permissions::from_mode(wanted)).map_err(failed)
}

/// Binds a socket in the run directory with this mode and owner. Replaces an existing one.
pub(super) fn bind(run_dir: &Path, name: &str, mode: u32, access: &Access) -> Result<UnixListener, Error> {
    let path = run_dir.join(name);
    let listen = |source: io::Error| Error::Listen { path: path.display().to_string(), source };
    // Bind it under another name, set its permissions, then rename it: it is never too open, and never absent.
    let fresh = run_dir.join(format!(".{name}.new"));
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(listen(error)),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(&fresh).map_err(listen)?;
    let Access { owner, group } = access;
    // First close it to all others, then set the owner, then the final mode.
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600)).map_err(listen)?;
    if owner.is_some() || group.is_some() {
        let id = |account: &Option<Account>| account.as_ref().map(|account| account.id);
        chown(&fresh, id(owner), id(group)).map_err(|source| Error::Owner {
            path: path.display().to_string(),
            owner: [owner, group]
                .map(|account| account.as_ref().map_or("-", |account| &account.name))
                .join(":"),
            source,
        })?;
    }
    fs::set_permissions(&fresh, fs::Permissions::from_mode(mode)).map_err(listen)?;
    fs::rename(&fresh, &path).map_err(listen)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(owner: Option<u32>, group: Option<u32>) -> Access {
        let account = |id: u32| Account { name: id.to_string(), id };
        Access { owner: owner.map(account), group: group.map(account) }
    }

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }

    #[tokio::test]
    async fn a_socket_is_whose_it_should_be_and_its_group_comes_through() {
        if !is_root() {
            // Only root gives files away.
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        for (sockets, gid, mode) in [
            (Sockets::default(), 0, 0o750),
            (Sockets { observe: access(None, Some(4_321)), ..Sockets::default() }, 4_321, 0o750),
            (Sockets { observe: access(None, Some(4_321)), admin: access(None, Some(4_322)) }, 0, 0o751),
            (Sockets { admin: access(Some(4_000), None), ..Sockets::default() }, 0, 0o751),
        ] {
            let run_dir = temp.path().join(format!("{gid}-{mode:o}-{}", sockets.admin.owner.is_some()));
            prepare(&run_dir, &sockets).unwrap();
            // Again, as the next start does.
            prepare(&run_dir, &sockets).unwrap();
            let dir = fs::metadata(&run_dir).unwrap();
            assert_eq!((dir.gid(), dir.mode() & 0o777), (gid, mode), "{sockets:?}");
            let _bound = bind(&run_dir, "a.sock", 0o660, &sockets.observe).unwrap();
            let _again = bind(&run_dir, "a.sock", 0o660, &sockets.observe).unwrap();
            let socket = fs::metadata(run_dir.join("a.sock")).unwrap();
            let group = sockets.observe.group.map_or(0, |group| group.id);
            assert_eq!((socket.uid(), socket.gid(), socket.mode() & 0o777), (0, group, 0o660));
            assert_eq!(fs::read_dir(&run_dir).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_directory_that_is_open_stays_so() {
        let temp = tempfile::tempdir().unwrap();
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
        prepare(temp.path(), &Sockets::default()).unwrap();
        assert_eq!(fs::metadata(temp.path()).unwrap().mode() & 0o777, 0o755);
    }
}
