//! Decides which pod is evicted, and when: a deterministic state machine from inputs to actions.
//!
//! Time comes with the inputs. A step allocates nothing: memory that depends on the number of candidates is allocated
//! beforehand, in [`Candidates`].
//!
//! There is one victim at a time: while it holds processes no other is chosen. Memory that it is still releasing counts
//! as available until it was released or is overdue.

mod action;
mod arming;
mod back_off;
mod brake;
mod breaker;
mod candidates;
mod choice;
mod exhaustion;
mod free_lists;
mod hook;
mod inherited;
mod input;
mod outcome;
mod ranking;
mod settings;
mod shared;
mod terminating;
#[cfg(test)]
mod tests;
mod victim;
mod waiting;

pub use self::{
    action::{
        Action, Actions, BrakeCause, CandidateIndex, Completion, Containment, Decision, Excluded, Exclusion,
        Failure, FailureReason, KillReason, Moments, RankKey, Ranked, SHOWN_EXCLUDED, SHOWN_RANKING,
        Shortage, Spared, Suppression,
    },
    back_off::{Past, PodKey, Returned},
    candidates::Candidates,
    hook::{HookEnd, HookPlan},
    inherited::Inherited,
    input::{BrakeRefusal, CandidateFacts, Input, Level, NodeSample, Outcome, Reading, Refusal, Usage},
    ranking::Ranking,
    settings::{BreakerSettings, EngineSettings, MAX_THRESHOLDS, Mode, Resource, Thresholds, followed},
    waiting::Waiting,
};
use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use self::{
    arming::{Arms, Sight as Armament, is_of_pods},
    back_off::BackOffs,
    brake::Brakes,
    breaker::Breaker,
    exhaustion::Exhaustion,
    terminating::Volumes,
    victim::{Next, Sight, Victim},
};
pub use super::few::Few;
use super::{
    pressure::{Conditions, Pressure, Reclaim, Tracked},
    threshold::Signal,
};
use crate::model::CgroupId;

const MS: u64 = 1_000_000;

/// A shortage that comes back within this time is the same episode: a level near the threshold is reported once.
const EPISODE_HOLD_NS: u64 = 1_000 * MS;

/// Close to the threshold usages are read at this interval, so that a decision knows how fast each pod grew.
const BASELINE_EVERY_NS: u64 = 2_000 * MS;

/// How often a dying victim is polled, in its first 200 ms and after. The kernel notifies of its death; polling takes
/// time from the CPU on which it dies.
const WATCH_FAST_NS: u64 = 5 * MS;
const WATCH_SLOW_NS: u64 = 10 * MS;
const WATCH_FAST_FOR_NS: u64 = 200 * MS;

/// The longest interval at which a victim in its grace period or not asked yet, and the node with it, are polled.
const WATCH_GRACE_NS: u64 = 100 * MS;

/// How often the node is polled in a shortage that needs no action.
const IDLE_SHORTAGE_NS: u64 = 100 * MS;

/// How long no soft eviction begins after one could not be recorded.
const UNRECORDED_PAUSE_NS: u64 = 10_000 * MS;

/// How long no soft eviction begins after a disruption budget has refused one.
const BUDGET_PAUSE_NS: u64 = 60_000 * MS;

/// How long a candidate without a process or cgroup is passed over: it may get processes again.
const EMPTY_PAUSE_NS: u64 = 1_000 * MS;

/// From the first crossing of a threshold until the resource has been sufficient for a while.
#[derive(Clone, Copy, Debug, Deserialize, Schema, Serialize)]
struct Episode {
    /// When the current or latest shortage began.
    crossed_ns: u64,
    /// Whether the resource is short now.
    met: bool,
    last_met_ns: u64,
}

