//! All access to cgroupfs, through open directories: a path may name another cgroup by now.

use std::{
    borrow::Cow,
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags},
    io::Errno,
};

use super::UnitError;
use crate::model::{CgroupId, CgroupPath};

/// The magic number of a cgroup v2 file system (`include/uapi/linux/magic.h`).
const CGROUP2_SUPER_MAGIC: u64 = 0x6367_7270;

/// The longest content of a cgroup file that is read; `memory.stat` has about 2 KiB.
const MAX_READ_BYTES: usize = 64 * 1024;

/// The length from which a shown path gets no further names: no path that the kernel takes is longer (`PATH_MAX`), but
/// cgroups can be nested deeper, and each would repeat all names above it.
const MAX_SHOWN_BYTES: usize = 4096;

/// What stands for all further names.
const CUT: &str = "…";

/// An open cgroup directory.
///
/// Everything is opened relative to its handle. So a cgroup that is removed and made again under the same name is never
/// mistaken for the opened one, whose files fail with `ENODEV`.
#[derive(Debug)]
pub struct CgroupDir {
    fd: OwnedFd,
    path: CgroupPath,
    id: CgroupId,
}

/// What failed, and on which cgroup or file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The mount point holds no cgroup v2.
    #[error(
        "{path} is not a cgroup v2 file system: boot with systemd.unified_cgroup_hierarchy=1 (`enforcer doctor` says what is there)"
    )]
    NotCgroup2 {
        /// The mount point.
        path: String,
    },
    /// A cgroup that others have to make does not exist.
    #[error("cgroup {path}, which {named_by} names, does not exist, and enforcer does not create it")]
    NotThere {
        /// The cgroup.
        path: String,
        /// The field or annotation that names it.
        named_by: &'static str,
    },
    /// A named cgroup must not be adopted.
    #[error("cgroup {path}, which {named_by} names, cannot be taken: {why}")]
    Forbidden {
        /// The cgroup.
        path: String,
        /// The annotation that names it.
        named_by: &'static str,
        /// What it is or holds.
        why: String,
    },
    /// A directory could not be opened.
    #[error("cannot open cgroup {path}")]
    Open {
        /// The cgroup.
        path: String,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
    /// A directory could not be made.
    #[error("cannot create cgroup {path}")]
    Create {
        /// The cgroup.
        path: String,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
    /// A directory could not be removed.
    #[error("cannot remove cgroup {path}")]
    Remove {
        /// The cgroup.
        path: String,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
    /// A file could not be opened or read.
    #[error("cannot read {}/{file}", path.trim_end_matches('/'))]
    Read {
        /// The cgroup.
        path: String,
        /// The file.
        file: String,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
    /// A value could not be written.
    #[error("cannot write {value:?} to {}/{file}", path.trim_end_matches('/'))]
    Write {
        /// The cgroup.
        path: String,
        /// The file.
        file: String,
        /// The value.
        value: String,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
    /// A call to systemd failed.
    #[error(transparent)]
    Unit(#[from] UnitError),
}

impl Error {
    /// The cgroup that it is about.
    #[must_use]
    pub fn path(&self) -> &str {
        match self {
            Self::Unit(error) => error.path(),
            Self::NotCgroup2 { path }
            | Self::NotThere { path, .. }
            | Self::Forbidden { path, .. }
            | Self::Open { path, .. }
            | Self::Create { path, .. }
            | Self::Remove { path, .. }
            | Self::Read { path, .. }
            | Self::Write { path, .. } => path,
        }
    }

    /// Whether the cgroup or its file does not exist, or exists no longer.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match self {
            Self::NotCgroup2 { .. } | Self::NotThere { .. } | Self::Forbidden { .. } => false,
            Self::Unit(error) => error.is_gone(),
            Self::Open { source, .. }
            | Self::Create { source, .. }
            | Self::Remove { source, .. }
            | Self::Read { source, .. }
            | Self::Write { source, .. } => {
                source.kind() == io::ErrorKind::NotFound
                    || Errno::from_io_error(source).is_some_and(|errno| errno == Errno::NODEV)
            }
        }
    }

    /// Whether the cgroup is nested so deep that no path leads to it.
    #[must_use]
    pub fn is_too_deep(&self) -> bool {
        matches!(self, Self::Open { source, .. } if Errno::from_io_error(source) == Some(Errno::NAMETOOLONG))
    }

    /// Whether it was refused because the cgroup still holds processes or children.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        match self {
            Self::Remove { source, .. } | Self::Write { source, .. } => {
                Errno::from_io_error(source).is_some_and(|errno| errno == Errno::BUSY)
            }
            Self::NotCgroup2 { .. }
            | Self::NotThere { .. }
            | Self::Forbidden { .. }
            | Self::Unit(_)
            | Self::Open { .. }
            | Self::Create { .. }
            | Self::Read { .. } => false,
        }
    }

    /// Whether the kernel does not offer it on this kind of cgroup, such as `cgroup.procs` of a threaded one.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::Read { source, .. } | Self::Write { source, .. } => {
                Errno::from_io_error(source).is_some_and(|errno| errno == Errno::OPNOTSUPP)
            }
            Self::NotCgroup2 { .. }
            | Self::NotThere { .. }
            | Self::Forbidden { .. }
            | Self::Unit(_)
            | Self::Open { .. }
            | Self::Create { .. }
            | Self::Remove { .. } => false,
        }
    }
}

