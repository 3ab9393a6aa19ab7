//! Derives counters from the events themselves, so that metrics and log agree.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use enforcer_common::counter::drops;
use enforcer_events::{
    EventType, Payload,
    eviction::{Decision, EvictionDecided, EvictionEnded, ReconstructedDecision, Timeline},
    node::{self, SourceReported},
    oom::{self, Incident, Victim},
    pod::PodReported,
};

use super::{
    cells::Cells,
    degraded::Degraded,
    durations::{Durations, Ratios},
    labels::{Failure, Level, Method, Outcome, Phase, Qos, Scope, Signal, Suppressed, Survived},
    names::Names,
    pending::{Begun, Pending},
};
use crate::journal::Observer;

/// The most namespaces with their own label; the others share one.
pub(super) const NAMESPACES: usize = 20;

/// The most sources of pods with their own label.
const SOURCES: usize = 8;

/// The place of counts that belong to no pod.
pub(super) const NO_NAMESPACE: usize = Names::<NAMESPACES>::PLACES;

/// A time that is unknown or unlimited.
const NEVER: u64 = u64::MAX;

/// All counts; clones share them.
///
/// It observes the journal and counts each appended event. Counts without an event are recorded here directly.
#[derive(Clone, Debug, Default)]
pub struct Counts(pub(super) Arc<Counted>);

#[derive(Debug)]
pub(super) struct Counted {
    pub(super) namespaces: Names<NAMESPACES>,
    pub(super) evictions: Cells,
    pub(super) dry_runs: Cells,
    pub(super) failures: [AtomicU64; Failure::ALL.len()],
    pub(super) repeated: Cells,
    pub(super) restarts_killed: Cells,
    pub(super) suppressed: [AtomicU64; Suppressed::ALL.len()],
    pub(super) oom_kills: Cells,
    pub(super) phases: [Durations; Phase::ALL.len()],
    pub(super) freed_bytes: AtomicU64,
    pub(super) prediction_errors: Ratios,
    pub(super) written: [AtomicU64; EventType::ALL.len()],
    pub(super) lost_to_readers: AtomicU64,
    pub(super) lost_by_journal: AtomicU64,
    pub(super) lost_by_programs: [AtomicU64; drops::NAMES.len()],
    pub(super) degraded: Degraded,
    pub(super) sources: Names<SOURCES>,
    /// Whether each source works, plus one; 0 before the first report.
    pub(super) sources_up: [AtomicU64; SOURCES + 1],
    /// When each was last read, in milliseconds since 1970.
    pub(super) sources_read_ms: [AtomicU64; SOURCES + 1],
    /// The time until each threshold of `memory.available` is crossed, in nanoseconds.
    left_ns: [AtomicU64; Level::ALL.len()],
    pending: Pending,
}

impl Default for Counted {
    fn default() -> Self {
        let namespaces = NO_NAMESPACE + 1;
        let (signals, classes) = (Signal::ALL.len(), Qos::ALL.len());
        let counted = Self {
            namespaces: Names::default(),
            evictions: Cells::new(namespaces * signals * classes * Method::ALL.len() * Outcome::ALL.len()),
            dry_runs: Cells::new(namespaces * signals * classes),
            failures: Default::default(),
            repeated: Cells::new(namespaces),
            restarts_killed: Cells::new(namespaces),
            suppressed: Default::default(),
            oom_kills: Cells::new(namespaces * Scope::ALL.len() * Survived::ALL.len()),
            phases: Default::default(),
            freed_bytes: AtomicU64::new(0),
            prediction_errors: Ratios::default(),
            written: std::array::from_fn(|_| AtomicU64::new(0)),
            lost_to_readers: AtomicU64::new(0),
            lost_by_journal: AtomicU64::new(0),
            lost_by_programs: Default::default(),
            degraded: Degraded::default(),
            sources: Names::default(),
            sources_up: Default::default(),
            sources_read_ms: Default::default(),
            left_ns: std::array::from_fn(|_| AtomicU64::new(NEVER)),
            pending: Pending::default(),
        };
        for namespace in [NO_NAMESPACE, NAMESPACES] {
            counted.show_ooms(namespace);
        }
        for qos in [Qos::Guaranteed, Qos::Burstable, Qos::BestEffort] {
            counted.show_evictions(NAMESPACES, qos);
        }
        counted
    }
}

