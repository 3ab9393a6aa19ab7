//! The helper thread that makes the kernel return free pages from per-CPU lists, so that `MemAvailable` counts them.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::queue::{Receiver, Sender, queue};
use crate::sense::{FreeLists, snapshot::ReadResult};

/// A write makes each CPU update its counters and shorten its lists (`vmstat_refresh` in `mm/vmstat.c`).
const STAT_REFRESH: &str = "sys/vm/stat_refresh";

/// Each round shortens the lists by at most an eighth; after this many, a thousandth of their maximum is left. In idle
/// emulated guests of 2 GiB and two CPUs ten rounds sufficed. They took 80 ms on Linux 7.2, for lists of 86 MiB of
/// which 35 remained, and 110 ms on 6.12, where the maximum fell from 97 MiB to 55. On 6.1 nothing changes.
const MOST_ROUNDS: usize = 52;

/// No further round begins after this; rounds are slow on busy CPUs.
const MOST_TIME: Duration = Duration::from_millis(500);

/// A round waits for every CPU, and a real-time task can occupy one without limit. Pages that are not back by then no
/// longer count.
const MOST_WAIT_NS: u64 = 2_000_000_000;

/// If the lists' maximum falls by less than one part in this many in a round, it is about as low as it gets.
const LEAST_SHARE: u64 = 64;

/// Rounds without such a fall before draining stops. More than one, as pods that allocate make the lists grow
/// meanwhile.
const LAST_ROUNDS: usize = 2;

/// The number of requests, and how many of them are done.
#[derive(Debug, Default)]
struct Count {
    asked: AtomicU64,
    done: AtomicU64,
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
    count: Arc<Count>,
    queue: Receiver<()>,
}

/// Opens the files of both ends below `proc`.
pub(super) fn open(proc: &Path) -> io::Result<(Drain, Drainer)> {
    let lists = || FreeLists::open(proc).map_err(|missing| io::Error::other(missing.to_string()));
    let refresh = OpenOptions::new().write(true).open(proc.join(STAT_REFRESH))?;
    let count = Arc::new(Count::default());
    let (sender, receiver) = queue(1)?;
    let drain =
        Drain { lists: lists()?, count: Arc::clone(&count), queue: sender, number: None, asked_ns: 0 };
    Ok((drain, Drainer { lists: lists()?, refresh, count, queue: receiver }))
}

impl Drain {
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
    let mut reported = false;
    while drainer.queue.next().is_some() {
        let asked = drainer.count.asked.load(Ordering::Acquire);
        if let Err(error) = drainer.drain()
            && !std::mem::replace(&mut reported, true)
        {
            tracing::warn!(
                %error,
                "cannot drain free pages from per-CPU lists: they do not count, and another pod may be evicted for them"
            );
        }
        drainer.count.done.store(asked, Ordering::Release);
    }
}

impl Drainer {
    fn drain(&mut self) -> io::Result<()> {
        let start = Instant::now();
        let mut read = || self.lists.read().map_err(|missing| io::Error::other(missing.to_string()));
        let mut before_bytes = read()?.most_bytes;
        let mut last = 0;
        for _ in 0..MOST_ROUNDS {
            self.refresh.write_all(b"1")?;
            let now_bytes = read()?.most_bytes;
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
        assert_eq!(drain.coming_bytes(7), Ok(0), "nobody has asked");
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
}
