//! Decides who is evicted, and when: a deterministic state machine, from inputs to actions.
//!
//! Time comes in with the inputs. Nothing is allocated between them: what grows with the candidates is prepared in
//! [`Candidates`], outside.
//!
//! One victim at a time: while one holds processes nobody else is chosen, and what it is still giving back counts
//! as available until it has come or should have come.

mod action;
mod breaker;
mod candidates;
mod few;
mod input;
mod settings;
#[cfg(test)]
mod tests;
mod victim;

pub use self::{
    action::{
        Action, Actions, Completion, Decision, Excluded, Exclusion, Failure, FailureReason, Moments, Ranked,
        SHOWN_EXCLUDED, SHOWN_RANKING, Suppression,
    },
    candidates::Candidates,
    few::Few,
    input::{CandidateFacts, Input, NodeSample, Outcome, Reading, Refusal, Usage},
    settings::{BreakerSettings, EngineSettings, HardThreshold, Mode},
};
use self::{
    breaker::Breaker,
    victim::{Look, Victim},
};
use super::rank;
use crate::model::CgroupId;

const MS: u64 = 1_000_000;

/// A shortage that comes back within this time is the same episode: what hovers about the threshold is told once.
const EPISODE_HOLD_NS: u64 = 1_000 * MS;

/// Close to the threshold the usages are read now and then, so that a decision knows how fast each pod grew.
const BASELINE_EVERY_NS: u64 = 2_000 * MS;

/// When there is nobody to evict, how long until it is tried again: to read all usages costs milliseconds.
const NOBODY_PAUSE_NS: u64 = 100 * MS;

/// How often a dying victim is looked at, in its first 200 ms and after.
const WATCH_FAST_NS: u64 = 2 * MS;
const WATCH_SLOW_NS: u64 = 10 * MS;
const WATCH_FAST_FOR_NS: u64 = 200 * MS;

/// How often the node is looked at in a shortage in which nothing is to be done.
const IDLE_SHORTAGE_NS: u64 = 100 * MS;

/// From the first crossing until the resource has been sufficient for a while.
#[derive(Clone, Copy, Debug)]
struct Episode {
    /// When the shortage began that is on now, or was last.
    crossed_ns: u64,
    /// Whether it is short right now.
    met: bool,
    last_met_ns: u64,
    told: Option<Suppression>,
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct Engine {
    settings: EngineSettings,
    /// The settings' mode, or less once the breaker has opened.
    mode: Mode,
    candidates: Candidates,
    breaker: Breaker,
    episode: Option<Episode>,
    victim: Option<Victim>,
    decision: Option<Decision>,
    decided: u64,
    quiet_until_ns: u64,
    baseline_due_ns: u64,
}

impl Engine {
    /// Begins, with nothing known and no candidates.
    #[must_use]
    pub fn new(settings: EngineSettings) -> Self {
        Self {
            settings,
            mode: settings.mode,
            candidates: Candidates::default(),
            breaker: Breaker::new(settings.breaker),
            episode: None,
            victim: None,
            decision: None,
            decided: 0,
            quiet_until_ns: 0,
            baseline_due_ns: 0,
        }
    }

    /// Takes new settings; an open breaker is closed by it. An eviction under way goes on.
    pub fn configure(&mut self, settings: EngineSettings) {
        if settings.breaker != self.settings.breaker {
            self.breaker = Breaker::new(settings.breaker);
        }
        self.mode = settings.mode;
        self.quiet_until_ns = 0;
        self.settings = settings;
    }

    /// Takes a new set of candidates, and gives back the old one, to be freed elsewhere.
    #[must_use = "the old set is returned so that it is not freed here"]
    pub fn replace(&mut self, mut candidates: Candidates) -> Candidates {
        candidates.inherit(&self.candidates);
        if let Some(Episode { told: Some(Suppression::NoCandidate), .. }) = self.episode {
            // Now there may be somebody.
            self.quiet_until_ns = 0;
        }
        std::mem::replace(&mut self.candidates, candidates)
    }

    /// The latest decision, which [`Action::Evict`] asks to be carried out.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    /// The mode in force: the configured one, or dry-run once the breaker has opened.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The cgroup and number of the victim that is signalled or about to be.
    #[must_use]
    pub fn victim(&self) -> Option<(u64, CgroupId)> {
        self.victim.map(|victim| (victim.number, victim.cgroup))
    }

    /// The threshold of `memory.available`, if there is one.
    #[must_use]
    pub fn threshold(&self) -> Option<HardThreshold> {
        self.settings.memory_available
    }

