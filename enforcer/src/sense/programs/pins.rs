//! The folder where links and maps are pinned, so that they outlive the daemon: `/sys/fs/bpf/enforcer`.
//!
//! One folder a version, one file a map or link. Only root can access it, and only one daemon at a time uses it. Files
//! that are not ours are neither used nor removed.
use std::{
    fs::{self, DirBuilder, Metadata},
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, fstat, open, statfs},
    io::Errno,
    process::geteuid,
};

use super::kept::{self, Version};

/// The usual mount point of bpffs, which systemd uses.
const MOUNT: &str = "/sys/fs/bpf";
/// Our folder below it.
const FOLDER: &str = "enforcer";
/// File system type of bpffs (`BPF_FS_MAGIC`, linux/magic.h).
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

const MAP: &str = "map_";
const LINK: &str = "link_";

/// Why nothing can be pinned, or a pin cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinsError {
    /// There is no bpffs.
    #[error("{} is not a bpffs; mount one: mount -t bpf bpf {}", path.display(), path.display())]
    NoBpffs {
        /// The expected mount point.
        path: PathBuf,
    },
    /// The system refused something.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
    /// A file or folder is not as we make it.
    #[error("{} {why}; inspect it, and remove it if it is not needed", path.display())]
    Foreign {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Another daemon uses it.
    #[error("another enforcer uses {}", path.display())]
    Busy {
        /// The folder.
        path: PathBuf,
    },
}

/// The folder of pins, locked for us during the life of this.
#[derive(Debug)]
pub struct Pins {
    folder: PathBuf,
    /// Holds the lock.
    _handle: OwnedFd,
}

/// The result of removing pins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unpinned {
    /// The files that were removed.
    pub removed: Vec<PathBuf>,
    /// Files that are not ours, or not as we make them; they were kept.
    pub left: Vec<PathBuf>,
}

/// The folder of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VersionDir {
    pub(super) path: PathBuf,
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PinsError {
    move |source| PinsError::Io { what, path: path.to_owned(), source }
}

impl Pins {
    /// Opens the folder in `/sys/fs/bpf`, and creates it if it is missing.
    pub fn open() -> Result<Self, PinsError> {
        let mount = Path::new(MOUNT);
        let is_bpffs = statfs(mount)
            .is_ok_and(|stat| u64::try_from(stat.f_type).is_ok_and(|magic| magic == BPF_FS_MAGIC));
        if !is_bpffs {
            return Err(PinsError::NoBpffs { path: mount.to_owned() });
        }
        Self::open_at(mount.join(FOLDER))
    }

    fn open_at(folder: PathBuf) -> Result<Self, PinsError> {
        make(&folder)?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let handle = match open(&folder, flags, Mode::empty()) {
            Ok(handle) => handle,
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Err(PinsError::Foreign { path: folder, why: "is not a folder" });
            }
            Err(error) => return Err(failed("open", &folder)(error.into())),
        };
        let stat = fstat(&handle).map_err(|error| failed("look at", &folder)(error.into()))?;
        check_owner(&folder, stat.st_uid, stat.st_mode)?;
        match flock(&handle, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { folder, _handle: handle }),
            Err(Errno::WOULDBLOCK) => Err(PinsError::Busy { path: folder }),
            Err(error) => Err(failed("lock", &folder)(error.into())),
        }
    }

    /// The folder of this version, created if it is missing.
    pub(super) fn version(&self, version: Version) -> Result<VersionDir, PinsError> {
        let path = self.folder.join(version.folder());
        make(&path)?;
        check_folder(&path)?;
        Ok(VersionDir { path })
    }

    /// The folders of other versions, and all other files.
    pub(super) fn others(&self, version: Version) -> Result<(Vec<VersionDir>, Vec<PathBuf>), PinsError> {
        let ours = version.folder();
        let (mut versions, mut foreign) = (Vec::new(), Vec::new());
        for name in names(&self.folder)? {
            let path = self.folder.join(&name);
            if name == ours {
                continue;
            }
            if kept::is_version(&name) && check_folder(&path).is_ok() {
                versions.push(VersionDir { path });
            } else {
                foreign.push(path);
            }
        }
        Ok((versions, foreign))
    }

    /// Removes every pin of every version. Programs that no daemon holds are detached by that, and their unread records
    /// are lost. Files that are not ours stay, with their folders.
    pub fn remove(self) -> Result<Unpinned, PinsError> {
        let mut unpinned = Unpinned::default();
        for name in names(&self.folder)? {
            let path = self.folder.join(&name);
            if !kept::is_version(&name) || check_folder(&path).is_err() {
                unpinned.left.push(path);
                continue;
            }
            let version = VersionDir { path };
            let foreign = version.remove(&mut unpinned.removed)?;
            unpinned.left.extend(foreign);
        }
        if unpinned.left.is_empty() {
            match fs::remove_dir(&self.folder) {
                // For a service whose `/sys` is read-only it is a mount point.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::ResourceBusy
                    ) => {}
                removed => removed.map_err(failed("remove", &self.folder))?,
            }
        }
        Ok(unpinned)
    }
}

