//! Kernel records that were read, but whose event is not in the journal yet.
//!
//! A record that is consumed leaves the kernel's ring buffer. Until its event is in the journal, a kill of this process
//! would lose it. So it is copied to a file in the run directory before it is consumed. The file is emptied as soon as
//! all its records are reported. The next process reads what an earlier one left in it.
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek as _, SeekFrom, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

/// The file's name in the run directory.
const FILE: &str = "pending-records";

/// Its name in version 0.1, whose file an upgrade takes over.
const FORMER_FILE: &str = "untold";

/// Above this size the file is rewritten without the records that are old enough to have been reported.
const COMPACT_BYTES: u64 = 4 << 20;

/// Above this size no more records are kept: something makes the kernel kill without end, and the event stream has
/// all of it.
const MAX_BYTES: u64 = 16 << 20;

/// The longest time until a record is reported: an incident closes a second after its first mark.
const REPORTED_AFTER_NS: u64 = 5_000_000_000;

/// Before each record.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct Frame {
    len: U32,
    crc: U32,
    /// When it was kept: nanoseconds of `CLOCK_BOOTTIME`.
    kept_ns: U64,
}

/// The file, open for writing.
#[derive(Debug)]
pub struct PendingRecords {
    file: File,
    path: PathBuf,
    /// Goes into the checksums: what another boot left is not read.
    boot: u32,
    bytes: u64,
    /// Records that were kept, but have not reached the code that reports them.
    under_way: u64,
}

impl PendingRecords {
    /// Opens the file, creates it if it does not exist, and returns the records that an earlier process left in it, in
    /// the order in which it read them.
    ///
    /// They stay in the file until [`settle`](Self::settle), so that another kill loses none of them.
    pub fn open(run_dir: &Path, boot_id: &str) -> io::Result<(Self, Vec<Vec<u8>>)> {
        let path = run_dir.join(FILE);
        if !path.exists() {
            match fs::rename(run_dir.join(FORMER_FILE), &path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let mut file = options().create(true).open(&path).map_err(|error| {
            if error.raw_os_error() != Some(libc::ELOOP) {
                return error;
            }
            io::Error::new(io::ErrorKind::InvalidData, format!("{} is a link: remove it", path.display()))
        })?;
        let boot = crc32fast::hash(boot_id.as_bytes());
        let mut bytes = Vec::new();
        Read::by_ref(&mut file).take(MAX_BYTES + COMPACT_BYTES).read_to_end(&mut bytes)?;
        let (left, whole_bytes) = records(&bytes, boot);
        // A torn end would hide the records that are appended after it.
        file.set_len(whole_bytes)?;
        let left = left.into_iter().map(|(_, record)| record.to_vec()).collect();
        Ok((Self { file, path, boot, bytes: whole_bytes, under_way: 0 }, left))
    }

    /// Keeps a record before it is consumed from the ring buffer. It must be [taken](Self::taken) later.
    pub fn keep(&mut self, record: &[u8], now_ns: u64) -> io::Result<()> {
        self.under_way += 1;
        if self.bytes >= COMPACT_BYTES {
            self.compact(now_ns)?;
        }
        if self.bytes >= MAX_BYTES {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let frame = framed(record, self.boot, now_ns)?;
        self.bytes += u64::try_from(frame.len()).map_err(io::Error::other)?;
        self.file.write_all(&frame)
    }

    /// One of the kept records has reached the code that reports it.
    pub fn taken(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// Whether the file holds records and none of them is under way.
    #[must_use]
    pub fn can_settle(&self) -> bool {
        self.under_way == 0 && self.bytes > 0
    }

    /// Notes that all taken records are reported. Empties the file if none is under way.
    pub fn settle(&mut self) -> io::Result<()> {
        if self.can_settle() {
            self.file.set_len(0)?;
            self.bytes = 0;
        }
        Ok(())
    }

    /// Rewrites the file without the records that must have been reported by now.
    fn compact(&mut self, now_ns: u64) -> io::Result<()> {
        let mut bytes = Vec::new();
        // The file is in append mode, so the position does not affect later writes.
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_to_end(&mut bytes)?;
        let mut young = Vec::new();
        for (kept_ns, record) in records(&bytes, self.boot).0 {
            if now_ns.saturating_sub(kept_ns) < REPORTED_AFTER_NS {
                young.extend(framed(record, self.boot, kept_ns)?);
            }
        }
        // A new file and a rename: the file is complete at every moment.
        let fresh = self.path.with_extension("new");
        // A kill may have left a partial one.
        if let Err(error) = fs::remove_file(&fresh)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut file = options().create_new(true).open(&fresh)?;
        file.write_all(&young)?;
        fs::rename(&fresh, &self.path)?;
        self.file = file;
        self.bytes = u64::try_from(young.len()).map_err(io::Error::other)?;
        Ok(())
    }
}

/// For reading and appending. Never follows a link: this process may write everywhere.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).append(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options
}

fn framed(record: &[u8], boot: u32, kept_ns: u64) -> io::Result<Vec<u8>> {
    let len = u32::try_from(record.len()).map_err(io::Error::other)?;
    let frame = Frame { len: len.into(), crc: crc(boot, record).into(), kept_ns: kept_ns.into() };
    Ok([frame.as_bytes(), record].concat())
}

/// The whole records at the start, with the times when they were kept, and their size in bytes.
fn records(bytes: &[u8], boot: u32) -> (Vec<(u64, &[u8])>, u64) {
    let mut records = Vec::new();
    let mut rest = bytes;
    while let Ok((frame, after)) = Frame::read_from_prefix(rest) {
        let len = usize::try_from(frame.len.get()).unwrap_or(usize::MAX);
        let Some((record, after)) = after.split_at_checked(len) else { break };
        if crc(boot, record) != frame.crc.get() {
            break;
        }
        records.push((frame.kept_ns.get(), record));
        rest = after;
    }
    (records, u64::try_from(bytes.len() - rest.len()).unwrap_or(u64::MAX))
}

fn crc(boot: u32, record: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(boot);
    hasher.update(record);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &Path) -> (PendingRecords, Vec<Vec<u8>>) {
        PendingRecords::open(dir, "boot").unwrap()
    }

    #[test]
    fn what_was_kept_is_there_after_a_kill_until_all_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let (mut unreported, left) = open(dir.path());
        assert_eq!(left, Vec::<Vec<u8>>::new());
        unreported.keep(b"one", 1).unwrap();
        unreported.keep(b"second", 2).unwrap();
        unreported.taken();
        unreported.settle().unwrap();
        drop(unreported);

        let (mut unreported, left) = open(dir.path());
        assert_eq!(left, [b"one".to_vec(), b"second".to_vec()], "one was still under way");
        unreported.keep(b"third", 3).unwrap();
        unreported.taken();
        drop(unreported);
        assert_eq!(open(dir.path()).1.len(), 3, "reading is not telling");

        let (mut unreported, _) = open(dir.path());
        unreported.settle().unwrap();
        drop(unreported);
        assert_eq!(open(dir.path()).1, Vec::<Vec<u8>>::new());
    }

    #[test]
    fn what_a_version_with_the_former_name_left_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let (mut unreported, _) = open(dir.path());
        unreported.keep(b"one", 1).unwrap();
        drop(unreported);
        fs::rename(dir.path().join(FILE), dir.path().join(FORMER_FILE)).unwrap();
        assert_eq!(open(dir.path()).1, [b"one".to_vec()]);
        assert!(!dir.path().join(FORMER_FILE).exists());
    }

