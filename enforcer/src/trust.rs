//! Whose a directory is from which a privileged process reads back what it wrote.

use std::path::Path;

/// Others may change what is there: they could take away what was told, or have told and undone what was not.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Untrusted {
    /// What is wrong with it.
    pub(crate) why: String,
    /// What to do about it.
    pub(crate) remedy: String,
}

/// Whether nobody but this process's user and root may change what is in a directory of that owner and mode.
pub(crate) fn check(path: &Path, owner: u32, mode: u32) -> Result<(), Untrusted> {
    let shown = path.display();
    let own = rustix::process::geteuid().as_raw();
    if owner != own && owner != 0 {
        return Err(Untrusted {
            why: format!("belongs to the user {owner}"),
            remedy: format!("see who put it there, then chown {own} {shown}"),
        });
    }
    // The group reads what is told; it has nothing to write there either.
    let (whom, change) = match mode & 0o022 {
        0 => return Ok(()),
        0o020 => ("its group", "g-w"),
        0o002 => ("everybody", "o-w"),
        _ => ("everybody and its group", "o-w,g-w"),
    };
    Err(Untrusted {
        why: format!("may be written to by {whom} (mode {:o})", mode & 0o7777),
        remedy: format!("see what is in it, then chmod {change} {shown}"),
    })
}
