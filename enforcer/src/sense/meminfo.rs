//! Parses `/proc/meminfo`, fast enough for a thousand readings a second.

use std::{io, os::fd::OwnedFd, path::Path};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};

/// The usual path of the kernel's memory summary.
pub const PROC_MEMINFO: &str = "/proc/meminfo";

/// `/proc/meminfo` has about 1.5 KiB, and the lines that are read are in its first half.
const BUFFER_BYTES: usize = 4096;

/// How many lines are read.
const KEYS: usize = 12;

/// The node's memory at one moment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MemoryInfo {
    /// `MemTotal`.
    pub total_bytes: u64,
    /// `MemFree`.
    pub free_bytes: u64,
    /// `MemAvailable`: the kernel's own estimate of the memory available without swapping (`si_mem_available`).
    pub available_bytes: u64,
    /// The kubelet's working set: `AnonPages` and all file pages (`Cached`, `Buffers`, `SwapCached`) less
    /// `Inactive(file)`, at least 0, without the kernel's own use. `None` if one of the lines is missing.
    pub working_set_bytes: Option<u64>,
    /// A lower bound of shared memory and tmpfs files that no process maps: `Shmem` less `Mapped`. `Mapped` includes
    /// mapped files, so the true value may be larger by as much as is mapped of them. 0 if either line is missing.
    pub unmapped_shmem_bytes: u64,
    /// `Shmem`: all shared memory and tmpfs files; 0 if the line is missing.
    pub shmem_bytes: u64,
    /// `SwapTotal`.
    pub swap_total_bytes: u64,
    /// `SwapFree`.
    pub swap_free_bytes: u64,
}

/// Why there is no reading. Holds no heap memory, so that the reflex can create and return it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MeminfoError {
    /// The file could not be opened or read.
    #[error("cannot read the memory summary: {}", io::Error::from(*.0))]
    Read(Errno),
    /// `MemTotal`, `MemFree`, `MemAvailable` or a line for the working set is missing, or is not a number of kB.
    #[error(
        "the memory summary lacks MemTotal, MemFree, MemAvailable, AnonPages, Cached, Buffers or Inactive(file) in kB"
    )]
    Malformed,
}

/// `/proc/meminfo`, open. A reading is one system call, 10 to 30 µs by the kernel's counting, and no allocation.
#[derive(Debug)]
pub struct Meminfo {
    fd: OwnedFd,
    buffer: [u8; BUFFER_BYTES],
}

impl Meminfo {
    /// Opens the summary at `path`, usually [`PROC_MEMINFO`].
    pub fn open(path: &Path) -> Result<Self, MeminfoError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(MeminfoError::Read)?;
        Ok(Self { fd, buffer: [0; BUFFER_BYTES] })
    }

    /// Reads it again.
    pub fn read(&mut self) -> Result<MemoryInfo, MeminfoError> {
        let count = rustix::io::retry_on_intr(|| rustix::io::pread(&self.fd, &mut self.buffer, 0))
            .map_err(MeminfoError::Read)?;
        parse(self.buffer.get(..count).unwrap_or_default()).ok_or(MeminfoError::Malformed)
    }
}

/// Parses the text; an incomplete last line may be cut off and is ignored.
fn parse(text: &[u8]) -> Option<MemoryInfo> {
    let (mut total, mut free, mut available, mut swap_total, mut swap_free) = (None, None, None, None, None);
    let (mut anon, mut cached, mut buffers, mut swap_cached, mut inactive_file) =
        (None, None, None, None, None);
    let (mut shmem, mut mapped) = (None, None);
    let mut unread = KEYS;
    let end = text.iter().rposition(|byte| *byte == b'\n')?;
    for line in text.get(..end)?.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (key, value) = line.split_at(colon);
        let field = match key {
            b"MemTotal" => &mut total,
            b"MemFree" => &mut free,
            b"MemAvailable" => &mut available,
            b"AnonPages" => &mut anon,
            b"Cached" => &mut cached,
            b"Buffers" => &mut buffers,
            b"SwapCached" => &mut swap_cached,
            b"Inactive(file)" => &mut inactive_file,
            b"Shmem" => &mut shmem,
            b"Mapped" => &mut mapped,
            b"SwapTotal" => &mut swap_total,
            b"SwapFree" => &mut swap_free,
            _ => continue,
        };
        let before = field.replace(kilobytes(value.get(1..)?)?);
        unread -= usize::from(before.is_none());
        // More than half of the text follows.
        if unread == 0 {
            break;
        }
    }
    Some(MemoryInfo {
        total_bytes: total?,
        free_bytes: free?,
        available_bytes: available?,
        working_set_bytes: working_set(anon, &[cached, buffers, swap_cached.or(Some(0))], inactive_file),
        unmapped_shmem_bytes: shmem.unwrap_or(0).saturating_sub(mapped.unwrap_or(u64::MAX)),
        shmem_bytes: shmem.unwrap_or(0),
        // A kernel without swap omits the lines.
        swap_total_bytes: swap_total.unwrap_or(0),
        swap_free_bytes: swap_free.unwrap_or(0),
    })
}

