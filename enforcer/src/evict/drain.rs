//! The helper thread that shortens and drains the kernel's per-CPU lists of free pages during evictions, so that
//! `MemAvailable` counts these pages.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::queue::{Next, Receiver, Sender, queue};
use crate::sense::{FreeLists, snapshot::ReadResult};

/// A write makes each CPU update its counters and shorten its lists (`vmstat_refresh` in `mm/vmstat.c`).
const STAT_REFRESH: &str = "sys/vm/stat_refresh";

/// Bounds the lists (Linux 5.14, `percpu_pagelist_high_fraction_sysctl_handler` in `mm/page_alloc.c`). With 0 the kernel
/// chooses their length. Any other value is an operator's.
const HIGH_FRACTION: &str = "sys/vm/percpu_pagelist_high_fraction";
const BY_KERNEL: &str = "0";

/// The shortest lists that the kernel allows: four batches, mostly 1 MiB for each CPU and zone. It is the largest value,
/// which an operator is unlikely to choose, so that one that a killed daemon left is recognised.
const SHORT: &str = "2147483647";

/// How long the lists stay short after the last kill or death. Short lists slow down programs that allocate much.
const SHORT_FOR: Duration = Duration::from_secs(20);

/// Each round shortens the lists by at most an eighth; after this many, a thousandth of their maximum is left. In idle
/// emulated guests of 2 GiB and two CPUs ten rounds sufficed. They took 80 ms on Linux 7.2, for lists of 86 MiB of
/// which 35 remained, and 110 ms on 6.12, where the maximum fell from 97 MiB to 55. On 6.1 nothing changes.
const MOST_ROUNDS: usize = 52;

/// No further round begins after this; rounds are slow on busy CPUs.
const MOST_TIME: Duration = Duration::from_millis(500);

/// A round waits for every CPU, and a real-time task can occupy one without limit. Pages that are not back by then no
/// longer count.
const MOST_WAIT_NS: u64 = 2_000_000_000;

/// If the lists' maximum, or what they hold if that is more, falls by less than one part in this many in a round, it counts
/// as drained.
const LEAST_SHARE: u64 = 64;

/// Rounds without such a fall before draining stops. More than one, as pods that allocate make the lists grow
/// meanwhile.
const LAST_ROUNDS: usize = 2;

/// The number of requests, how many of them are done, and the number of kills.
#[derive(Debug, Default)]
struct Count {
    asked: AtomicU64,
    done: AtomicU64,
    killed: AtomicU64,
}

/// The reflex's end: requests a drain and reads how much is still to come back.
#[derive(Debug)]
pub(super) struct Drain {
    lists: FreeLists,
    count: Arc<Count>,
    queue: Sender<()>,
    /// The eviction of the last request; 0 for any from before this process.
    number: Option<u64>,
    /// The time of that request.
    asked_ns: u64,
}

/// The thread's end.
#[derive(Debug)]
pub(super) struct Drainer {
    lists: FreeLists,
    refresh: File,
    bound: Bound,
    short_for: Duration,
    count: Arc<Count>,
    queue: Receiver<()>,
}

/// The bound on the lists' length.
#[derive(Debug)]
struct Bound {
    path: PathBuf,
    /// Whether it was set here.
    is_ours: bool,
}

/// Opens the files of both ends below `proc`.
pub(super) fn open(proc: &Path) -> io::Result<(Drain, Drainer)> {
    let lists = || FreeLists::open(proc).map_err(|missing| io::Error::other(missing.to_string()));
    let refresh = OpenOptions::new().write(true).open(proc.join(STAT_REFRESH))?;
    let count = Arc::new(Count::default());
    let (sender, receiver) = queue(1)?;
    let drain =
        Drain { lists: lists()?, count: Arc::clone(&count), queue: sender, number: None, asked_ns: 0 };
    let bound = Bound { path: proc.join(HIGH_FRACTION), is_ours: false };
    let drainer = Drainer { lists: lists()?, refresh, bound, short_for: SHORT_FOR, count, queue: receiver };
    Ok((drain, drainer))
}

/// A file below `/proc/sys` that a killed daemon has left with its own value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LeftSysctl {
    /// The file.
    pub path: PathBuf,
    /// What it holds.
    pub present: &'static str,
    /// What it held before.
    pub before: &'static str,
}

