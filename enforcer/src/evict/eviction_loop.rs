//! The loop of the reflex thread.

mod brakes;
mod hooks;
mod inherited;
mod kill;
mod reports;
mod wiring;

use std::{
    cell::Cell,
    os::fd::{AsFd as _, OwnedFd},
    sync::{Arc, TryLockError, atomic::Ordering},
};

use rustix::{
    event::epoll::{self, CreateFlags, Event, EventData, EventFlags},
    io::Errno,
    time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec},
};
use ulid::Ulid;

pub(super) use self::wiring::Wiring;
use self::{brakes::Braked, hooks::Begun, inherited::Unknown};
use super::{
    candidate::Candidate,
    close::Work,
    core::Core,
    executor,
    inherited::InheritedEviction,
    observer::Counters,
    raised_limits::RaisedLimits,
    reflex::{PreparedSet, ReflexError},
    report::{Blindness, End, Report},
    sources::Sources,
    stat,
};
use crate::{
    clock,
    model::CgroupPath,
    policy::{
        engine::{
            Action, Actions, Decision, EngineSettings, FailureReason, Input, NodeSample, Outcome, Past,
            Reading, Refusal, Resource,
        },
        threshold::{Signal, Threshold},
    },
    sense::{AvailableMemory, EdgeKind, PodsMemory, Readiness, Sampler},
};

/// Edges closer together than this share a look, which costs about 20 µs. An edge means less the further away the
/// threshold is, so the gap grows to an eighth of the time that the headroom lasts. A node that churns page cache wakes
/// kswapd a thousand times a second, far from any shortage.
const MIN_GAP_NS: u64 = 500_000;
const MAX_GAP_NS: u64 = 10_000_000;
const GAP_SHARE: u64 = 8;

/// The most victims whose raised limits may wait for the helper to restore them.
const MOST_DUE: usize = 4;

/// The pause before a retry if the node cannot be read.
const BLIND_PAUSE_NS: u64 = 100_000_000;

/// The tokens of wake sources in `epoll`; edge sources count on from the last.
const TIMER: u64 = 0;
const WAKER: u64 = 1;
const VICTIM: u64 = 2;
const FIRST_EDGE: u64 = 3;

/// The eviction that reports are about: the engine's current or latest one.
struct Current {
    id: Ulid,
    number: u64,
    decision: Decision,
    candidate: Arc<Candidate>,
    /// What is known of it if an earlier process began it.
    inherited: Option<Arc<InheritedEviction>>,
}

impl Current {
    /// Whether all that an earlier process killed is dead. A kubelet may have started a container of the pod again since.
    fn is_dead(&self) -> bool {
        self.inherited
            .as_ref()
            .is_some_and(|eviction| eviction.facts.signalled_ns.is_some() && eviction.has_ended())
    }
}

/// The state of the reflex thread.
pub(super) struct EvictionLoop {
    wiring: Wiring,
    core: Core,
    sampler: Sampler,
    set: PreparedSet,
    /// An old set that did not fit into the queue of what is to be closed; no newer one is taken until it is gone.
    retired: Option<Box<PreparedSet>>,
    /// The raised limits of the latest victim, until it is dead.
    raised: Option<RaisedLimits>,
    /// Raised limits to restore that did not fit into that queue.
    due: Box<[Option<RaisedLimits>; MOST_DUE]>,
    /// The files of a former kubepods cgroup that did not fit into that queue.
    retired_pods: Option<Box<PodsMemory>>,
    braked: Option<Braked>,
    /// The brake to ease that did not fit into the helper's queue.
    uneased: Option<u64>,
    current: Option<Current>,
    /// The eviction of an earlier process, until its victim is among the candidates.
    unknown: Option<Unknown>,
    epoll: OwnedFd,
    timer: OwnedFd,
    buffer: Box<[u8; stat::BUFFER_BYTES]>,
    sources: Sources,
    /// Whether more sources are in the inbox, for which there is no room yet.
    edges_wait: bool,
    /// When we woke for the first edge of each kind since the last look; 0 without one.
    awake_ns: [u64; EdgeKind::ALL.len()],
    last_sample_ns: u64,
    /// How long an edge after a look may wait for the next look.
    gap_ns: u64,
    /// The engine's latest request.
    look_within_ns: Option<u64>,
    blind: bool,
    /// Whether there are reports for which the report thread was not woken yet.
    is_report_due: Cell<bool>,
}

