//! The helper thread for what is slow after a kill: freeing the victim's memory from another CPU, and closing files.

use std::{fmt, os::fd::AsFd as _, sync::Arc};

use rustix::process::{Pid, PidfdFlags};

use super::{candidate::Candidate, queue::Receiver, reflex::PreparedSet};
use crate::{
    cgroup::guard::each_process,
    raw,
    sense::{EdgeSource, PodsMemory},
};

/// What the reflex hands over.
pub(super) enum Work {
    /// Free the memory of the largest process of a victim that was just signalled.
    Reap(Arc<Candidate>),
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
            Self::Reap(candidate) => f.debug_tuple("Reap").field(candidate).finish(),
            Self::Drop(set) => f.debug_tuple("Drop").field(set).finish(),
            Self::Close(_) => f.debug_tuple("Close").finish_non_exhaustive(),
            Self::ClosePods(pods) => f.debug_tuple("ClosePods").field(pods).finish(),
        }
    }
}

/// Works until the reflex is gone.
pub(super) fn run(queue: &Receiver<Work>) {
    while let Some(work) = queue.next() {
        match work {
            Work::Reap(candidate) => reap(&candidate),
            Work::Drop(set) => drop(set),
            Work::Close(source) => drop(source),
            Work::ClosePods(pods) => drop(pods),
        }
    }
}

/// Halves the time until the memory is back (`process_mrelease`); without it the victim frees it itself.
fn reap(candidate: &Candidate) {
    let pod = &candidate.identity.pod;
    let Some(largest) = largest_process(candidate) else {
        tracing::debug!(%pod, "nothing left to reap");
        return;
    };
    let released = rustix::process::pidfd_open(largest, PidfdFlags::empty())
        .map_err(std::io::Error::from)
        .and_then(|pidfd| raw::process_mrelease(pidfd.as_fd()));
    match released {
        Ok(()) => tracing::debug!(%pod, pid = %largest, "released its memory"),
        Err(error) => tracing::debug!(%pod, pid = %largest, %error, "did not release its memory"),
    }
}

fn largest_process(candidate: &Candidate) -> Option<Pid> {
    let mut largest: Option<(u64, Pid)> = None;
    for target in &candidate.targets {
        let visited = each_process(&target.dir, 0, &mut |number| {
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
    largest.map(|(_, pid)| pid)
}

/// The second field of `/proc/<pid>/statm`; none if the process has no memory any more.
fn resident_pages(pid: u32) -> Option<u64> {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    (pages > 0).then_some(pages)
}
