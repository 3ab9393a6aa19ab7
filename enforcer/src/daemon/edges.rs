//! Supplies the reflex with what wakes it, and renews that as kubepods comes and goes.

use std::{
    collections::BTreeSet,
    os::fd::BorrowedFd,
    path::Path,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use rustix::thread::CapabilitySet;

use super::emit;
use crate::{
    cgroup::{self, CgroupDir},
    evict::Reflex,
    journal::Journal,
    model::{CgroupId, CgroupPath},
    sense::{
        Edge, EdgeSource, MemoryEvents, PodsMemory, Pressure, PsiError, Readiness, SourceState, Trigger,
    },
};

/// A failed source is not tried again sooner.
const RETRY: Duration = Duration::from_secs(5);

/// Adds the sources that wake the reflex: the node's pressure, kubepods' own, and the limits breached below kubepods,
/// whenever it exists. It may be made after the daemon's start, removed, and made again.
pub(super) struct Edges {
    journal: Journal,
    /// The whole hierarchy; `None` without cgroup v2, which is reported with everything else that the host lacks.
    root: Option<CgroupDir>,
    path: CgroupPath,
    triggers: &'static [Trigger],
    node: Kept,
    pressure: Kept,
    limits: Kept,
    /// The kubepods of the latter two.
    kubepods: Option<CgroupId>,
    /// Whether the reflex still needs kubepods' files.
    are_files_due: bool,
    reported: BTreeSet<String>,
}

/// A source that was handed to the reflex.
#[derive(Default)]
struct Kept {
    /// Dropped with the source.
    alive: Weak<()>,
    /// When the next try is allowed.
    retry_at: Option<Instant>,
}

impl Kept {
    /// Whether to make the source now.
    fn is_due(&self, now: Instant) -> bool {
        self.alive.strong_count() == 0 && self.retry_at.is_none_or(|at| now >= at)
    }

    /// Notes a try.
    fn tried(&mut self, source: Option<Weak<()>>, now: Instant) {
        self.alive = source.unwrap_or_default();
        // A source that ends at once is not made again and again.
        self.retry_at = now.checked_add(RETRY);
    }
}

impl Edges {
    /// `path` is the path of kubepods, whether it exists or not.
    pub(super) fn new(journal: &Journal, path: &CgroupPath) -> Self {
        let capabilities = rustix::thread::capabilities(None).ok();
        let may_be_short = capabilities.map(|sets| sets.effective.contains(CapabilitySet::SYS_RESOURCE));
        Self {
            journal: journal.clone(),
            root: CgroupDir::mount(Path::new(cgroup::MOUNT)).ok(),
            path: path.clone(),
            triggers: Trigger::alternatives(may_be_short),
            node: Kept::default(),
            pressure: Kept::default(),
            limits: Kept::default(),
            kubepods: None,
            are_files_due: false,
            reported: BTreeSet::new(),
        }
    }

    /// Makes missing sources; if none is missing, only checks whether kubepods is still the same. To be called at each tick:
    /// no event announces a new kubepods.
    pub(super) fn keep(&mut self, reflex: &Reflex) {
        let now = Instant::now();
        if self.node.is_due(now) {
            let armed = Pressure::arm(Pressure::open_node, self.triggers);
            let source = self.pressure(armed, "the node", reflex);
            self.node.tried(source, now);
        }
        let dir = self.root.as_ref().and_then(|root| root.open(&self.path).ok());
        let id = dir.as_ref().map(CgroupDir::id);
        if self.kubepods != id {
            self.kubepods = id;
            // The kernel reports the end of a removed kubepods to its sources.
            (self.pressure, self.limits) = (Kept::default(), Kept::default());
            self.are_files_due = true;
        }
        let Some(dir) = dir else { return };
        if std::mem::take(&mut self.are_files_due) {
            self.memory(&dir, reflex);
        }
        if self.pressure.is_due(now) {
            let armed = Pressure::arm(|| dir.open_pressure(), self.triggers);
            let source = self.pressure(armed, "kubepods", reflex);
            self.pressure.tried(source, now);
        }
        if self.limits.is_due(now) {
            let source = self.limits(&dir, reflex);
            self.limits.tried(source, now);
        }
    }

    fn pressure(&mut self, armed: Result<Pressure, PsiError>, of: &str, reflex: &Reflex) -> Option<Weak<()>> {
        match armed {
            Ok(pressure) => {
                let trigger = pressure.trigger();
                if trigger.window_us > Trigger::SHORTEST.window_us {
                    self.emit(
                        "psiWindow",
                        format!(
                            "pressure is reported after up to {} ms, by a trigger of `{trigger}`: grant CAP_SYS_RESOURCE for a window of 500 ms",
                            trigger.window_us / 10_000
                        ),
                    );
                }
                tracing::debug!(of, %trigger, "pressure trigger armed");
                Some(hand_over(pressure, reflex))
            }
            // Missing PSI is reported at the start.
            Err(PsiError::Missing) => None,
            Err(error) => {
                self.emit("psiTrigger", format!("no pressure edges of {of}: {error}"));
                None
            }
        }
    }

    /// Has the reflex measure the memory available to pods.
    fn memory(&mut self, dir: &CgroupDir, reflex: &Reflex) {
        match PodsMemory::open(dir) {
            Ok(pods) => reflex.set_kubepods(pods),
            Err(error) => {
                let message = format!(
                    "no pod is evicted for allocatableMemory.available, which cannot be measured: {}",
                    crate::chain(&error)
                );
                self.emit("threshold", message);
            }
        }
    }

    fn limits(&mut self, dir: &CgroupDir, reflex: &Reflex) -> Option<Weak<()>> {
        let events = dir.open_read("memory.events");
        let events = events.map_err(anyhow::Error::from).and_then(|fd| Ok(MemoryEvents::new(fd)?));
        match events {
            Ok(events) => Some(hand_over(events, reflex)),
            Err(error) => {
                self.emit("memoryEvents", format!("no edges of limits breached below kubepods: {error:#}"));
                None
            }
        }
    }

    /// Reports each message once.
    fn emit(&mut self, what: &'static str, message: String) {
        if !self.reported.contains(&message) {
            emit::degraded(&self.journal, what, &message);
            self.reported.insert(message);
        }
    }
}

fn hand_over(source: impl EdgeSource + 'static, reflex: &Reflex) -> Weak<()> {
    let alive = Arc::new(());
    let weak = Arc::downgrade(&alive);
    reflex.add_edges(Box::new(Held { source, _alive: alive }));
    weak
}

/// A source whose end the daemon can see.
struct Held<S> {
    source: S,
    _alive: Arc<()>,
}

impl<S: EdgeSource> EdgeSource for Held<S> {
    fn fd(&self) -> BorrowedFd<'_> {
        self.source.fd()
    }

    fn is_priority(&self) -> bool {
        self.source.is_priority()
    }

    fn drain(&mut self, ready: Readiness, emit: &mut dyn FnMut(Edge)) -> SourceState {
        self.source.drain(ready, emit)
    }
}
