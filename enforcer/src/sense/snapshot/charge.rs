//! Usage as the ranking takes it, corrected for counters that the kernel sums up late.

use std::os::fd::OwnedFd;

use super::{Missing, ReadResult};
use crate::{
    cgroup::{self, CgroupDir},
    policy::engine::Usage,
    sense::text::{keyed, number, read_into},
};

/// How much the parts may differ from the whole and still account for it: this much, and a sixty-fourth. Each CPU
/// charges cgroups ahead (`MEMCG_CHARGE_BATCH`).
const UNACCOUNTED_BYTES: u64 = 1 << 20;
const UNACCOUNTED_SHARE: u64 = 64;

/// The open files with a cgroup's charge: `memory.current` and `memory.stat`.
///
/// One reader at a time: the kernel locks an open file while it is read, and the reflex must not wait. So every reader
/// has files of its own.
#[derive(Debug)]
pub struct ChargeFiles {
    pub(crate) current: OwnedFd,
    pub(crate) stat: OwnedFd,
}

/// A cgroup's charge at one moment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Charge {
    /// The whole, in bytes. The kernel updates it at once.
    pub current_bytes: u64,
    /// Its parts. The kernel updates them with a delay.
    pub split: Split,
    /// The sum of all parts, including the kernel's own memory.
    pub parts_bytes: u64,
}

/// The parts of a cgroup's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Split {
    /// Anonymous memory.
    pub anon_bytes: u64,
    /// Page cache, including shared memory.
    pub file_bytes: u64,
    /// Page cache that was not used recently.
    pub inactive_file_bytes: u64,
    /// Shared memory and tmpfs.
    pub shmem_bytes: u64,
    /// Page cache that processes map, including shared memory.
    pub file_mapped_bytes: u64,
}

impl ChargeFiles {
    /// Opens both.
    pub fn open(dir: &CgroupDir) -> Result<Self, cgroup::Error> {
        Ok(Self { current: dir.open_read("memory.current")?, stat: dir.open_read("memory.stat")? })
    }

    /// The whole, in bytes: one system call, no allocation.
    pub fn current_bytes(&self, buffer: &mut [u8]) -> ReadResult<u64> {
        number(read_into(&self.current, buffer)?).ok_or(Missing::Malformed)
    }

    /// The parts: one system call, no allocation.
    pub fn split(&self, buffer: &mut [u8]) -> ReadResult<Split> {
        Split::parse(read_into(&self.stat, buffer)?)
    }

    /// The whole and its parts: two system calls, no allocation.
    pub fn charge(&self, buffer: &mut [u8]) -> ReadResult<Charge> {
        let current_bytes = self.current_bytes(buffer)?;
        Charge::parse(current_bytes, read_into(&self.stat, buffer)?)
    }

    /// The usage for the ranking: two system calls, no allocation.
    pub fn usage(&self, buffer: &mut [u8]) -> ReadResult<Usage> {
        Ok(self.charge(buffer)?.usage())
    }
}

impl Charge {
    /// From the whole and the text of a `memory.stat`.
    pub(super) fn parse(current_bytes: u64, stat: &[u8]) -> ReadResult<Self> {
        Ok(Self { current_bytes, split: Split::parse(stat)?, parts_bytes: sum(stat) })
    }

    /// The usage for the ranking.
    #[must_use]
    pub fn usage(self) -> Usage {
        self.split.usage(self.current_bytes)
    }

    /// Whether the parts account for the whole.
    ///
    /// The kernel charges the whole at once, but sums up the parts from its CPUs later (`mem_cgroup_flush_stats` in
    /// `mm/memcontrol.c`). So a file may show the parts of a moment before. Parts that were cached with the whole would
    /// then stay wrong until the whole changes. Other charges, such as huge pages, are in no part: for such a cgroup
    /// the parts are read each time, which costs more and is right.
    #[must_use]
    pub fn is_accounted_for(self) -> bool {
        self.parts_bytes.abs_diff(self.current_bytes) <= tolerance(self.current_bytes)
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let (split, others) = (self.split, other.split);
        Self {
            current_bytes: self.current_bytes.saturating_add(other.current_bytes),
            split: Split {
                anon_bytes: split.anon_bytes.saturating_add(others.anon_bytes),
                file_bytes: split.file_bytes.saturating_add(others.file_bytes),
                inactive_file_bytes: split.inactive_file_bytes.saturating_add(others.inactive_file_bytes),
                shmem_bytes: split.shmem_bytes.saturating_add(others.shmem_bytes),
                file_mapped_bytes: split.file_mapped_bytes.saturating_add(others.file_mapped_bytes),
            },
            parts_bytes: self.parts_bytes.saturating_add(other.parts_bytes),
        }
    }

