use std::os::fd::OwnedFd;

use super::{Missing, Seen};
use crate::{
    cgroup::{self, CgroupDir},
    policy::engine::Usage,
    sense::text::{keyed, number, read_into},
};

/// How far the parts may be from the whole and still account for it: this much, and a sixty-fourth. Each processor charges
/// cgroups ahead (`MEMCG_CHARGE_BATCH`).
const UNACCOUNTED_BYTES: u64 = 1 << 20;
const UNACCOUNTED_SHARE: u64 = 64;

/// What a cgroup is charged for: `memory.current` and `memory.stat`, open.
///
/// A reader at a time: the kernel locks an open file while it is read, and the reflex waits for nobody. So whoever reads has
/// files of its own.
#[derive(Debug)]
pub struct ChargeFiles {
    pub(crate) current: OwnedFd,
    pub(crate) stat: OwnedFd,
}

/// The parts of a cgroup's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Split {
    /// Anonymous memory.
    pub anon_bytes: u64,
    /// Page cache, shared memory among it.
    pub file_bytes: u64,
    /// Page cache that was not used lately.
    pub inactive_file_bytes: u64,
    /// Shared memory and tmpfs.
    pub shmem_bytes: u64,
}

impl ChargeFiles {
    /// Opens both.
    pub fn open(dir: &CgroupDir) -> Result<Self, cgroup::Error> {
        Ok(Self { current: dir.open_read("memory.current")?, stat: dir.open_read("memory.stat")? })
    }

    /// The whole, in bytes: one system call, no allocation.
    pub fn current_bytes(&self, buffer: &mut [u8]) -> Seen<u64> {
        number(read_into(&self.current, buffer)?).ok_or(Missing::Malformed)
    }

    /// The parts: one system call, no allocation.
    pub fn split(&self, buffer: &mut [u8]) -> Seen<Split> {
        Split::parse(read_into(&self.stat, buffer)?)
    }

    /// The parts, and whether they [account](accounts_for) for the whole: one system call, no allocation.
    pub fn split_of(&self, whole_bytes: u64, buffer: &mut [u8]) -> Seen<(Split, bool)> {
        let text = read_into(&self.stat, buffer)?;
        Ok((Split::parse(text)?, accounts_for(text, whole_bytes)))
    }

    /// What it is ranked by: two system calls, no allocation.
    pub fn usage(&self, buffer: &mut [u8]) -> Seen<Usage> {
        let current_bytes = self.current_bytes(buffer)?;
        Ok(self.split(buffer)?.usage(current_bytes))
    }
}

impl Split {
    /// Of the text of a `memory.stat`. The machine's own root has one as well, in which shared memory is in `file` too.
    pub(super) fn parse(text: &[u8]) -> Seen<Self> {
        let bytes = |key: &[u8]| keyed(text, key).ok_or(Missing::Malformed);
        Ok(Self {
            anon_bytes: bytes(b"anon")?,
            file_bytes: bytes(b"file")?,
            inactive_file_bytes: bytes(b"inactive_file")?,
            shmem_bytes: bytes(b"shmem")?,
        })
    }

    /// Together with the whole. The working set is 0 where the page cache alone is more.
    #[must_use]
    pub fn usage(self, current_bytes: u64) -> Usage {
        let Self { anon_bytes, file_bytes, inactive_file_bytes, shmem_bytes } = self;
        Usage {
            current_bytes,
            working_set_bytes: current_bytes.saturating_sub(inactive_file_bytes),
            anon_bytes,
            file_bytes,
            shmem_bytes,
            process_count: None,
        }
    }
}

/// Whether the parts in the text of a `memory.stat` account for the whole in `memory.current`.
///
/// The kernel charges the whole at once, and adds up what its processors counted of the parts later (`mem_cgroup_flush_stats`
/// in `mm/memcontrol.c`). So a file may tell the parts of a moment before, and parts that stood for the whole from then on
/// would be wrong for as long as it does not change. What else is charged, such as huge pages, is no part here: of such a
/// cgroup the parts are read each time, which costs more and is right.
pub(super) fn accounts_for(text: &[u8], whole_bytes: u64) -> bool {
    let parts = [&b"anon"[..], b"file", b"kernel", b"sock"];
    let sum_bytes = parts.into_iter().filter_map(|part| keyed(text, part)).fold(0, u64::saturating_add);
    sum_bytes.abs_diff(whole_bytes) <= (whole_bytes / UNACCOUNTED_SHARE).saturating_add(UNACCOUNTED_BYTES)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const STAT: &str =
        "anon 1000\nfile 500\nkernel 70\nfile_mapped 9\nshmem 100\ninactive_anon 8\ninactive_file 300\n";

    fn files(current: &str, stat: &str) -> ChargeFiles {
        let file = |text: &str| {
            let file = tempfile::NamedTempFile::new().unwrap();
            fs::write(file.path(), text).unwrap();
            OwnedFd::from(file.into_file())
        };
        ChargeFiles { current: file(current), stat: file(stat) }
    }

    #[test]
    fn usage_is_split_and_less_what_is_easily_reclaimed() {
        let mut buffer = [0; 512];
        let usage = files("1600\n", STAT).usage(&mut buffer).unwrap();
        assert_eq!((usage.current_bytes, usage.working_set_bytes), (1600, 1300));
        assert_eq!((usage.anon_bytes, usage.file_bytes, usage.shmem_bytes), (1000, 500, 100));
        assert_eq!(files("200\n", STAT).usage(&mut buffer).unwrap().working_set_bytes, 0);
    }

    #[test]
    fn parts_of_a_moment_before_do_not_account_for_the_whole() {
        let text = b"anon 142000000\nfile 3000000\nkernel 900000\nsock 50000\nshmem 2000000\n";
        for (whole_bytes, is_all) in [
            (145_950_000, true),
            (147_000_000, true),
            (145_000_000, true),
            (150_000_000, false),
            (421_000_000, false),
            (100_000_000, false),
        ] {
            assert_eq!(accounts_for(text, whole_bytes), is_all, "{whole_bytes}");
        }
        assert!(accounts_for(b"", 0) && accounts_for(b"anon 18446744073709551615\nfile 9\n", u64::MAX));
        let (split, is_all) = files("", STAT).split_of(1_600, &mut [0; 512]).unwrap();
        assert_eq!((split.anon_bytes, is_all), (1_000, true));
    }

    #[test]
    fn what_is_missing_or_malformed_is_no_usage() {
        let mut buffer = [0; 512];
        for (current, stat) in
            [("1600\n", ""), ("1600\n", "anon x\nfile 1\nshmem 1\ninactive_file 1\n"), ("max\n", STAT)]
        {
            assert_eq!(files(current, stat).usage(&mut buffer), Err(Missing::Malformed), "{current} {stat}");
        }
    }
}
