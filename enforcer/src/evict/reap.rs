//! The helper thread for what is slow after a kill: freeing the victim's memory from another CPU, and closing files.

use std::{
    fmt,
    os::fd::AsFd as _,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags},
};

use super::{
    candidate::Candidate,
    queue::{Next, Receiver},
    raised_limits::{self, RaisedLimits},
    reflex::PreparedSet,
    report::Report,
    retry::Retries,
};
use crate::{
    cgroup::guard::each_process,
    policy::engine::Few,
    raw,
    sense::{EdgeSource, PodsMemory},
};

/// What the reflex hands over.
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation on the reflex thread")]
pub(super) enum Work {
    /// Free the memory of the largest process of a victim that was just signalled, which has so many bytes in all.
    Reap(Arc<Candidate>, u64),
    /// Put back what a victim was lent, which is dead.
    GiveBack(RaisedLimits),
    /// Drop a set of candidates that is no longer used.
    Drop(Box<PreparedSet>),
    /// Close an edge source that is no longer waited on.
    Close(Box<dyn EdgeSource>),
    /// Close the files of a kubepods that there was before.
    ClosePods(Box<PodsMemory>),
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reap(candidate, bytes) => f.debug_tuple("Reap").field(candidate).field(bytes).finish(),
            Self::GiveBack(loan) => f.debug_tuple("GiveBack").field(loan).finish(),
            Self::Drop(set) => f.debug_tuple("Drop").field(set).finish(),
            Self::Close(_) => f.debug_tuple("Close").finish_non_exhaustive(),
            Self::ClosePods(pods) => f.debug_tuple("ClosePods").field(pods).finish(),
        }
    }
}

/// A process that holds so much is freed from another CPU at once. Below, the victim is as fast alone: measured on Linux
/// 6.18 with busy CPUs, 256 MiB are gone after 32 to 38 ms without help and 45 to 48 ms with it, as both stand in each
/// other's way at the page tables' locks, and the second CPU is taken from those who are to live. On idle ones a GiB
/// takes 92 to 129 ms alone and 64 to 73 ms with help.
const LARGE_BYTES: u64 = 512 << 20;

/// A victim of less that is still there after so long does not die by itself: it waits for a disk, or for a CPU. It is
/// more than a GiB takes alone.
const TIMEOUT: Duration = Duration::from_millis(150);

/// Limits that are to be put back, and those of them that are reported as stuck.
struct Owed {
    loan: RaisedLimits,
    stuck: Few<(usize, Errno), { raised_limits::MOST }>,
}

impl Owed {
    /// Tries again; what is left is the answer. That everything is put back at last is told.
    fn give_back(self, emit: &mut impl FnMut(Report)) -> Option<Self> {
        if !self.loan.give_back().is_empty() {
            return Some(self);
        }
        self.stuck.iter().filter_map(|(place, _)| self.loan.report(*place, None)).for_each(emit);
        None
    }
}

/// Works until the reflex is gone. What cannot be put back, and what can at last, is told.
pub(super) fn run(queue: &Receiver<Work>, mut emit: impl FnMut(Report)) {
    let mut slow: Option<(Instant, Arc<Candidate>)> = None;
    let mut owed: Retries<Owed> = Retries::new();
    loop {
        let due = slow.as_ref().map(|(due, _)| *due).into_iter().chain(owed.due()).min();
        match queue.next_until(due) {
            Next::Value(Work::Reap(candidate, bytes)) => {
                // Who has less in all has no process that is large: it is not even looked for, on a CPU that the victim needs.
                if bytes < LARGE_BYTES || !reap(&candidate, LARGE_BYTES) {
                    // One victim at a time: that of before has been left behind.
                    slow = Some((Instant::now() + TIMEOUT, candidate));
                }
            }
            Next::Value(Work::GiveBack(loan)) => {
                let stuck = loan.give_back();
                if !stuck.is_empty() {
                    let reports = stuck.iter().filter_map(|(place, errno)| loan.report(*place, Some(*errno)));
                    reports.for_each(&mut emit);
                    owed.add(Owed { loan, stuck }, Instant::now());
                }
            }
            Next::Value(Work::Drop(set)) => drop(set),
            Next::Value(Work::Close(source)) => drop(source),
            Next::Value(Work::ClosePods(pods)) => drop(pods),
            Next::Late => {
                let now = Instant::now();
                owed.attempt(now, |owed| owed.give_back(&mut emit));
                if let Some((_, candidate)) = slow.take_if(|(due, _)| *due <= now) {
                    reap(&candidate, 0);
                }
            }
            Next::End => {
                for owed in owed.into_all() {
                    let _left = owed.give_back(&mut emit);
                }
                return;
            }
        }
    }
}

/// Frees the memory of its largest process (`process_mrelease`) if it holds that much; whether it does.
fn reap(candidate: &Candidate, at_least_bytes: u64) -> bool {
    let pod = &candidate.identity.pod;
    let largest =
        largest_process(candidate).filter(|(pages, _)| pages.saturating_mul(page_bytes()) >= at_least_bytes);
    let Some((_, largest)) = largest else {
        tracing::debug!(%pod, at_least_bytes, "nothing to reap");
        return false;
    };
    let released = rustix::process::pidfd_open(largest, PidfdFlags::empty())
        .map_err(std::io::Error::from)
        .and_then(|pidfd| raw::process_mrelease(pidfd.as_fd()));
    match released {
        Ok(()) => tracing::debug!(%pod, pid = %largest, "released its memory"),
        Err(error) => tracing::debug!(%pod, pid = %largest, %error, "did not release its memory"),
    }
    true
}

fn page_bytes() -> u64 {
    u64::try_from(rustix::param::page_size()).unwrap_or(u64::MAX)
}

/// How many pages it has, and which it is.
fn largest_process(candidate: &Candidate) -> Option<(u64, Pid)> {
    let mut largest: Option<(u64, Pid)> = None;
    for target in &candidate.targets {
        let visited = each_process(&target.dir, &mut |number| {
            let pid = i32::try_from(number).ok().and_then(Pid::from_raw);
            if let (Some(pid), Some(pages)) = (pid, resident_pages(number))
                && largest.is_none_or(|(most, _)| pages > most)
            {
                largest = Some((pages, pid));
            }
        });
        if let Err(error) = visited {
            tracing::debug!(%error, "cannot list a victim's processes");
        }
    }
    largest
}

/// The second field of `/proc/<pid>/statm`; none if the process has no memory any more.
fn resident_pages(pid: u32) -> Option<u64> {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    (pages > 0).then_some(pages)
}
