//! The log's access to its files: files in one folder, by name.
//!
//! All disk access of the log goes through here, so that a test can cut the power at any moment. Links are never
//! followed, and only regular files are opened.

use std::{
    fmt, fs, io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::{DirBuilderExt as _, FileExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags},
    io::Errno,
};

use super::store::StoreError;
use crate::trust::{self, Untrusted};

/// How a file is opened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Access {
    /// For reading; it must exist.
    Read,
    /// For reading and writing; it must exist.
    Write,
    /// For reading and writing; it is created if it does not exist.
    Make,
    /// For reading and writing; it must not exist yet.
    New,
}

/// A folder of files.
pub(super) trait Medium: fmt::Debug + Send + Sync {
    /// The path of a file, for messages.
    fn path(&self, name: &str) -> PathBuf;

    /// Opens a regular file.
    fn open(&self, name: &str, access: Access) -> io::Result<Box<dyn MediumFile>>;

    /// Opens a file and locks it until it is closed. Fails with `WouldBlock` if another process has the lock.
    fn lock(&self, name: &str) -> io::Result<Box<dyn MediumFile>>;

    /// The names of all entries, unordered.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Renames an entry; fails if the new name exists.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Waits until the disk holds the directory entries.
    fn sync(&self) -> io::Result<()>;
}

/// A regular file.
pub(super) trait MediumFile: fmt::Debug + Send + Sync {
    /// Its length in bytes.
    fn size(&self) -> io::Result<u64>;

    /// Fills all of `bytes` from `offset`.
    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Truncates it, or extends it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Allocates all space for this length now, so that none is missing later.
    fn reserve(&self, len: u64) -> io::Result<()>;

    /// Waits until the disk holds what was written.
    fn sync(&self) -> io::Result<()>;
}

/// A folder of the file system.
#[derive(Debug)]
pub(super) struct Folder {
    fd: OwnedFd,
    path: PathBuf,
}

impl Folder {
    /// Opens an existing folder.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { fd: rustix::fs::open(path, flags, Mode::empty())?, path: path.to_owned() })
    }

    /// Opens `parent` and the folder `name` in it, and creates them if they do not exist. Fails if others may write to
    /// either.
    pub(super) fn private(parent: &Path, name: &str) -> Result<Self, StoreError> {
        let failed = |what: &'static str, path: &Path| {
            let path = path.to_owned();
            move |source: io::Error| StoreError::Io { what, path, source }
        };
        let made = fs::DirBuilder::new().recursive(true).mode(0o750).create(parent);
        made.map_err(failed("create", parent))?;
        let parent = Self::open(parent).map_err(failed("open", parent))?;
        parent.check()?;
        let path = parent.path.join(name);
        match rustix::fs::mkdirat(&parent.fd, name, Mode::from_raw_mode(0o750)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => {
                // Where nothing can be created, such as on a full disk, it may exist already.
                if rustix::fs::statat(&parent.fd, name, AtFlags::SYMLINK_NOFOLLOW).is_err() {
                    return Err(failed("create", &path)(error.into()));
                }
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(&parent.fd, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Err(StoreError::Unsafe {
                    path,
                    why: String::from("is a link or a file"),
                    remedy: String::from("put a folder in its place"),
                });
            }
            Err(error) => return Err(failed("open", &path)(error.into())),
        };
        let folder = Self { fd, path };
        folder.check()?;
        Ok(folder)
    }

    /// Fails if others may write to the folder.
    fn check(&self) -> Result<(), StoreError> {
        let stat = rustix::fs::fstat(&self.fd).map_err(|error| StoreError::Io {
            what: "look at",
            path: self.path.clone(),
            source: error.into(),
        })?;
        trust::check(&self.path, stat.st_uid, stat.st_mode)
            .map_err(|Untrusted { why, remedy }| StoreError::Unsafe { path: self.path.clone(), why, remedy })
    }

    fn file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        // Without `NONBLOCK`, opening a named pipe would block.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = rustix::fs::openat(&self.fd, name, flags, Mode::from_raw_mode(0o640));
        let fd = opened.map_err(|error| match error {
            Errno::LOOP => io::Error::new(io::ErrorKind::InvalidData, "it is a link"),
            Errno::NXIO => io::Error::new(io::ErrorKind::InvalidData, "it is a socket"),
            error => error.into(),
        })?;
        let stat = rustix::fs::fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no regular file"));
        }
        Ok(File(fs::File::from(fd)))
    }
}

impl Medium for Folder {
    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Box<dyn MediumFile>> {
        let flags = match access {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::RDWR,
            Access::Make => OFlags::RDWR | OFlags::CREATE,
            Access::New => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        };
        Ok(Box::new(self.file(name, flags)?))
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn MediumFile>> {
        let file = match self.file(name, OFlags::RDWR | OFlags::CREATE) {
            Ok(file) => file,
            // A file on a disk that refuses writes can still be locked.
            Err(error) => self.file(name, OFlags::RDONLY).map_err(|_second| error)?,
        };
        rustix::fs::flock(file.0.as_fd(), FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new(file))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        Ok(names)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        match rustix::fs::renameat_with(&self.fd, from, &self.fd, to, RenameFlags::NOREPLACE) {
            // Some file systems do not support `NOREPLACE`.
            Err(Errno::INVAL | Errno::NOSYS) => {
                match rustix::fs::statat(&self.fd, to, AtFlags::SYMLINK_NOFOLLOW) {
                    Err(Errno::NOENT) => Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?),
                    Ok(_) => Err(Errno::EXIST.into()),
                    Err(error) => Err(error.into()),
                }
            }
            renamed => Ok(renamed?),
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.fd)?)
    }
}

#[derive(Debug)]
struct File(fs::File);

impl MediumFile for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(bytes, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(&self.0, FallocateFlags::empty(), 0, len)?)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

#[cfg(test)]
pub(super) mod fake;
#[cfg(test)]
mod tests;