fn working_set(anon: Option<u64>, file: &[Option<u64>], inactive_file: Option<u64>) -> Option<u64> {
    let usage_bytes = file.iter().try_fold(anon?, |sum: u64, bytes| sum.checked_add((*bytes)?))?;
    Some(usage_bytes.saturating_sub(inactive_file?))
}

/// Reads `   123 kB` into bytes.
fn kilobytes(value: &[u8]) -> Option<u64> {
    let digits = value.trim_ascii().strip_suffix(b" kB")?;
    str::from_utf8(digits).ok()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "MemTotal:       24683888 kB\nMemFree:        17245008 kB\nMemAvailable:   24231120 kB\n\
        Buffers:               0 kB\nSwapCached:            0 kB\nSwapTotal:       1048576 kB\nSwapFree:        524288 kB\n\
        HugePages_Total:       0\n";

    #[test]
    fn reads_what_the_kernel_writes() {
        let info = parse(TEXT.as_bytes()).unwrap();
        assert_eq!(info.total_bytes, 24_683_888 * 1024);
        assert_eq!(info.free_bytes, 17_245_008 * 1024);
        assert_eq!(info.available_bytes, 24_231_120 * 1024);
        assert_eq!((info.swap_total_bytes, info.swap_free_bytes), (1 << 30, 1 << 29));
    }

    #[test]
    fn what_is_missing_or_no_number_is_no_reading() {
        for key in ["MemTotal", "MemFree", "MemAvailable"] {
            assert_eq!(parse(TEXT.replace(key, "Other").as_bytes()), None, "{key}");
        }
        for value in ["x kB", "-1 kB", "1", "18446744073709551615 kB", ""] {
            assert_eq!(parse(TEXT.replace("24231120 kB", value).as_bytes()), None, "{value}");
        }
        // Cut off in the middle of the number: 2423 kB would be a shortage.
        let cut = TEXT.find("24231120").unwrap() + 4;
        assert_eq!(parse(&TEXT.as_bytes()[..cut]), None);
    }

    #[test]
    fn the_working_set_is_what_is_in_use_but_for_idle_file_pages() {
        let text = |anon: u64, cached: u64, inactive_file: u64| {
            format!(
                "{TEXT}Cached: {cached} kB\nActive(file): 77 kB\nInactive(file): {inactive_file} kB\nAnonPages: {anon} kB\n"
            )
        };
        let working_set = |text: &str| parse(text.as_bytes()).unwrap().working_set_bytes;
        assert_eq!(working_set(&text(3_000, 2_000, 500)), Some(4_500 * 1_024));
        let busy = text(3_000, 2_000, 500)
            .replace("Buffers:               0", "Buffers: 30")
            .replace("SwapCached:            0", "SwapCached: 4");
        assert_eq!(working_set(&busy), Some(4_534 * 1_024));
        assert_eq!(working_set(&text(10, 10, 500)), Some(0), "more idle cache than usage");
        assert_eq!(working_set(TEXT), None, "lines are missing");
        assert_eq!(working_set(&text(u64::MAX / 1_024, 1_000, 0)), None, "more than there can be");
    }

    #[test]
    fn what_follows_the_last_line_of_interest_is_not_read() {
        let all = format!(
            "{TEXT}Cached: 7 kB\nInactive(file): 5 kB\nAnonPages: 3 kB\nMapped: 100 kB\nShmem: 1300 kB\n"
        );
        let info = parse(all.as_bytes()).unwrap();
        assert_eq!((info.working_set_bytes, info.unmapped_shmem_bytes), (Some(5 * 1_024), 1_200 * 1_024));
        assert_eq!(parse(format!("{all}MemFree: none\n").as_bytes()), Some(info));
    }

    #[test]
    fn unmapped_shared_memory_is_what_exceeds_all_that_is_mapped() {
        let unmapped = |lines: &str| parse(format!("{TEXT}{lines}").as_bytes()).unwrap().unmapped_shmem_bytes;
        assert_eq!(unmapped("Mapped: 100 kB\nShmem: 1300 kB\n"), 1_200 * 1_024);
        assert_eq!(unmapped("Mapped: 1300 kB\nShmem: 100 kB\n"), 0);
        assert_eq!(unmapped("Shmem: 1300 kB\n"), 0, "how much is mapped is not known");
    }

    #[test]
    fn an_open_file_is_read_anew_each_time() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), TEXT).unwrap();
        let mut meminfo = Meminfo::open(file.path()).unwrap();
        assert_eq!(meminfo.read().unwrap().available_bytes, 24_231_120 * 1024);
        std::fs::write(file.path(), TEXT.replace("24231120", "204800")).unwrap();
        assert_eq!(meminfo.read().unwrap().available_bytes, 200 << 20);
        std::fs::write(file.path(), "").unwrap();
        assert_eq!(meminfo.read(), Err(MeminfoError::Malformed));
    }

    #[test]
    fn agrees_with_the_running_kernel() {
        let info = Meminfo::open(Path::new(PROC_MEMINFO)).unwrap().read().unwrap();
        let kernel = rustix::system::sysinfo();
        assert_eq!(info.total_bytes, kernel.totalram * u64::from(kernel.mem_unit));
        assert!(info.available_bytes <= info.total_bytes);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in prop::collection::vec(any::<u8>(), 0..600)) {
            let _: Option<MemoryInfo> = parse(&text);
        }
    }
}
