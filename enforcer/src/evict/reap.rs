//! The helper thread that frees a victim's memory from another CPU. It does nothing else: `process_mrelease` waits for locks
//! that the dying processes hold.

use std::{
    os::fd::AsFd as _,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::process::{Pid, PidfdFlags};

use super::{
    candidate::Candidate,
    queue::{Next, Receiver},
};
use crate::{cgroup::guard::each_process, raw};

/// A victim that was just signalled, whose largest process is to be freed.
#[derive(Debug)]
pub(super) struct Dying {
    pub(super) candidate: Arc<Candidate>,
    /// Its bytes in total.
    pub(super) bytes: u64,
}

/// A process of at least this size is freed from another CPU at once. Smaller ones are as fast alone: measured on Linux
/// 6.18 with busy CPUs, 256 MiB take 32 to 38 ms without help and 45 to 48 ms with it, as both contend for the page
/// tables' locks, and the second CPU is taken from other pods. On idle CPUs a GiB takes 92 to 129 ms alone and 64 to
/// 73 ms with help.
const LARGE_BYTES: u64 = 512 << 20;

/// A victim without a large process that is still there after this time waits for a disk or a CPU: a pod that requests no CPU
/// exits with the least weight. The time is more than a victim of that size takes alone.
fn timeout(bytes: u64) -> Duration {
    let by_size_ms = 20 + (bytes >> 20) * 150 / 1_024;
    Duration::from_millis(by_size_ms.min(150))
}

/// Works until the reflex is gone.
pub(super) fn run(queue: &Receiver<Dying>) {
    let mut slow: Option<(Instant, Arc<Candidate>)> = None;
    loop {
        match queue.next_until(slow.as_ref().map(|(due, _)| *due)) {
            Next::Value(Dying { candidate, bytes }) => {
                // With fewer bytes in total no process can be large. Do not search then, as the victim needs the CPU.
                if bytes < LARGE_BYTES || !reap(&candidate, LARGE_BYTES) {
                    // One victim at a time: this replaces an earlier one.
                    slow = Some((Instant::now() + timeout(bytes), candidate));
                }
            }
            Next::Late => {
                if let Some((_, candidate)) = slow.take() {
                    reap(&candidate, 0);
                }
            }
            Next::End => return,
        }
    }
}

/// Frees the memory of its largest process (`process_mrelease`) if that is large enough; returns whether it is.
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
        Err(error) => tracing::debug!(%pod, pid = %largest, %error, "cannot release its memory"),
    }
    true
}

fn page_bytes() -> u64 {
    u64::try_from(rustix::param::page_size()).unwrap_or(u64::MAX)
}

/// The largest process, with its resident pages.
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

/// The second field of `/proc/<pid>/statm`; `None` if the process has no memory any more.
fn resident_pages(pid: u32) -> Option<u64> {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    (pages > 0).then_some(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_victim_is_left_alone_for_as_long_as_its_size_takes() {
        for (mib, ms) in [(0, 20), (64, 29), (256, 57), (512, 95), (1_024, 150), (1 << 20, 150)] {
            assert_eq!(timeout(mib << 20).as_millis(), ms, "{mib} MiB");
        }
    }
}
