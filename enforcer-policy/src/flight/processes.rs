//! Processes in a recording: what the kernel's OOM killer would choose from.

use postcard_schema::{Schema, key::hash::fnv1a64::hash_ty_path};
use serde::{Deserialize, Serialize};

use crate::model::CgroupId;

/// The most processes of one reading.
pub const MOST_PROCESSES: usize = 64;

/// The longest name of a process, in bytes: the kernel cuts it there.
pub const MOST_COMM_BYTES: usize = 15;

/// A score that exempts a process.
const NEVER: i16 = -1000;

/// The processes that the OOM killer would most readily kill, read once.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub struct Processes {
    /// When the reading began, in nanoseconds of `CLOCK_BOOTTIME`.
    pub began_ns: u64,
    /// When it was over.
    pub read_ns: u64,
    /// The size of a page, in bytes.
    pub page_bytes: u64,
    /// The node's memory and swap, in pages: what the kernel weighs a score by.
    pub total_pages: u64,
    /// Free swap, in bytes.
    pub swap_free_bytes: u64,
    /// How many processes there were, the kernel's own threads included.
    pub seen: u32,
    /// The worst of them, at most [`MOST_PROCESSES`], the worst first.
    pub worst: Vec<Process>,
}

/// A process.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// When it was started, in clock ticks since the boot: with the id, its identity.
    pub start_ticks: u64,
    /// Its name, at most [`MOST_COMM_BYTES`].
    pub comm: String,
    /// Its resident memory: anonymous, shared, and of files.
    pub resident_bytes: u64,
    /// The part of it that its death frees: anonymous and shared memory.
    pub unbacked_bytes: u64,
    /// Its memory in swap.
    pub swap_bytes: u64,
    /// Its page tables.
    pub page_table_bytes: u64,
    /// Its `oom_score_adj`.
    pub oom_score_adj: i16,
    /// The cgroup of its pod; `None` if it is of none that is known.
    pub pod: Option<CgroupId>,
    /// The topmost of its cgroups with `memory.oom.group`: all processes below it die with it. `None` if there is none.
    pub group: Option<CgroupId>,
}

impl Process {
    /// Its badness with so many bytes more, in pages, as `oom_badness` computes it; `None` if it is never killed.
    #[must_use]
    pub fn badness_pages(&self, grown_bytes: u64, page_bytes: u64, total_pages: u64) -> Option<i64> {
        if self.oom_score_adj <= NEVER {
            return None;
        }
        let pages = |bytes: u64| i128::from(bytes / page_bytes.max(1));
        let held = pages(self.resident_bytes.saturating_add(grown_bytes))
            + pages(self.swap_bytes)
            + pages(self.page_table_bytes);
        let weight = i128::from(self.oom_score_adj) * i128::from(total_pages / 1000);
        let badness = held + weight;
        Some(i64::try_from(badness).unwrap_or(if badness < 0 { i64::MIN } else { i64::MAX }))
    }
}

/// Identifies the encoding of processes: with another one they need another kind of frame.
#[must_use]
pub fn processes_shape() -> u32 {
    crc32fast::hash(&hash_ty_path::<Processes>("processes"))
}
