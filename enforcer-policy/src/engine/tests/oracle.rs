//! The rules that a step's answer is held to, written down a second time and otherwise than the engine has them.

use std::{cmp::Reverse, collections::BTreeSet};

use super::rig::MIB;
use crate::{
    engine::{
        Action, Actions, CandidateFacts, Completion, Decision, Engine, Exclusion, FailureReason, KillReason,
        NodeSample, Reading, Resource,
    },
    model::CgroupId,
    threshold::Signal,
};

/// What must be remembered from step to step.
#[derive(Debug, Default)]
pub(super) struct Oracle {
    /// The node at the latest look.
    node: Option<NodeSample>,
    /// Who was killed in this shortage and did not die.
    undead: BTreeSet<CgroupId>,
}

impl Oracle {
    /// Checks what the engine answered. `node` is what it was shown, if it was; without `steady` the clock has jumped.
    pub(super) fn see(
        &mut self,
        engine: &Engine,
        node: Option<NodeSample>,
        (now_ns, steady): (u64, bool),
        is_short: bool,
        actions: &Actions,
    ) {
        self.node = node.or(self.node);
        if !is_short {
            self.undead.clear();
        }
        // Who has no process left has died after all.
        for (facts, reading) in engine.candidates().known() {
            if *reading == Reading::Gone || reading.process_count() == Some(0) {
                self.undead.remove(&facts.cgroup);
            }
        }
        let mut just_completed = None;
        for action in actions.iter() {
            match action {
                Action::Completed(completion) => just_completed = Some(*completion),
                Action::Failed(failure) if failure.reason == FailureReason::StillPopulated => {
                    // Also of who is no candidate at the time.
                    self.undead.insert(failure.cgroup);
                }
                Action::Evict => {
                    let decision = engine.decision().unwrap();
                    assert!(
                        !self.undead.contains(&decision.cgroup),
                        "chosen again, and it does not die: {actions:?}"
                    );
                    is_ranked_as_upstream(engine, decision, node.is_some());
                    if let Some(completion) = just_completed.filter(|_| node.is_some()) {
                        is_more_needed(engine, decision, &completion);
                    }
                }
                Action::Kill { reason, .. } => self.is_time(engine, *reason, now_ns, steady),
                _ => {}
            }
        }
    }

    /// Other thresholds are another shortage.
    pub(super) fn configured(&mut self) {
        self.undead.clear();
    }

    /// A grace is not cut short without a reason.
    fn is_time(&self, engine: &Engine, reason: KillReason, now_ns: u64, steady: bool) {
        let (node, decision) = (self.node.unwrap(), engine.decision().unwrap());
        match reason {
            KillReason::GracePassed => {
                let asked_ns = engine.moments().and_then(|moments| moments.asked_ns()).expect("asked to end");
                assert!(!steady || now_ns - asked_ns >= decision.grace_ns, "before its grace has passed");
            }
            KillReason::HardThreshold => {
                let is_met = engine.settings().thresholds.iter().any(|threshold| {
                    let amount = |level: crate::engine::Level| {
                        let reclaim = threshold.min_reclaim.map_or(0, |of| of.amount(level.capacity));
                        threshold.value.amount(level.capacity) + reclaim
                    };
                    let level = node.level(threshold.signal);
                    threshold.is_hard() && level.is_some_and(|level| level.available < amount(level))
                });
                assert!(is_met, "no hard threshold is met");
            }
            // When that is, the property test says.
            KillReason::HookOver => {}
            KillReason::Unanswered => assert!(decision.graceless, "it has a grace period"),
            KillReason::Exhausting => assert!(node.fill_bytes_per_second > 0, "nothing is being filled"),
        }
    }
}

