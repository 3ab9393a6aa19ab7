//! The flight recorder: keeps the eviction engine's inputs and outcomes, in memory for the last minutes and on disk for
//! every decision.
//!
//! ```text
//! reflex thread: engine ─► Tap ─► ring ─► recorder thread ─► Store (memory) ─► recordings/<eviction id>.rec
//!                                               ▲ asks
//!                     report thread, observe socket ┘
//! ```
//!
//! [`Tap`] encodes each input with the engine's reaction directly into a preallocated ring: it allocates nothing and
//! never waits. Records that find no room are counted, and the recording marks the gap. Now and then, when all other
//! work is done, it records the engine's whole state, from which a replay can begin. [`crate::policy::flight`] defines
//! the meaning of the bytes.
//!
//! When memory is about to run short, the recorder thread also reads the processes that the kernel would kill.

mod folder;
mod processes;
mod ring;
mod store;
mod tap;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use ulid::Ulid;

pub use self::{
    folder::{FILE_ENDING, MOST_FILE_BYTES, folder, path},
    store::RecorderStats,
    tap::Tap,
};
use self::{
    processes::ProcessReader,
    ring::{RING_BYTES, ring},
    store::{Extent, Store},
};
use crate::{
    clock,
    policy::{
        engine::Engine,
        flight::{Member, Origin, Recording, latest},
    },
    waker::Waker,
};

/// The thread's stack: no call here is deep.
const STACK_BYTES: usize = 256 * 1024;

/// How long after a decision, or its end, its file is written. Until then the CPUs are left to the victim, so that it
/// dies soon; and mostly one file covers both.
const LATER: Duration = Duration::from_secs(1);

/// The shortest time between two readings of processes, however long memory is about to run short: one takes some
/// milliseconds, with thousands of processes up to [`processes::MOST_TIME`].
const BETWEEN_READINGS: Duration = Duration::from_secs(10);

/// The origin that the recordings state.
#[derive(Clone, Debug, Default)]
pub struct Provenance {
    /// The node's name.
    pub node: String,
    /// The boot id.
    pub boot_id: String,
    /// The hash of the configuration in force.
    pub config_hash: String,
}

/// What the recorder thread has to write.
#[derive(Debug, Default)]
struct FlushQueue {
    /// Evictions whose file is to be written, and when.
    due: BTreeMap<Ulid, Instant>,
    /// The latest eviction whose end is not recorded yet.
    open: Option<Ulid>,
    /// Whether processes are to be read, and when that was last requested.
    reads: bool,
    requested: Option<Instant>,
}

impl FlushQueue {
    /// Takes the evictions whose file is due, the oldest first; all of them on a stop.
    fn take(&mut self, stop: bool) -> Vec<Ulid> {
        let now = Instant::now();
        let open = self.open.take_if(|_| stop);
        self.due.extend(open.map(|open| (open, now)));
        let due = self.due.extract_if(.., |_, when| stop || *when <= now);
        due.map(|(eviction, _)| eviction).collect()
    }

    /// Has processes read, unless they were a moment ago; returns whether they are.
    fn read_processes(&mut self) -> bool {
        let is_due = self.requested.is_none_or(|before| before.elapsed() >= BETWEEN_READINGS);
        if is_due {
            self.requested = Some(Instant::now());
            self.reads = true;
        }
        is_due
    }
}

#[derive(Debug)]
struct Shared {
    store: Mutex<Store>,
    queue: Mutex<FlushQueue>,
    provenance: Mutex<Provenance>,
    waker: Arc<Waker>,
    stop: AtomicBool,
    state_dir: PathBuf,
    processes: ProcessReader,
}

/// The recorder and its thread. Dropping it writes what is still open, and stops the thread.
#[derive(Debug)]
pub struct Recorder {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// A handle to request recordings from other threads.
#[derive(Clone, Debug)]
pub struct Asker(Arc<Shared>);

impl Recorder {
    /// Starts the thread, and returns the tap for the thread that feeds the engine. Files are written below the state
    /// directory; `failed` is called when they cannot be written, once for each reason.
    pub fn start(
        state_dir: &Path,
        provenance: Provenance,
        failed: impl Fn(&str) + Send + 'static,
    ) -> io::Result<(Self, Tap)> {
        let waker = Arc::new(Waker::new()?);
        let (producer, consumer) = ring(RING_BYTES);
        let tap = Tap::new(producer, Arc::clone(&waker));
        let shared = Arc::new(Shared {
            store: Mutex::new(Store::new(consumer, tap.tapped())),
            queue: Mutex::default(),
            provenance: Mutex::new(provenance),
            waker,
            stop: AtomicBool::new(false),
            state_dir: state_dir.to_owned(),
            processes: ProcessReader::open(),
        });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name(String::from("recorder"))
            .stack_size(STACK_BYTES)
            .spawn(move || own.run(&failed))?;
        Ok((Self { shared, thread: Some(thread) }, tap))
    }

    /// Names the candidates from now on; called before the engine gets them.
    pub fn name(&self, members: impl Iterator<Item = Member>) {
        lock(&self.shared.store).name(members, clock::boottime_ns());
    }