impl EvictionLoop {
    pub(super) fn new(
        settings: &EngineSettings,
        past: &[Past],
        armed: &[Threshold],
        mut wiring: Wiring,
    ) -> Result<Self, ReflexError> {
        let setup = |errno: Errno| ReflexError::Setup(errno.into());
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(setup)?;
        let timer = rustix::time::timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )
        .map_err(setup)?;
        let add = |fd, token, flags| epoll::add(&epoll, fd, EventData::new_u64(token), flags);
        add(timer.as_fd(), TIMER, EventFlags::IN).map_err(setup)?;
        add(wiring.shared.waker.as_fd(), WAKER, EventFlags::IN).map_err(setup)?;
        let mut sources = Sources::default();
        for source in wiring.edges.drain(..) {
            sources.add(&epoll, FIRST_EDGE, source).map_err(|(_, errno)| ReflexError::Edges(errno.into()))?;
        }
        wiring.shared.counters.sources.store(sources.live(), Ordering::Relaxed);
        let sampler = Sampler::new(wiring.cpus);
        let unknown = wiring.inherited.take().map(Unknown::new);
        let inherited = unknown.as_ref().map(Unknown::facts);
        let core = Core::new(settings, past, armed, inherited, wiring.tap.take(), wiring.seed);
        Ok(Self {
            wiring,
            core,
            sampler,
            set: PreparedSet::default(),
            retired: None,
            raised: None,
            due: Box::new([const { None }; MOST_DUE]),
            retired_pods: None,
            braked: None,
            uneased: None,
            current: None,
            unknown,
            epoll,
            timer,
            buffer: Box::new([0; stat::BUFFER_BYTES]),
            sources,
            edges_wait: false,
            awake_ns: [0; EdgeKind::ALL.len()],
            last_sample_ns: 0,
            gap_ns: MIN_GAP_NS,
            look_within_ns: None,
            blind: false,
            is_report_due: Cell::new(false),
        })
    }

    /// Runs until it is stopped.
    pub(super) fn run(&mut self) {
        self.look();
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 8];
        loop {
            self.wake_report_thread();
            self.counters().heartbeat.beat();
            let count = match rustix::io::retry_on_intr(|| epoll::wait(&self.epoll, &mut events, None)) {
                Ok(count) => count,
                Err(error) => {
                    tracing::error!(%error, "the eviction thread cannot wait for events and ends");
                    return;
                }
            };
            self.counters().heartbeat.beat();
            if self.wiring.shared.stop.load(Ordering::Acquire) {
                self.give_back_all();
                return;
            }
            let awake_ns = clock::boottime_ns();
            let mut only_edges = true;
            for event in events.iter().take(count) {
                only_edges &= self.acknowledge(event, awake_ns);
            }
            let since_ns = clock::boottime_ns().saturating_sub(self.last_sample_ns);
            if only_edges && since_ns < self.gap_ns {
                self.arm(self.gap_ns - since_ns);
            } else {
                self.look();
            }
        }
    }

    /// Acknowledges a wake; returns whether it was an edge.
    fn acknowledge(&mut self, event: &Event, awake_ns: u64) -> bool {
        let mut count = [0_u8; 8];
        match event.data.u64() {
            TIMER => {
                let _expirations = rustix::io::read(&self.timer, &mut count);
                false
            }
            WAKER => {
                let _wakes = rustix::io::read(&self.wiring.shared.waker, &mut count);
                self.drain_inbox();
                false
            }
            // The look at the victim reads the file, which acknowledges it.
            VICTIM => false,
            edge => {
                let flags = event.flags;
                let failed = flags.intersects(EventFlags::ERR | EventFlags::HUP);
                let ready = if failed { Readiness::Failed } else { Readiness::Ready };
                let counters = &self.wiring.shared.counters;
                let awake = &mut self.awake_ns;
                self.sources.drain(&self.epoll, edge - FIRST_EDGE, ready, &mut |edge| {
                    counters.edges.fetch_add(1, Ordering::Relaxed);
                    counters.wakes.edge(edge, awake_ns);
                    for (kind, since_ns) in EdgeKind::ALL.into_iter().zip(awake.iter_mut()) {
                        if kind == edge.kind && *since_ns == 0 {
                            *since_ns = awake_ns;
                        }
                    }
                });
                self.retire();
                if self.edges_wait && self.sources.has_room() {
                    self.drain_inbox();
                }
                true
            }
        }
    }

    /// Takes the contents of the inbox, unless it is locked: the writer wakes us again after that.
    pub(super) fn drain_inbox(&mut self) {
        self.retire();
        let shared = Arc::clone(&self.wiring.shared);
        let mut inbox = match shared.inbox.try_lock() {
            Ok(inbox) => inbox,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if let Some(settings) = inbox.settings.take() {
            self.core.configure(&settings);
        }
        let is_to_arm = std::mem::take(&mut inbox.is_to_arm);
        let outcomes = std::mem::take(&mut inbox.outcomes);
        if self.retired.is_none()
            && let Some(mut set) = inbox.set.take()
        {
            let candidates = self.core.replace(std::mem::take(&mut set.candidates));
            std::mem::swap(&mut self.set, &mut set);
            set.candidates = candidates;
            self.retired = Some(set);
        }
        if self.retired_pods.is_none()
            && let Some(pods) = inbox.pods.take()
        {
            self.retired_pods = self.wiring.levels.replace_pods(pods);
        }
        while self.sources.has_room()
            && let Some(source) = inbox.edges.pop()
        {
            if let Err((source, _errno)) = self.sources.add(&self.epoll, FIRST_EDGE, source) {
                // Another thread closes it; if that is busy, it stays in the inbox until the next time.
                shared.counters.sources_refused.fetch_add(1, Ordering::Relaxed);
                if let Err(Work::Close(source)) = self.wiring.closer.offer(Work::Close(source)) {
                    inbox.edges.push(source);
                    break;
                }
            }
        }
        self.edges_wait = !inbox.edges.is_empty();
        drop(inbox);
        if is_to_arm {
            let actions = self.core.step(Input::Arm { now_ns: clock::boottime_ns() });
            self.carry_out(&actions);
        }
        self.withdraw();
        self.retire();
        self.find_inherited();
        if !outcomes.is_empty() {
            self.wiring.levels.renew();
        }
        for outcome in outcomes.iter() {
            self.take_outcome(*outcome);
        }
    }

    /// Handles the outcome of a SIGTERM or of a brake.
    fn take_outcome(&mut self, outcome: Outcome) {
        let undecided = self.core.engine().victim().map(|(number, _)| number);
        let actions = self.core.step(Input::Outcome(outcome));
        // A victim that was killed before SIGTERM is reported as killed.
        let asked = self.core.engine().moments().filter(|moments| moments.asked_ns().is_some());
        if let (Outcome::Terminated { number, .. } | Outcome::Requested { number, .. }, Some(current)) =
            (outcome, &self.current)
            && current.number == number
            && let Some(moments) = asked
        {
            let Current { id, decision, candidate, .. } = current;
            let Decision { grace_ns, .. } = *decision;
            self.watch(candidate);
            let (id, signal, candidate) = (*id, decision.shortage.signal, Arc::clone(candidate));
            self.emit(match moments.requested_ns {
                None => Report::Terminated { id, signal, number, candidate, grace_ns, moments },
                Some(_) => Report::Requested { number, candidate },
            });
        } else if let (Outcome::Refused { number, .. }, Some(intents)) = (outcome, &mut self.wiring.intents)
            && undecided == Some(number)
            && self.core.engine().victim().is_none_or(|(next, _)| next != number)
        {
            intents.release(number);
        }
        self.carry_out(&actions);
    }

    fn retire(&mut self) {
        if let Some(set) = self.retired.take()
            && let Err(Work::Drop(set)) = self.wiring.closer.offer(Work::Drop(set))
        {
            self.retired = Some(set);
        }
        if let Some(pods) = self.retired_pods.take()
            && let Err(Work::ClosePods(pods)) = self.wiring.closer.offer(Work::ClosePods(pods))
        {
            self.retired_pods = Some(pods);
        }
        self.sources.retire(&self.wiring.closer);
        self.counters().sources.store(self.sources.live(), Ordering::Relaxed);
    }

    /// Looks at the victim and the node, and acts on the result.
    pub(super) fn look(&mut self) {
        if self.retired.is_some() || self.retired_pods.is_some() {
            self.drain_inbox();
        }
        self.ease_again();
        self.give_back();
        if let Some(intents) = &mut self.wiring.intents {
            intents.settle();
        }
        self.look_within_ns = None;
        self.gap_ns = MIN_GAP_NS;
        self.watch_victim();
        let Some(node) = self.sample(false) else {
            self.arm(BLIND_PAUSE_NS);
            return;
        };
        let actions = self.core.step(Input::Node(node));
        self.carry_out(&actions);
        self.withdraw();
        self.looked();
        let engine = self.core.engine();
        self.wiring.fill_detector.look(&node, |signal| engine.next_threshold(signal));
        let threshold_bytes = engine.next_threshold(Signal::MemoryAvailable).unwrap_or(0);
        let headroom_bytes = node.memory.available.saturating_sub(threshold_bytes);
        let others_ns = self.wiring.levels.next_look_ns(engine, &self.sampler, self.wiring.cpus);
        let within_ns = self.look_within_ns.unwrap_or_else(|| {
            let lasts_ns = self.sampler.next_look_ns(headroom_bytes).min(others_ns);
            self.gap_ns = (lasts_ns / GAP_SHARE).clamp(MIN_GAP_NS, MAX_GAP_NS);
            lasts_ns
        });
        self.arm(within_ns);
        self.core.rest();
    }

    /// Reads the node; all of it if `fresh`, otherwise only what may have changed.
    fn sample(&mut self, fresh: bool) -> Option<NodeSample> {
        // Read before available memory, so that pages that come back in between count twice once, rather than not at
        // all.
        let free_lists_bytes = self.wiring.levels.free_lists(clock::boottime_ns(), self.core.engine());
        let read = self.wiring.available.read();
        let now_ns = clock::boottime_ns();
        // Right after: a suspension in between must not count as time that the machine was awake.
        let suspended_ns = now_ns.saturating_sub(clock::monotonic_ns());
        self.counters().samples.fetch_add(1, Ordering::Relaxed);
        self.last_sample_ns = now_ns;
        match read {
            Ok(AvailableMemory { available_bytes, total_bytes }) => {
                if std::mem::take(&mut self.blind) {
                    self.emit(Report::Sighted(Signal::MemoryAvailable));
                }
                self.sampler.observe(now_ns, available_bytes);
                let (levels, engine) = (&mut self.wiring.levels, self.core.engine());
                let set = &self.set;
                let members = |path: &CgroupPath, buffer: &mut [u8]| set.charge_within(path, buffer);
                let allocatable =
                    levels.pods(now_ns, available_bytes, engine, fresh, &mut self.buffer, members);
                let pids = levels.tasks(engine);
                for (signal, missing) in levels.news().iter() {
                    self.emit(match missing {
                        Some(missing) => Report::Blind(*signal, Blindness::Level(*missing)),
                        None => Report::Sighted(*signal),
                    });
                }
                Some(NodeSample {
                    suspended_ns,
                    allocatable,
                    pids,
                    free_lists_bytes,
                    unmapped_shmem_bytes: self.wiring.available.unmapped_shmem_bytes(),
                    shmem_bytes: self.wiring.available.shmem_bytes(),
                    fill_bytes_per_second: self.sampler.fill_bytes_per_second(),
                    ..NodeSample::memory(now_ns, available_bytes, total_bytes)
                })
            }
            Err(error) => {
                self.counters().samples_failed.fetch_add(1, Ordering::Relaxed);
                if !std::mem::replace(&mut self.blind, true) {
                    self.emit(Report::Blind(Signal::MemoryAvailable, Blindness::Memory(error)));
                }
                None
            }
        }
    }

    fn watch_victim(&mut self) {
        let Some((number, _)) = self.core.engine().victim() else { return };
        let Some(current) = self.current.as_ref().filter(|current| current.number == number) else {
            return self.watch_inherited(number);
        };
        let resource = current.decision.shortage.resource();
        let progress = executor::progress(&current.candidate, resource, self.buffer.as_mut_slice());
        let populated = progress.populated && !current.is_dead();
        if !populated {
            self.wiring.levels.drain(number, clock::boottime_ns());
        }
        let actions = self.core.step(Input::Outcome(Outcome::Progress {
            number,
            now_ns: clock::boottime_ns(),
            populated,
            current_bytes: progress.current_bytes,
            process_count: progress.process_count,
        }));
        self.carry_out(&actions);
    }

    /// Carries out the engine's actions, and those that follow from their outcomes, until none are left.
    fn carry_out(&mut self, first: &Actions) {
        let mut next = Some(*first);
        while let Some(actions) = next.take() {
            for action in actions.iter() {
                match *action {
                    Action::Crossed { now_ns, shortage } => self.emit(Report::Crossed { now_ns, shortage }),
                    Action::Cleared { now_ns, shortage, crossed_ns } => {
                        self.emit(Report::Cleared { now_ns, shortage, crossed_ns });
                    }
                    Action::Conditions(conditions) => self.emit(Report::Conditions(conditions)),
                    Action::Arming => self.emit_of_arming(),
                    Action::Suppressed { now_ns, signal, reason } => {
                        self.emit(Report::Suppressed { now_ns, signal, reason });
                    }
                    Action::SharedMemoryHeld { bytes, limit_bytes, .. } => self.emit_held(bytes, limit_bytes),
                    Action::SharedMemoryFreed { bytes, .. } => self.emit(Report::SharedMemoryFreed { bytes }),
                    Action::LookAgainWithin(within_ns) => self.look_within_ns = Some(within_ns),
                    Action::ReadUsages(resource) => next = self.read_usages(resource),
                    Action::Evict => next = self.evict(),
                    Action::Contain(containment) => next = self.contain(&containment),
                    Action::Ease { brake } => self.ease(brake),
                    Action::Contained { .. } | Action::Uncontained { .. } | Action::Eased { .. } => {
                        self.emit_of_brake(action);
                    }
                    Action::Ask { number } => next = self.ask(number),
                    Action::Kill { number, reason } => next = self.kill(number, Some(reason)),
                    Action::Completed(completion) => {
                        if !completion.moments.has_begun() {
                            self.release_intent(completion.number);
                        }
                        if let Some(Current { id, decision, candidate, .. }) = self.forget(completion.number)
                        {
                            let signal = decision.shortage.signal;
                            self.emit(Report::Completed { id, signal, candidate, completion });
                        } else {
                            self.end_inherited(End::Completed(completion));
                        }
                    }
                    Action::Failed(failure) => {
                        let is_let_off =
                            matches!(failure.reason, FailureReason::Relieved | FailureReason::Spared(_));
                        if is_let_off && !failure.moments.has_begun() {
                            self.end_hook(failure.number);
                            self.release_intent(failure.number);
                        }
                        if let Some(Current { id, decision, candidate, .. }) = self.forget(failure.number) {
                            let signal = decision.shortage.signal;
                            self.emit(Report::Failed { id, signal, candidate, failure });
                        } else {
                            self.end_inherited(End::Failed(failure));
                        }
                    }
                }
            }
        }
    }

    /// Publishes the eviction whose victim must no longer be asked to end.
    fn withdraw(&self) {
        if let Some(number) = self.core.engine().withdrawn() {
            self.wiring.shared.withdraw(number);
        }
    }

    fn read_usages(&mut self, resource: Resource) -> Option<Actions> {
        for (reading, member) in self.set.readings.iter_mut().zip(self.set.members.iter()) {
            *reading = member.read_usage(resource, self.buffer.as_mut_slice());
        }
        let failed = self.set.readings.iter().filter(|reading| **reading == Reading::Missing).count();
        self.counters()
            .usage_failures
            .fetch_add(u64::try_from(failed).unwrap_or(u64::MAX), Ordering::Relaxed);
        let node = self.sample(true)?;
        Some(self.core.step(Input::Usages { node, readings: &self.set.readings }))
    }

    fn evict(&mut self) -> Option<Actions> {
        let decision = *self.core.engine().decision()?;
        let id = self.eviction_id(&decision);
        self.core.called(decision.number, id.0);
        let members = Arc::clone(&self.set.members);
        let is_reported = self.offer(Report::Decided { id, decision, members, containers: Vec::new() });
        if decision.dry_run {
            return None;
        }
        let number = decision.number;
        let member = self.set.members.get(decision.index.0);
        let Some(candidate) = member.filter(|member| member.facts.cgroup == decision.cgroup).map(Arc::clone)
        else {
            // The engine and the handles refer to different sets, so nothing is signalled.
            return Some(self.refuse(number, Refusal::Replaced));
        };
        self.current =
            Some(Current { id, number, decision, candidate: Arc::clone(&candidate), inherited: None });
        if let Some(intents) = &mut self.wiring.intents {
            intents.hold(id, &decision, &candidate);
        }
        if let Some(Begun(next)) = self.begin_hook() {
            return next;
        }
        if decision.grace_ns > 0 {
            // The report thread hands the victim on, to get SIGTERM once the decision is on disk; the outcome comes into
            // the inbox. If the report was dropped, no SIGTERM follows.
            return (!is_reported).then(|| {
                self.release_intent(number);
                self.refuse(number, Refusal::Unrecorded)
            });
        }
        self.kill(number, None)
    }

    fn release_intent(&mut self, number: u64) {
        if let Some(intents) = &mut self.wiring.intents {
            intents.release(number);
        }
    }

    fn eviction_id(&self, decision: &Decision) -> Ulid {
        let wall_ms = clock::realtime_ns() / 1_000_000;
        Ulid::from_parts(wall_ms, self.wiring.seed.wrapping_add(u128::from(decision.number)))
    }

    fn arm(&self, within_ns: u64) {
        let after = Timespec {
            tv_sec: i64::try_from(within_ns / 1_000_000_000).unwrap_or(i64::MAX),
            // Zero would disarm the timer.
            tv_nsec: i64::try_from((within_ns % 1_000_000_000).max(1)).unwrap_or(1),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: after };
        if let Err(error) = rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once) {
            tracing::error!(%error, "cannot set the eviction thread's timer");
        }
    }

    fn counters(&self) -> &Counters {
        &self.wiring.shared.counters
    }
}