    /// Takes one input in.
    pub fn step(&mut self, input: Input<'_>) -> Actions {
        let mut actions = Actions::new();
        match input {
            Input::Node(node) => {
                self.see(node, &mut actions);
                if self.wants_readings(node) {
                    push(&mut actions, Action::ReadUsages);
                }
                self.pace(node.now_ns, &mut actions);
            }
            Input::Usages { node, readings } => {
                self.candidates.take_readings(node.now_ns, readings);
                self.baseline_due_ns = node.now_ns.saturating_add(BASELINE_EVERY_NS);
                self.see(node, &mut actions);
                if self.may_decide(node) {
                    self.decide(node, &mut actions);
                }
                self.pace(node.now_ns, &mut actions);
            }
            Input::Outcome(outcome) => self.hear(outcome, &mut actions),
        }
        actions
    }

    /// Follows the threshold: whether it is met, and since when.
    fn see(&mut self, node: NodeSample, actions: &mut Actions) {
        let NodeSample { now_ns, available_bytes } = node;
        let threshold = self.settings.memory_available;
        let threshold_bytes = threshold.map_or(0, |threshold| threshold.bytes);
        let met = self.is_short(available_bytes);
        match &mut self.episode {
            None if met => {
                self.episode = Some(Episode { crossed_ns: now_ns, met, last_met_ns: now_ns, told: None });
                push(actions, Action::Crossed { now_ns, available_bytes, threshold_bytes });
            }
            None => {}
            Some(episode) if met => {
                if !episode.met {
                    episode.crossed_ns = now_ns;
                }
                episode.met = true;
                episode.last_met_ns = now_ns;
            }
            Some(episode) => {
                episode.met = false;
                if now_ns.saturating_sub(episode.last_met_ns) >= EPISODE_HOLD_NS {
                    let crossed_ns = episode.crossed_ns;
                    self.episode = None;
                    self.quiet_until_ns = 0;
                    self.candidates.forgive();
                    push(actions, Action::Cleared { now_ns, available_bytes, threshold_bytes, crossed_ns });
                }
            }
        }
    }

    /// Whether the threshold is met by that many bytes: strictly fewer than it, and once met, than it and
    /// the minimum reclaim (upstream `thresholdsMet`).
    fn is_short(&self, available_bytes: u64) -> bool {
        let Some(threshold) = self.settings.memory_available else { return false };
        let already = self.episode.is_some_and(|episode| episode.met);
        let reclaim = if already { threshold.min_reclaim_bytes } else { 0 };
        available_bytes < threshold.bytes.saturating_add(reclaim)
    }

    fn may_decide(&self, node: NodeSample) -> bool {
        let acts = match self.mode {
            Mode::Observe => false,
            Mode::DryRun | Mode::Enforce => true,
        };
        let alive = self.victim.is_some_and(|victim| victim.is_alive());
        let credit_bytes = self.victim.map_or(0, |victim| victim.credit_bytes());
        acts && !alive
            && node.now_ns >= self.quiet_until_ns
            && self.episode.is_some_and(|episode| episode.met)
            && self.is_short(node.available_bytes.saturating_add(credit_bytes))
    }

    fn wants_readings(&self, node: NodeSample) -> bool {
        let Some(threshold) = self.settings.memory_available else { return false };
        let near = node.available_bytes < threshold.bytes.saturating_mul(2);
        let baseline = near && node.now_ns >= self.baseline_due_ns && self.mode != Mode::Observe;
        !self.candidates.is_empty() && baseline || self.may_decide(node)
    }

    /// Chooses the victim from fresh readings.
    fn decide(&mut self, node: NodeSample, actions: &mut Actions) {
        if let Some(victim) = self.victim.take() {
            // Its processes are gone, and what it can still give back would not suffice.
            push(actions, Action::Completed(victim.completion()));
        }
        if self.mode == Mode::Enforce && self.breaker.is_open(node.now_ns) {
            self.mode = Mode::DryRun;
            self.suppress(node.now_ns, Suppression::BreakerOpen, actions);
        }
        let mut order = std::mem::take(&mut self.candidates.order);
        order.clear();
        let spare = self.settings.evict_within_request;
        order.extend(
            self.candidates
                .slots()
                .filter(|(_, slot)| slot.exclusion(spare).is_none())
                .map(|(index, slot)| slot.ranked(index)),
        );
        rank::by_memory(&mut order, |ranked| ranked.standing);
        self.candidates.order = order;
        self.take_first(node, actions);
    }

    /// Decides on the first of the order.
    fn take_first(&mut self, node: NodeSample, actions: &mut Actions) {
        let Some(decision) = self.draw_up(node) else {
            self.quiet_until_ns = node.now_ns.saturating_add(NOBODY_PAUSE_NS);
            self.suppress(node.now_ns, Suppression::NoCandidate, actions);
            return;
        };
        self.decided = decision.number;
        if let Some(episode) = &mut self.episode {
            episode.told = None;
        }
        self.decision = Some(decision);
        if decision.dry_run {
            self.quiet_until_ns = node.now_ns.saturating_add(self.settings.dry_run_cool_down_ns);
        } else {
            self.victim = Some(Victim::new(&decision));
        }
        push(actions, Action::Evict);
    }

