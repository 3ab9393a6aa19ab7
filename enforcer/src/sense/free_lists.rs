//! Counts free pages that `MemAvailable` leaves out: a victim's death leaves many of them.

use std::{os::fd::OwnedFd, path::Path};

use rustix::fs::{Mode, OFlags};

use super::{
    page_bytes,
    snapshot::{
        ReadResult,
        node::{read_whole, room_for},
    },
    text,
};

/// The file with the memory zones, below `/proc`.
const ZONEINFO: &str = "zoneinfo";

/// The sums over all per-CPU lists.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FreeListsRead {
    /// Free pages on the lists, in bytes.
    pub free_bytes: u64,
    /// The current capacity of the lists, in bytes: since Linux 6.7 the kernel adapts it.
    pub most_bytes: u64,
}

/// The free pages on the per-CPU lists, which the kernel counts neither as free nor as available (`pagesets` in
/// `mm/vmstat.c`, `zoneinfo_show_print`). Reading allocates nothing.
#[derive(Debug)]
pub struct FreeLists {
    file: OwnedFd,
    buffer: Vec<u8>,
    page_bytes: u64,
}

impl FreeLists {
    /// Opens the file below that `/proc`.
    pub fn open(proc: &Path) -> ReadResult<Self> {
        let file = rustix::fs::open(proc.join(ZONEINFO), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let buffer = vec![0; room_for(&file)];
        Ok(Self { file, buffer, page_bytes: page_bytes() })
    }

    /// Reads the sums.
    pub fn read(&mut self) -> ReadResult<FreeListsRead> {
        let text = read_whole(&self.file, &mut self.buffer)?;
        let bytes = |key: &[u8]| sum(text, key).saturating_mul(self.page_bytes);
        Ok(FreeListsRead { free_bytes: bytes(b"count:"), most_bytes: bytes(b"high:") })
    }
}

/// The sum of pages over all lines with that key.
fn sum(text: &[u8], key: &[u8]) -> u64 {
    let lines = text.split(|byte| *byte == b'\n');
    let pages = lines.filter_map(|line| text::number(line.trim_ascii_start().strip_prefix(key)?));
    pages.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::sense::snapshot::Missing;

    /// As Linux 7.2 shows it, cut down.
    const TEXT: &str = "\
Node 0, zone      DMA
  pages free     3840
        count    12
  pagesets
    cpu: 0
              count:    0
              high:     0
    cpu: 1
              count:    7
  vm stats threshold: 4
Node 0, zone    DMA32
  pages free     100
  pagesets
    cpu: 0
              count:    7337
              high:     8834
              high_max: 30536
    cpu: 1
              count:    2134
  node_unreclaimable:  0
";

    #[test]
    fn the_lists_of_all_cpus_and_zones_are_added_up() {
        let proc = tempfile::tempdir().unwrap();
        fs::write(proc.path().join(ZONEINFO), TEXT).unwrap();
        let mut lists = FreeLists::open(proc.path()).unwrap();
        let page_bytes = lists.page_bytes;
        let read =
            FreeListsRead { free_bytes: (7 + 7_337 + 2_134) * page_bytes, most_bytes: 8_834 * page_bytes };
        assert_eq!(lists.read(), Ok(read));
        fs::write(proc.path().join(ZONEINFO), "no zones\n").unwrap();
        assert_eq!(lists.read(), Ok(FreeListsRead::default()));
    }

    #[test]
    fn a_kernel_without_them_is_reported() {
        let proc = tempfile::tempdir().unwrap();
        assert_eq!(FreeLists::open(proc.path()).unwrap_err(), Missing::Gone);
    }
}
