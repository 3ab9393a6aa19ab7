//! Throttles the next candidate while a victim's memory is awaited, and no longer.
//!
//! `memory.high` throttles a cgroup that grows beyond it, and that costs an innocent pod time. So it is used only if
//! memory would be exhausted otherwise: while a victim has time to end, or its memory is coming back, and only if the
//! pods fill the headroom before that by their own growth, without the victim's. Only the next in rank is throttled,
//! only if it grows, and never one within its memory request, which is guaranteed to it.

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use super::{
    Action, Actions, BrakeCause, Containment, Engine, Mode, NodeSample, Outcome, Resource, candidates::Slot,
    push, scale, victim::Victim,
};
use crate::{model::CgroupId, pressure::Tracked, threshold::Signal};

const MS: u64 = 1_000_000;

/// `memory.high` in tenths of what the candidate uses.
const HIGH_TENTHS: u64 = 9;

/// How often usages are read to find out whether a candidate must be throttled.
const LOOK_EVERY_NS: u64 = 100 * MS;

/// The brake; there is one at a time.
#[derive(Clone, Copy, Debug, Deserialize, Schema, Serialize)]
pub(super) struct Brake {
    containment: Containment,
    /// Since when it is in force, as far as is known.
    since_ns: Option<u64>,
    /// Whether its release was requested.
    is_easing: bool,
}

/// The state of all brakes.
#[derive(Clone, Copy, Debug, Default, Deserialize, Schema, Serialize)]
pub(super) struct Brakes {
    on: Option<Brake>,
    /// The number of brakes so far.
    count: u64,
    /// When usages may next be read for a brake.
    due_ns: u64,
    /// The eviction during which a brake was refused: it gets no other.
    refused: u64,
}

/// How long a victim's memory is awaited, and how much may be filled meanwhile.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    number: u64,
    cgroup: CgroupId,
    /// The signal that is short.
    signal: Signal,
    cause: BrakeCause,
    ns: u64,
    headroom_bytes: u64,
}

impl Awaited {
    /// Whether memory is exhausted before that.
    fn is_too_long(&self, fill_bytes_per_second: u64) -> bool {
        scale(fill_bytes_per_second, self.ns, 1_000 * MS) > self.headroom_bytes
    }
}

impl Engine {
    /// The number of the brake that is on or was requested, and the cgroup that it throttles.
    #[must_use]
    pub fn brake(&self) -> Option<(u64, CgroupId)> {
        self.brakes.on.map(|brake| (brake.containment.brake, brake.containment.cgroup))
    }

    /// Whether usages must be read, as a candidate may have to be throttled.
    pub(super) fn may_contain(&self, node: &NodeSample) -> bool {
        self.awaited(node).is_some_and(|awaited| awaited.is_too_long(node.fill_bytes_per_second))
    }

    fn awaited(&self, node: &NodeSample) -> Option<Awaited> {
        let idle = self.brakes.on.is_none() && node.now_ns >= self.brakes.due_ns;
        let victim = self.victim.filter(|victim| victim.number != self.brakes.refused)?;
        if self.mode() != Mode::Enforce || !idle || Resource::of(victim.signal) != Some(Resource::Memory) {
            return None;
        }
        let (cause, ns) = victim.awaited()?;
        let floor_bytes = match cause {
            // Below that the grace period is cut short.
            BrakeCause::Grace => self.hard_threshold(victim.signal),
            BrakeCause::Release => 0,
        };
        let headroom_bytes = node.level(victim.signal)?.available.saturating_sub(floor_bytes);
        let Victim { number, cgroup, signal, .. } = victim;
        Some(Awaited { number, cgroup, signal, cause, ns, headroom_bytes })
    }

    /// The armed hard threshold of that signal; 0 if there is none.
    fn hard_threshold(&self, signal: Signal) -> u64 {
        let hard = |tracked: &&Tracked| {
            let is_of_signal = tracked.threshold.signal == signal && tracked.threshold.is_hard();
            is_of_signal && self.is_armed(&tracked.threshold)
        };
        let amounts = self.pressure.thresholds().filter(hard).filter_map(Tracked::reclaim);
        amounts.map(|reclaim| reclaim.amount).max().unwrap_or(0)
    }

