//! Feeds the engine, and checks the rules that hold at every step.

use std::collections::{BTreeMap, VecDeque};

use super::{
    super::oracle::Oracle,
    MIB, MS,
    happening::{Answer, Happening, Node},
};
use crate::{
    engine::{
        Action, Actions, BrakeRefusal, CandidateFacts, Candidates, Containment, Decision, Engine,
        EngineSettings, FailureReason, HookEnd, HookPlan, Input, KillReason, Mode, Outcome, RankKey, Ranked,
        Reading, Refusal, Resource, Spared, Usage,
    },
    model::CgroupId,
    rank::MemoryRankKey,
    threshold::{Signal, Threshold},
};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Course {
    /// Something is run before.
    Hooked { number: u64, grace: bool, left_ns: u64, is_over: bool },
    /// Asked for; `grace` says how.
    Asked { number: u64, grace: bool },
    /// Sent SIGTERM.
    Terminated { number: u64 },
    /// To be killed after SIGTERM, or before it could be sent.
    ToBeKilled { number: u64, terminated: bool },
    /// Sent SIGKILL.
    Killed { number: u64 },
}

/// What the helper thread was asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Asked {
    Contain(u64),
    Ease(u64),
}

pub(super) fn reading(used: Option<(u64, u64)>) -> Reading {
    match used {
        None => Reading::Missing,
        Some((599, _)) => Reading::Gone,
        Some((580..599, processes)) => {
            Reading::Uncounted { process_count: (processes % 4 > 0).then_some(processes / 4) }
        }
        Some((mib, processes)) => Reading::Usage(Usage {
            current_bytes: mib * MIB,
            working_set_bytes: mib * MIB,
            anon_bytes: mib * MIB,
            process_count: Some(processes),
            ..Usage::default()
        }),
    }
}

/// Feeds the engine, and checks the rules that hold at every step.
pub(super) struct Watcher {
    engine: Engine,
    settings: EngineSettings,
    set: Vec<CandidateFacts>,
    now_ns: u64,
    /// The latest that the clock showed before it jumped; 0 if it never did.
    peak_ns: u64,
    /// Of each threshold whether as much as its value, and whether also its minimum reclaim, was seen to be there since it
    /// was loaded, or it was armed otherwise.
    above: BTreeMap<(Signal, bool), (bool, bool)>,
    /// Which thresholds are reported as crossed.
    crossed: BTreeMap<(Signal, bool), bool>,
    course: Option<Course>,
    /// Who was to be killed before it had been asked to end; that answer is still to come.
    overtaken: Option<u64>,
    /// What the helper was asked for and has not answered, in order; and what it holds back.
    asked: VecDeque<Asked>,
    held: Option<u64>,
    kills_ns: Vec<u64>,
    /// Whether the clock has jumped, so that nothing can be said of how long anything took.
    has_jumped: bool,
    /// Of the latest victim.
    key: u64,
    /// As of the latest look.
    exhausted_in_ns: Option<u64>,
    /// Each pod's evictions so far, the latest, and the end of its back-off.
    back_offs: BTreeMap<u64, (u32, u64, u64)>,
    /// When the latest victim that was reported as dead had died.
    died_ns: Option<u64>,
    /// As of the latest look.
    free_lists_bytes: u64,
    oracle: Oracle,
    all: Vec<Vec<Action>>,
}

impl Watcher {
    fn acts(&self) -> bool {
        self.settings.mode == Mode::Enforce && !self.settings.paused
    }