/// The bound of the lists below `proc`, if a daemon that was killed has left it short.
pub fn left_sysctl(proc: &Path) -> io::Result<Option<LeftSysctl>> {
    let path = proc.join(HIGH_FRACTION);
    match fs::read_to_string(&path) {
        Ok(present) => Ok((present.trim_ascii_end() == SHORT).then_some(LeftSysctl {
            path,
            present: SHORT,
            before: BY_KERNEL,
        })),
        // A kernel without it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Undoes what a daemon has left that was killed. Only for the one daemon that evicts.
pub(super) fn restore(proc: &Path) {
    Bound { path: proc.join(HIGH_FRACTION), is_ours: true }.remove();
}

impl Drain {
    /// Requests short lists: a victim was killed and is about to free its memory. Does not wait or allocate.
    pub(super) fn note_kill(&self) {
        self.count.killed.fetch_add(1, Ordering::AcqRel);
        // If the queue is full, the queued request serves this one too.
        let _waits = self.queue.offer(());
    }

    /// Requests a drain, once per eviction; `number` is 0 for any by another process. Does not wait or allocate.
    pub(super) fn ask(&mut self, number: u64, now_ns: u64) {
        if self.number != Some(number) {
            self.number = Some(number);
            self.asked_ns = now_ns;
            self.count.asked.fetch_add(1, Ordering::AcqRel);
            // If the queue is full, the queued request serves this one too.
            let _waits = self.queue.offer(());
        }
    }

    /// The bytes on the lists that are still on their way back; 0 once no more will come.
    pub(super) fn coming_bytes(&mut self, now_ns: u64) -> ReadResult<u64> {
        let is_done = self.count.done.load(Ordering::Acquire) == self.count.asked.load(Ordering::Acquire);
        let is_late = now_ns.saturating_sub(self.asked_ns) >= MOST_WAIT_NS;
        if is_done || is_late { Ok(0) } else { Ok(self.lists.read()?.free_bytes) }
    }
}

/// Works until the reflex is gone.
pub(super) fn run(mut drainer: Drainer) {
    let mut short_until = None;
    let (mut has_warned_of_bound, mut has_warned_of_drain) = (false, false);
    loop {
        match drainer.queue.next_until(short_until) {
            Next::Value(()) => {}
            Next::Late => {
                short_until = None;
                drainer.bound.remove();
                continue;
            }
            Next::End => return drainer.bound.remove(),
        }
        // Every request but the one at the start is a kill or a death.
        let has_killed = drainer.count.killed.load(Ordering::Acquire) > 0;
        if has_killed
            && let Err(error) = drainer.bound.set()
            && !std::mem::replace(&mut has_warned_of_bound, true)
        {
            tracing::warn!(
                path = %drainer.bound.path.display(), %error,
                "cannot shorten per-CPU lists of free pages: memory that a victim frees may become available late, and \
                 so may the next eviction; mount /proc/sys writable for the daemon"
            );
        }
        let asked = drainer.count.asked.load(Ordering::Acquire);
        if drainer.count.done.load(Ordering::Acquire) != asked {
            if let Err(error) = drainer.drain()
                && !std::mem::replace(&mut has_warned_of_drain, true)
            {
                tracing::warn!(
                    path = STAT_REFRESH, %error,
                    "cannot drain free pages from per-CPU lists: they do not count, and another pod may be evicted for \
                     them"
                );
            }
            drainer.count.done.store(asked, Ordering::Release);
        }
        short_until = has_killed.then(|| Instant::now() + drainer.short_for);
    }
}

impl Bound {
    /// Sets it, unless an operator has.
    fn set(&mut self) -> io::Result<()> {
        let present = fs::read_to_string(&self.path)?;
        match present.trim_ascii_end() {
            BY_KERNEL => fs::write(&self.path, SHORT)?,
            SHORT => {}
            _ => return Ok(()),
        }
        self.is_ours = true;
        Ok(())
    }

    /// Leaves the lists to the kernel again, unless another process has changed the value.
    fn remove(&mut self) {
        if !self.is_ours {
            return;
        }
        let removed = match fs::read_to_string(&self.path) {
            Ok(present) if present.trim_ascii_end() == SHORT => fs::write(&self.path, BY_KERNEL),
            Ok(_) => Ok(()),
            // A kernel without it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        };
        self.is_ours = removed.is_err();
        if let Err(error) = removed {
            tracing::warn!(
                path = %self.path.display(), %error,
                "per-CPU lists of free pages may stay short, which slows down programs that allocate much: run sysctl \
                 vm.percpu_pagelist_high_fraction=0"
            );
        }
    }
}

impl Drainer {
    fn drain(&mut self) -> io::Result<()> {
        let start = Instant::now();
        let mut read = || {
            let lists = self.lists.read().map_err(|missing| io::Error::other(missing.to_string()))?;
            // Lists that were just shortened still hold what they held before.
            io::Result::Ok(lists.most_bytes.max(lists.free_bytes))
        };
        let mut before_bytes = read()?;
        let mut last = 0;
        for _ in 0..MOST_ROUNDS {
            self.refresh.write_all(b"1")?;
            let now_bytes = read()?;
            let is_falling = now_bytes < before_bytes.saturating_sub(before_bytes / LEAST_SHARE);
            last = if is_falling { 0 } else { last + 1 };
            before_bytes = now_bytes;
            if last == LAST_ROUNDS || start.elapsed() >= MOST_TIME {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, thread};

    use super::*;

    #[test]
    fn pages_count_until_nothing_more_comes_back() {
        let proc = tempfile::tempdir().unwrap();
        assert!(open(proc.path()).is_err(), "a kernel without them");
        fs::create_dir_all(proc.path().join("sys/vm")).unwrap();
        fs::write(proc.path().join(STAT_REFRESH), "").unwrap();
        fs::write(proc.path().join("zoneinfo"), "    cpu: 0\n  count:    7\n  high:     9\n").unwrap();
        let (mut drain, drainer) = open(proc.path()).unwrap();
        assert_eq!(drain.coming_bytes(7), Ok(0), "no drain was requested");
        drain.ask(1, 7);
        let bytes = drain.coming_bytes(7).unwrap();
        assert!(bytes > 0 && bytes.is_multiple_of(7));
        assert_eq!(drain.coming_bytes(6 + MOST_WAIT_NS), Ok(bytes));
        assert_eq!(drain.coming_bytes(7 + MOST_WAIT_NS), Ok(0), "a CPU keeps it waiting");
        let count = Arc::clone(&drainer.count);
        let thread = thread::spawn(|| run(drainer));
        while count.done.load(Ordering::Acquire) == 0 {
            thread::yield_now();
        }
        assert_eq!(drain.coming_bytes(7), Ok(0), "they become no shorter");
        let rounds = fs::read_to_string(proc.path().join(STAT_REFRESH)).unwrap();
        assert_eq!(rounds, "1".repeat(LAST_ROUNDS));
        drain.ask(1, 8);
        assert_eq!(drain.coming_bytes(8), Ok(0), "asked for already");
        drop(drain);
        thread.join().unwrap();
    }

    #[test]
    fn a_kill_shortens_the_lists_for_a_while() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir_all(proc.path().join("sys/vm")).unwrap();
        fs::write(proc.path().join(STAT_REFRESH), "").unwrap();
        fs::write(proc.path().join("zoneinfo"), "    cpu: 0\n  count:    7\n  high:     9\n").unwrap();
        let fraction = proc.path().join(HIGH_FRACTION);
        let held = || fs::read_to_string(&fraction).unwrap();
        // What the kernel has, what a killed daemon has left, and what an operator has set.
        for (before, during, after) in [("0\n", SHORT, "0"), (SHORT, SHORT, "0"), ("64\n", "64\n", "64\n")] {
            for short_for in [SHORT_FOR, Duration::ZERO] {
                fs::write(&fraction, before).unwrap();
                let (mut drain, mut drainer) = open(proc.path()).unwrap();
                drainer.short_for = short_for;
                let count = Arc::clone(&drainer.count);
                let thread = thread::spawn(|| run(drainer));
                drain.ask(0, 7);
                while count.done.load(Ordering::Acquire) != 1 {
                    thread::yield_now();
                }
                assert_eq!(held(), before, "nothing was killed");
                drain.note_kill();
                if short_for.is_zero() {
                    while held() != after {
                        thread::yield_now();
                    }
                } else {
                    while held() != during {
                        thread::yield_now();
                    }
                }
                drop(drain);
                thread.join().unwrap();
                assert_eq!(held(), after);
            }
        }
        fs::write(&fraction, SHORT).unwrap();
        drop(open(proc.path()).unwrap());
        assert_eq!(held(), SHORT, "a daemon that evicts may need it");
        restore(proc.path());
        assert_eq!(held(), BY_KERNEL);
    }
}