/// The cell of an eviction's labels.
pub(super) fn eviction_place(
    namespace: usize,
    signal: Signal,
    qos: Qos,
    method: Method,
    outcome: Outcome,
) -> usize {
    let place = dry_run_place(namespace, signal, qos) * Method::ALL.len() + method.place();
    place * Outcome::ALL.len() + outcome.place()
}

pub(super) fn dry_run_place(namespace: usize, signal: Signal, qos: Qos) -> usize {
    (namespace * Signal::ALL.len() + signal.place()) * Qos::ALL.len() + qos.place()
}

pub(super) fn oom_place(namespace: usize, scope: Scope, survived: Survived) -> usize {
    (namespace * Scope::ALL.len() + scope.place()) * Survived::ALL.len() + survived.place()
}

impl Observer for Counts {
    fn on_event(&self, namespace: Option<&str>, payload: &Payload) {
        let counted = &*self.0;
        if let Some(written) = counted.written.get(payload.kind() as usize) {
            written.fetch_add(1, Ordering::Relaxed);
        }
        match payload {
            // A change may be one of the class.
            Payload::PodAdded(pod) | Payload::PodChanged(pod) => counted.pod_added(namespace, pod),
            Payload::EvictionDecided(EvictionDecided::Decision(decision)) => {
                counted.decided(namespace, decision);
            }
            Payload::EvictionDecided(EvictionDecided::Reconstructed(decision)) => {
                counted.reconstructed(decision);
            }
            Payload::EvictionSignalled(data) => counted.pending.sent(&data.eviction_id, &data.sent),
            Payload::EvictionRequested(data) if data.outcome == "accepted" => {
                counted.pending.requested(&data.eviction_id);
            }
            Payload::EvictionCompleted(data) => counted.ended(namespace, data, Outcome::Completed),
            Payload::EvictionFailed(data) => counted.ended(namespace, data, Outcome::Failed),
            Payload::EvictionSuppressed(data) => {
                add(&counted.suppressed, Suppressed::of(Some(&data.reason)).place());
            }
            Payload::EvictionRepeated(data) if data.outcome == "killed" => {
                counted.restarts_killed.add(counted.namespace(namespace), 1);
            }
            Payload::OomIncident(incident) => counted.oom(incident),
            Payload::SourceUp(data) => counted.source(data, true),
            Payload::SourceDown(data) => counted.source(data, false),
            Payload::DegradedEntered(data) => counted.degraded(true, namespace, data),
            Payload::DegradedLeft(data) => counted.degraded(false, namespace, data),
            _ => {}
        }
    }

    fn on_lost_to_reader(&self, events: u64) {
        self.0.lost_to_readers.fetch_add(events, Ordering::Relaxed);
    }

    fn on_lost_by_disk(&self, events: u64) {
        self.0.lost_by_journal.fetch_add(events, Ordering::Relaxed);
    }
}

impl Counts {
    /// Counts records of the eBPF programs that were lost at that stage.
    pub(crate) fn lost_by_programs(&self, stage: &str, lost: u64) {
        let mut stages = self.0.lost_by_programs.iter().zip(drops::NAMES);
        if let Some((counter, _)) = stages.find(|(_, name)| *name == stage) {
            counter.fetch_add(lost, Ordering::Relaxed);
        }
    }

    /// Records when a source of pods was read, in milliseconds since 1970.
    pub(crate) fn source_was_read(&self, source: &str, now_ms: u64) {
        if let Some(read) = self.0.sources_read_ms.get(self.0.sources.place(source)) {
            read.store(now_ms, Ordering::Relaxed);
        }
    }

    /// Sets the time until that threshold of `memory.available` is crossed at the current rate, in nanoseconds; `None`
    /// if it will not be.
    pub(crate) fn set_left_ns(&self, level: Level, left_ns: Option<u64>) {
        if let Some(left) = self.0.left_ns.get(level.place()) {
            left.store(left_ns.unwrap_or(NEVER), Ordering::Relaxed);
        }
    }