    fn feed(&mut self, happening: &Happening) {
        let number = self.engine.victim().map_or(0, |(number, _)| number);
        let now_ns = self.now_ns;
        let actions: Actions = match happening {
            Happening::Look { after_ms, node } => {
                self.now_ns += after_ms * MS;
                self.wait_for_hook(after_ms * MS);
                self.exhausted_in_ns = node.exhausted_in_ns();
                self.free_lists_bytes = node.free_lists_mib * MIB;
                self.engine.step(Input::Node(node.sample(self.now_ns)))
            }
            Happening::Usages { node, used } => {
                self.exhausted_in_ns = node.exhausted_in_ns();
                self.free_lists_bytes = node.free_lists_mib * MIB;
                let readings: Vec<_> = used.iter().copied().map(reading).collect();
                self.engine.step(Input::Usages { node: node.sample(now_ns), readings: &readings })
            }
            Happening::Answer(answer) => {
                let Some(outcome) = self.answer(*answer) else { return };
                self.engine.step(Input::Outcome(outcome))
            }
            Happening::Progress { after_ms, populated, current_mib } => {
                self.now_ns += after_ms * MS;
                self.wait_for_hook(after_ms * MS);
                let asked = matches!(self.course, Some(Course::Asked { .. }));
                if !populated && !asked {
                    self.course = None;
                }
                self.engine.step(Input::Outcome(Outcome::Progress {
                    number,
                    now_ns: self.now_ns,
                    populated: *populated,
                    current_bytes: current_mib.map(|mib| mib * MIB),
                    process_count: None,
                }))
            }
            Happening::NewSet(facts) => {
                self.set.clone_from(facts);
                drop(self.engine.replace(Candidates::new(facts)));
                return;
            }
            Happening::Jump { back_ms, ahead_ms } => {
                self.peak_ns = self.peak_ns.max(self.now_ns);
                self.now_ns = self.now_ns.saturating_sub(back_ms * MS) + ahead_ms * MS;
                self.has_jumped = true;
                return;
            }
            Happening::Arm => {
                for threshold in self.settings.thresholds.iter() {
                    self.above.insert((threshold.signal, threshold.is_hard()), (true, true));
                }
                self.engine.step(Input::Arm { now_ns })
            }
            Happening::Configure(settings) => {
                let kept = |(signal, hard): &(Signal, bool)| {
                    let same =
                        |threshold: &&Threshold| threshold.signal == *signal && threshold.is_hard() == *hard;
                    let of = |settings: &EngineSettings| settings.thresholds.iter().find(same).copied();
                    of(settings).is_some() && of(settings) == of(&self.settings)
                };
                self.crossed.retain(|key, _| kept(key));
                self.above.retain(|key, _| kept(key));
                self.engine.configure(settings);
                self.oracle.configured();
                self.settings = **settings;
                return;
            }
        };
        if let Happening::Look { node, .. } | Happening::Usages { node, .. } = happening {
            self.see_above(*node);
        }
        let questions = actions.iter().filter(|action| action.is_question());
        assert!(questions.count() <= 1, "two that are to be answered: {actions:?}");
        for action in actions.iter() {
            self.check(action);
        }
        if matches!(happening, Happening::Look { .. })
            && let Some(Course::Hooked { left_ns, is_over, .. }) = self.course
            && !self.has_jumped
        {
            assert!(left_ns > 0 && !is_over, "it waits longer than it may");
            let is_too_late = self.exhausted_in_ns.is_some_and(|in_ns| in_ns <= 200 * MS);
            assert!(!is_too_late, "it waits until memory is exhausted");
            assert!(self.acts(), "it waits though it evicts no pod");
        }
        let is_let_go_of = self.asked.iter().any(|asked| matches!(asked, Asked::Ease(_)));
        let on = self.held.is_some() || !self.asked.is_empty();
        if on && !is_let_go_of {
            assert!(self.acts(), "held back though it only reports");
            assert!(self.engine.victim().is_some(), "held back without a victim");
        }
        let node = match happening {
            Happening::Look { node, .. } | Happening::Usages { node, .. } => Some(node.sample(self.now_ns)),
            _ => None,
        };
        let is_short = self.crossed.values().any(|crossed| *crossed);
        self.oracle.see(&self.engine, node, (self.now_ns, self.peak_ns == 0), is_short, &actions);
        self.all.push(actions.iter().copied().collect());
    }