/// The state machine.
#[derive(Clone, Debug, Deserialize, Schema, Serialize)]
pub struct Engine {
    settings: EngineSettings,
    /// The mode of the settings, or a lower one once the breaker has opened.
    mode: Mode,
    candidates: Candidates,
    arms: Arms,
    breaker: Breaker,
    pressure: Pressure,
    /// One per threshold.
    episodes: [Option<Episode>; MAX_THRESHOLDS],
    conditions: Conditions,
    /// Per signal, the reason last reported for not acting; kept while any resource is short.
    reported: [Option<Suppression>; Signal::ALL.len()],
    victim: Option<Victim>,
    decision: Option<Decision>,
    decided: u64,
    /// Until when no soft threshold decides.
    soft_quiet_until_ns: u64,
    /// The same for each signal that had no candidate to evict: another may run short meanwhile.
    no_candidate_until_ns: [u64; Signal::ALL.len()],
    /// Whether a shortage was forgotten with its threshold since the last sample.
    is_forgotten: bool,
    baseline_due_ns: u64,
    /// The resource that usages were last requested for.
    asked_for: Option<Resource>,
    brakes: Brakes,
    back_offs: BackOffs,
    /// When memory will be exhausted, as of the latest sample.
    exhaustion: Exhaustion,
    /// What a kubelet removes after victims' deaths.
    volumes: Volumes,
    /// When the latest victim was seen to have died.
    died_ns: Option<u64>,
    /// Free bytes on the kernel's per-CPU lists at the latest sample.
    free_lists_bytes: u64,
    /// Shared memory that no process mapped at the latest sample, in bytes.
    unmapped_shmem_bytes: u64,
    /// All shared memory at the latest sample, in bytes.
    shmem_bytes: u64,
    /// The threshold that this shared memory exceeds, in bytes, while it does.
    shared_memory_limit_bytes: Option<u64>,
}

impl Engine {
    /// Starts with no state and no candidates.
    #[must_use]
    pub fn new(settings: &EngineSettings) -> Self {
        Self {
            settings: *settings,
            mode: settings.mode,
            candidates: Candidates::default(),
            arms: Arms::default(),
            breaker: Breaker::new(settings.breaker),
            pressure: pressure(settings),
            episodes: [None; MAX_THRESHOLDS],
            conditions: Conditions::default(),
            reported: [None; Signal::ALL.len()],
            victim: None,
            decision: None,
            decided: 0,
            soft_quiet_until_ns: 0,
            no_candidate_until_ns: [0; Signal::ALL.len()],
            is_forgotten: false,
            baseline_due_ns: 0,
            asked_for: None,
            brakes: Brakes::default(),
            back_offs: BackOffs::default(),
            exhaustion: Exhaustion::default(),
            volumes: Volumes::default(),
            died_ns: None,
            free_lists_bytes: 0,
            unmapped_shmem_bytes: 0,
            shmem_bytes: 0,
            shared_memory_limit_bytes: None,
        }
    }

    /// Takes new settings. Closes an open breaker, unless the only change is that eviction is paused or resumed. The
    /// breaker opens again at the next decision if that is still one too many.
    /// An eviction under way continues, and so do the grace periods of thresholds that stay.
    pub fn configure(&mut self, settings: &EngineSettings) {
        let EngineSettings { paused, .. } = *settings;
        if paused != self.settings.paused && *settings == (EngineSettings { paused, ..self.settings }) {
            self.settings.paused = paused;
            self.forget_reported();
            return;
        }
        if settings.breaker != self.settings.breaker {
            self.breaker = self.breaker.with(settings.breaker);
        }
        let mut pressure = pressure(settings);
        pressure.inherit(&self.pressure);
        let mut episodes = [None; MAX_THRESHOLDS];
        for (episode, threshold) in episodes.iter_mut().zip(settings.thresholds.iter()) {
            let mut before = self.settings.thresholds.iter().zip(&self.episodes);
            *episode = before.find(|(known, _)| *known == threshold).and_then(|(_, episode)| *episode);
        }
        let open = |episodes: &[Option<Episode>]| episodes.iter().flatten().count();
        self.is_forgotten |= open(&episodes) < open(&self.episodes);
        self.arms.inherit(&self.settings.thresholds, &settings.thresholds);
        self.pressure = pressure;
        self.episodes = episodes;
        self.mode = settings.mode;
        self.forget_reported();
        self.no_candidate_until_ns = [0; Signal::ALL.len()];
        self.settings = *settings;
    }

    /// Takes a new set of candidates, and returns the old one, to be freed elsewhere.
    #[must_use = "the old set is returned so that it is not freed here"]
    pub fn replace(&mut self, mut candidates: Candidates) -> Candidates {
        candidates.inherit(&self.candidates);
        // There may be a candidate now.
        self.no_candidate_until_ns = [0; Signal::ALL.len()];
        std::mem::replace(&mut self.candidates, candidates)
    }