    /// Throttles the next candidate by fresh readings, if necessary.
    pub(super) fn contain(&mut self, node: &NodeSample, actions: &mut Actions) {
        let Some(awaited) = self.awaited(node) else { return };
        self.brakes.due_ns = node.now_ns.saturating_add(LOOK_EVERY_NS);
        let fills =
            |slot: &Slot| slot.facts.cgroup != awaited.cgroup && slot.facts.counts_for(awaited.signal);
        let fill_bytes_per_second = self.growth(fills).min(node.fill_bytes_per_second);
        if !awaited.is_too_long(fill_bytes_per_second) {
            return;
        }
        let rules = self.rules(awaited.signal);
        let next = self
            .candidates
            .slots()
            .filter(|(_, slot)| fills(slot) && slot.exclusion(node.now_ns, rules).is_none())
            .map(|(index, slot)| (slot.ranked(index, Resource::Memory), slot))
            .min_by(|(one, _), (other, _)| one.standing.compare(&other.standing).0);
        let Some((ranked, slot)) = next else { return };
        let Some(usage) = slot.reading.usage() else { return };
        if slot.growth_bytes_per_second <= 0 || usage.working_set_bytes <= slot.facts.request_bytes {
            return;
        }
        let containment = Containment {
            brake: self.brakes.count.saturating_add(1),
            number: awaited.number,
            index: ranked.index,
            cgroup: ranked.cgroup,
            decided_ns: node.now_ns,
            cause: awaited.cause,
            usage_bytes: usage.working_set_bytes,
            high_bytes: scale(usage.working_set_bytes, HIGH_TENTHS, 10),
            fill_bytes_per_second,
            headroom_bytes: awaited.headroom_bytes,
            awaited_ns: awaited.ns,
        };
        self.brakes.count = containment.brake;
        self.brakes.on = Some(Brake { containment, since_ns: None, is_easing: false });
        push(actions, Action::Contain(containment));
    }

    /// Releases the throttled candidate, unless the brake is still needed.
    pub(super) fn ease(&mut self, actions: &mut Actions) {
        let Some(brake) = self.brakes.on.filter(|brake| !brake.is_easing) else { return };
        let Containment { number, cgroup, brake: which, .. } = brake.containment;
        let awaited = self.victim.is_some_and(|victim| {
            victim.number == number && victim.cgroup != cgroup && victim.awaited().is_some()
        });
        let slot = self.candidates.find(cgroup).and_then(|index| self.candidates.slot(index));
        let may_be = slot.is_some_and(|slot| !slot.facts.critical && !slot.facts.protected);
        let short = self.pressure.thresholds().zip(&self.episodes).any(|(tracked, episode)| {
            episode.is_some() && Resource::of(tracked.threshold.signal) == Some(Resource::Memory)
        });
        if self.mode() == Mode::Enforce && awaited && may_be && short {
            return;
        }
        self.brakes.on = Some(Brake { is_easing: true, ..brake });
        push(actions, Action::Ease { brake: which });
    }

    /// Processes the outcome of a brake; returns whether the outcome is one.
    pub(super) fn on_brake_outcome(&mut self, outcome: &Outcome, actions: &mut Actions) -> bool {
        let (which, reported) = match *outcome {
            Outcome::Contained { brake, .. }
            | Outcome::Uncontained { brake, .. }
            | Outcome::Eased { brake, .. } => (brake, *outcome),
            Outcome::Terminated { .. }
            | Outcome::Requested { .. }
            | Outcome::Unrequested { .. }
            | Outcome::Signalled { .. }
            | Outcome::Refused { .. }
            | Outcome::HookEnded { .. }
            | Outcome::Progress { .. } => return false,
        };
        let Some(brake) = self.brakes.on.filter(|brake| brake.containment.brake == which) else {
            return true;
        };
        let containment = brake.containment;
        match reported {
            Outcome::Contained { now_ns, .. } if brake.since_ns.is_none() => {
                self.brakes.on = Some(Brake { since_ns: Some(now_ns), ..brake });
                push(actions, Action::Contained { now_ns, containment });
            }
            Outcome::Uncontained { now_ns, reason, .. } => {
                self.brakes.on = None;
                self.brakes.refused = containment.number;
                push(actions, Action::Uncontained { now_ns, containment, reason });
            }
            Outcome::Eased { now_ns, given_back, .. } if brake.is_easing => {
                self.brakes.on = None;
                if let Some(since_ns) = brake.since_ns {
                    push(actions, Action::Eased { now_ns, containment, since_ns, given_back });
                }
            }
            Outcome::Contained { .. }
            | Outcome::Eased { .. }
            | Outcome::Terminated { .. }
            | Outcome::Requested { .. }
            | Outcome::Unrequested { .. }
            | Outcome::Signalled { .. }
            | Outcome::Refused { .. }
            | Outcome::HookEnded { .. }
            | Outcome::Progress { .. } => {}
        }
        self.ease(actions);
        true
    }
}