    /// Only what was asked for is answered.
    fn answer(&mut self, answer: Answer) -> Option<Outcome> {
        let now_ns = self.now_ns;
        Some(match (answer, self.course) {
            (Answer::Brake(done), _) => return self.answer_of_brake(done),
            (Answer::Hook, Some(Course::Hooked { number, grace, left_ns, is_over: _ })) => {
                self.course = Some(Course::Hooked { number, grace, left_ns, is_over: true });
                Outcome::HookEnded { number, now_ns, end: HookEnd::Exited(0) }
            }
            (Answer::Terminated { requested: false }, Some(Course::Asked { number, grace: true }))
                if self.engine.decision().is_some_and(|decision| decision.graceless) =>
            {
                Outcome::Unrequested { number, now_ns }
            }
            (Answer::Terminated { requested }, Some(Course::Asked { number, grace: true })) => {
                self.count_kill();
                self.course = Some(Course::Terminated { number });
                if requested {
                    Outcome::Requested { number, now_ns }
                } else {
                    Outcome::Terminated { number, now_ns }
                }
            }
            (
                Answer::Signalled,
                Some(Course::Asked { number, grace: false } | Course::ToBeKilled { number, .. }),
            ) => {
                if !matches!(self.course, Some(Course::ToBeKilled { terminated: true, .. })) {
                    self.count_kill();
                }
                self.course = Some(Course::Killed { number });
                Outcome::Signalled { number, now_ns }
            }
            (
                Answer::Refused(reason),
                Some(Course::Asked { number, .. } | Course::ToBeKilled { number, .. }),
            ) => {
                let over = matches!(reason, Refusal::Gone | Refusal::Empty)
                    && matches!(self.course, Some(Course::ToBeKilled { terminated: true, .. }));
                if over {
                    self.course = None;
                }
                Outcome::Refused { number, now_ns, reason }
            }
            (Answer::Late(asked), _) => match self.overtaken.take()? {
                number if asked => Outcome::Terminated { number, now_ns },
                number => Outcome::Refused { number, now_ns, reason: Refusal::Unrecorded },
            },
            _ => return None,
        })
    }

    /// As the helper thread answers: in order, and what it does not hold it lets go of too.
    fn answer_of_brake(&mut self, done: bool) -> Option<Outcome> {
        let now_ns = self.now_ns;
        Some(match self.asked.pop_front()? {
            Asked::Contain(brake) if done => {
                self.held = Some(brake);
                Outcome::Contained { brake, now_ns }
            }
            Asked::Contain(brake) => Outcome::Uncontained { brake, now_ns, reason: BrakeRefusal::Unwritten },
            Asked::Ease(brake) => {
                self.held = self.held.filter(|held| *held != brake);
                Outcome::Eased { brake, now_ns, given_back: done }
            }
        })
    }

    fn check_containment(&mut self, containment: &Containment) {
        assert!(self.acts(), "held back though it only reports");
        // One that could not be held back may still be about to be released.
        let letting_go = |asked: &Asked| matches!(asked, Asked::Ease(_));
        assert!(self.held.is_none() && self.asked.iter().all(letting_go), "two held back");
        let (number, victim) = self.engine.victim().expect("a victim whose memory is awaited");
        assert!(number == containment.number && victim != containment.cgroup, "the victim itself");
        assert!(!matches!(self.course, Some(Course::Asked { .. })), "before the victim's signal");
        let facts = self.set.iter().find(|facts| facts.cgroup == containment.cgroup).unwrap();
        assert!(!facts.critical && !facts.protected, "a spared pod");
        assert_eq!(self.set[containment.index.0].cgroup, containment.cgroup);
        assert!(containment.usage_bytes > facts.request_bytes, "it keeps to its request");
        assert_eq!(
            containment.high_bytes,
            containment.usage_bytes / 10 * 9 + containment.usage_bytes % 10 * 9 / 10
        );
        self.asked.push_back(Asked::Contain(containment.brake));
    }

