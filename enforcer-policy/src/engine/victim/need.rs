//! What follows for a victim that is not killed at once: one that was not asked to end is let off if the shortage ends first.

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use super::{Stage, Victim};
use crate::engine::{FailureReason, KillReason, Spared, exhaustion::is_too_late};

/// What is known of the shortage that a victim is to be asked to end for.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub(super) enum Need {
    /// An earlier process saw it; whether that has asked is being found out, which ends no pod.
    Unseen,
    /// It lasts.
    Lasting,
    /// It has ended before it was known that the victim was asked. One that begins later is another.
    Over,
}

/// What to do about a victim that is not killed at once.
pub(in crate::engine) enum Next {
    Wait,
    Ask,
    Kill(KillReason),
    /// It must not be signalled any more.
    Spare(FailureReason),
}

/// What the next step for a victim that is not killed at once depends on.
pub(in crate::engine) struct Sight {
    /// Whether a hard threshold is met.
    pub(in crate::engine) hard: bool,
    /// Whether the resource that it is to release is short.
    pub(in crate::engine) short: bool,
    /// Whether a threshold of that resource is met, if not for its grace period yet.
    pub(in crate::engine) met: bool,
    /// Why it must not be killed any more; `None` if it may.
    pub(in crate::engine) spared: Option<Spared>,
    /// What is available of the short resource, if known. Once half of it has gone, the hook is not awaited any longer:
    /// the fill rate is known only after a quarter of a second, and by then memory can be full.
    pub(in crate::engine) available: Option<u64>,
    /// When memory will be exhausted; `None` if that is not in sight.
    pub(in crate::engine) exhausted_in_ns: Option<u64>,
}

impl Victim {
    /// Whether it must not be asked any more, as the shortage that it was chosen for has ended.
    pub(in crate::engine) fn is_relieved(&self) -> bool {
        self.need == Need::Over
    }

    /// The next step for a victim that a hook runs for, or that has or is about to get time to end.
    ///
    /// A victim that is spared after SIGTERM keeps its grace period, as SIGTERM cannot be undone; it is not killed at
    /// its end.
    pub(in crate::engine) fn hurry(&mut self, now_ns: u64, sight: &Sight) -> Next {
        self.tick(now_ns);
        let Sight { hard, short, met, spared, available, exhausted_in_ns } = *sight;
        let is_halved = available.is_some_and(|available| available < self.observed / 2);
        let is_too_late = is_too_late(exhausted_in_ns, self.memory.predicted);
        let next = match self.stage {
            Stage::Hooking { until_ns } => {
                if let Some(spared) = spared {
                    return Next::Spare(FailureReason::Spared(spared));
                }
                if self.clock_ns < until_ns && !is_halved && !is_too_late {
                    return Next::Wait;
                }
                if !short {
                    // Also if another resource runs short: it was not chosen for that.
                    return Next::Spare(FailureReason::Relieved);
                }
                if is_too_late {
                    Next::Kill(KillReason::Exhausting)
                } else if self.grace_ns == 0 {
                    Next::Kill(KillReason::HookOver)
                } else if hard {
                    Next::Kill(KillReason::HardThreshold)
                } else {
                    Next::Ask
                }
            }
            Stage::Unasked => {
                if let Some(spared) = spared {
                    return Next::Spare(FailureReason::Spared(spared));
                }
                if !short {
                    // This process cannot know how long a threshold was met before. It waits as for any decision, unless
                    // another resource needs one.
                    let may_become_due = met && !hard;
                    return if may_become_due { Next::Wait } else { Next::Spare(FailureReason::Relieved) };
                }
                if hard {
                    Next::Kill(KillReason::HardThreshold)
                } else if is_too_late {
                    Next::Kill(KillReason::Exhausting)
                } else {
                    Next::Ask
                }
            }
            // A soft eviction waits for the disk before SIGTERM; an urgent one waits for none.
            Stage::Deciding if self.grace_ns == 0 => return Next::Wait,
            // It may be asked at this moment: the executor's answer shows whether it was. Also if another resource runs
            // short.
            Stage::Deciding if !short && self.need != Need::Unseen => {
                // It was withdrawn at the look before. What needs a pod at once does not wait for the answer.
                if hard && self.need == Need::Over {
                    return Next::Spare(FailureReason::Relieved);
                }
                self.need = Need::Over;
                return Next::Wait;
            }
            Stage::Deciding | Stage::Terminating { .. } => {
                let is_over =
                    matches!(self.stage, Stage::Terminating { until_ns } if self.clock_ns >= until_ns);
                let due = if hard {
                    KillReason::HardThreshold
                } else if is_too_late {
                    KillReason::Exhausting
                } else if is_over {
                    KillReason::GracePassed
                } else {
                    return Next::Wait;
                };
                match spared {
                    None => Next::Kill(due),
                    // Whether SIGTERM was sent is not known yet; the next look shows it.
                    Some(_) if !self.is_asked() => return Next::Wait,
                    Some(spared) => return Next::Spare(FailureReason::Spared(spared)),
                }
            }
            Stage::Killing | Stage::Dying { .. } | Stage::Settling { .. } => return Next::Wait,
        };
        if matches!(next, Next::Ask) {
            (self.stage, self.need) = (Stage::Deciding, Need::Lasting);
        } else {
            self.stage = Stage::Killing;
        }
        next
    }
}