    /// Replaces the parts by those that the cgroups below it report, `below` being the sum of these.
    ///
    /// In the cgroup where a page is charged, the kernel knows its parts within a few pages per CPU. Above, they may be
    /// two seconds old, off by as much as was read or written since: an update marks no cgroup above the first one that
    /// waits for a flush as stale (`memcg_rstat_updated` in mm/memcontrol.c; in Linux 7.2, not in 6.12), though a flush
    /// of those above may have missed that one. Page cache that was just read would count as working set here, and
    /// freed memory as used. The wholes are exact everywhere: so the charge of this cgroup alone is known, and it
    /// bounds how much of each part can be above the cgroups below.
    #[must_use]
    pub fn made_of(self, below: Self) -> Self {
        let part = |own, of_those_below| self.part(below, own, of_those_below);
        let (own, of) = (self.split, below.split);
        Self {
            // Those below are read after it, and may have taken more since.
            current_bytes: self.current_bytes.max(below.current_bytes),
            split: Split {
                anon_bytes: part(own.anon_bytes, of.anon_bytes),
                file_bytes: part(own.file_bytes, of.file_bytes),
                inactive_file_bytes: part(own.inactive_file_bytes, of.inactive_file_bytes),
                shmem_bytes: part(own.shmem_bytes, of.shmem_bytes),
                file_mapped_bytes: part(own.file_mapped_bytes, of.file_mapped_bytes),
            },
            // Removed cgroups may still count above: then the parts do not account for the whole, and are read again
            // each time.
            parts_bytes: self.parts_bytes.max(below.parts_bytes),
        }
    }

    /// One part of a charge [made of](Self::made_of) those below, from its own value and theirs.
    pub(super) fn part(self, below: Self, own_bytes: u64, below_bytes: u64) -> u64 {
        let rest_bytes = self.current_bytes.saturating_sub(below.current_bytes);
        below_bytes.saturating_add(own_bytes.saturating_sub(below_bytes).min(rest_bytes))
    }
}

impl Split {
    /// From the text of a `memory.stat`. The machine's root has one too, whose `file` includes shared memory as well.
    pub fn parse(text: &[u8]) -> ReadResult<Self> {
        let bytes = |key: &[u8]| keyed(text, key).ok_or(Missing::Malformed);
        Ok(Self {
            anon_bytes: bytes(b"anon")?,
            file_bytes: bytes(b"file")?,
            inactive_file_bytes: bytes(b"inactive_file")?,
            shmem_bytes: bytes(b"shmem")?,
            // A missing line counts as nothing mapped.
            file_mapped_bytes: keyed(text, b"file_mapped").unwrap_or(0),
        })
    }

    /// The usage with this whole. The working set is 0 if the page cache alone is larger.
    #[must_use]
    pub fn usage(self, current_bytes: u64) -> Usage {
        let Self { anon_bytes, file_bytes, inactive_file_bytes, shmem_bytes, file_mapped_bytes } = self;
        Usage {
            current_bytes,
            working_set_bytes: current_bytes.saturating_sub(inactive_file_bytes),
            anon_bytes,
            file_bytes,
            shmem_bytes,
            file_mapped_bytes,
            process_count: None,
        }
    }
}

/// The sum of all parts.
fn sum(text: &[u8]) -> u64 {
    let parts = [&b"anon"[..], b"file", b"kernel", b"sock"];
    parts.into_iter().filter_map(|part| keyed(text, part)).fold(0, u64::saturating_add)
}

fn tolerance(whole_bytes: u64) -> u64 {
    (whole_bytes / UNACCOUNTED_SHARE).saturating_add(UNACCOUNTED_BYTES)
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
    fn what_cgroups_below_emit_of_themselves_holds() {
        let mib = |mib: u64| mib << 20;
        let charge = |current, anon, inactive_file| Charge {
            current_bytes: mib(current),
            split: Split {
                anon_bytes: mib(anon),
                file_bytes: mib(inactive_file),
                inactive_file_bytes: mib(inactive_file),
                shmem_bytes: 0,
                file_mapped_bytes: 0,
            },
            parts_bytes: mib(anon + inactive_file),
        };
        let working_set = |charge: Charge| charge.usage().working_set_bytes >> 20;
        // A file of 500 MiB was just read: above it, its pages are not seen to be idle yet.
        let (above, below) = (charge(600, 90, 0), charge(600, 90, 500));
        assert_eq!((working_set(above), working_set(above.made_of(below))), (600, 100));
        // It was given up again, and memory filled instead.
        let (above, below) = (charge(600, 90, 500), charge(600, 590, 0));
        assert_eq!((working_set(above), working_set(above.made_of(below))), (100, 600));
        assert_eq!(above.made_of(below).usage().anon_bytes, mib(590));
        // What is left of containers that are gone is charged here.
        let above = charge(700, 90, 580);
        assert_eq!(working_set(above.made_of(charge(600, 90, 500))), 120);
        // There can be no more of it than is charged.
        let above = charge(650, 90, 580);
        assert_eq!(working_set(above.made_of(charge(600, 90, 500))), 100);
        // What came while they were read is theirs.
        assert_eq!(working_set(charge(500, 90, 300).made_of(charge(600, 90, 500))), 100);
        assert_eq!(above.made_of(Charge::default()), above);
        assert!(!above.made_of(Charge::default()).is_accounted_for());
        assert_eq!(below.plus(charge(1, 1, 0)), charge(601, 591, 0));
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
            let charge = Charge { current_bytes: whole_bytes, parts_bytes: sum(text), ..Charge::default() };
            assert_eq!(charge.is_accounted_for(), is_all, "{whole_bytes}");
        }
        assert_eq!((sum(b""), sum(b"anon 18446744073709551615\nfile 9\n")), (0, u64::MAX));
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
