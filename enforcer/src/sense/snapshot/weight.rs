//! What alignment weighs pods by, read in full only after a real change.

use std::os::fd::OwnedFd;

use super::{BranchFiles, Charge, ChargeFiles, Missing, ReadResult};
use crate::{
    cgroup::{self, CgroupDir},
    policy::engine::Usage,
    sense::text::{keyed, number, read_into},
};

/// A reading is reused while the whole has changed by no more than this, and a sixty-fourth: the parts cost the kernel
/// a hundred times as much as the whole.
const ALIKE_BYTES: u64 = 1 << 20;
const ALIKE_SHARE: u64 = 64;

/// A cgroup's weight in the ranking, and for the kernel's OOM killer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Weight {
    /// The basis of the ranking: `memory.current` less inactive file pages.
    pub working_set_bytes: u64,
    /// The most that one process in it can weigh for the kernel (`oom_badness`): anonymous and mapped memory, page
    /// tables and swap. 0 indicates that there is no process.
    pub process_bytes: u64,
}

/// A cgroup's open files for its weight, and the last reading.
#[derive(Debug)]
pub struct WeightFiles {
    charge: BranchFiles,
    swap: Option<OwnedFd>,
    /// The whole at the last reading of the parts, if they accounted for it.
    seen: Option<(u64, Weight)>,
}

impl Weight {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            working_set_bytes: self.working_set_bytes.saturating_add(other.working_set_bytes),
            process_bytes: self.process_bytes.saturating_add(other.process_bytes),
        }
    }
}

/// The parts of a weight, except swap.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    charge: Charge,
    /// Page cache that processes map, and their page tables.
    mapped_bytes: u64,
}

impl Parts {
    fn read(files: &ChargeFiles, buffer: &mut [u8]) -> ReadResult<Self> {
        let current_bytes = files.current_bytes(buffer)?;
        Self::parse(current_bytes, read_into(&files.stat, buffer)?)
    }

    fn parse(current_bytes: u64, stat: &[u8]) -> ReadResult<Self> {
        let file_mapped_bytes = keyed(stat, b"file_mapped").ok_or(Missing::Malformed)?;
        // Missing before Linux 5.11.
        let page_tables_bytes = keyed(stat, b"pagetables").unwrap_or(0);
        Ok(Self {
            charge: Charge::parse(current_bytes, stat)?,
            mapped_bytes: file_mapped_bytes.saturating_add(page_tables_bytes),
        })
    }

    fn plus(self, other: Self) -> Self {
        Self {
            charge: self.charge.plus(other.charge),
            mapped_bytes: self.mapped_bytes.saturating_add(other.mapped_bytes),
        }
    }

    /// As [`Charge::made_of`].
    fn made_of(self, below: Self) -> Self {
        Self {
            charge: self.charge.made_of(below.charge),
            mapped_bytes: self.charge.part(below.charge, self.mapped_bytes, below.mapped_bytes),
        }
    }

    fn weight(self, swap_bytes: u64) -> Weight {
        let Usage { working_set_bytes, anon_bytes, .. } = self.charge.usage();
        let process_bytes = anon_bytes.saturating_add(self.mapped_bytes).saturating_add(swap_bytes);
        Weight { working_set_bytes, process_bytes }
    }
}

impl WeightFiles {
    /// Opens them; without swap if the kernel does not account it.
    pub fn open(dir: &CgroupDir) -> Result<Self, cgroup::Error> {
        let swap = match dir.open_read("memory.swap.current") {
            Ok(fd) => Some(fd),
            Err(error) if error.is_gone() => None,
            Err(error) => return Err(error),
        };
        Ok(Self { charge: BranchFiles::open(dir)?, swap, seen: None })
    }

    /// Reads the weight: at rest one system call, or two with swap.
    pub fn read(&mut self, buffer: &mut [u8]) -> ReadResult<Weight> {
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
        let (own, below) = self.charge.read(buffer, Parts::read, Parts::plus)?;
        let parts = own.made_of(below);
        let weight = parts.weight(swap_bytes);
        self.seen = parts.charge.is_accounted_for().then_some((whole_bytes, weight));
        Ok(weight)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const STAT: &str = "anon 4000000\nfile 3000000\nkernel 70\npagetables 5000\nfile_mapped 600000\nshmem 0\n\
                        inactive_file 2000000\n";

    #[test]
    fn unmapped_cache_weighs_nothing_with_the_kernel() {
        let weight =
            |stat: &str, swap| Parts::parse(7_000_000, stat.as_bytes()).map(|parts| parts.weight(swap));
        let all = weight(STAT, 100).unwrap();
        assert_eq!(all, Weight { working_set_bytes: 5_000_000, process_bytes: 4_605_100 });
        let old = STAT.replace("pagetables 5000\n", "");
        assert_eq!(weight(&old, 0).unwrap().process_bytes, 4_600_000);
        assert_eq!(weight("anon 1\n", 0), Err(Missing::Malformed));
    }

    #[test]
    fn what_containers_have_just_taken_weighs_before_their_pod_counts_it() {
        let temp = tempfile::tempdir().unwrap();
        let write = |path: &str, current: u64, [anon, mapped, cached]: [u64; 3]| {
            let dir = temp.path().join(path);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("memory.current"), current.to_string()).unwrap();
            let stat = format!(
                "anon {anon}\nfile {cached}\nfile_mapped {mapped}\nshmem 0\ninactive_file {cached}\n"
            );
            fs::write(dir.join("memory.stat"), stat).unwrap();
        };
        write("", 900_000_000, [100_000_000, 50_000_000, 600_000_000]);
        write("app", 890_000_000, [880_000_000, 2_000_000, 10_000_000]);
        let mut files = WeightFiles::open(&CgroupDir::unchecked(temp.path()).unwrap()).unwrap();
        // Ten are charged to the pod alone, and what is known of them is no more than that.
        let weight = files.read(&mut [0; 512]).unwrap();
        assert_eq!(weight, Weight { working_set_bytes: 880_000_000, process_bytes: 892_000_000 });
    }

    #[test]
    fn the_parts_are_read_anew_when_the_whole_is_another() {
        let temp = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(temp.path().join(file), text).unwrap();
        let parts = |anon: u64| {
            let stat = format!("anon {anon}\nfile 0\nfile_mapped 0\nshmem 0\ninactive_file 0\n");
            write("memory.stat", &stat);
        };
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
