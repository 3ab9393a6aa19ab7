//! Checks which users may change what a privileged process reads: a directory that it wrote to, manifests, its
//! configuration.

use std::{
    fs, io,
    os::{
        fd::AsFd,
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{OFlags, StatVfsMountFlags};

/// Other users may change a file: they could remove records, or make the daemon do something that its operator never
/// wrote.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Untrusted {
    /// What is wrong with it.
    pub(crate) why: String,
    /// What to do about it.
    pub(crate) remedy: String,
}

/// Whether only this process's user and root may change a file or directory of that owner and mode.
pub(crate) fn check(path: &Path, owner: u32, mode: u32) -> Result<(), Untrusted> {
    let shown = path.display();
    let own = rustix::process::geteuid().as_raw();
    if owner != own && owner != 0 {
        return Err(Untrusted {
            why: format!("belongs to the user {owner}"),
            remedy: format!("see who put it there, then chown {own} {shown}"),
        });
    }
    // The mode's group bits include the mask of an ACL.
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

/// The same for an open file. Files on a read-only mount are trusted: a mounted `ConfigMap` is one, and its folder has
/// the mode 0777.
pub(crate) fn check_open(path: &Path, open: impl AsFd) -> io::Result<Result<(), Untrusted>> {
    let stat = rustix::fs::fstat(&open)?;
    match check(path, stat.st_uid, stat.st_mode) {
        Err(_) if rustix::fs::fstatvfs(&open)?.f_flag.contains(StatVfsMountFlags::RDONLY) => Ok(Ok(())),
        checked => Ok(checked),
    }
}

/// Whether only this process's user and root may write to a file or replace it. The error contains the path that it is
/// about.
///
/// A link is followed; then both its folder and the file's own folder count. In a folder with the sticky bit, such as
/// `/tmp`, users cannot replace the files of others.
pub(crate) fn check_file(path: &Path) -> io::Result<Result<(), (PathBuf, Untrusted)>> {
    let named = std::path::absolute(path)?;
    let real = fs::canonicalize(path)?;
    // Opening a pipe would block.
    let mut options = fs::OpenOptions::new();
    let file = options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(&real)?;
    if let Err(untrusted) = check_open(path, file)? {
        return Ok(Err((path.to_owned(), untrusted)));
    }
    for folder in named.ancestors().skip(1).chain(real.ancestors().skip(1)) {
        let metadata = fs::metadata(folder)?;
        let is_sticky = metadata.mode() & 0o1000 != 0;
        let mode = if is_sticky { metadata.mode() & !0o022 } else { metadata.mode() };
        if let Err(untrusted) = check(folder, metadata.uid(), mode)
            && !rustix::fs::statvfs(folder)?.f_flag.contains(StatVfsMountFlags::RDONLY)
        {
            return Ok(Err((folder.to_owned(), untrusted)));
        }
    }
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_file_is_as_safe_as_the_folders_that_lead_to_it() {
        let temp = tempfile::tempdir().unwrap();
        let (shared, file) = (temp.path().join("shared"), temp.path().join("shared/config.yaml"));
        fs::create_dir(&shared).unwrap();
        fs::write(&file, "").unwrap();
        set_mode(&file, 0o644);
        let refused = |path: &Path| check_file(path).unwrap().err().map(|(path, _)| path);
        for (mode, is_safe) in [(0o755, true), (0o775, false), (0o777, false), (0o1777, true)] {
            set_mode(&shared, mode);
            assert_eq!(refused(&file), (!is_safe).then(|| shared.clone()), "{mode:o}");
        }
        set_mode(&file, 0o664);
        assert_eq!(refused(&file), Some(file.clone()));
        set_mode(&file, 0o600);
        assert_eq!(refused(&file), None);
        // A link into a folder that others may change is no safer than the folder.
        let link = temp.path().join("link.yaml");
        symlink("shared/config.yaml", &link).unwrap();
        assert_eq!(refused(&link), None);
        set_mode(&shared, 0o777);
        assert_eq!(refused(&link), Some(shared));
        assert!(check_file(&temp.path().join("none")).is_err());
    }

    #[test]
    fn another_owner_is_refused_and_root_is_not() {
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(check(Path::new("/x"), own, 0o40755), Ok(()));
        assert_eq!(check(Path::new("/x"), 0, 0o40755), Ok(()));
        let untrusted = check(Path::new("/x"), own + 1, 0o40755).unwrap_err();
        assert!(untrusted.why.contains(&format!("user {}", own + 1)), "{untrusted:?}");
    }
}