/// Removes every pin, if there are any: see [`Pins::remove`].
pub fn unpin() -> Result<Unpinned, PinsError> {
    if is_there()? { Pins::open()?.remove() } else { Ok(Unpinned::default()) }
}

/// What [`unpin`] would do, also while a daemon uses the pins.
pub fn look_at_pins() -> Result<Unpinned, PinsError> {
    if is_there()? { list(&Path::new(MOUNT).join(FOLDER)) } else { Ok(Unpinned::default()) }
}

/// What [`Pins::remove`] would do in that folder.
fn list(folder: &Path) -> Result<Unpinned, PinsError> {
    check_folder(folder)?;
    let mut unpinned = Unpinned::default();
    for name in names(folder)? {
        let path = folder.join(&name);
        if kept::is_version(&name) && check_folder(&path).is_ok() {
            let (pins, foreign) = VersionDir { path }.files()?;
            unpinned.removed.extend(pins);
            unpinned.left.extend(foreign);
        } else {
            unpinned.left.push(path);
        }
    }
    Ok(unpinned)
}

/// Whether the folder exists: it is not created for nothing.
fn is_there() -> Result<bool, PinsError> {
    match fs::symlink_metadata(Path::new(MOUNT).join(FOLDER)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed("look at", &Path::new(MOUNT).join(FOLDER))(error)),
    }
}

impl VersionDir {
    /// The pin path of that map.
    pub(super) fn map(&self, name: &str) -> PathBuf {
        self.path.join(format!("{MAP}{name}"))
    }

    /// The pin path of that program's link.
    pub(super) fn link(&self, program: &str) -> PathBuf {
        self.path.join(format!("{LINK}{program}"))
    }

    /// The pins of links, each with the name of its program.
    pub(super) fn links(&self) -> Result<Vec<(PathBuf, String)>, PinsError> {
        let (pins, _foreign) = self.files()?;
        let program = |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix(LINK).map(str::to_owned);
        Ok(pins.into_iter().filter_map(|path| program(&path).map(|program| (path, program))).collect())
    }

    /// Files that we would not have pinned.
    pub(super) fn foreign(&self) -> Result<Vec<PathBuf>, PinsError> {
        let names = names(&self.path)?.into_iter();
        Ok(names.filter(|name| !is_pin(name)).map(|name| self.path.join(name)).collect())
    }

    /// Removes the pins of links, which detaches the programs unless a process holds them, then those of maps, then the
    /// folder. Returns the files that are not ours, which stay.
    pub(super) fn remove(&self, removed: &mut Vec<PathBuf>) -> Result<Vec<PathBuf>, PinsError> {
        let (pins, foreign) = self.files()?;
        for path in pins {
            fs::remove_file(&path).map_err(failed("remove", &path))?;
            removed.push(path);
        }
        if foreign.is_empty() {
            fs::remove_dir(&self.path).map_err(failed("remove", &self.path))?;
        }
        Ok(foreign)
    }
}

impl VersionDir {
    /// The pins, in the order of their removal, and the files that are not ours.
    fn files(&self) -> Result<(Vec<PathBuf>, Vec<PathBuf>), PinsError> {
        let (mut pins, mut foreign) = (Vec::new(), Vec::new());
        for name in names(&self.path)? {
            let path = self.path.join(&name);
            let is_file = fs::symlink_metadata(&path).is_ok_and(|file| file.is_file());
            if is_pin(&name) && is_file { pins.push(path) } else { foreign.push(path) }
        }
        // The names of links sort before those of maps.
        pins.sort();
        Ok((pins, foreign))
    }
}

fn is_pin(name: &str) -> bool {
    let rest = name.strip_prefix(LINK).or_else(|| name.strip_prefix(MAP));
    rest.is_some_and(|rest| {
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    })
}

/// Creates a folder, if it is missing.
fn make(folder: &Path) -> Result<(), PinsError> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(failed("create", folder)(error)),
    }
}

fn check_folder(folder: &Path) -> Result<(), PinsError> {
    let metadata: Metadata = fs::symlink_metadata(folder).map_err(failed("look at", folder))?;
    if !metadata.is_dir() {
        return Err(PinsError::Foreign { path: folder.to_owned(), why: "is not a folder" });
    }
    check_owner(folder, metadata.uid(), metadata.mode())
}

