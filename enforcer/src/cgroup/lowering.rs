//! Brings `memory.max` below usage by reclaim, as a plain write can end in an OOM kill.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{CgroupDir, Error, PageSize, Permit, Temporary, Withheld, observe::usage_bytes, report::Problem};
use crate::{
    journal::Slots,
    model::{CgroupPath, CgroupValue, Limit},
    retry::Retries,
};

/// The part of the limit by which `memory.high` is below it meanwhile.
const HEADROOM_SHARE: u64 = 32;
/// How much is reclaimed between two checks of the deadline.
const CHUNK_BYTES: u64 = 64 << 20;
/// How long to leave the kernel alone after it could reclaim nothing more.
const PAUSE: Duration = Duration::from_millis(50);
/// How long after giving up to try again: at first, and at most.
const RETRY_MIN: Duration = Duration::from_mins(1);
const RETRY_MAX: Duration = Duration::from_mins(15);
/// How many limits are lowered at once, at most; the others wait.
const AT_ONCE: usize = 8;

/// Lowers `memory.max` below usage, where that works without a kill.
///
/// The kernel answers such a write with an OOM kill if it cannot reclaim enough (`mm/memcontrol.c`,
/// `memory_max_write`). So `memory.high` is lowered first, which throttles the cgroup without killing, and memory is
/// reclaimed through `memory.reclaim`. Once usage fits, the limit is written as any other. If it does not fit within
/// the deadline, `memory.high` is restored, and it is tried again later.
///
/// This takes as long as reclaim takes, so each cgroup has a thread of its own. `memory.high` is on the intent page
/// while it is lowered: it never outlives the daemon.
pub struct Lowering {
    slots: Option<Arc<Mutex<Slots>>>,
    patience: Duration,
    wake: Arc<dyn Fn() + Send + Sync>,
    running: BTreeMap<CgroupPath, Running>,
    given_up: BTreeMap<CgroupPath, GivenUp>,
    /// The `memory.high` that could not be restored, with the error.
    stuck: Retries<(Held, Error)>,
}

struct Running {
    limit_bytes: u64,
    stop: Arc<AtomicBool>,
    is_done: Arc<AtomicBool>,
    /// Whether it was done when the current look began.
    was_done: bool,
    thread: Option<JoinHandle<Squeezed>>,
}

/// What holds a cgroup down, which is to be restored in any case, and how far it was lowered.
type Squeezed = (Option<Held>, Result<Lowered, Error>);

/// How far a cgroup was lowered.
struct Lowered {
    /// The remaining usage.
    usage_bytes: u64,
    fits: bool,
}

struct GivenUp {
    limit_bytes: u64,
    message: String,
    delay: Duration,
    due: Instant,
}

/// A lowered `memory.high`, which throttles and makes the kernel reclaim, without killing.
struct Held {
    dir: Arc<CgroupDir>,
    high: Temporary,
    slots: Arc<Mutex<Slots>>,
}

/// A limit that could not be lowered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Abandoned {
    /// The cgroup.
    pub path: CgroupPath,
    /// Why, and what happens next.
    pub message: String,
}

impl Default for Lowering {
    fn default() -> Self {
        Self {
            slots: None,
            patience: Duration::from_secs(5),
            wake: Arc::new(|| {}),
            running: BTreeMap::new(),
            given_up: BTreeMap::new(),
            stuck: Retries::new(),
        }
    }
}

impl Lowering {
    /// Keeps its intents in these slots. Calls `wake` when one limit is finished: a reconciliation is due then.
    #[must_use]
    pub fn new(slots: Slots, wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { slots: Some(Arc::new(Mutex::new(slots))), wake: Arc::new(wake), ..Self::default() }
    }

    /// Sets how long to wait for reclaim; 5 s by default.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Whether the cgroup's `memory.high` is held down now, so that nothing else may write it.
    pub(super) fn holds(&self, path: &CgroupPath) -> bool {
        self.running.contains_key(path) || self.stuck.iter().any(|(held, _)| held.dir.path() == path)
    }

    /// Call it before usage is read for a [`advance`](Self::advance): what finishes only after that is left to the next look,
    /// which its end has requested.
    pub(super) fn begin_look(&mut self) {
        for running in self.running.values_mut() {
            running.was_done = running.is_done();
        }
    }