    fn draw_up(&self, node: NodeSample) -> Option<Decision> {
        let order = &self.candidates.order;
        let first = order.first()?;
        let slot = self.candidates.slot(first.index)?;
        let mut ranking = Few::new();
        for ranked in order.iter().take(SHOWN_RANKING) {
            push(&mut ranking, *ranked);
        }
        let mut excluded = Few::new();
        let mut excluded_count = 0;
        for (index, slot) in self.candidates.slots() {
            if let Some(reason) = slot.exclusion(self.settings.evict_within_request) {
                excluded_count += 1;
                if excluded.len() < SHOWN_EXCLUDED {
                    push(&mut excluded, Excluded { index, cgroup: slot.facts.cgroup, reason });
                }
            }
        }
        Some(Decision {
            number: self.decided.saturating_add(1),
            dry_run: self.mode != Mode::Enforce,
            index: first.index,
            cgroup: first.cgroup,
            crossed_ns: self.episode.map_or(node.now_ns, |episode| episode.crossed_ns),
            decided_ns: node.now_ns,
            threshold_bytes: self.settings.memory_available.map_or(0, |threshold| threshold.bytes),
            observed_bytes: node.available_bytes,
            reading: slot.reading,
            growth_bytes_per_second: slot.growth_bytes_per_second,
            decided_by: order.get(1).map(|next| first.standing.compare(&next.standing).1),
            predicted_freed_bytes: slot.reading.usage().map_or(0, Usage::freed_by_death_bytes),
            ranking,
            ranked_count: order.len(),
            excluded,
            excluded_count,
        })
    }

    /// Takes in what came of a decision; an answer about another eviction than the present one is stale.
    fn hear(&mut self, outcome: Outcome, actions: &mut Actions) {
        let Some(mut victim) = self.victim else { return };
        match outcome {
            Outcome::Signalled { number, now_ns } if number == victim.number => {
                victim.signalled(now_ns);
                self.victim = Some(victim);
                self.breaker.record(now_ns);
                self.pace(now_ns, actions);
            }
            Outcome::Refused { number, now_ns, reason } if number == victim.number && victim.is_alive() => {
                self.victim = None;
                self.candidates.pass_over(victim.cgroup);
                push(actions, Action::Failed(victim.failure(now_ns, FailureReason::Refused(reason))));
                self.go_on(victim, now_ns, actions);
            }
            Outcome::Progress { number, now_ns, populated, current_bytes } if number == victim.number => {
                match victim.look(now_ns, populated, current_bytes) {
                    Look::Wait => self.victim = Some(victim),
                    Look::Completed(completion) => {
                        self.victim = None;
                        push(actions, Action::Completed(completion));
                    }
                    Look::Failed(failure) => {
                        self.victim = None;
                        self.candidates.pass_over(victim.cgroup);
                        push(actions, Action::Failed(failure));
                    }
                }
            }
            Outcome::Signalled { .. } | Outcome::Refused { .. } | Outcome::Progress { .. } => {}
        }
    }

    /// After a refusal: the next of the same order, whose readings are still fresh.
    fn go_on(&mut self, refused: Victim, now_ns: u64, actions: &mut Actions) {
        let Some(before) = self.decision.filter(|decision| decision.number == refused.number) else { return };
        self.candidates.order.retain(|ranked| ranked.cgroup != refused.cgroup);
        let node = NodeSample { now_ns, available_bytes: before.observed_bytes };
        if self.may_decide(node) {
            self.take_first(node, actions);
        }
        self.pace(now_ns, actions);
    }

    fn suppress(&mut self, now_ns: u64, reason: Suppression, actions: &mut Actions) {
        if let Some(episode) = &mut self.episode
            && episode.told != Some(reason)
        {
            episode.told = Some(reason);
            push(actions, Action::Suppressed { now_ns, reason });
        }
    }

    /// Says when to look again, where the engine knows better than the sampler.
    fn pace(&self, now_ns: u64, actions: &mut Actions) {
        let watch = self.victim.map(|victim| {
            if victim.age_ns(now_ns) < WATCH_FAST_FOR_NS { WATCH_FAST_NS } else { WATCH_SLOW_NS }
        });
        let short = self.episode.is_some_and(|episode| episode.met).then_some(IDLE_SHORTAGE_NS);
        if let Some(within_ns) = watch.or(short) {
            push(actions, Action::LookAgainWithin(within_ns));
        }
    }
}

/// No step can want more than [`Actions`] has room for; the tests count.
fn push<T: Copy, const N: usize>(few: &mut Few<T, N>, value: T) {
    let fits = few.push(value);
    debug_assert!(fits, "no room for another value");
}