/// Checks that no other user can have put a file there.
fn check_owner(folder: &Path, uid: u32, mode: u32) -> Result<(), PinsError> {
    if uid != geteuid().as_raw() {
        return Err(PinsError::Foreign { path: folder.to_owned(), why: "belongs to another user" });
    }
    if mode & 0o077 != 0 {
        return Err(PinsError::Foreign { path: folder.to_owned(), why: "is open to other users" });
    }
    Ok(())
}

fn names(folder: &Path) -> Result<Vec<String>, PinsError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed("read", folder))? {
        let name = entry.map_err(failed("read", folder))?.file_name();
        names.push(name.to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    /// Any file system serves here: only pinning itself needs bpffs.
    fn pins(dir: &Path) -> Result<Pins, PinsError> {
        Pins::open_at(dir.join(FOLDER))
    }

    fn pin(folder: &VersionDir, names: &[&str]) {
        for name in names {
            fs::write(folder.path.join(name), "").unwrap();
        }
    }

    #[test]
    fn only_one_uses_it_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = pins(dir.path()).unwrap();
        assert!(matches!(pins(dir.path()), Err(PinsError::Busy { .. })));
        drop(first);
        pins(dir.path()).unwrap();
    }

    #[test]
    fn removing_leaves_nothing_of_ours() {
        let dir = tempfile::tempdir().unwrap();
        let pins = pins(dir.path()).unwrap();
        for number in [1, 2] {
            pin(&pins.version(Version::numbered(number)).unwrap(), &["map_EVENTS", "link_process_exit"]);
        }
        let unpinned = pins.remove().unwrap();
        assert_eq!((unpinned.removed.len(), unpinned.left.len()), (4, 0));
        let order: Vec<_> = unpinned.removed.iter().filter_map(|path| path.file_name()).collect();
        assert_eq!(order[..2], ["link_process_exit", "map_EVENTS"], "programs go before what they write to");
        assert!(!dir.path().join(FOLDER).exists());
    }

    #[test]
    fn what_would_be_removed_is_listed_in_its_order_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let pins = pins(dir.path()).unwrap();
        let version = pins.version(Version::numbered(1)).unwrap();
        pin(&version, &["map_EVENTS", "link_process_exit", "somebody's"]);
        fs::create_dir(dir.path().join(FOLDER).join("others")).unwrap();
        let listed = list(&pins.folder).unwrap();
        assert_eq!(listed.removed, [version.link("process_exit"), version.map("EVENTS")]);
        assert_eq!(listed.left.len(), 2, "{listed:?}");
        assert!(listed.removed.iter().chain(&listed.left).all(|path| path.exists()));
        assert_eq!(pins.remove().unwrap(), listed);
    }

    #[test]
    fn what_is_not_ours_stays_and_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let pins = pins(dir.path()).unwrap();
        let folder = pins.folder.clone();
        let version = pins.version(Version::numbered(1)).unwrap();
        pin(&version, &["map_EVENTS", "notes", "map_", "link_a-b"]);
        fs::create_dir(version.path.join("map_folder")).unwrap();
        fs::write(folder.join("readme"), "").unwrap();
        fs::create_dir(folder.join("others")).unwrap();
        symlink("/etc", folder.join("v1-00000000000000aa")).unwrap();

        let (versions, foreign) = pins.others(Version::numbered(2)).unwrap();
        assert_eq!(versions, std::slice::from_ref(&version));
        assert_eq!(foreign.len(), 3, "{foreign:?}");
        assert_eq!(version.foreign().unwrap().len(), 3);

        let unpinned = pins.remove().unwrap();
        assert_eq!(unpinned.removed, [version.map("EVENTS")]);
        assert_eq!(unpinned.left.len(), 7, "{unpinned:?}");
        assert!(unpinned.left.iter().all(|path| fs::symlink_metadata(path).is_ok()));
    }

    #[test]
    fn a_folder_that_others_can_reach_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(FOLDER);
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(pins(dir.path()), Err(PinsError::Foreign { .. })));
        fs::remove_dir(&folder).unwrap();
        symlink("/etc", &folder).unwrap();
        assert!(matches!(pins(dir.path()), Err(PinsError::Foreign { .. })));
    }

    #[test]
    fn a_version_folder_that_is_not_ours_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let pins = pins(dir.path()).unwrap();
        let version = pins.version(Version::numbered(1)).unwrap();
        fs::set_permissions(&version.path, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(pins.version(Version::numbered(1)), Err(PinsError::Foreign { .. })));
    }
}