    fn check(&mut self, action: &Action) {
        match action {
            Action::Contain(containment) => self.check_containment(containment),
            Action::Ease { brake } => {
                let eased = self.asked.contains(&Asked::Ease(*brake));
                let on = self.held == Some(*brake) || self.asked.contains(&Asked::Contain(*brake));
                assert!(on && !eased, "no pod to be released");
                self.asked.push_back(Asked::Ease(*brake));
            }
            Action::Crossed { shortage, .. } => {
                let was = self.crossed.insert((shortage.signal, shortage.hard), true);
                assert_ne!(was, Some(true), "crossed twice");
            }
            Action::Cleared { shortage, .. } => {
                let was = self.crossed.insert((shortage.signal, shortage.hard), false);
                assert_eq!(was, Some(true), "cleared before it was crossed");
            }
            Action::Completed(completion) => {
                assert_eq!(self.course, None, "completed while it lives");
                self.died_ns = completion.moments.dead_ns.or(self.died_ns);
            }
            Action::Failed(failure) => {
                let number = match self.course.take() {
                    Some(
                        Course::Asked { number, .. }
                        | Course::ToBeKilled { number, .. }
                        | Course::Killed { number },
                    ) => Some(number),
                    // Spared since it was asked to end, or since something began to run before.
                    Some(Course::Terminated { number }) => match failure.reason {
                        FailureReason::Spared(_) => Some(number),
                        FailureReason::Refused(_)
                        | FailureReason::StillPopulated
                        | FailureReason::Relieved => None,
                    },
                    Some(Course::Hooked { number, .. }) => match failure.reason {
                        FailureReason::Spared(_) | FailureReason::Relieved => Some(number),
                        FailureReason::Refused(_) | FailureReason::StillPopulated => None,
                    },
                    None => None,
                };
                assert_eq!(number, Some(failure.number), "failed, and was not asked for or killed");
                if let FailureReason::Spared(spared) = failure.reason {
                    self.check_spared(failure.cgroup, spared);
                }
            }
            Action::Evict => self.check_decision(),
            Action::Ask { number } => {
                let Some(Course::Hooked { number: of, grace: true, .. }) = self.course else {
                    panic!("no pod to be asked to end")
                };
                assert_eq!(of, *number);
                self.course = Some(Course::Asked { number: of, grace: true });
            }
            Action::Kill { number, .. } if matches!(self.course, Some(Course::Hooked { .. })) => {
                self.course = Some(Course::ToBeKilled { number: *number, terminated: false });
            }
            Action::Kill { number, reason } => {
                assert!(self.acts(), "killed though it only reports");
                let (_, victim) = self.engine.victim().expect("a victim to kill");
                assert!(!self.is_spared(victim), "a spared pod is killed after its grace");
                let terminated = match self.course {
                    Some(Course::Terminated { number: asked }) if asked == *number => true,
                    // What is urgent does not wait until it has been asked.
                    Some(Course::Asked { number: decided, grace: true })
                        if decided == *number && *reason != KillReason::GracePassed =>
                    {
                        // Or it has been asked, and that is what the answer led to.
                        if *reason != KillReason::Unanswered {
                            self.overtaken = Some(decided);
                        }
                        false
                    }
                    other => panic!("no grace to end: {other:?}"),
                };
                self.course = Some(Course::ToBeKilled { number: *number, terminated });
            }
            Action::Contained { .. }
            | Action::Uncontained { .. }
            | Action::Eased { .. }
            | Action::Conditions(_)
            | Action::Arming
            | Action::ReadUsages(_)
            | Action::SharedMemoryHeld { .. }
            | Action::SharedMemoryFreed { .. }
            | Action::Suppressed { .. }
            | Action::LookAgainWithin(_) => {}
        }
    }

    fn see_above(&mut self, node: Node) {
        for threshold in self.settings.thresholds.iter() {
            let Some(level) = node.sample(0).level(threshold.signal) else { continue };
            let amount = threshold.value.amount(level.capacity);
            let target = amount + threshold.min_reclaim.map_or(0, |reclaim| reclaim.amount(level.capacity));
            let above = self.above.entry((threshold.signal, threshold.is_hard())).or_default();
            above.0 |= level.available >= amount;
            above.1 |= level.available >= target;
        }
    }

    fn is_spared(&self, cgroup: CgroupId) -> bool {
        let mut set = self.set.iter();
        set.any(|facts| facts.cgroup == cgroup && (facts.critical || facts.protected))
    }

    fn check_spared(&self, cgroup: CgroupId, spared: Spared) {
        let is_due = match spared {
            Spared::Protected | Spared::Critical => self.is_spared(cgroup),
            Spared::Paused => self.settings.paused,
            Spared::NotEnforcing => self.settings.mode != Mode::Enforce,
        };
        assert!(is_due, "{spared:?}");
    }

    /// The shortage ends, and the helper answers: no pod is held back any more.
    fn settle(&mut self) {
        let plenty = Node {
            memory_mib: 4_096,
            allocatable_mib: Some(4_096),
            pids: Some(32_768),
            fill_mib: 0,
            free_lists_mib: 0,
        };
        self.now_ns = self.now_ns.max(self.peak_ns);
        for _ in 0..2 {
            self.feed(&Happening::Look { after_ms: 2_000, node: plenty });
            while !self.asked.is_empty() {
                self.feed(&Happening::Answer(Answer::Brake(true)));
            }
        }
        assert_eq!((self.held, self.engine.brake()), (None, None), "still held back");
    }