impl CgroupDir {
    /// Opens the root of the hierarchy mounted at `mount`, usually `/sys/fs/cgroup`.
    pub fn mount(mount: &Path) -> Result<Self, Error> {
        let dir = Self::unchecked(mount)?;
        let not_cgroup2 = || Error::NotCgroup2 { path: mount.display().to_string() };
        let statfs = rustix::fs::fstatfs(&dir.fd).map_err(|errno| open_error(&dir.path, errno))?;
        match u64::try_from(statfs.f_type) {
            Ok(CGROUP2_SUPER_MAGIC) => Ok(dir),
            Ok(_) | Err(_) => Err(not_cgroup2()),
        }
    }

    /// Opens any directory as if it were the root of a hierarchy, for tests on a temporary tree.
    pub fn unchecked(root: &Path) -> Result<Self, Error> {
        let path = CgroupPath::root();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(root, flags, Mode::empty())
            .map_err(|errno| Error::Open { path: root.display().to_string(), source: errno.into() })?;
        Self::new(fd, path)
    }

    /// Opens a cgroup below this one; `path` is relative to this one. No symlink is followed.
    pub fn open(&self, path: &CgroupPath) -> Result<Self, Error> {
        self.open_relative(Path::new(path.as_str().trim_start_matches('/')), join(&self.path, path))
    }

    /// Opens a cgroup below this one by names that [`children`](Self::children) gave, which need not be text; its
    /// [`path`](Self::path) shows such names, as far as any path can lead. No symlink is followed.
    pub fn open_below(&self, names: impl AsRef<Path>) -> Result<Self, Error> {
        let names = names.as_ref();
        self.open_relative(names, names.iter().fold(self.path.clone(), |above, name| shown(&above, name)))
    }

    fn open_relative(&self, relative: &Path, full: CgroupPath) -> Result<Self, Error> {
        let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let fd = rustix::fs::openat2(&self.fd, relative, flags, Mode::empty(), resolve)
            .map_err(|errno| open_error(&full, errno))?;
        Self::new(fd, full)
    }

    /// Makes the child of that name, or takes the existing one. Others may read what they need of it, whatever the umask.
    pub fn create_child(&self, name: &str) -> Result<Self, Error> {
        let child = CgroupPath::root().child(name).map_err(|error| Error::Create {
            path: format!("{}/{name}", self.path),
            source: io::Error::other(error),
        })?;
        let mode = Mode::from_raw_mode(0o755);
        match rustix::fs::mkdirat(&self.fd, name, mode) {
            Ok(()) => {
                let opened = self.open(&child)?;
                if let Err(error) = rustix::fs::fchmod(&opened.fd, mode) {
                    tracing::warn!(cgroup = %opened.path, %error, "others may not be able to read a cgroup");
                }
                Ok(opened)
            }
            Err(Errno::EXIST) => self.open(&child),
            Err(errno) => {
                Err(Error::Create { path: join(&self.path, &child).to_string(), source: errno.into() })
            }
        }
    }

