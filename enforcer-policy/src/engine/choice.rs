//! Chooses the victim once an eviction is due: the first of the order, or none.

use super::{
    Action, Actions, Decision, Engine, HookPlan, MS, Mode, Resource, SHOWN_EXCLUDED, SHOWN_RANKING,
    Suppression, exhaustion::is_too_late, push, ranking, shortage, victim::Victim,
};
use crate::{
    few::Few,
    pressure::Reclaim,
    threshold::{Signal, Threshold},
};

/// How long to wait before trying again when there is no candidate: reading all usages costs milliseconds.
const NO_CANDIDATE_PAUSE_NS: u64 = 100 * MS;

/// The grace period that another is asked to give a victim without one. With none at all the API server would remove
/// the pod before its containers have ended.
const ASKED_GRACE_NS: u64 = 1_000 * MS;

impl Engine {
    /// Chooses the victim from fresh readings.
    pub(super) fn decide(&mut self, now_ns: u64, reclaim: Reclaim, actions: &mut Actions) {
        let mut order = std::mem::take(&mut self.candidates.order);
        order.clear();
        order.extend(self.eligible(now_ns, reclaim.threshold.signal));
        self.candidates.order = order;
        if self.candidates.order.is_empty() && self.victim.is_some() {
            // What it still releases of another resource counts for that one.
            self.no_candidate(now_ns, &reclaim, actions);
            return;
        }
        if !self.candidates.order.is_empty() && self.is_out_of_reach(now_ns, &reclaim) {
            self.out_of_reach(now_ns, &reclaim, actions);
            return;
        }
        if let Some(victim) = self.victim {
            // Its processes are gone, and what it can still release would not suffice.
            self.complete(&victim, victim.completion(), actions);
        }
        self.take_first(now_ns, reclaim, actions);
    }

    /// Sorts the order and decides on its first. There must be no victim at this time.
    pub(super) fn take_first(&mut self, now_ns: u64, reclaim: Reclaim, actions: &mut Actions) {
        // A candidate that was throttled for the last victim's sake may be the next.
        self.ease(actions);
        if self.candidates.order.is_empty() {
            // Nothing can be killed: the breaker has no kill to end.
            self.no_candidate(now_ns, &reclaim, actions);
            return;
        }
        ranking::sort(&mut self.candidates.order);
        let shortage_ns = self.crossed_ns(&reclaim.threshold).unwrap_or(now_ns);
        let may_kill = self.mode() == Mode::Enforce && self.is_armed(&reclaim.threshold);
        let left = self.candidates.alive();
        if may_kill && self.breaker.is_open(now_ns, shortage_ns, left) {
            self.mode = Mode::DryRun;
            self.suppress(now_ns, reclaim.threshold.signal, Suppression::BreakerOpen, actions);
        }
        let Some(decision) = self.draw_up(now_ns, reclaim) else {
            self.no_candidate(now_ns, &reclaim, actions);
            return;
        };
        self.decided = decision.number;
        self.reported[decision.shortage.signal as usize] = None;
        self.decision = Some(decision);
        if decision.dry_run {
            // Others do not wait for it.
            let until_ns = now_ns.saturating_add(self.settings.dry_run_cool_down_ns);
            self.quiet(&reclaim.threshold, until_ns);
            if self.mode() != Mode::Enforce {
                self.candidates.choose(decision.index, until_ns);
            }
        } else {
            let facts = self.candidates.slot(decision.index.0).map(|slot| slot.facts);
            self.victim = Some(Victim::new(&decision, facts));
        }
        push(actions, Action::Evict);
    }

    fn no_candidate(&mut self, now_ns: u64, reclaim: &Reclaim, actions: &mut Actions) {
        self.no_candidate_until_ns[reclaim.threshold.signal as usize] =
            now_ns.saturating_add(NO_CANDIDATE_PAUSE_NS);
        self.suppress(now_ns, reclaim.threshold.signal, Suppression::NoCandidate, actions);
    }