    /// So much of the time is gone that a hook may take; no gap counts for more than a second.
    fn wait_for_hook(&mut self, ns: u64) {
        if let Some(Course::Hooked { left_ns, .. }) = &mut self.course {
            *left_ns = left_ns.saturating_sub(ns.min(1_000 * MS));
        }
    }

    /// A kill has begun: it counts for the breaker, unless the pod is back within its back-off.
    fn count_kill(&mut self) {
        let now_ns = self.now_ns;
        let (evictions, latest_ns, until_ns) = self.back_offs.get(&self.key).copied().unwrap_or_default();
        if now_ns >= until_ns {
            self.kills_ns.push(now_ns);
        }
        let is_forgotten = evictions == 0 || now_ns.saturating_sub(latest_ns) >= 600_000 * MS;
        let evictions = if is_forgotten { 1 } else { evictions + 1 };
        let length_ms =
            [10_000, 20_000, 40_000, 80_000, 160_000].get(evictions as usize - 1).unwrap_or(&300_000);
        let until_ns = if is_forgotten { 0 } else { until_ns }.max(now_ns + length_ms * MS);
        self.back_offs.insert(self.key, (evictions, now_ns, until_ns));
    }

    /// The decision says whether the victim has returned; and no pod within its request dies in the place of one above it.
    fn check_back_off(&self, decision: &Decision) {
        assert!(decision.ranked_count as usize <= decision.ranking.len(), "more pods than are shown");
        let first = decision.ranking.iter().next().expect("the victim");
        let facts = self.set.iter().find(|facts| facts.cgroup == first.cgroup).unwrap();
        let known = self.back_offs.get(&facts.pod.hash);
        let has_returned = known.is_some_and(|(_, _, until_ns)| self.now_ns < *until_ns);
        assert_eq!(decision.returned.is_some(), has_returned, "another's back-off");
        let is_within = |ranked: &Ranked| match ranked.standing {
            RankKey::Memory(MemoryRankKey { usage_bytes: Some(usage), request_bytes, .. }) => {
                usage <= request_bytes
            }
            RankKey::Memory(_) | RankKey::Pids(_) => false,
        };
        if is_within(first) {
            assert!(decision.ranking.iter().all(is_within), "within its request, in another's place");
        }
    }

