use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{CgroupDir, Error, PageSize, Permit, Withheld, observe::usage_bytes, report::Problem};
use crate::{
    journal::{Intent, Slot, Slots},
    model::{CgroupPath, CgroupValue, Limit},
};

/// The file that throttles and makes the kernel reclaim, without killing.
const HIGH: &str = "memory.high";
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
}

struct Running {
    limit_bytes: u64,
    stop: Arc<AtomicBool>,
    is_done: Arc<AtomicBool>,
    /// Whether it was done when the current look began.
    was_done: bool,
    thread: Option<JoinHandle<Result<Lowered, Error>>>,
}

struct Lowered {
    /// The remaining usage.
    usage_bytes: u64,
    fits: bool,
    /// Dropping it restores `memory.high`.
    _held: Held,
}

struct GivenUp {
    limit_bytes: u64,
    message: String,
    delay: Duration,
    due: Instant,
}

/// A lowered `memory.high`, restored on drop.
struct Held {
    dir: CgroupDir,
    old: String,
    slot: Option<Slot>,
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
        self.running.contains_key(path)
    }

    /// Call it before usage is read for a [`turn`](Self::turn): what finishes only after that is left to the next look,
    /// which its end has requested.
    pub(super) fn begin_look(&mut self) {
        for running in self.running.values_mut() {
            running.was_done = running.is_done();
        }
    }

    /// Starts what is withheld, continues what is running, and ends what is no longer withheld: it was written, or the
    /// plan changed. Returns what was given up.
    pub(super) fn turn(
        &mut self,
        root: &CgroupDir,
        withheld: &[Withheld],
        looked_at: impl Fn(&CgroupPath) -> bool,
        page: PageSize,
        now: Instant,
        _permit: &Permit,
    ) -> Vec<Abandoned> {
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
            // Dropping its result restores memory.high.
            let why = match running.end() {
                Ok(Some(Lowered { fits: false, usage_bytes, .. })) => Some(format!(
                    "{path}/memory.max stays above {limit_bytes}: {usage_bytes} bytes are in use, and could not be reclaimed within {} s",
                    self.patience.as_secs_f32()
                )),
                // It fitted; if it is still withheld, usage has grown since.
                Ok(Some(Lowered { fits: true, usage_bytes, .. })) if wanted.contains_key(&path) => {
                    Some(format!(
                        "{path}/memory.max stays above {limit_bytes}: usage went down to {usage_bytes} bytes and up again"
                    ))
                }
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
            let is_free = !self.running.contains_key(path) && self.running.len() < AT_ONCE;
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
        let dir = root.open(path).map_err(|error| stays(&crate::chain(&error)))?;
        let (stop, is_done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let work = {
            let (stop, is_done, wake) = (Arc::clone(&stop), Arc::clone(&is_done), Arc::clone(&self.wake));
            let patience = self.patience;
            move || {
                let lowered = squeeze(dir, slots, limit_bytes, patience, &stop);
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

    /// When to try something again.
    pub(super) fn due(&self) -> Option<Instant> {
        let waiting = self.given_up.iter().filter(|(path, _)| !self.running.contains_key(*path));
        waiting.map(|(_, given_up)| given_up.due).min()
    }

    /// The limits that stay above the planned ones, while they do.
    pub(super) fn problems(&self) -> impl Iterator<Item = Problem> {
        self.given_up.iter().map(|(path, given_up)| Problem {
            what: "limits",
            place: format!("{path}/memory.max"),
            message: given_up.message.clone(),
        })
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

    /// Stops it, and waits for the reclaim in progress.
    fn end(mut self) -> Result<Option<Lowered>, Error> {
        self.stop.store(true, Ordering::Release);
        self.thread.take().and_then(crate::threads::join).transpose()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // Dropping its result restores memory.high.
            drop(thread.join());
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        match self.dir.write(HIGH, &self.old) {
            Ok(()) => {}
            Err(error) if error.is_gone() => {}
            Err(error) => tracing::error!("{}", crate::chain(&error)),
        }
        if let Some(slot) = self.slot.take() {
            self.slots.lock().unwrap_or_else(PoisonError::into_inner).release(slot);
        }
    }
}

/// Holds a cgroup at `limit_bytes` and reclaims from it, until it fits, time is up, or `stop` is set.
fn squeeze(
    dir: CgroupDir,
    slots: Arc<Mutex<Slots>>,
    limit_bytes: u64,
    patience: Duration,
    stop: &AtomicBool,
) -> Result<Lowered, Error> {
    let deadline = Instant::now() + patience;
    let old = dir.read(HIGH)?.trim_ascii().to_owned();
    // A little below the limit, as a cgroup exceeds memory.high a little before it is throttled.
    let high_bytes = limit_bytes - limit_bytes / HEADROOM_SHARE;
    let new = high_bytes.to_string();
    let intent = Intent::Knob {
        path: dir.path().as_str().into(),
        cgroup: dir.id(),
        file: HIGH.into(),
        old: old.as_str().into(),
        new: new.as_str().into(),
    };
    let slot = slots.lock().unwrap_or_else(PoisonError::into_inner).hold(&intent);
    if slot.is_none() {
        let source = std::io::Error::other("the intent page has no room for it");
        return Err(Error::Write { path: dir.path().to_string(), file: HIGH.to_owned(), value: new, source });
    }
    let held = Held { dir, old, slot, slots };
    let is_lower = match Limit::parse(&held.old) {
        Some(Limit::Bytes(old)) => old <= high_bytes,
        Some(Limit::Max) | None => false,
    };
    if !is_lower {
        held.dir.write(HIGH, &new)?;
    }
    loop {
        let usage_bytes = usage_bytes(&held.dir)?.unwrap_or(0);
        let fits = usage_bytes <= limit_bytes;
        if fits || Instant::now() >= deadline || stop.load(Ordering::Acquire) {
            return Ok(Lowered { usage_bytes, fits, _held: held });
        }
        let chunk_bytes = (usage_bytes - high_bytes).min(CHUNK_BYTES);
        match held.dir.write("memory.reclaim", &chunk_bytes.to_string()) {
            Ok(()) => {}
            // EAGAIN: less than that could be reclaimed. The file does not exist before Linux 5.19: memory.high
            // reclaims too.
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

fn limit_bytes(withheld: &Withheld, page: PageSize) -> Option<u64> {
    match page.held(withheld.write.value) {
        CgroupValue::MemoryMax(Limit::Bytes(bytes)) => Some(bytes),
        _ => None,
    }
}
