//! A thread that owns the snapshots, so that many readers cost one reading.

use std::{
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{Guarded, NodeFiles, Snapshot, Snapshots, next_look};
use crate::clock;

/// The call depth here is small.
const STACK_BYTES: usize = 256 * 1024;

/// The longest wait for a fresh snapshot.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Holds the latest snapshot for all readers, on a thread of its own.
///
/// At rest it reads the memory summary every ten seconds, and no cgroup. It takes whole snapshots on request, and if
/// the headroom will end soon at the current pace. The reflex reads its own files and shares no lock with this.
/// Dropping it ends the thread.
#[derive(Debug)]
pub struct Observer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified of every change of the state.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    guarded: Option<Vec<Guarded>>,
    threshold_bytes: u64,
    /// A reader waits for a fresh snapshot.
    wanted: bool,
    latest: Option<Arc<Snapshot>>,
    stop: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, put: impl FnOnce(&mut State)) {
        put(&mut self.lock());
        self.changed.notify_all();
    }
}

impl Observer {
    /// Starts it, guarding nothing yet.
    pub fn start(node: NodeFiles) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let builder = thread::Builder::new().name(String::from("enforcer-look")).stack_size(STACK_BYTES);
        let thread = builder.spawn(move || run(&theirs, &mut Snapshots::new(node)))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Guards these cgroups from now on; a previous set that is not in use yet is dropped here.
    pub fn guard(&self, guarded: Vec<Guarded>) {
        self.shared.put(|state| state.guarded = Some(guarded));
    }

    /// Makes it look often enough before `MemAvailable` falls to this.
    pub fn set_threshold(&self, bytes: u64) {
        self.shared.put(|state| state.threshold_bytes = bytes);
    }

    /// The latest snapshot, of any age; `None` before the first.
    #[must_use]
    pub fn latest(&self) -> Option<Arc<Snapshot>> {
        self.shared.lock().latest.clone()
    }

    /// A snapshot that is at most this old; blocks until it is taken. `None` if that takes longer than two seconds.
    #[must_use]
    pub fn fresh(&self, max_age: Duration) -> Option<Arc<Snapshot>> {
        let max_age_ns = u64::try_from(max_age.as_nanos()).unwrap_or(u64::MAX);
        let begin_ns = clock::boottime_ns();
        let is_fresh = |latest: &Arc<Snapshot>| latest.at_ns.saturating_add(max_age_ns) >= begin_ns;
        let deadline = Instant::now() + TIMEOUT;
        let mut state = self.shared.lock();
        loop {
            if let Some(latest) = state.latest.as_ref().filter(|latest| is_fresh(latest)) {
                return Some(Arc::clone(latest));
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            if !std::mem::replace(&mut state.wanted, true) {
                self.shared.changed.notify_all();
            }
            (state, _) =
                self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.shared.put(|state| state.stop = true);
        if let Some(thread) = self.thread.take() {
            crate::threads::join(thread);
        }
    }
}

fn run(shared: &Shared, snapshots: &mut Snapshots) {
    let mut due = Instant::now();
    let mut state = shared.lock();
    loop {
        if state.stop {
            return;
        }
        if let Some(guarded) = state.guarded.take() {
            // Files are closed without holding the lock.
            drop(state);
            snapshots.guard(guarded);
            state = shared.lock();
            continue;
        }
        let now = Instant::now();
        if !state.wanted
            && let Some(left) = due.checked_duration_since(now).filter(|left| !left.is_zero())
        {
            (state, _) = shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        let (wanted, threshold_bytes) = (std::mem::take(&mut state.wanted), state.threshold_bytes);
        drop(state);
        let (fresh, within) = look(snapshots, wanted, threshold_bytes);
        due = now + within;
        state = shared.lock();
        if let Some(fresh) = fresh {
            state.latest = Some(Arc::new(fresh));
            shared.changed.notify_all();
        }
    }
}

/// Reads the node, and everything if that is wanted or necessary.
fn look(snapshots: &mut Snapshots, wanted: bool, threshold_bytes: u64) -> (Option<Snapshot>, Duration) {
    let headroom =
        |available: Option<u64>| available.map_or(0, |bytes| bytes.saturating_sub(threshold_bytes));
    if !wanted {
        let (available, slope) = snapshots.available(clock::boottime_ns());
        let next = next_look(headroom(available), slope);
        if !next.at_all {
            return (None, next.within);
        }
    }
    let snapshot = snapshots.take(clock::boottime_ns());
    let available = snapshot.node.memory.ok().map(|memory| memory.available_bytes);
    let next = next_look(headroom(available), snapshot.node.available_slope_bytes_per_second);
    (Some(snapshot.clone()), next.within)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sense::snapshot::NodePaths;

    fn observer() -> (Observer, tempfile::TempDir) {
        let temp = tempfile::tempdir().unwrap();
        let path = |file: &str| temp.path().join(file);
        std::fs::write(path("meminfo"), "MemTotal: 8000 kB\nMemFree: 1000 kB\nMemAvailable: 5000 kB\n")
            .unwrap();
        let paths = NodePaths { meminfo: path("meminfo"), pressure: path("none"), zoneinfo: path("none") };
        (Observer::start(NodeFiles::open(&paths).unwrap()).unwrap(), temp)
    }

    #[test]
    fn at_rest_none_is_taken_until_one_is_wanted() {
        let (observer, _temp) = observer();
        thread::sleep(Duration::from_millis(100));
        assert_eq!(observer.latest(), None);
        let first = observer.fresh(Duration::ZERO).unwrap();
        assert_eq!(first.node.memory.unwrap().available_bytes, 5_000 * 1_024);
        assert_eq!(observer.latest(), Some(Arc::clone(&first)));
        // Fresh enough is handed out as it is.
        assert_eq!(observer.fresh(Duration::from_mins(1)), Some(Arc::clone(&first)));
        let second = observer.fresh(Duration::ZERO).unwrap();
        assert!(second.at_ns > first.at_ns);
    }

    #[test]
    fn below_the_threshold_it_looks_by_itself() {
        let (observer, _temp) = observer();
        observer.fresh(Duration::ZERO).unwrap();
        observer.set_threshold(6_000 * 1_024);
        observer.fresh(Duration::ZERO).unwrap();
        let before = observer.latest().unwrap().at_ns;
        let begin = Instant::now();
        while observer.latest().unwrap().at_ns == before {
            assert!(begin.elapsed() < Duration::from_secs(10));
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn many_readers_are_served_by_few_looks() {
        let (observer, _temp) = observer();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        assert!(observer.fresh(Duration::ZERO).is_some());
                    }
                });
            }
        });
    }
}