    fn check_decision(&mut self) {
        let decision = *self.engine.decision().expect("a decision behind the action");
        assert_ne!(self.settings.mode, Mode::Observe);
        assert!(self.acts() || decision.dry_run);
        assert_eq!(decision.paused, self.settings.paused);
        let shortage = decision.shortage;
        let above = self.above.get(&(shortage.signal, shortage.hard)).copied().unwrap_or_default();
        assert!(decision.dry_run || above.0, "it was never seen above its threshold");
        assert!(!decision.unarmed || decision.dry_run && self.acts() && !above.1, "it is armed");
        assert_eq!(self.crossed.get(&(shortage.signal, shortage.hard)), Some(&true), "no crossing");
        let mut thresholds = self.settings.thresholds.iter();
        let threshold = thresholds
            .find(|threshold| threshold.signal == shortage.signal && threshold.is_hard() == shortage.hard)
            .expect("one of the thresholds");
        let reclaim = threshold.min_reclaim.map_or(0, |reclaim| reclaim.amount(0));
        assert!(shortage.observed < shortage.threshold + reclaim, "not short");
        let is_after_death =
            self.died_ns.is_some_and(|died_ns| self.now_ns.saturating_sub(died_ns) < 20_000 * MS);
        if is_after_death && shortage.signal == Signal::MemoryAvailable {
            let freed = self.free_lists_bytes.min(shortage.threshold / 2);
            assert!(shortage.observed + freed < shortage.threshold + reclaim, "for what is free already");
        }
        let waited_ns = decision.decided_ns.saturating_sub(decision.crossed_ns);
        assert!(self.peak_ns > 0 || waited_ns >= threshold.grace_period_ms * MS, "before its grace period");
        let facts = self.set.iter().find(|facts| facts.cgroup == decision.cgroup).unwrap();
        assert!(!facts.critical && !facts.protected);
        assert_eq!(self.set[decision.index.0].cgroup, decision.cgroup);
        let own_ns = facts.grace_period_ns.min(self.settings.max_pod_grace_period_ns);
        let is_asked_first = own_ns == 0 && self.settings.asks_first;
        let grace_ns = if is_asked_first { 1_000 * MS } else { own_ns };
        assert_eq!(decision.graceless, is_asked_first && decision.grace_ns > 0);
        if decision.grace_ns > 0 || self.exhausted_in_ns.is_none() {
            assert_eq!(decision.grace_ns, if shortage.hard { 0 } else { grace_ns });
        }
        let release_ns = 200 * MS + 200 * MS * (decision.predicted_freed_bytes / MIB) / 1_024;
        if self.exhausted_in_ns.is_some_and(|in_ns| in_ns < release_ns) {
            assert_eq!(decision.grace_ns, 0, "asked to end while there is no time for it");
        }
        self.check_back_off(&decision);
        if shortage.resource() == Resource::Memory && !self.settings.evict_within_request {
            assert!(
                !matches!(decision.reading, Reading::Uncounted { .. }),
                "evicted for what is not counted"
            );
            let used = decision.reading.usage().map(|usage| usage.working_set_bytes);
            assert!(used.map_or(facts.request_bytes == 0, |used| used > facts.request_bytes));
        }
        if decision.dry_run {
            assert_eq!(decision.hook, HookPlan::Off);
            return;
        }
        assert_eq!(self.course, None, "a second victim");
        self.key = facts.pod.hash;
        let window_ns = self.settings.breaker.window_ns;
        let recent =
            self.kills_ns.iter().filter(|at_ns| self.now_ns.saturating_sub(**at_ns) < window_ns).count();
        assert!(recent < usize::from(self.settings.breaker.max_kills), "beyond the breaker");
        let empty = |reading: &Reading| match reading {
            Reading::Gone => true,
            Reading::Usage(Usage { process_count, .. }) | Reading::Uncounted { process_count } => {
                *process_count == Some(0)
            }
            Reading::Missing => false,
        };
        let alive = self.engine.candidates().known().filter(|(_, reading)| !empty(reading)).count();
        let share = recent * 1_000 < (recent + alive) * usize::from(self.settings.breaker.max_share_permille);
        assert!(recent < 10 || share, "beyond the breaker's share");
        let of_shortage =
            |at_ns: &&u64| self.now_ns.saturating_sub(**at_ns) < window_ns && **at_ns >= decision.crossed_ns;
        let in_a_row = self.kills_ns.iter().filter(of_shortage).count();
        let permille = usize::from(self.settings.breaker.max_share_permille);
        let share = in_a_row * 1_000 < (in_a_row + alive) * permille;
        assert!(in_a_row < 3 || share, "beyond the breaker's share of a shortage");
        let (number, grace) = (decision.number, decision.grace_ns > 0);
        self.course = Some(match decision.hook {
            HookPlan::Off | HookPlan::NoTime => Course::Asked { number, grace },
            HookPlan::Awaited { for_ns } => {
                assert!(for_ns <= self.settings.hook_timeout_ns, "longer than is configured");
                Course::Hooked { number, grace, left_ns: for_ns, is_over: false }
            }
        });
    }
}

/// Feeds the engine and checks it; gives back all actions.
pub(super) fn run(
    settings: &EngineSettings,
    first: &[CandidateFacts],
    happenings: &[Happening],
) -> Vec<Vec<Action>> {
    let mut engine = Engine::new(settings);
    engine.remember_armed(|_| true);
    drop(engine.replace(Candidates::new(first)));
    let armed = settings.thresholds.iter().map(|threshold| (threshold.signal, threshold.is_hard()));
    let mut watcher = Watcher {
        engine,
        settings: *settings,
        set: first.to_vec(),
        now_ns: 0,
        peak_ns: 0,
        above: armed.map(|key| (key, (true, true))).collect(),
        crossed: BTreeMap::new(),
        course: None,
        overtaken: None,
        asked: VecDeque::new(),
        held: None,
        kills_ns: Vec::new(),
        has_jumped: false,
        key: 0,
        exhausted_in_ns: None,
        back_offs: BTreeMap::new(),
        died_ns: None,
        free_lists_bytes: 0,
        oracle: Oracle::default(),
        all: Vec::new(),
    };
    for happening in happenings {
        watcher.feed(happening);
    }
    watcher.settle();
    watcher.all
}