    /// The latest decision, which [`Action::Evict`] carries out.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    /// The candidates, with the state of each.
    #[must_use]
    pub fn candidates(&self) -> &Candidates {
        &self.candidates
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> &EngineSettings {
        &self.settings
    }

    /// The mode in force: the configured one, or dry-run while eviction is paused or once the breaker has opened.
    #[must_use]
    pub fn mode(&self) -> Mode {
        if self.settings.paused { self.mode.min(Mode::DryRun) } else { self.mode }
    }

    /// The number of the eviction under way, and the victim's cgroup.
    #[must_use]
    pub fn victim(&self) -> Option<(u64, CgroupId)> {
        self.victim.map(|victim| (victim.number, victim.cgroup))
    }

    /// The eviction whose victim must not be asked to end any more, if there is one: it was spared after the decision, or
    /// the shortage has ended, and as far as is known it was not asked. The executor then answers with
    /// `Refusal::Withdrawn`, unless it has asked already.
    #[must_use]
    pub fn withdrawn(&self) -> Option<u64> {
        let victim = self.victim.filter(Victim::is_to_be_asked)?;
        (victim.is_relieved() || self.spared(victim.cgroup).is_some()).then_some(victim.number)
    }

    /// The moments of the eviction under way so far.
    #[must_use]
    pub fn moments(&self) -> Option<Moments> {
        self.victim.map(|victim| victim.moments())
    }

    /// The highest threshold of that signal that is not met, in its base unit, if there is one: a falling level crosses
    /// it next.
    #[must_use]
    pub fn next_threshold(&self, signal: Signal) -> Option<u64> {
        let of_signal = |tracked: &&Tracked| tracked.threshold.signal == signal && tracked.since_ns.is_none();
        let amounts = self.pressure.thresholds().filter(of_signal).filter_map(Tracked::reclaim);
        amounts.map(|reclaim| reclaim.amount).max()
    }

    /// The highest threshold of that signal, met or not, in its base unit; 0 while unknown, as a percentage of
    /// something that was not measured yet. `None` if the signal is not followed.
    #[must_use]
    pub fn highest_threshold(&self, signal: Signal) -> Option<u64> {
        self.highest(signal, |reclaim| reclaim.amount)
    }

    /// The same with the minimum reclaim: the highest level that ends a shortage that was acted on.
    #[must_use]
    pub fn highest_target(&self, signal: Signal) -> Option<u64> {
        self.highest(signal, |reclaim| reclaim.target)
    }

    fn highest(&self, signal: Signal, bytes: impl Fn(Reclaim) -> u64) -> Option<u64> {
        let of_signal = self.pressure.thresholds().filter(|tracked| tracked.threshold.signal == signal);
        of_signal.map(|tracked| tracked.reclaim().map_or(0, &bytes)).max()
    }

    /// Processes one input.
    pub fn step(&mut self, input: Input<'_>) -> Actions {
        let mut actions = Actions::new();
        match input {
            Input::Node(node) => {
                self.see(&node, &mut actions);
                if let Some(resource) = self.wants_readings(&node).filter(|_| is_free(&actions)) {
                    self.asked_for = Some(resource);
                    push(&mut actions, Action::ReadUsages(resource));
                }
                self.pace(node.now_ns, &mut actions);
            }
            Input::Usages { node, readings } => {
                self.candidates.take_readings(node.now_ns, readings);
                self.baseline_due_ns = node.now_ns.saturating_add(BASELINE_EVERY_NS);
                self.see(&node, &mut actions);
                // PIDs may have run short since memory was requested: the next sample requests them then.
                let asked_for = self.asked_for;
                let is_read = |reclaim: &Reclaim| {
                    Resource::of(reclaim.threshold.signal) != Some(Resource::Pids)
                        || asked_for == Some(Resource::Pids)
                };
                if let Some(reclaim) = self.may_decide(node.now_ns).filter(is_read) {
                    self.decide(node.now_ns, reclaim, &mut actions);
                    // Without a candidate for this signal, another comes next: it would wait for ever behind it.
                    for _ in 1..Signal::ALL.len() {
                        let is_other = |other: &Reclaim| {
                            other.threshold.signal != reclaim.threshold.signal && is_read(other)
                        };
                        let other = self.all_that_may_be_decided(node.now_ns).find(is_other);
                        if let Some(other) = other.filter(|_| is_free(&actions)) {
                            self.decide(node.now_ns, other, &mut actions);
                        }
                    }
                } else if is_free(&actions) {
                    self.contain(&node, &mut actions);
                }
                self.pace(node.now_ns, &mut actions);
            }
            Input::Outcome(outcome) => self.on_outcome(outcome, &mut actions),
            Input::Arm { now_ns: _ } => {
                self.arm(&mut actions);
                self.ease(&mut actions);
            }
        }
        actions
    }

    /// Updates which thresholds are met, and since when, and the victim's grace.
    fn see(&mut self, node: &NodeSample, actions: &mut Actions) {
        let now_ns = node.now_ns;
        self.free_lists_bytes = node.free_lists_bytes;
        self.unmapped_shmem_bytes = node.unmapped_shmem_bytes;
        self.shmem_bytes = node.shmem_bytes;
        self.volumes.note_shmem(node.shmem_bytes);
        let verdict = self.pressure.observe(node.awake_ns(), &node.observations());
        let is_lowered = self.arms.is_lowered(node);
        for (place, (tracked, slot)) in self.pressure.thresholds().zip(&mut self.episodes).enumerate() {
            let met = tracked.since_ns.is_some();
            let seen = tracked.reclaim().map(|reclaim| shortage(&reclaim));
            let armament = Armament {
                is_measured: seen.is_some(),
                is_met: met,
                was_met: slot.is_some_and(|episode| episode.met),
                is_lowered: is_lowered && is_of_pods(tracked.threshold.signal),
            };
            self.arms.look(place, armament);
            match (slot.as_mut(), seen) {
                (None, Some(shortage)) if met => {
                    *slot = Some(Episode { crossed_ns: now_ns, met, last_met_ns: now_ns });
                    push(actions, Action::Crossed { now_ns, shortage });
                }
                (Some(episode), _) if met => {
                    if !episode.met {
                        episode.crossed_ns = now_ns;
                    }
                    episode.met = true;
                    episode.last_met_ns = now_ns;
                }
                (Some(episode), Some(shortage)) => {
                    episode.met = false;
                    if now_ns.saturating_sub(episode.last_met_ns) >= EPISODE_HOLD_NS {
                        let crossed_ns = episode.crossed_ns;
                        *slot = None;
                        push(actions, Action::Cleared { now_ns, shortage, crossed_ns });
                    }
                }
                // A signal that was not measured is neither met nor over.
                (Some(episode), None) => episode.met = false,
                (None, _) => {}
            }
        }
        let is_forgotten = std::mem::take(&mut self.is_forgotten);
        let was_short = is_forgotten || self.reported.iter().any(Option::is_some) || !actions.is_empty();
        if was_short && self.episodes.iter().all(Option::is_none) {
            self.reported = [None; Signal::ALL.len()];
            self.forget_reported();
            self.no_candidate_until_ns = [0; Signal::ALL.len()];
            self.candidates.forgive();
        }
        if verdict.conditions != self.conditions {
            self.conditions = verdict.conditions;
            push(actions, Action::Conditions(verdict.conditions));
        }
        self.report_arming(actions);
        self.watch_shared_memory(node, actions);
        self.hurry(node, actions);
        self.ease(actions);
    }

    /// Ends the wait for a hook, or the victim's grace period, if it is time.
    fn hurry(&mut self, node: &NodeSample, actions: &mut Actions) {
        self.exhaustion = self.exhaustion(node);
        let Some(mut victim) = self.victim else { return };
        let resource = Resource::of(victim.signal);
        // Its death must help against what is short.
        let helps = |signal| Resource::of(signal) == resource && victim.counts_for(signal);
        let due = || {
            let thresholds = self.pressure.due().map(|reclaim| reclaim.threshold);
            thresholds.filter(|threshold| self.is_armed(threshold))
        };
        let is_met = |tracked: &Tracked| {
            let threshold = &tracked.threshold;
            tracked.since_ns.is_some() && self.is_armed(threshold) && helps(threshold.signal)
        };
        let sight = Sight {
            hard: due().any(|threshold| threshold.is_hard()),
            short: due().any(|threshold| helps(threshold.signal)),
            met: self.pressure.thresholds().any(is_met),
            spared: self.spared(victim.cgroup),
            available: node.level(victim.signal).map(|level| level.available),
            exhausted_in_ns: self.exhaustion.in_ns(victim.in_kubepods),
        };
        let number = victim.number;
        let next = victim.hurry(node.now_ns, &sight);
        self.victim = Some(victim);
        match next {
            Next::Wait => {}
            Next::Ask => push(actions, Action::Ask { number }),
            Next::Kill(reason) => push(actions, Action::Kill { number, reason }),
            Next::Spare(reason) => {
                let failure = victim.failure(node.now_ns, reason);
                self.victim = None;
                push(actions, Action::Failed(failure));
            }
        }
    }

    /// Why no pod may be killed, or not this one.
    #[must_use]
    pub fn spared(&self, cgroup: CgroupId) -> Option<Spared> {
        let facts = || {
            self.candidates.find(cgroup).and_then(|index| self.candidates.slot(index)).map(|slot| slot.facts)
        };
        match self.mode() {
            Mode::Observe | Mode::DryRun if self.settings.paused => Some(Spared::Paused),
            Mode::Observe | Mode::DryRun => Some(Spared::NotEnforcing),
            Mode::Enforce => facts().and_then(|facts| {
                facts.critical.then_some(Spared::Critical).or(facts.protected.then_some(Spared::Protected))
            }),
        }
    }

    /// What may be decided on now: the first threshold that is due even after counting memory that the last victim and
    /// the per-CPU lists still release. An unarmed threshold waits for all armed ones, and for the end of the eviction
    /// under way.
    fn may_decide(&self, now_ns: u64) -> Option<Reclaim> {
        self.all_that_may_be_decided(now_ns).next()
    }

    /// The same, and what comes after it if there is no candidate for it.
    fn all_that_may_be_decided(&self, now_ns: u64) -> impl Iterator<Item = Reclaim> {
        self.due_despite(now_ns, move |reclaim| self.on_free_lists(now_ns, reclaim))
    }

    /// Whether a decision would be possible without the memory on per-CPU lists.
    fn may_decide_without(&self, now_ns: u64) -> bool {
        self.due_despite(now_ns, |_| 0).next().is_some()
    }

    /// What may be decided on, if `more` is still to be released.
    fn due_despite(&self, now_ns: u64, more: impl Fn(&Reclaim) -> u64) -> impl Iterator<Item = Reclaim> {
        let acts = match self.mode {
            Mode::Observe => false,
            Mode::DryRun | Mode::Enforce => true,
        };
        let alive = self.victim.is_some_and(|victim| victim.is_alive());
        let decides = acts && !alive;
        let may = move |reclaim: &Reclaim| {
            if self.is_quiet(&reclaim.threshold, now_ns)
                || !reclaim.threshold.is_hard() && now_ns < self.soft_quiet_until_ns && self.awaits_others()
            {
                return false;
            }
            if now_ns < self.no_candidate_until(reclaim) {
                return false;
            }
            reclaim.available.saturating_add(self.credit(now_ns, reclaim)).saturating_add(more(reclaim))
                < reclaim.target
        };
        let due = move |is_armed: bool| {
            self.pressure.due().filter(move |reclaim| self.is_armed(&reclaim.threshold) == is_armed)
        };
        let unarmed = due(false).filter(|_| self.victim.is_none());
        due(true).chain(unarmed).filter(move |reclaim| decides && may(reclaim))
    }

    /// Until when no candidate is looked for, as there was none; 0 if there was one or none was looked for yet.
    fn no_candidate_until(&self, reclaim: &Reclaim) -> u64 {
        self.no_candidate_until_ns[reclaim.threshold.signal as usize]
    }

    /// How much of the threshold's resource the last victim still releases, and others make free. What a dry run has chosen
    /// counts as if it had died.
    fn credit(&self, now_ns: u64, reclaim: &Reclaim) -> u64 {
        let Some(resource) = Resource::of(reclaim.threshold.signal) else { return 0 };
        let victim = self.victim.map_or(0, |victim| victim.credit_for(reclaim.threshold.signal));
        let others = match resource {
            Resource::Memory if self.awaits_others() => {
                self.released_by_others(now_ns, reclaim.threshold.signal)
            }
            Resource::Memory | Resource::Pids => 0,
        };
        let chosen = self.candidates.slots().map(|(_, slot)| slot);
        let chosen = chosen
            .filter(|slot| slot.is_chosen(now_ns) && slot.facts.counts_for(reclaim.threshold.signal))
            .map(|slot| slot.reading.freed_by_death(resource));
        chosen.fold(victim.saturating_add(others), u64::saturating_add)
    }

    /// How much of the threshold's resource is still to be released: by the last victim and others, and from the kernel's own
    /// lists.
    fn coming(&self, now_ns: u64, reclaim: &Reclaim) -> u64 {
        self.credit(now_ns, reclaim).saturating_add(self.on_free_lists(now_ns, reclaim))
    }

    /// Whether usages must be read, and for which resource.
    fn wants_readings(&self, node: &NodeSample) -> Option<Resource> {
        let mut due = self
            .all_that_may_be_decided(node.now_ns)
            .filter_map(|reclaim| Resource::of(reclaim.threshold.signal));
        if let Some(first) = due.next() {
            // Read for process ids, usages have the memory too: both can be decided on.
            return Some(if due.any(|other| other == Resource::Pids) { Resource::Pids } else { first });
        }
        if self.may_contain(node) || self.must_read_others(node.now_ns) {
            return Some(Resource::Memory);
        }
        let near = |tracked: &Tracked| {
            let reclaim = tracked.reclaim()?;
            (reclaim.available < reclaim.amount.saturating_mul(2)).then_some(())?;
            Resource::of(tracked.threshold.signal).filter(|resource| *resource == Resource::Memory)
        };
        let due = node.now_ns >= self.baseline_due_ns && self.mode != Mode::Observe;
        (due && !self.candidates.is_empty()).then(|| self.pressure.thresholds().find_map(near)).flatten()
    }

    /// Requests the next sample, where the engine knows better than the sampler when it is due.
    fn pace(&self, now_ns: u64, actions: &mut Actions) {
        let watch = self.victim.map(|victim| match victim.grace_left_ns() {
            Some(left_ns) => left_ns.clamp(MS, WATCH_GRACE_NS),
            None if victim.is_unasked() => WATCH_GRACE_NS,
            None if victim.age_ns(now_ns) < WATCH_FAST_FOR_NS => WATCH_FAST_NS,
            None => WATCH_SLOW_NS,
        });
        let hard = |(tracked, episode): (&Tracked, &Option<Episode>)| {
            let is_met = episode.is_some_and(|episode| episode.met);
            tracked.threshold.is_hard() && is_met && self.is_armed(&tracked.threshold)
        };
        let short = self.pressure.thresholds().zip(&self.episodes).any(hard).then_some(IDLE_SHORTAGE_NS);
        let lists = self.waits_for_free_lists(now_ns).then_some(free_lists::WATCH_NS);
        let short = short.or_else(|| self.waits_for_others(now_ns).then_some(IDLE_SHORTAGE_NS));
        if let Some(within_ns) = watch.or(lists).or(short) {
            push(actions, Action::LookAgainWithin(within_ns));
        }
    }
}

fn pressure(settings: &EngineSettings) -> Pressure {
    Pressure::of(settings.thresholds.iter().copied(), settings.pressure_transition_period_ms)
}

fn shortage(reclaim: &Reclaim) -> Shortage {
    let Reclaim { threshold, amount, target: _, available } = *reclaim;
    Shortage { signal: threshold.signal, hard: threshold.is_hard(), threshold: amount, observed: available }
}

/// `value * by / of`, cut to 64 bits; 0 if `of` is 0.
fn scale(value: u64, by: u64, of: u64) -> u64 {
    let scaled = (u128::from(value) * u128::from(by)).checked_div(u128::from(of)).unwrap_or(0);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// Whether no action awaits an answer before anything else is requested.
fn is_free(actions: &Actions) -> bool {
    !actions.iter().any(Action::is_question)
}

/// A step never pushes more than [`Actions`] has room for; the tests check this.
fn push<T: Copy, const N: usize>(few: &mut Few<T, N>, value: T) {
    let fits = few.push(value);
    debug_assert!(fits, "no room for another value");
}