    /// Called when another configuration is in force.
    pub fn configured(&self, config_hash: String) {
        lock(&self.shared.provenance).config_hash = config_hash;
    }

    /// Returns a handle for other threads.
    #[must_use]
    pub fn asker(&self) -> Asker {
        Asker(Arc::clone(&self.shared))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.waker.wake();
        if let Some(thread) = self.thread.take() {
            crate::threads::join(thread);
        }
    }
}

impl Asker {
    /// An eviction was decided: its file is written in a moment, and again at its end if that is still to come.
    pub fn decided(&self, eviction: Ulid, goes_on: bool) {
        let later = Instant::now() + LATER;
        let mut queue = lock(&self.0.queue);
        // One eviction is under way at a time: an older one that is still open gets no further records.
        let before = std::mem::replace(&mut queue.open, goes_on.then_some(eviction));
        queue.due.extend(before.map(|before| (before, later)));
        queue.due.insert(eviction, later);
        if !goes_on {
            // Nothing dies here. Where a victim does, the processes of afterwards say nothing.
            queue.read_processes();
        }
        drop(queue);
        self.0.waker.wake();
    }

    /// Memory may run short soon: what the kernel would kill is recorded, at most once in a while, and never while a victim
    /// dies.
    pub fn near(&self) {
        let mut queue = lock(&self.0.queue);
        let reads = queue.open.is_none() && queue.read_processes();
        drop(queue);
        if reads {
            self.0.waker.wake();
        }
    }

    /// The eviction is over.
    pub fn ended(&self, eviction: Ulid) {
        let mut queue = lock(&self.0.queue);
        queue.open.take_if(|open| *open == eviction);
        queue.due.insert(eviction, Instant::now() + LATER);
        drop(queue);
        self.0.waker.wake();
    }

    /// Everything in memory, as a file's bytes. May take some milliseconds.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        let mut file = Vec::new();
        // Writing into memory does not fail.
        drop(self.0.write(Extent::All, &mut file));
        file
    }

    /// The engine's present state; `None` if it is unknown. May take some milliseconds.
    #[must_use]
    pub fn engine(&self) -> Option<Engine> {
        let mut file = Vec::new();
        // Writing into memory does not fail.
        drop(self.0.write(Extent::Latest, &mut file));
        latest(&Recording::read(&file).ok()?).map(|(engine, _)| engine)
    }

    /// How many records found no room.
    #[must_use]
    pub fn lost(&self) -> u64 {
        lock(&self.0.store).lost()
    }

    /// Returns the recorder's statistics.
    #[must_use]
    pub fn stats(&self) -> RecorderStats {
        let mut store = lock(&self.0.store);
        store.drain();
        store.stats()
    }
}

impl Shared {
    fn run(&self, failed: &dyn Fn(&str)) {
        let (mut reported, mut has_lost) = (Vec::new(), false);
        let mut report = |message: &str| {
            if !reported.iter().any(|known| known == message) {
                failed(message);
                reported.push(message.to_owned());
            }
        };
        loop {
            let stop = self.stop.load(Ordering::Acquire);
            let lost = {
                let mut store = lock(&self.store);
                store.drain();
                store.stats().lost
            };
            if lost > 0 && !std::mem::replace(&mut has_lost, true) {
                failed("the flight recorder cannot keep up: its recordings have gaps, which are marked");
            }
            let reads = std::mem::take(&mut lock(&self.queue).reads);
            if reads && let Err(error) = self.read_processes() {
                report(&format!("cannot record what the kernel would kill: {error}"));
            }
            let due = lock(&self.queue).take(stop);
            for eviction in due {
                let write = |file: &mut dyn io::Write| self.write(Extent::Recent, file);
                if let Err(error) = folder::keep(&self.state_dir, eviction, write) {
                    report(&format!("cannot write a decision's recording: {error}"));
                }
            }
            if stop {
                return;
            }
            let next = lock(&self.queue).due.values().min().copied();
            let left = next.map(|next| next.saturating_duration_since(Instant::now()));
            if let Err(error) = self.waker.wait(left) {
                tracing::error!(%error, "the recorder cannot wait, and ends");
                return;
            }
        }
    }

    /// The store is not locked meanwhile: other threads name pods.
    fn read_processes(&self) -> io::Result<()> {
        let pods = lock(&self.store).pods();
        let read = self.processes.read(&pods, processes::MOST_TIME)?;
        lock(&self.store).take_processes(read);
        Ok(())
    }

    /// Writes the store's content as a file. The store is not locked meanwhile: a disk may be slow.
    fn write(&self, extent: Extent, out: &mut dyn io::Write) -> io::Result<()> {
        let Provenance { node, boot_id, config_hash } = lock(&self.provenance).clone();
        let copy = {
            let mut store = lock(&self.store);
            store.drain();
            store.copy(extent)
        };
        let origin = Origin {
            node,
            boot_id,
            config_hash,
            boottime_ns: clock::boottime_ns(),
            realtime_ns: clock::realtime_ns(),
            seed: copy.seed(),
        };
        copy.write(&origin, out)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
