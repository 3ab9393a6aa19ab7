use super::action::{Completion, Decision, Failure, FailureReason, Moments};
use crate::model::CgroupId;

const MS: u64 = 1_000_000;
const GIB: u64 = 1 << 30;

/// How long a victim may take to die: 2 s, and 1 s for each GiB it gives back.
///
/// An idle machine takes some 0.1 s/GiB. An emulated guest is about ten times slower, and so is a node whose CPUs
/// are all busy reclaiming. To wait too long costs time in a shortage that pods can reclaim through; to wait too
/// briefly costs a second pod its life.
const DEATH_BASE_NS: u64 = 2_000 * MS;
const DEATH_NS_PER_GIB: u64 = 1_000 * MS;

/// Once no process is left, how long the memory may stand still before it is given up.
///
/// A process gives up its memory before it leaves its cgroup, but the last to hold the memory frees it: that may be a
/// reader in `/proc`, or `process_mrelease`, ours too. In a guest 130 ms for half a GiB were seen. As long as some
/// comes back, more will; if none does, the prediction was wrong, and counting on it any longer would only delay the
/// next decision. At the most it takes as long again as the victim was given to die.
const STANDSTILL_NS: u64 = 500 * MS;

/// A prediction is met when no more than a sixteenth of it, or 4 MiB, is missing: counters are batched per CPU,
/// and pages can be shared with processes elsewhere.
const TOLERANCE_SHARE: u64 = 16;
const TOLERANCE_BYTES: u64 = 4 << 20;

/// How far an eviction has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    /// To be signalled; the executor has not answered yet.
    Deciding,
    /// Signalled, and holding processes.
    Dying { deadline_ns: u64 },
    /// Without processes; its memory is coming back.
    Settling { since_ns: u64, moved_ns: u64 },
}

/// The one eviction that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Victim {
    pub(super) number: u64,
    pub(super) cgroup: CgroupId,
    stage: Stage,
    moments: Moments,
    predicted_freed_bytes: u64,
    current_before_bytes: Option<u64>,
    freed_bytes: Option<u64>,
}

/// What a look at the victim showed.
pub(super) enum Look {
    /// It is still under way.
    Wait,
    Completed(Completion),
    Failed(Failure),
}

impl Victim {
    pub(super) fn new(decision: &Decision) -> Self {
        Self {
            number: decision.number,
            cgroup: decision.cgroup,
            stage: Stage::Deciding,
            moments: Moments {
                crossed_ns: decision.crossed_ns,
                decided_ns: decision.decided_ns,
                signalled_ns: None,
                dead_ns: None,
                memory_back_ns: None,
            },
            predicted_freed_bytes: decision.predicted_freed_bytes,
            current_before_bytes: decision.reading.usage().map(|usage| usage.current_bytes),
            freed_bytes: None,
        }
    }

    pub(super) fn signalled(&mut self, now_ns: u64) {
        if self.stage == Stage::Deciding {
            self.moments.signalled_ns = Some(now_ns);
            self.stage = Stage::Dying { deadline_ns: now_ns.saturating_add(self.allowed_ns()) };
        }
    }

    /// Takes in how far it has died; `current_bytes` is none once the cgroup is gone.
    pub(super) fn look(&mut self, now_ns: u64, populated: bool, current_bytes: Option<u64>) -> Look {
        let freed_before = self.freed_bytes;
        if let (Some(before), Some(current)) = (self.current_before_bytes, current_bytes) {
            self.freed_bytes = Some(before.saturating_sub(current));
        }
        match self.stage {
            Stage::Deciding => return Look::Wait,
            Stage::Dying { deadline_ns } if populated => {
                if now_ns < deadline_ns {
                    return Look::Wait;
                }
                return Look::Failed(self.failure(now_ns, FailureReason::StillPopulated));
            }
            Stage::Dying { .. } => {
                self.moments.dead_ns = Some(now_ns);
                self.stage = Stage::Settling { since_ns: now_ns, moved_ns: now_ns };
            }
            Stage::Settling { since_ns, .. } if self.freed_bytes > freed_before => {
                self.stage = Stage::Settling { since_ns, moved_ns: now_ns };
            }
            Stage::Settling { .. } => {}
        }
        if current_bytes.is_none() || self.credit_bytes() == 0 {
            self.moments.memory_back_ns = Some(now_ns);
            return Look::Completed(self.completion());
        }
        match self.stage {
            Stage::Settling { since_ns, moved_ns }
                if now_ns.saturating_sub(moved_ns) >= STANDSTILL_NS
                    || now_ns.saturating_sub(since_ns) >= self.allowed_ns() =>
            {
                Look::Completed(self.completion())
            }
            Stage::Deciding | Stage::Dying { .. } | Stage::Settling { .. } => Look::Wait,
        }
    }

    fn allowed_ns(&self) -> u64 {
        scaled(DEATH_BASE_NS, DEATH_NS_PER_GIB, self.predicted_freed_bytes)
    }

    /// Whether it may still hold processes, so that nobody else is chosen.
    pub(super) fn is_alive(&self) -> bool {
        match self.stage {
            Stage::Deciding | Stage::Dying { .. } => true,
            Stage::Settling { .. } => false,
        }
    }

    /// What is still to come back from it, and counts as available until then.
    pub(super) fn credit_bytes(&self) -> u64 {
        let missing = self.predicted_freed_bytes.saturating_sub(self.freed_bytes.unwrap_or(0));
        let tolerance = (self.predicted_freed_bytes / TOLERANCE_SHARE).max(TOLERANCE_BYTES);
        if missing <= tolerance { 0 } else { missing }
    }

    /// For how long it has been dying.
    pub(super) fn age_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.moments.signalled_ns.unwrap_or(self.moments.decided_ns))
    }

    pub(super) fn completion(&self) -> Completion {
        Completion {
            number: self.number,
            cgroup: self.cgroup,
            moments: self.moments,
            predicted_freed_bytes: self.predicted_freed_bytes,
            freed_bytes: self.freed_bytes,
        }
    }

    pub(super) fn failure(&self, now_ns: u64, reason: FailureReason) -> Failure {
        Failure {
            number: self.number,
            cgroup: self.cgroup,
            moments: self.moments,
            given_up_ns: now_ns,
            reason,
        }
    }
}

/// `base` and `per_gib` for each GiB of `bytes`, parts of it in proportion.
fn scaled(base_ns: u64, per_gib_ns: u64, bytes: u64) -> u64 {
    let part = u128::from(per_gib_ns) * u128::from(bytes) / u128::from(GIB);
    base_ns.saturating_add(u64::try_from(part).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_to_die_grows_with_the_size() {
        assert_eq!(scaled(DEATH_BASE_NS, DEATH_NS_PER_GIB, 0), 2_000 * MS);
        assert_eq!(scaled(DEATH_BASE_NS, DEATH_NS_PER_GIB, GIB / 2), 2_500 * MS);
        assert_eq!(scaled(DEATH_BASE_NS, DEATH_NS_PER_GIB, 32 * GIB), 34_000 * MS);
        assert_eq!(scaled(u64::MAX, u64::MAX, u64::MAX), u64::MAX);
    }
}