    /// Starts what is withheld, continues what is running, and ends what is no longer withheld: it was written, or the
    /// plan changed. Returns what was given up.
    pub(super) fn advance(
        &mut self,
        root: &CgroupDir,
        withheld: &[Withheld],
        looked_at: impl Fn(&CgroupPath) -> bool,
        page: PageSize,
        now: Instant,
        _permit: &Permit,
    ) -> Vec<Abandoned> {
        let stuck = self.stuck.iter().count();
        self.stuck.attempt(now, |(held, _)| held.restore());
        if self.stuck.iter().count() < stuck {
            // Nothing else could write memory.high before.
            (self.wake)();
        }
        let wanted: BTreeMap<&CgroupPath, u64> = withheld
            .iter()
            .filter_map(|withheld| Some((&withheld.write.path, limit_bytes(withheld, page)?)))
            .collect();
        let ended: Vec<CgroupPath> = self
            .running
            .iter()
            // A look at others says nothing about this one.
            .filter(|(path, _)| looked_at(path))
            .filter(|(path, running)| running.was_done || wanted.get(*path) != Some(&running.limit_bytes))
            .map(|(path, _)| path.clone())
            .collect();
        if !ended.is_empty() {
            // Nothing else could write memory.high while it was held down.
            (self.wake)();
        }
        let mut abandoned = Vec::new();
        for path in ended {
            let Some(running) = self.running.remove(&path) else { continue };
            let limit_bytes = running.limit_bytes;
            let (held, lowered) = running.end();
            if let Some(stuck) = held.and_then(Held::restore) {
                tracing::error!("{}", crate::chain(&stuck.1));
                self.stuck.add(stuck, now);
            }
            let why = match lowered {
                Ok(Some(Lowered { fits: false, usage_bytes })) => Some(format!(
                    "{path}/memory.max stays above {limit_bytes}: {usage_bytes} bytes are in use, and could not be reclaimed within {} s",
                    self.patience.as_secs_f32()
                )),
                // It fitted; if it is still withheld, usage has grown since.
                Ok(Some(Lowered { fits: true, usage_bytes })) if wanted.contains_key(&path) => Some(format!(
                    "{path}/memory.max stays above {limit_bytes}: usage went down to {usage_bytes} bytes and up again"
                )),
                Ok(_) => None,
                Err(error) if error.is_gone() => None,
                Err(error) => {
                    Some(format!("{path}/memory.max stays above {limit_bytes}: {}", crate::chain(&error)))
                }
            };
            if let Some(why) = why.filter(|_| wanted.get(&path) == Some(&limit_bytes)) {
                abandoned.push(self.give_up(path, limit_bytes, &why, now));
            }
        }
        self.given_up
            .retain(|path, given_up| !looked_at(path) || wanted.get(path) == Some(&given_up.limit_bytes));
        for withheld in withheld {
            let path = &withheld.write.path;
            let Some(limit_bytes) = limit_bytes(withheld, page) else { continue };
            let is_early = self.given_up.get(path).is_some_and(|given_up| now < given_up.due);
            let is_free = !self.holds(path) && self.running.len() < AT_ONCE;
            if is_free
                && !is_early
                && let Err(why) = self.begin(root, path, limit_bytes)
            {
                abandoned.push(self.give_up(path.clone(), limit_bytes, &why, now));
            }
        }
        abandoned
    }

    fn begin(&mut self, root: &CgroupDir, path: &CgroupPath, limit_bytes: u64) -> Result<(), String> {
        let stays = |why: &str| format!("{path}/memory.max stays above {limit_bytes}: {why}");
        let slots = self
            .slots
            .clone()
            .ok_or_else(|| stays("there is no intent page, so memory.high cannot be lowered safely"))?;
        let dir = Arc::new(root.open(path).map_err(|error| stays(&crate::chain(&error)))?);
        let (stop, is_done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let work = {
            let (stop, is_done, wake) = (Arc::clone(&stop), Arc::clone(&is_done), Arc::clone(&self.wake));
            let patience = self.patience;
            move || {
                let lowered = squeeze(&dir, &slots, limit_bytes, patience, &stop);
                is_done.store(true, Ordering::Release);
                wake();
                lowered
            }
        };
        let thread = thread::Builder::new()
            .name(String::from("lowering"))
            .spawn(work)
            .map_err(|error| stays(&format!("no thread: {error}")))?;
        self.running.insert(
            path.clone(),
            Running { limit_bytes, stop, is_done, was_done: false, thread: Some(thread) },
        );
        Ok(())
    }

    fn give_up(&mut self, path: CgroupPath, limit_bytes: u64, why: &str, now: Instant) -> Abandoned {
        let before = self.given_up.get(&path).filter(|before| before.limit_bytes == limit_bytes);
        let delay = before.map_or(RETRY_MIN, |before| (before.delay * 2).min(RETRY_MAX));
        let message = format!("{why}; trying again in {} min", delay.as_secs() / 60);
        let given_up = GivenUp { limit_bytes, message: message.clone(), delay, due: now + delay };
        self.given_up.insert(path.clone(), given_up);
        Abandoned { path, message }
    }

    /// Tries once more to restore what could not be. Returns the errors.
    pub(super) fn restore_stuck(&mut self) -> Vec<Error> {
        let stuck = std::mem::replace(&mut self.stuck, Retries::new());
        // What is left is in the intent page for the next start.
        stuck.into_all().filter_map(|(held, _)| held.restore()).map(|(_, error)| error).collect()
    }

    /// When to try something again.
    pub(super) fn due(&self) -> Option<Instant> {
        let waiting = self.given_up.iter().filter(|(path, _)| !self.running.contains_key(*path));
        waiting.map(|(_, given_up)| given_up.due).chain(self.stuck.due()).min()
    }

    /// The limits that stay above the planned ones, while they do.
    pub(super) fn problems(&self) -> impl Iterator<Item = Problem> {
        let given_up = self.given_up.iter().map(|(path, given_up)| Problem {
            what: "limits",
            place: format!("{path}/memory.max"),
            message: given_up.message.clone(),
        });
        given_up.chain(self.stuck.iter().map(|(held, error)| Problem {
            what: "limits",
            place: format!("{}/{}", held.dir.path(), held.high.value().file()),
            message: format!("it throttles the cgroup until it is restored: {}", crate::chain(error)),
        }))
    }
}

impl std::fmt::Debug for Lowering {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Lowering")
            .field("running", &self.running.keys().collect::<Vec<_>>())
            .field("given_up", &self.given_up.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl Running {
    fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Acquire)
    }