/// Every candidate is ranked or left out with a reason, and the ranking is upstream's. After a refusal, and not by
/// readings that are `fresh`, those may be left that were ranked before.
fn is_ranked_as_upstream(engine: &Engine, decision: &Decision, fresh: bool) {
    let shortage = decision.shortage;
    let resource = shortage.resource();
    let within = engine.settings().evict_within_request;
    let left_out = |index: usize| {
        let mut excluded = decision.excluded.iter().filter(|excluded| excluded.index.0 == index);
        (excluded.next().map(|excluded| excluded.reason), excluded.next().is_some())
    };
    let all: Vec<_> = engine.candidates().known().collect();
    let known = (decision.ranked_count + decision.excluded_count) as usize;
    assert!(if fresh { known == all.len() } else { known <= all.len() }, "{known} of {}", all.len());
    for (index, (facts, reading)) in all.iter().enumerate() {
        let (reason, twice) = left_out(index);
        let is_ranked = decision.ranking.iter().any(|ranked| ranked.index.0 == index);
        assert!(!twice, "left out twice");
        assert!(!is_ranked || reason.is_none(), "ranked and left out");
        assert!(is_ranked || reason.is_some() || !fresh, "forgotten");
        let is_elsewhere = shortage.signal == Signal::AllocatableMemoryAvailable && !facts.in_kubepods;
        let due = match spared(facts, reading, resource, within) {
            known @ Some(Exclusion::Critical | Exclusion::Protected) => known,
            _ if is_elsewhere => Some(Exclusion::OutsideKubepods),
            other => other,
        };
        let is_spared =
            matches!(due, Some(Exclusion::Critical | Exclusion::Protected | Exclusion::OutsideKubepods));
        // Who is passed over was tried before, which is not known here.
        let is_tried = reason == Some(Exclusion::PassedOver) && !is_spared;
        // So is whether one that terminates is awaited.
        let may_be_awaited = facts.terminating && resource == Resource::Memory && reading.usage().is_some();
        let is_awaited = reason == Some(Exclusion::Terminating) && may_be_awaited && !is_spared;
        let is_chosen = reason == Some(Exclusion::Chosen) && decision.dry_run && !is_spared;
        assert!(due == reason || is_tried || is_awaited || is_chosen, "{due:?} {reason:?}");
    }
    let keys: Vec<_> = decision
        .ranking
        .iter()
        .map(|ranked| {
            let (facts, reading) = all[ranked.index.0];
            key(facts, reading, resource, ranked.index.0)
        })
        .collect();
    assert!(keys.is_sorted(), "{keys:?}");
    assert_eq!(decision.ranking.iter().next().map(|ranked| ranked.cgroup), Some(decision.cgroup));
}

fn spared(facts: &CandidateFacts, reading: &Reading, resource: Resource, within: bool) -> Option<Exclusion> {
    if facts.critical {
        return Some(Exclusion::Critical);
    }
    if facts.protected {
        return Some(Exclusion::Protected);
    }
    let used = reading.usage().map(|usage| usage.working_set_bytes);
    match (reading, resource) {
        (Reading::Gone, _) => Some(Exclusion::Gone),
        (Reading::Usage(_), Resource::Memory) if used == Some(0) => Some(Exclusion::Empty),
        (Reading::Uncounted { .. }, Resource::Memory) => Some(Exclusion::UsageUnknown),
        (Reading::Usage(_) | Reading::Uncounted { .. }, Resource::Pids) => match reading.process_count() {
            Some(0) => Some(Exclusion::Empty),
            None => Some(Exclusion::UsageUnknown),
            Some(_) => None,
        },
        (_, Resource::Memory) => {
            let is_above = used.map_or(facts.request_bytes == 0, |used| used > facts.request_bytes);
            (!within && !is_above).then_some(Exclusion::WithinRequest)
        }
        (_, Resource::Pids) => None,
    }
}

/// Smaller is earlier: `exceedMemoryRequests`, `priority` and `memory`, or `priority` and `process`, of upstream.
fn key(
    facts: &CandidateFacts,
    reading: &Reading,
    resource: Resource,
    index: usize,
) -> (i32, i32, bool, Reverse<i128>, usize) {
    let usage = reading.usage();
    match resource {
        Resource::Memory => {
            let used = usage.map(|usage| usage.working_set_bytes);
            let class = used.map_or(0, |used| if used > facts.request_bytes { 1 } else { 2 });
            let above = used.map_or(0, |used| i128::from(used) - i128::from(facts.request_bytes));
            (class, facts.priority, false, Reverse(above), index)
        }
        Resource::Pids => {
            let count = reading.process_count();
            (0, facts.priority, count.is_some(), Reverse(count.unwrap_or(0).into()), index)
        }
    }
}

/// No pod is chosen while the memory that the last victim still gives back would do.
fn is_more_needed(engine: &Engine, decision: &Decision, last: &Completion) {
    let shortage = decision.shortage;
    if shortage.resource() != Resource::Memory || last.moments.memory_back_ns.is_some() {
        return;
    }
    let mut known = engine.candidates().known();
    let in_kubepods = known.any(|(facts, _)| facts.cgroup == last.cgroup && facts.in_kubepods);
    if shortage.signal == Signal::AllocatableMemoryAvailable && !in_kubepods {
        return;
    }
    let missing = last.predicted_freed_bytes.saturating_sub(last.freed_bytes.unwrap_or(0));
    if missing <= (last.predicted_freed_bytes / 16).max(4 * MIB) {
        return;
    }
    let is_it = |signal, hard| signal == shortage.signal && hard == shortage.hard;
    let mut thresholds = engine.settings().thresholds.iter();
    let threshold =
        thresholds.find(|threshold| is_it(threshold.signal, threshold.is_hard())).expect("one of them");
    let target = shortage.threshold + threshold.min_reclaim.map_or(0, |reclaim| reclaim.amount(0));
    assert!(shortage.observed + missing < target, "what is still to come would do");
}