    /// Removes the child of that name, which must be empty.
    pub fn remove_child(&self, name: impl AsRef<OsStr>) -> Result<(), Error> {
        let name = name.as_ref();
        rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR).map_err(|errno| Error::Remove {
            path: shown(&self.path, name).to_string(),
            source: errno.into(),
        })
    }

    /// How many cgroups are directly below this one, if the file system counts them: a directory has a link from above, one
    /// from itself, and one from each directory in it (`kernfs_refresh_inode`). Far cheaper than to list them among all files.
    #[must_use]
    pub fn count_children(&self) -> Option<u32> {
        let stat = rustix::fs::statx(&self.fd, "", AtFlags::EMPTY_PATH, StatxFlags::NLINK).ok()?;
        stat.stx_nlink.checked_sub(2)
    }

    /// The id of the cgroup of that name directly below this one, if there is one.
    #[must_use]
    pub fn child_id(&self, name: &str) -> Option<CgroupId> {
        let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        is_directory.then_some(CgroupId(stat.st_ino))
    }

    /// How many of these cgroups, by name and by id if that matters, are directly below this one, if there are no others.
    /// `None` if there are, or if the file system does not count them. To list them takes ten times as long.
    #[must_use]
    pub fn count_only<'a>(
        &self,
        known: impl IntoIterator<Item = (&'a str, Option<CgroupId>)>,
    ) -> Option<usize> {
        let is_there = |(name, id): &(&str, Option<CgroupId>)| {
            self.child_id(name).is_some_and(|there| id.is_none_or(|id| id == there))
        };
        let there = known.into_iter().filter(is_there).count();
        (usize::try_from(self.count_children()?) == Ok(there)).then_some(there)
    }

    /// The names of the cgroups directly below this one, as the kernel has them: whoever makes a cgroup may choose bytes
    /// that are no text. None leads anywhere else: they have no slash, and `.` and `..` are left out.
    pub fn children(&self) -> Result<Vec<OsString>, Error> {
        let failed = |errno: Errno| open_error(&self.path, errno);
        let mut names = Vec::new();
        if self.count_children() == Some(0) {
            return Ok(names);
        }
        for entry in rustix::fs::Dir::read_from(&self.fd).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if entry.file_type() == FileType::Directory && name != "." && name != ".." {
                names.push(name.to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Opens one of its files for repeated reading.
    pub fn open_read(&self, file: &str) -> Result<OwnedFd, Error> {
        self.open_file(file, OFlags::RDONLY).map_err(|errno| self.read_error(file, errno))
    }

    /// Opens one of its files for writing later without a lookup. It is never created or truncated.
    pub fn open_write(&self, file: &str) -> Result<OwnedFd, Error> {
        self.open_for(file, OFlags::WRONLY)
    }

    /// Opens one of its files for reading and writing.
    pub fn open_change(&self, file: &str) -> Result<OwnedFd, Error> {
        self.open_for(file, OFlags::RDWR)
    }

    fn open_for(&self, file: &str, flags: OFlags) -> Result<OwnedFd, Error> {
        self.open_file(file, flags).map_err(|errno| Error::Write {
            path: self.path.to_string(),
            file: file.to_owned(),
            value: String::new(),
            source: errno.into(),
        })
    }

    /// Opens its `memory.pressure` for a trigger, which is set by writing to it.
    pub fn open_pressure(&self) -> rustix::io::Result<OwnedFd> {
        self.open_file("memory.pressure", OFlags::RDWR | OFlags::NONBLOCK)
    }

    /// Whether any process is in it or below it.
    pub fn is_populated(&self) -> Result<bool, Error> {
        Ok(self.read("cgroup.events")?.lines().any(|line| line.trim_ascii_end() == "populated 1"))
    }

    /// Reads one of its files whole.
    pub fn read(&self, file: &str) -> Result<String, Error> {
        let fd = self.open_read(file)?;
        let mut content = Vec::new();
        let mut chunk = [0_u8; 4096];
        loop {
            match rustix::io::read(&fd, &mut chunk) {
                Ok(count) => {
                    content.extend_from_slice(chunk.get(..count).unwrap_or_default());
                    // The kernel prints such a file at once (`seq_show`), so there is no more.
                    if count < chunk.len() {
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.read_error(file, errno)),
            }
            if content.len() > MAX_READ_BYTES {
                return Err(self.read_error(file, Errno::FBIG));
            }
        }
        String::from_utf8(content).map_err(|error| Error::Read {
            path: self.path.to_string(),
            file: file.to_owned(),
            source: io::Error::new(io::ErrorKind::InvalidData, error),
        })
    }

    /// The processes directly in it, sorted, however many; 0 is one of a PID namespace that we cannot see.
    pub fn processes(&self) -> Result<Vec<u32>, Error> {
        const FILE: &str = "cgroup.procs";
        let mut pids = Vec::new();
        each_number(&self.open_read(FILE)?, &mut |pid| pids.push(pid))
            .map_err(|errno| self.read_error(FILE, errno))?;
        // The kernel's list is unsorted and may repeat entries.
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }

    /// Writes a value to one of its files, in one system call.
    pub fn write(&self, file: &str, value: &str) -> Result<(), Error> {
        let failed = |source: io::Error| Error::Write {
            path: self.path.to_string(),
            file: file.to_owned(),
            value: value.to_owned(),
            source,
        };
        let fd = self.open_file(file, OFlags::WRONLY).map_err(|errno| failed(errno.into()))?;
        match rustix::io::retry_on_intr(|| rustix::io::write(&fd, value.as_bytes())) {
            Ok(count) if count == value.len() => Ok(()),
            Ok(_) => Err(failed(io::ErrorKind::WriteZero.into())),
            Err(errno) => Err(failed(errno.into())),
        }
    }

    /// Its path below the mount point.
    #[must_use]
    pub fn path(&self) -> &CgroupPath {
        &self.path
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> CgroupId {
        self.id
    }

    fn new(fd: OwnedFd, path: CgroupPath) -> Result<Self, Error> {
        let stat = rustix::fs::fstat(&fd).map_err(|errno| open_error(&path, errno))?;
        Ok(Self { fd, path, id: CgroupId(stat.st_ino) })
    }

    fn open_file(&self, file: &str, mode: OFlags) -> rustix::io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        rustix::fs::openat2(&self.fd, file, mode | OFlags::CLOEXEC, Mode::empty(), resolve)
    }

    fn read_error(&self, file: &str, errno: Errno) -> Error {
        Error::Read { path: self.path.to_string(), file: file.to_owned(), source: errno.into() }
    }
}

impl AsFd for CgroupDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Calls `visit` for each number of a file with one per line. It stores none of them, so the file may have any length.
pub(super) fn each_number(fd: &OwnedFd, visit: &mut dyn FnMut(u32)) -> rustix::io::Result<()> {
    let mut chunk = [0_u8; 4096];
    let mut number: Option<u32> = None;
    loop {
        let count = rustix::io::retry_on_intr(|| rustix::io::read(fd, &mut chunk))?;
        if count == 0 {
            break;
        }
        for byte in chunk.iter().take(count) {
            if byte.is_ascii_digit() {
                let digit = u32::from(byte - b'0');
                number = Some(number.unwrap_or(0).saturating_mul(10).saturating_add(digit));
            } else if let Some(number) = number.take() {
                visit(number);
            }
        }
    }
    if let Some(number) = number {
        visit(number);
    }
    Ok(())
}

fn open_error(path: &CgroupPath, errno: Errno) -> Error {
    Error::Open { path: path.to_string(), source: errno.into() }
}

/// The path of a cgroup as it is shown, with `?` for what is no text in its name, and `…` for what is too deep for any
/// path; so it may not lead there.
pub(super) fn shown(parent: &CgroupPath, name: &OsStr) -> CgroupPath {
    let is_full = parent.as_str().len() >= MAX_SHOWN_BYTES;
    if is_full && parent.as_str().ends_with(CUT) {
        return parent.clone();
    }
    // Of one byte, so that the name does not become too long.
    let lossy = || name.to_string_lossy().replace(char::REPLACEMENT_CHARACTER, "?");
    let text: Cow<'_, str> = match name.to_str() {
        _ if is_full => CUT.into(),
        Some(text) => text.into(),
        None => lossy().into(),
    };
    // Only a name that no directory has is refused.
    parent.child(&text).unwrap_or_else(|_| parent.clone())
}

fn join(parent: &CgroupPath, relative: &CgroupPath) -> CgroupPath {
    if parent.is_root() {
        return relative.clone();
    }
    // Every name was checked when `relative` was made.
    CgroupPath::parse(&format!("{parent}/{relative}")).unwrap_or_else(|_| relative.clone())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn tree() -> (tempfile::TempDir, CgroupDir) {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir_all(temp.path().join("kubepods/podx")).unwrap();
        fs::write(temp.path().join("kubepods/memory.max"), "max\n").unwrap();
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        (temp, root)
    }

    #[test]
    fn reads_and_writes_below_its_handle() {
        let (_temp, root) = tree();
        let kubepods = root.open(&CgroupPath::parse("/kubepods").unwrap()).unwrap();
        assert_eq!(kubepods.read("memory.max").unwrap(), "max\n");
        kubepods.write("memory.max", "4096").unwrap();
        assert_eq!(kubepods.read("memory.max").unwrap(), "4096");
        assert_eq!(kubepods.children().unwrap(), ["podx"]);
        assert_eq!(kubepods.create_child("podx").unwrap().path().as_str(), "/kubepods/podx");
        kubepods.remove_child("podx").unwrap();
        assert!(kubepods.remove_child("podx").unwrap_err().is_gone());
    }

    #[test]
    fn its_children_are_counted_where_the_file_system_does_so() {
        let (temp, root) = tree();
        let kubepods = root.open(&CgroupPath::parse("/kubepods").unwrap()).unwrap();
        let podx = root.open(&CgroupPath::parse("/kubepods/podx").unwrap()).unwrap();
        // Some file systems count none; cgroup v2 does.
        assert!([None, Some(1)].contains(&kubepods.count_children()));
        assert!([None, Some(0)].contains(&podx.count_children()));
        assert!(podx.children().unwrap().is_empty());
        fs::create_dir(temp.path().join("kubepods/podx/app")).unwrap();
        assert_eq!(podx.children().unwrap(), ["app"], "of a handle that was open before");
        assert_eq!(kubepods.child_id("podx"), Some(podx.id()));
        let count = |names: &[(&'static str, Option<CgroupId>)]| kubepods.count_only(names.iter().copied());
        assert!([None, Some(1)].contains(&count(&[("podx", None), ("pody", None)])));
        assert!([None, Some(1)].contains(&count(&[("podx", Some(podx.id()))])));
        assert_eq!([count(&[("podx", Some(kubepods.id()))]), count(&[])], [None; 2], "another is there");
        assert_eq!((kubepods.child_id("memory.max"), kubepods.child_id("pody")), (None, None));
    }

    #[test]
    fn a_name_that_is_no_text_is_opened_removed_and_shown() {
        let (temp, root) = tree();
        // As long as a name can be: what stands for its bytes must not be longer.
        for name in [b"x\xff\xfey".to_vec(), vec![0xff; 255]] {
            let name = OsStr::from_bytes(&name);
            let inner = Path::new(name).join("inner");
            fs::create_dir_all(temp.path().join(&inner)).unwrap();
            assert_eq!(root.children().unwrap(), [OsStr::new("kubepods"), name]);
            let opened = root.open_below(&inner).unwrap();
            let text = name.to_string_lossy().replace(char::REPLACEMENT_CHARACTER, "?");
            assert_eq!(opened.path().as_str(), format!("/{text}/inner"));
            let held = root.remove_child(name).unwrap_err();
            assert_eq!(held.path(), format!("/{text}"));
            root.open_below(name).unwrap().remove_child("inner").unwrap();
            root.remove_child(name).unwrap();
        }
        assert_eq!(root.open_below("").unwrap().path(), root.path());
    }

    #[test]
    fn a_path_is_shown_as_far_as_one_can_lead() {
        let name = "x".repeat(255);
        let deep = (0..100).fold(CgroupPath::root(), |above, _| shown(&above, OsStr::new(&name)));
        assert!(deep.as_str().ends_with("x/…"), "{deep}");
        assert_eq!(deep.as_str().len(), MAX_SHOWN_BYTES + "/…".len());
    }

    #[test]
    fn a_missing_file_is_never_created() {
        let (temp, root) = tree();
        let error = root.write("memory.high", "1").unwrap_err();
        assert!(error.is_gone(), "{error}");
        assert_eq!(error.to_string(), "cannot write \"1\" to /memory.high");
        assert!(!temp.path().join("memory.high").exists());
    }

    #[test]
    fn no_name_leaves_the_root() {
        let (temp, root) = tree();
        symlink("/etc", temp.path().join("etc")).unwrap();
        symlink("/etc/passwd", temp.path().join("memory.stat")).unwrap();
        assert!(root.open(&CgroupPath::parse("/etc").unwrap()).is_err());
        assert!(root.read("memory.stat").is_err());
        assert!(root.read("../../etc/passwd").is_err());
        assert!(root.create_child("..").is_err());
        for names in ["..", "kubepods/../..", "/etc", "etc"] {
            assert!(root.open_below(names).is_err(), "{names}");
        }
    }

    #[test]
    fn an_ordinary_directory_is_no_hierarchy() {
        let temp = tempfile::tempdir().unwrap();
        assert!(matches!(CgroupDir::mount(temp.path()), Err(Error::NotCgroup2 { .. })));
    }
}