    /// The last value of [`Self::set_left_ns`].
    pub(super) fn left_ns(&self, level: Level) -> Option<u64> {
        let left_ns = self.0.left_ns.get(level.place())?.load(Ordering::Relaxed);
        (left_ns != NEVER).then_some(left_ns)
    }
}

impl Counted {
    /// Shows a namespace's counters as 0 when its first pod of a class appears: monitoring sees no increase from an absent
    /// one.
    fn pod_added(&self, namespace: Option<&str>, pod: &PodReported) {
        let namespace = self.namespace(namespace);
        self.show_ooms(namespace);
        self.show_evictions(namespace, Qos::of(pod.qos_class.as_deref()));
    }

    fn show_ooms(&self, namespace: usize) {
        for scope in Scope::ALL {
            for survived in Survived::ALL {
                self.oom_kills.show(oom_place(namespace, *scope, *survived));
            }
        }
    }

    fn show_evictions(&self, namespace: usize, qos: Qos) {
        use Method::{Kill, Nothing, Request, RequestThenKill, Term, TermThenKill};
        const ENDS: [(Method, Outcome); 11] = [
            (Kill, Outcome::Completed),
            (Term, Outcome::Completed),
            (TermThenKill, Outcome::Completed),
            (Request, Outcome::Completed),
            (RequestThenKill, Outcome::Completed),
            (Nothing, Outcome::Failed),
            (Kill, Outcome::Failed),
            (Term, Outcome::Failed),
            (TermThenKill, Outcome::Failed),
            (Request, Outcome::Failed),
            (RequestThenKill, Outcome::Failed),
        ];
        self.repeated.show(namespace);
        self.restarts_killed.show(namespace);
        for signal in [Signal::Memory, Signal::Allocatable, Signal::Pid, Signal::Operator] {
            self.dry_runs.show(dry_run_place(namespace, signal, qos));
            for (method, outcome) in ENDS {
                self.evictions.show(eviction_place(namespace, signal, qos, method, outcome));
            }
        }
    }

    fn decided(&self, namespace: Option<&str>, data: &Decision) {
        let is_ordered = data.decided_by == "operator";
        let signal = if is_ordered { Signal::Operator } else { Signal::of(data.signal.as_deref()) };
        let qos = Qos::of(data.victim.as_ref().map(|victim| &*victim.qos_class));
        if data.dry_run {
            self.dry_runs.add(dry_run_place(self.namespace(namespace), signal, qos), 1);
            return;
        }
        if data.evicted_before.is_some_and(|before| before > 0) {
            self.repeated.add(self.namespace(namespace), 1);
        }
        let id = data.eviction_id.as_str().into();
        self.pending.decided(Begun { id, signal, qos, method: Method::Nothing });
    }

    /// A decision of an earlier process, of whose victim less is known.
    fn reconstructed(&self, data: &ReconstructedDecision) {
        let signal = Signal::of(data.shortage.as_ref().map(|shortage| &*shortage.signal));
        let id = data.eviction_id.as_str().into();
        self.pending.decided(Begun { id, signal, qos: Qos::Unknown, method: Method::Unknown });
    }

    fn ended(&self, namespace: Option<&str>, data: &EvictionEnded, outcome: Outcome) {
        let begun = self.pending.ended(&data.eviction_id);
        // `None` if it was decided before a restart.
        let signal = begun.as_ref().map_or_else(|| Signal::of(data.signal.as_deref()), |begun| begun.signal);
        let (qos, method) = begun.map_or((Qos::Unknown, Method::Unknown), |begun| (begun.qos, begun.method));
        self.evictions.add(eviction_place(self.namespace(namespace), signal, qos, method, outcome), 1);
        if outcome == Outcome::Failed {
            add(&self.failures, Failure::of(data.reason.as_deref()).place());
        }
        self.freed_bytes.fetch_add(data.freed_bytes.unwrap_or(0), Ordering::Relaxed);
        if let (Outcome::Completed, Some(predicted), Some(freed)) =
            (outcome, data.predicted_freed_bytes, data.freed_bytes)
        {
            self.prediction_errors.record(predicted, freed);
        }
        self.timeline(&data.timeline);
    }

