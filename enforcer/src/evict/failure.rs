//! The reason and message of a failed eviction's event.

use enforcer_events::eviction::EvictionEnded;

use crate::policy::engine::{FailureReason, Refusal, Spared};

/// Adds `reason` and `message`, and `errno` if the kernel returned one.
pub(super) fn failed_data(data: EvictionEnded, reason: FailureReason) -> EvictionEnded {
    let mut number = None;
    let (reason, message) = match reason {
        FailureReason::StillPopulated => {
            ("stillPopulated", String::from("it was killed and still holds processes after its deadline"))
        }
        FailureReason::Spared(spared) => (
            spared.as_str(),
            String::from(match spared {
                Spared::Protected => "an operator has protected it since it was chosen: it is not killed",
                Spared::Critical => "it has become critical since it was chosen: it is not killed",
                Spared::Paused => "an operator has paused evicting since it was chosen: it is not killed",
                Spared::NotEnforcing => "the mode has changed since it was chosen: it is not killed",
            }),
        ),
        FailureReason::Relieved => {
            ("relieved", String::from("the shortage has ended since it was chosen: no process was signalled"))
        }
        FailureReason::Refused(Refusal::Gone) => ("gone", String::from("its cgroup is gone")),
        FailureReason::Refused(Refusal::Empty) => ("empty", String::from("its cgroup holds no process")),
        FailureReason::Refused(Refusal::Replaced) => {
            ("replaced", String::from("its cgroup is not the one that was decided on"))
        }
        FailureReason::Refused(Refusal::Unrecorded) => (
            "unrecorded",
            String::from("the decision could not be written to the disk in time; it is tried again later"),
        ),
        FailureReason::Refused(Refusal::Withdrawn) => {
            ("withdrawn", String::from("it was spared for a while before it was asked to end: it was not"))
        }
        FailureReason::Refused(Refusal::Budget) => (
            "disruptionBudget",
            String::from("a PodDisruptionBudget does not allow it now: nothing was signalled"),
        ),
        FailureReason::Refused(Refusal::Unknown) => (
            "unknown",
            String::from(
                "an earlier daemon process chose it, and this one did not learn in time which pod it is: it is not killed",
            ),
        ),
        FailureReason::Refused(Refusal::Kernel(errno)) => {
            number = Some(errno);
            ("refused", std::io::Error::from_raw_os_error(errno).to_string())
        }
    };
    EvictionEnded { reason: Some(reason.into()), message: Some(message), errno: number, ..data }
}
