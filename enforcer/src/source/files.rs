//! The files of a folder of manifests: which there are, and what is in them. Whatever else stands there, nobody waits.

use std::{
    io,
    os::fd::OwnedFd,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::{
    fs::{FileType, Mode, OFlags, Stat},
    io::Errno,
};

use super::{
    loaded::{Content, SourceError},
    manifest,
};

/// The most entries that are looked at.
pub(super) const MAX_ENTRIES: usize = 10_000;

/// A file that changed less than this before it was read may change again within the same tick of the file system's
/// clock: it is read again the next time.
const SETTLED: Duration = Duration::from_secs(2);

/// What tells that a file is the same as before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size: i64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The entries of a directory, without dot-files, by name.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) directory: OwnedFd,
    pub(super) names: Vec<String>,
    /// Whether there are more.
    pub(super) truncated: bool,
    /// Whether all are files of this very directory, so that changes of them are changes in it.
    pub(super) is_closed: bool,
}

pub(super) fn list(path: &Path) -> Result<Listing, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty())?;
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

/// Reads a manifest; none if it is not named like one, or no regular file.
pub(super) fn read(directory: &OwnedFd, name: &str) -> io::Result<Option<Vec<u8>>> {
    if !is_manifest_name(name) {
        return Ok(None);
    }
    match read_unless_known(directory, name, None)? {
        Some((Content::Bytes(bytes), _)) => Ok(Some(bytes)),
        Some((Content::Failed(_), _)) => Err(io::ErrorKind::FileTooLarge.into()),
        Some((Content::Unchanged, _)) | None => Ok(None),
    }
}

/// Reads a regular file that is not as `known`; none for anything but a regular file. With the content comes its stamp,
/// if the file is settled.
pub(super) fn read_unless_known(
    directory: &OwnedFd,
    name: &str,
    known: Option<Stamp>,
) -> Result<Option<(Content, Option<Stamp>)>, Errno> {
    // A pipe must not hold the daemon up: O_NONBLOCK. Symlinks are followed.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
        Ok(file) => file,
        // A socket, or a device without a driver.
        Err(Errno::NXIO | Errno::NODEV) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(None);
    }
    let stamp = Stamp::of(&stat);
    if known == Some(stamp) {
        return Ok(Some((Content::Unchanged, known)));
    }
    let settled = stamp.is_settled(SystemTime::now()).then_some(stamp);
    let limit_bytes = manifest::MAX_BYTES;
    let too_large = || Content::Failed(SourceError::TooLarge { file: name.to_owned(), limit_bytes });
    let mut content = Vec::new();
    let mut chunk = [0_u8; 16 * 1024];
    loop {
        match rustix::io::read(&file, &mut chunk) {
            Ok(0) => return Ok(Some((Content::Bytes(content), settled))),
            Ok(count) => content.extend_from_slice(chunk.get(..count).unwrap_or_default()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        if content.len() > limit_bytes {
            return Ok(Some((too_large(), None)));
        }
    }
}

impl Stamp {
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size,
            modified: (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or_default()),
            changed: (stat.st_ctime, i64::try_from(stat.st_ctime_nsec).unwrap_or_default()),
        }
    }

    pub(super) fn is_settled(self, now: SystemTime) -> bool {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let changed = Duration::from_secs(u64::try_from(self.changed.0).unwrap_or_default());
        // A file from the future is never settled.
        now.checked_sub(changed).is_some_and(|age| age >= SETTLED)
    }
}
