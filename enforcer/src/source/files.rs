//! The files of a manifest folder: which exist, and their contents. Nothing else in the folder can block the reader.

use std::{
    ffi::OsStr,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Component, Path, PathBuf},
    time::SystemTime,
};

use rustix::{
    fs::{FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
};

use super::{
    loaded::{Content, SourceError},
    manifest,
};
use crate::{
    stamp::Stamp,
    trust::{self, Untrusted},
};

/// How many entries are looked at, at most.
pub(super) const MAX_ENTRIES: usize = 10_000;

/// The size of all manifests of a folder together, at most, in bytes.
pub(super) const MAX_TOTAL_BYTES: usize = 2 * manifest::MAX_BYTES;

/// How often a link that was moved meanwhile is resolved again.
const TRIES: usize = 8;

/// The entries of a directory, sorted by name, without dot files.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) directory: OwnedFd,
    pub(super) names: Vec<String>,
    /// Whether there are more.
    pub(super) truncated: bool,
    /// Whether all are files of this very directory, so that changes to them are changes in it.
    pub(super) is_closed: bool,
}

pub(super) fn open_folder(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

pub(super) fn list(directory: OwnedFd) -> Result<Listing, Errno> {
    let mut names = Vec::new();
    let (mut truncated, mut is_closed) = (false, true);
    for entry in rustix::fs::Dir::read_from(&directory)? {
        let entry = entry?;
        if entry.file_name().to_bytes().starts_with(b".") {
            continue;
        }
        if names.len() >= MAX_ENTRIES {
            truncated = true;
            break;
        }
        is_closed &= entry.file_type() == FileType::RegularFile;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(Listing { directory, names, truncated, is_closed })
}

pub(super) fn is_manifest_name(name: &str) -> bool {
    [".yaml", ".yml", ".json"].iter().any(|suffix| name.ends_with(suffix))
}

pub(super) fn is_symlink(directory: &OwnedFd, name: &str) -> bool {
    rustix::fs::statat(directory, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

/// The stamp of what has that name in the directory, not of what a link leads to.
pub(super) fn stamp(directory: &OwnedFd, name: &str) -> Option<Stamp> {
    let stat = rustix::fs::statat(directory, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some(Stamp::of(&stat))
}

/// How files are read: who may write to them, and how much of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading<'a> {
    /// The path of their directory, if only root and this process's user may write to them.
    guarded: Option<&'a Path>,
    /// How many bytes may still be read.
    left_bytes: usize,
}

impl<'a> Reading<'a> {
    /// For files that the daemon follows, in the directory at that path.
    pub(super) fn guarded(path: &'a Path) -> Self {
        Self { guarded: Some(path), left_bytes: MAX_TOTAL_BYTES }
    }

    /// For files that were given by name, or that this process wrote itself.
    pub(super) fn given() -> Self {
        Self { guarded: None, left_bytes: MAX_TOTAL_BYTES }
    }

    /// Counts a file of that size, if there is room for it.
    fn take(&mut self, bytes: usize) -> bool {
        let left = self.left_bytes.checked_sub(bytes);
        self.left_bytes = left.unwrap_or(self.left_bytes);
        left.is_some()
    }
}

/// Reads a manifest; `None` if it is not named like one, or is no regular file.
#[expect(clippy::result_large_err, reason = "made once for a file that is wrong")]
pub(super) fn read(directory: &OwnedFd, name: &str) -> Result<Option<Vec<u8>>, SourceError> {
    if !is_manifest_name(name) {
        return Ok(None);
    }
    let mut reading = Reading::given();
    match read_unless_known(directory, name, None, &mut reading) {
        Ok(Some((Content::Bytes(bytes), _))) => Ok(Some(bytes)),
        Ok(Some((Content::Failed(error), _))) => Err(error),
        Ok(Some((Content::Unchanged, _)) | None) => Ok(None),
        Err(errno) => Err(SourceError::Unreadable { file: name.to_owned(), errno }),
    }
}

/// Reads a regular file unless it still matches `known`; `None` for anything but a regular file. The content comes with
/// its stamp if the file is settled.
///
/// A link is followed if it stays inside the directory.
pub(super) fn read_unless_known(
    directory: &OwnedFd,
    name: &str,
    known: Option<Stamp>,
    reading: &mut Reading<'_>,
) -> Result<Option<(Content, Option<Stamp>)>, Errno> {
    let failed = |error| Ok(Some((Content::Failed(error), None)));
    let file = match open(directory, name) {
        Ok(file) => file,
        // A socket, or a device without a driver.
        Err(Errno::NXIO | Errno::NODEV) => return Ok(None),
        Err(Errno::XDEV) => return failed(SourceError::LeadsOut { file: name.to_owned() }),
        Err(errno) => return Err(errno),
    };
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(None);
    }
    if let Some(path) = reading.guarded
        && let Err((file, Untrusted { why, remedy })) = check(path, directory, name, &file)?
    {
        return failed(SourceError::Untrusted { file: file.display().to_string(), why, remedy });
    }
    let beyond = || SourceError::TooMuch { file: name.to_owned(), limit_bytes: MAX_TOTAL_BYTES };
    let stamp = Stamp::of(&stat);
    if known == Some(stamp) {
        return if reading.take(usize::try_from(stamp.size).unwrap_or(usize::MAX)) {
            Ok(Some((Content::Unchanged, known)))
        } else {
            failed(beyond())
        };
    }
    let settled = stamp.is_settled(SystemTime::now()).then_some(stamp);
    let limit_bytes = manifest::MAX_BYTES;
    let mut content = Vec::new();
    let mut chunk = [0_u8; 16 * 1024];
    loop {
        match rustix::io::read(&file, &mut chunk) {
            Ok(0) => break,
            Ok(count) => content.extend_from_slice(chunk.get(..count).unwrap_or_default()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        if content.len() > limit_bytes {
            return failed(SourceError::TooLarge { file: name.to_owned(), limit_bytes });
        }
        if content.len() > reading.left_bytes {
            return failed(beyond());
        }
    }
    let _has_room = reading.take(content.len());
    Ok(Some((Content::Bytes(content), settled)))
}

/// Opens a file, also through links that do not leave the directory. The kernel resolves them, so the file cannot be
/// moved out of it in between.
fn open(directory: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    // O_NONBLOCK: a pipe must not block the daemon.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let mut opened = Err(Errno::AGAIN);
    for _ in 0..TRIES {
        opened = rustix::fs::openat2(directory, name, flags, Mode::empty(), resolve);
        // Something was renamed while a `..` was resolved.
        if !matches!(opened, Err(Errno::AGAIN)) {
            break;
        }
    }
    opened
}

/// Whether others may write to a file of the directory at `path`, or replace it in a folder that a link leads through.
/// The error comes with the file or folder concerned, below the directory.
fn check(
    path: &Path,
    directory: &OwnedFd,
    name: &str,
    file: &OwnedFd,
) -> Result<Result<(), (PathBuf, Untrusted)>, Errno> {
    let check = |below: &Path, open: &OwnedFd| {
        let checked = trust::check_open(&path.join(below), open);
        let checked = checked.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(checked.map_err(|untrusted| (below.to_owned(), untrusted)))
    };
    let checked = check(Path::new(name), file)?;
    if checked.is_err() || !is_symlink(directory, name) {
        return Ok(checked);
    }
    let (root, real) = (real_path(directory)?, real_path(file)?);
    let Ok(below) = real.strip_prefix(&root) else { return Err(Errno::XDEV) };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    for folder in below.ancestors().skip(1).filter(|path| !path.as_os_str().is_empty()) {
        let open = rustix::fs::openat2(directory, folder, flags, Mode::empty(), resolve)?;
        let checked = check(folder, &open)?;
        if checked.is_err() {
            return Ok(checked);
        }
    }
    Ok(Ok(()))
}

/// The path of an open file, as the kernel knows it.
fn real_path(open: &OwnedFd) -> Result<PathBuf, Errno> {
    let link = rustix::fs::readlink(format!("/proc/self/fd/{}", open.as_raw_fd()), Vec::new())?;
    let path = PathBuf::from(OsStr::from_bytes(link.as_bytes()));
    // Not a file of a mount that is visible here.
    if matches!(path.components().next(), Some(Component::RootDir)) { Ok(path) } else { Err(Errno::XDEV) }
}
