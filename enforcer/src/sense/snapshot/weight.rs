use std::os::fd::OwnedFd;

use super::{ChargeFiles, Missing, Seen, charge::accounts_for};
use crate::{
    cgroup::{self, CgroupDir},
    sense::text::{keyed, number, read_into},
};

/// What was read stands for what is there while the whole has not changed by more than this, and a sixty-fourth: the parts
/// cost the kernel a hundred times as much as the whole.
const ALIKE_BYTES: u64 = 1 << 20;
const ALIKE_SHARE: u64 = 64;

/// What a cgroup weighs in the ranking, and with the kernel's OOM killer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Weight {
    /// What the ranking goes by: `memory.current` less inactive file pages.
    pub working_set_bytes: u64,
    /// The most that one process in it can weigh with the kernel (`oom_badness`): anonymous and mapped memory, page tables
    /// and swap. Nothing is a sign that there is no process.
    pub process_bytes: u64,
}

/// A cgroup's files that tell its weight, open, with what was read last.
#[derive(Debug)]
pub struct WeightFiles {
    charge: ChargeFiles,
    swap: Option<OwnedFd>,
    /// The whole at the last reading of the parts, if they accounted for it.
    seen: Option<(u64, Weight)>,
}

impl Weight {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            working_set_bytes: self.working_set_bytes.saturating_add(other.working_set_bytes),
            process_bytes: self.process_bytes.saturating_add(other.process_bytes),
        }
    }

    fn parse(current_bytes: u64, swap_bytes: u64, stat: &[u8]) -> Seen<Self> {
        let bytes = |key: &[u8]| keyed(stat, key).ok_or(Missing::Malformed);
        // Not told before Linux 5.11.
        let page_tables_bytes = keyed(stat, b"pagetables").unwrap_or(0);
        let mapped_bytes = bytes(b"anon")?.saturating_add(bytes(b"file_mapped")?);
        Ok(Self {
            working_set_bytes: current_bytes.saturating_sub(bytes(b"inactive_file")?),
            process_bytes: mapped_bytes.saturating_add(page_tables_bytes).saturating_add(swap_bytes),
        })
    }
}

impl WeightFiles {
    /// Opens them; swap is left out where the kernel does not account it.
    pub fn open(dir: &CgroupDir) -> Result<Self, cgroup::Error> {
        let swap = match dir.open_read("memory.swap.current") {
            Ok(fd) => Some(fd),
            Err(error) if error.is_gone() => None,
            Err(error) => return Err(error),
        };
        Ok(Self { charge: ChargeFiles::open(dir)?, swap, seen: None })
    }

    /// Reads it: at rest one system call, or two with swap.
    pub fn read(&mut self, buffer: &mut [u8]) -> Seen<Weight> {
        let swap_bytes = match &self.swap {
            None => 0,
            Some(fd) => number(read_into(fd, buffer)?).ok_or(Missing::Malformed)?,
        };
        let current_bytes = self.charge.current_bytes(buffer)?;
        let whole_bytes = current_bytes.saturating_add(swap_bytes);
        if let Some((before_bytes, weight)) = self.seen
            && before_bytes.abs_diff(whole_bytes) <= (before_bytes / ALIKE_SHARE).saturating_add(ALIKE_BYTES)
        {
            return Ok(weight);
        }
        let stat = read_into(&self.charge.stat, buffer)?;
        let weight = Weight::parse(current_bytes, swap_bytes, stat)?;
        self.seen = accounts_for(stat, current_bytes).then_some((whole_bytes, weight));
        Ok(weight)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const STAT: &str =
        "anon 4000000\nfile 3000000\nkernel 70\npagetables 5000\nfile_mapped 600000\ninactive_file 2000000\n";

    #[test]
    fn cache_that_nobody_maps_weighs_nothing_with_the_kernel() {
        let weight = Weight::parse(7_000_000, 100, STAT.as_bytes()).unwrap();
        assert_eq!(weight, Weight { working_set_bytes: 5_000_000, process_bytes: 4_605_100 });
        let old = STAT.replace("pagetables 5000\n", "");
        assert_eq!(Weight::parse(7_000_000, 0, old.as_bytes()).unwrap().process_bytes, 4_600_000);
        assert_eq!(Weight::parse(7_000_000, 0, b"anon 1\n"), Err(Missing::Malformed));
    }

    #[test]
    fn the_parts_are_read_anew_when_the_whole_is_another() {
        let temp = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(temp.path().join(file), text).unwrap();
        let parts =
            |anon: u64| write("memory.stat", &format!("anon {anon}\nfile_mapped 0\ninactive_file 0\n"));
        write("memory.current", "128000000\n");
        parts(127_500_000);
        let mut files = WeightFiles::open(&CgroupDir::unchecked(temp.path()).unwrap()).unwrap();
        let mut buffer = [0; 512];
        let first = files.read(&mut buffer).unwrap();
        assert_eq!(first, Weight { working_set_bytes: 128_000_000, process_bytes: 127_500_000 });
        parts(1);
        write("memory.current", "131000000\n");
        assert_eq!(files.read(&mut buffer), Ok(first));
        // The kernel has charged what it has not yet counted among the parts.
        write("memory.current", "420000000\n");
        assert_eq!(files.read(&mut buffer).unwrap().process_bytes, 1);
        parts(419_000_000);
        assert_eq!(files.read(&mut buffer).unwrap().process_bytes, 419_000_000);
        parts(1);
        assert_eq!(files.read(&mut buffer).unwrap().process_bytes, 419_000_000);
    }
}
