use std::{os::fd::OwnedFd, path::Path};

use rustix::fs::{Mode, OFlags};

use super::{
    page_bytes,
    snapshot::{
        Seen,
        node::{read_whole, room_for},
    },
    text,
};

/// The zones of memory, in their usual place below `/proc`.
const ZONEINFO: &str = "zoneinfo";

/// The free pages on the lists that each CPU has for itself, which the kernel counts neither as free nor as available
/// (`pagesets` in `mm/vmstat.c`, `zoneinfo_show_print`). Reading allocates nothing.
#[derive(Debug)]
pub struct FreeLists {
    file: OwnedFd,
    buffer: Vec<u8>,
    page_bytes: u64,
}

impl FreeLists {
    /// Opens them below that `/proc`.
    pub fn open(proc: &Path) -> Seen<Self> {
        let file = rustix::fs::open(proc.join(ZONEINFO), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let buffer = vec![0; room_for(&file)];
        Ok(Self { file, buffer, page_bytes: page_bytes() })
    }

    /// What lies on all of them together, in bytes.
    pub fn read(&mut self) -> Seen<u64> {
        let text = read_whole(&self.file, &mut self.buffer)?;
        Ok(count(text).saturating_mul(self.page_bytes))
    }
}

/// The pages of all `count:` lines.
fn count(text: &[u8]) -> u64 {
    let lines = text.split(|byte| *byte == b'\n');
    let counts = lines.filter_map(|line| text::number(line.trim_ascii_start().strip_prefix(b"count:")?));
    counts.fold(0, u64::saturating_add)
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
        assert_eq!(lists.read(), Ok((7 + 7_337 + 2_134) * lists.page_bytes));
        fs::write(proc.path().join(ZONEINFO), "no zones\n").unwrap();
        assert_eq!(lists.read(), Ok(0));
    }

    #[test]
    fn a_kernel_without_them_is_told() {
        let proc = tempfile::tempdir().unwrap();
        assert_eq!(FreeLists::open(proc.path()).unwrap_err(), Missing::Gone);
    }
}
