//! Checks which users may change what a privileged process reads: a directory that it wrote to, manifests, its
//! configuration.

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStringExt as _,
    },
    path::{Path, PathBuf},
    sync::LazyLock,
};

use rustix::{
    fs::{FileType, Mode, OFlags, StatVfsMountFlags},
    io::Errno,
};

/// The most links that lead to one file, as in the kernel (`MAXSYMLINKS`).
const MOST_LINKS: usize = 40;

/// Whether nobody can change a file on a read-only mount, as is so for a container's volumes. What systemd makes read-only for
/// a service (`ProtectSystem=`), others may still write to. It sets `INVOCATION_ID` for a service, systemd.exec(5).
static READ_ONLY_IS_SAFE: LazyLock<bool> = LazyLock::new(|| env::var_os("INVOCATION_ID").is_none());

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

/// The same for an open file. Files on a read-only mount are trusted, unless systemd has started this process: a mounted
/// `ConfigMap` is one, and its folder has the mode 0777.
pub(crate) fn check_open(path: &Path, open: impl AsFd) -> io::Result<Result<(), Untrusted>> {
    let stat = rustix::fs::fstat(&open)?;
    match check(path, stat.st_uid, stat.st_mode) {
        Err(_) if is_safely_read_only(&open)? => Ok(Ok(())),
        checked => Ok(checked),
    }
}

fn is_safely_read_only(open: impl AsFd) -> io::Result<bool> {
    Ok(*READ_ONLY_IS_SAFE && rustix::fs::fstatvfs(open)?.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Opens a regular file for reading, or a folder, unless others than this process's user and root may write to it or replace
/// it. The error contains the path that it is about. What is checked is what is opened.
pub(crate) fn open(path: &Path) -> io::Result<Result<OwnedFd, (PathBuf, Untrusted)>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open("/", flags, Mode::empty())?;
    open_below(root, &std::path::absolute(path)?)
}

/// Opens a regular file for reading, or a folder, below `root` as if that were `/`, unless others than this process's user
/// and root may write to it or replace it: every folder on the way counts. The error contains the path that it is about.
pub(crate) fn open_below(root: impl AsFd, path: &Path) -> io::Result<Result<OwnedFd, (PathBuf, Untrusted)>> {
    let folder_flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut folders = vec![rustix::fs::openat(root, ".", folder_flags, Mode::empty())?];
    let mut shown = vec![PathBuf::from("/")];
    let mut rest: Vec<OsString> = Vec::new();
    let push = |rest: &mut Vec<OsString>, path: &Path| {
        rest.extend(path.components().rev().map(|component| component.as_os_str().to_owned()));
    };
    push(&mut rest, path);
    let mut links = 0;
    while let (Some(name), Some(folder), Some(at)) = (rest.pop(), folders.last(), shown.last()) {
        if name == OsStr::new("/") {
            folders.truncate(1);
            shown.truncate(1);
            continue;
        }
        if name == OsStr::new("..") {
            // The root is its own parent.
            if folders.len() > 1 {
                folders.pop();
                shown.pop();
            }
            continue;
        }
        if name == OsStr::new(".") {
            continue;
        }
        if let Err(untrusted) = check_folder(at, folder)? {
            return Ok(Err((at.clone(), untrusted)));
        }
        let path = at.join(&name);
        let found = rustix::fs::openat(
            folder,
            &name,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        match FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) {
            FileType::Symlink => {
                links += 1;
                if links > MOST_LINKS {
                    return Err(Errno::LOOP.into());
                }
                let target = rustix::fs::readlinkat(&found, "", Vec::new())?;
                push(&mut rest, Path::new(&OsString::from_vec(target.into_bytes())));
            }
            FileType::Directory => {
                folders.push(rustix::fs::openat(&found, ".", folder_flags, Mode::empty())?);
                shown.push(path);
            }
            FileType::RegularFile if rest.is_empty() => {
                let flags =
                    OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                let file = rustix::fs::openat(folder, &name, flags, Mode::empty())?;
                return Ok(match check_open(&path, &file)? {
                    Ok(()) => Ok(file),
                    Err(untrusted) => Err((path, untrusted)),
                });
            }
            FileType::RegularFile => return Err(Errno::NOTDIR.into()),
            _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
        }
    }
    let (Some(folder), Some(at)) = (folders.pop(), shown.pop()) else { return Err(Errno::NOENT.into()) };
    Ok(match check_folder(&at, &folder)? {
        Ok(()) => Ok(folder),
        Err(untrusted) => Err((at, untrusted)),
    })
}

/// In a folder with the sticky bit users cannot replace the files of others.
fn check_folder(path: &Path, folder: &OwnedFd) -> io::Result<Result<(), Untrusted>> {
    let stat = rustix::fs::fstat(folder)?;
    let mode = if stat.st_mode & 0o1000 == 0 { stat.st_mode } else { stat.st_mode & !0o022 };
    match check(path, stat.st_uid, mode) {
        Err(_) if is_safely_read_only(folder)? => Ok(Ok(())),
        checked => Ok(checked),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::Read as _,
        os::unix::fs::{PermissionsExt as _, symlink},
    };

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
        let refused = |path: &Path| open(path).unwrap().err().map(|(path, _)| path);
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
        assert!(open(&temp.path().join("none")).is_err());
    }

    #[test]
    fn no_path_leaves_its_root_and_every_folder_on_the_way_counts() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path();
        fs::create_dir_all(root.join("etc/kubelet")).unwrap();
        fs::create_dir(root.join("shared")).unwrap();
        set_mode(&root.join("shared"), 0o755);
        fs::write(root.join("etc/kubelet/config"), "inside").unwrap();
        set_mode(&root.join("etc/kubelet/config"), 0o644);
        symlink("/etc/kubelet/config", root.join("shared/absolute")).unwrap();
        symlink("../../../../etc/kubelet/config", root.join("shared/upwards")).unwrap();
        symlink("round", root.join("round")).unwrap();
        let open = |path: &str| {
            let root = rustix::fs::open(root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
            open_below(root, Path::new(path))
        };
        let read = |path: &str| {
            let mut text = String::new();
            fs::File::from(open(path).unwrap().unwrap()).read_to_string(&mut text).unwrap();
            text
        };
        for path in ["/etc/kubelet/config", "/shared/absolute", "/shared/upwards", "/../etc/./kubelet/config"]
        {
            assert_eq!(read(path), "inside", "{path}");
        }
        assert!(open("/etc/kubelet").unwrap().is_ok(), "a folder can be opened too");
        for (path, errno) in
            [("/round", Errno::LOOP), ("/etc/none", Errno::NOENT), ("/etc/kubelet/config/x", Errno::NOTDIR)]
        {
            assert_eq!(open(path).unwrap_err().raw_os_error(), Some(errno.raw_os_error()), "{path}");
        }
        set_mode(&root.join("shared"), 0o777);
        assert_eq!(open("/shared/absolute").unwrap().unwrap_err().0, Path::new("/shared"));
        assert_eq!(read("/etc/kubelet/config"), "inside");
        set_mode(&root.join("etc/kubelet/config"), 0o666);
        assert_eq!(open("/etc/kubelet/config").unwrap().unwrap_err().0, Path::new("/etc/kubelet/config"));
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