    fn out_of_reach(&mut self, now_ns: u64, reclaim: &Reclaim, actions: &mut Actions) {
        self.quiet(&reclaim.threshold, now_ns.saturating_add(NO_CANDIDATE_PAUSE_NS));
        self.suppress(now_ns, reclaim.threshold.signal, Suppression::OutOfReach, actions);
    }

    fn draw_up(&self, now_ns: u64, reclaim: Reclaim) -> Option<Decision> {
        let order = &self.candidates.order;
        let first = order.first()?;
        let slot = self.candidates.slot(first.index.0)?;
        let shortage = shortage(&reclaim);
        let mut ranking = Few::new();
        for ranked in order.iter().take(SHOWN_RANKING) {
            push(&mut ranking, *ranked);
        }
        let mut excluded = Few::new();
        let mut excluded_count = 0;
        for left_out in self.left_out(now_ns, shortage.signal) {
            excluded_count += 1;
            if excluded.len() < SHOWN_EXCLUDED {
                push(&mut excluded, left_out);
            }
        }
        let predicted_freed_bytes = slot.reading.freed_by_death(Resource::Memory);
        let unarmed = self.mode() == Mode::Enforce && !self.is_armed(&reclaim.threshold);
        let dry_run = unarmed || self.mode() != Mode::Enforce;
        // SIGTERM and a wait would be too late, though the hard threshold is not met yet.
        let exhausted_in_ns = self.exhaustion.in_ns(slot.facts.in_kubepods);
        let is_exhausting = is_too_late(exhausted_in_ns, predicted_freed_bytes);
        let (grace_ns, graceless) =
            if shortage.hard || is_exhausting { (0, false) } else { self.grace(slot.facts.grace_period_ns) };
        Some(Decision {
            number: self.decided.saturating_add(1),
            dry_run,
            paused: self.settings.paused,
            unarmed,
            index: first.index,
            cgroup: first.cgroup,
            pod: slot.facts.pod,
            returned: self.back_offs.returned(slot.facts.pod, now_ns),
            crossed_ns: self.crossed_ns(&reclaim.threshold).unwrap_or(now_ns),
            decided_ns: now_ns,
            shortage,
            grace_ns,
            graceless,
            hook: HookPlan::new(&self.settings, dry_run, exhausted_in_ns, predicted_freed_bytes),
            reading: slot.reading,
            growth_bytes_per_second: slot.growth_bytes_per_second,
            decided_by: order.get(1).map(|next| first.compare(next).1),
            predicted_freed_bytes,
            unmapped_shmem_bytes: self.unmapped_shmem_bytes,
            free_lists_bytes: self.free_lists_bytes,
            ranking,
            ranked_count: u32::try_from(order.len()).unwrap_or(u32::MAX),
            excluded,
            excluded_count,
        })
    }

    /// How long the victim of a soft eviction gets to end by itself, if its own grace period is `own_ns`, and whether
    /// that is only what another is asked to give it.
    fn grace(&self, own_ns: u64) -> (u64, bool) {
        match self.settings.max_pod_grace_period_ns.min(own_ns) {
            0 if self.settings.asks_first => (ASKED_GRACE_NS, true),
            grace_ns => (grace_ns, false),
        }
    }

    /// When the threshold was crossed.
    fn crossed_ns(&self, threshold: &Threshold) -> Option<u64> {
        let mut both = self.pressure.thresholds().zip(&self.episodes);
        let (_, episode) = both.find(|(tracked, _)| tracked.threshold == *threshold)?;
        episode.map(|episode| episode.crossed_ns)
    }

    pub(super) fn suppress(
        &mut self,
        now_ns: u64,
        signal: Signal,
        reason: Suppression,
        actions: &mut Actions,
    ) {
        let reported = &mut self.reported[signal as usize];
        if *reported != Some(reason) {
            *reported = Some(reason);
            push(actions, Action::Suppressed { now_ns, signal, reason });
        }
    }
}