    #[test]
    fn no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let theirs = dir.path().join("theirs");
        fs::write(&theirs, "theirs").unwrap();
        std::os::unix::fs::symlink(&theirs, dir.path().join(FILE)).unwrap();
        let refused = PendingRecords::open(dir.path(), "boot").unwrap_err().to_string();
        assert!(refused.contains("is a link"), "{refused}");
        assert_eq!(fs::read_to_string(&theirs).unwrap(), "theirs");
    }

    /// Whatever stands under the name by then: what is kept is what was kept here.
    #[test]
    fn what_grew_is_read_from_the_file_itself() {
        let dir = tempfile::tempdir().unwrap();
        let (mut unreported, _) = open(dir.path());
        unreported.keep(b"young", 1).unwrap();
        fs::write(dir.path().join("other"), "").unwrap();
        fs::rename(dir.path().join("other"), dir.path().join(FILE)).unwrap();
        unreported.compact(2).unwrap();
        assert_eq!(open(dir.path()).1, [b"young".to_vec()]);
    }

    #[test]
    fn a_torn_end_is_cut_off_and_another_boot_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let (mut unreported, _) = open(dir.path());
        unreported.keep(b"one", 1).unwrap();
        unreported.keep(b"torn", 2).unwrap();
        let path = dir.path().join(FILE);
        let len = fs::metadata(&path).unwrap().len();
        File::options().write(true).open(&path).unwrap().set_len(len - 1).unwrap();
        let (mut unreported, left) = open(dir.path());
        assert_eq!(left, [b"one".to_vec()]);
        unreported.keep(b"next", 3).unwrap();
        assert_eq!(open(dir.path()).1, [b"one".to_vec(), b"next".to_vec()]);
        assert_eq!(PendingRecords::open(dir.path(), "other").unwrap().1, Vec::<Vec<u8>>::new());
    }

    #[test]
    fn a_file_that_grows_loses_only_what_must_have_been_reported() {
        let dir = tempfile::tempdir().unwrap();
        let (mut unreported, _) = open(dir.path());
        let record = vec![7; 1 << 16];
        let old = usize::try_from(COMPACT_BYTES).unwrap() / record.len() + 1;
        for _ in 0..old {
            unreported.keep(&record, 0).unwrap();
        }
        unreported.keep(b"young", REPORTED_AFTER_NS).unwrap();
        assert_eq!(open(dir.path()).1, [b"young".to_vec()]);
        let most = usize::try_from(MAX_BYTES).unwrap() / record.len() + 2;
        let refused = (0..most).filter(|_| unreported.keep(&record, REPORTED_AFTER_NS).is_err()).count();
        assert!((1..4).contains(&refused), "{refused}");
    }
}