    /// Stops it, and waits for the reclaim in progress. Also returns the `memory.high` that is to be restored.
    fn end(mut self) -> (Option<Held>, Result<Option<Lowered>, Error>) {
        self.stop.store(true, Ordering::Release);
        let ended = self.thread.take().and_then(crate::threads::join);
        ended.map_or((None, Ok(None)), |(held, lowered)| (held, lowered.map(Some)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some((Some(held), _)) = self.thread.take().and_then(crate::threads::join)
            && let Some((_, error)) = held.restore()
        {
            tracing::error!("the next start tries again: {}", crate::chain(&error));
        }
    }
}

impl Held {
    /// Throttles a cgroup at that usage; `None` if it is throttled at a lower one.
    fn begin(
        dir: &Arc<CgroupDir>,
        high_bytes: u64,
        slots: &Arc<Mutex<Slots>>,
    ) -> Result<Option<Self>, Error> {
        let high = CgroupValue::MemoryHigh(Limit::Amount(high_bytes));
        let failed = |why: &str| Error::Write {
            path: dir.path().to_string(),
            file: high.file().to_string(),
            value: high.to_string(),
            source: std::io::Error::other(why.to_owned()),
        };
        let value = Temporary::instead_of_present(dir, high.clone())?
            .ok_or_else(|| failed("what it holds now is no value, and could not be restored"))?;
        if !high.is_raised_by(value.original()) {
            return Ok(None);
        }
        let recorded = Temporary::record(dir, value, &mut lock(slots));
        let temporary = recorded.ok_or_else(|| failed("the intent page has no room for it"))?;
        let held = Self { dir: Arc::clone(dir), high: temporary, slots: Arc::clone(slots) };
        match dir.write(&high.file().name(), &high.to_string()) {
            Ok(()) => Ok(Some(held)),
            Err(error) => {
                held.high.forget(&mut lock(slots));
                Err(error)
            }
        }
    }

    /// Ends the throttling. What is returned with the error must be tried again.
    fn restore(self) -> Option<(Self, Error)> {
        let Self { dir, high, slots } = self;
        // The kernel may reclaim in that write: no lock is held over it.
        match high.write_back(&dir) {
            Ok(()) => {
                high.forget(&mut lock(&slots));
                None
            }
            Err(error) => Some((Self { dir, high, slots }, error)),
        }
    }
}

fn lock(slots: &Mutex<Slots>) -> MutexGuard<'_, Slots> {
    slots.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holds a cgroup at `limit_bytes` and reclaims from it, until it fits, time is up, or `stop` is set. What holds it is to
/// be restored in any case.
fn squeeze(
    dir: &Arc<CgroupDir>,
    slots: &Arc<Mutex<Slots>>,
    limit_bytes: u64,
    patience: Duration,
    stop: &AtomicBool,
) -> Squeezed {
    let deadline = Instant::now() + patience;
    // A little below the limit, as a cgroup exceeds memory.high a little before it is throttled.
    let high_bytes = limit_bytes - limit_bytes / HEADROOM_SHARE;
    match Held::begin(dir, high_bytes, slots) {
        Ok(held) => (held, reclaim(dir, limit_bytes, high_bytes, deadline, stop)),
        Err(error) => (None, Err(error)),
    }
}

fn reclaim(
    dir: &CgroupDir,
    limit_bytes: u64,
    high_bytes: u64,
    deadline: Instant,
    stop: &AtomicBool,
) -> Result<Lowered, Error> {
    loop {
        let usage_bytes = usage_bytes(dir)?.unwrap_or(0);
        let fits = usage_bytes <= limit_bytes;
        if fits || Instant::now() >= deadline || stop.load(Ordering::Acquire) {
            return Ok(Lowered { usage_bytes, fits });
        }
        let chunk_bytes = (usage_bytes - high_bytes).min(CHUNK_BYTES);
        match dir.write("memory.reclaim", &chunk_bytes.to_string()) {
            Ok(()) => {}
            // EAGAIN: less than that could be reclaimed. The file does not exist before Linux 5.19: memory.high
            // reclaims too.
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

fn limit_bytes(withheld: &Withheld, page: PageSize) -> Option<u64> {
    match page.held(&withheld.write.value) {
        CgroupValue::MemoryMax(Limit::Amount(bytes)) => Some(bytes),
        _ => None,
    }
}