    /// Records the phases that the event contains.
    fn timeline(&self, timeline: &Timeline) {
        let decided = timeline.crossed_to_decided_ms.and_then(nanoseconds);
        let signalled = timeline.crossed_to_terminated_ms.or(timeline.crossed_to_signalled_ms);
        let signalled = signalled.and_then(nanoseconds);
        let dead = timeline.crossed_to_dead_ms.and_then(nanoseconds);
        let back = timeline.crossed_to_memory_back_ms.and_then(nanoseconds);
        for (phase, from, to) in [
            (Phase::Decide, Some(0), decided),
            (Phase::Signal, decided, signalled),
            (Phase::Exit, signalled, dead),
            (Phase::Freed, dead, back),
        ] {
            if let (Some(from), Some(to), Some(durations)) = (from, to, self.phases.get(phase.place())) {
                durations.record(to.saturating_sub(from));
            }
        }
    }

    /// Counts the processes that the kernel killed: the marked ones, not those that died because they shared memory.
    fn oom(&self, incident: &Incident) {
        let scope = scope(incident.scope);
        let mut counted = 0;
        for victim in incident.victims.iter().filter(|victim| victim.shares_memory_with.is_none()) {
            let namespace = self.namespace(victim.place.namespace.as_deref());
            self.oom_kills.add(oom_place(namespace, scope, survived(victim, incident)), 1);
            counted += 1;
        }
        // Kills known only from counters have no victims.
        let rest = incident.kills.saturating_sub(counted);
        if rest > 0 {
            let namespace = incident.place.as_ref().and_then(|place| place.namespace.as_deref());
            self.oom_kills.add(oom_place(self.namespace(namespace), scope, Survived::Unknown), rest);
        }
    }

    fn source(&self, data: &SourceReported, is_up: bool) {
        if let Some(up) = self.sources_up.get(self.sources.place(&data.source)) {
            up.store(1 + u64::from(is_up), Ordering::Relaxed);
        }
    }

    fn degraded(&self, begins: bool, namespace: Option<&str>, data: &node::Degraded) {
        let what = &*data.what;
        // Lost records have their own counter and never recover. A protected pod is an order, and also counted.
        if what == "recordsLost" || (what == "protect" && namespace.is_some()) {
            return;
        }
        let place = data.place.as_deref().unwrap_or_default();
        if begins {
            self.degraded.entered(what, place);
        } else {
            self.degraded.left(what, place);
        }
    }

    fn namespace(&self, namespace: Option<&str>) -> usize {
        namespace.map_or(NO_NAMESPACE, |namespace| self.namespaces.place(namespace))
    }
}

fn scope(scope: Option<oom::Scope>) -> Scope {
    match scope {
        Some(oom::Scope::Container) => Scope::Container,
        Some(oom::Scope::Pod) => Scope::Pod,
        Some(oom::Scope::Qos) => Scope::Qos,
        Some(oom::Scope::Node) => Scope::Node,
        Some(oom::Scope::System) => Scope::System,
        None => Scope::Unknown,
    }
}

/// Whether the init of a victim's container survived. It did not if any victim in that container was the init, or if a
/// whole group was killed.
fn survived(victim: &Victim, incident: &Incident) -> Survived {
    if victim.place.container.is_none() || victim.container_init.is_none() {
        return Survived::Unknown;
    }
    let is_same = |other: &&Victim| {
        other.place.uid == victim.place.uid && other.place.container == victim.place.container
    };
    let init_died = incident.victims.iter().filter(is_same).any(|other| other.container_init == Some(true));
    let group_died = incident.counters.oom_group_kill > 0;
    if init_died || group_died { Survived::False } else { Survived::True }
}

fn add<const N: usize>(counters: &[AtomicU64; N], place: usize) {
    if let Some(counter) = counters.get(place) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Converts milliseconds with decimals to nanoseconds; `None` for an invalid time.
fn nanoseconds(milliseconds: f64) -> Option<u64> {
    let duration = std::time::Duration::try_from_secs_f64(milliseconds / 1_000.0).ok()?;
    u64::try_from(duration.as_nanos()).ok()
}
