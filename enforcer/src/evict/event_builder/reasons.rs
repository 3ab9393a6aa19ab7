//! Reasons and messages as events print them.

use enforcer_events::{Payload, eviction::EvictionSuppressed, node::Degraded};

use crate::{
    journal::{Event, Subject},
    policy::{
        engine::{BrakeRefusal, KillReason, Resource, Suppression, Thresholds},
        threshold::Signal,
    },
};

/// The reason, the message, and the kernel's error number if there is one.
pub(super) fn brake_refusal(reason: BrakeRefusal) -> (&'static str, String, Option<i32>) {
    let (reason, message) = match reason {
        BrakeRefusal::Gone => ("gone", String::from("its cgroup is gone")),
        BrakeRefusal::Absent => ("absent", String::from("it has no memory.high")),
        BrakeRefusal::Lower => ("lower", String::from("its memory.high is already lower")),
        BrakeRefusal::Forbidden => {
            ("forbidden", String::from("it holds processes that must never be throttled"))
        }
        BrakeRefusal::Unwritten => (
            "unwritten",
            String::from(
                "its memory.high cannot be recorded on the intent page, so a crash would leave it lowered",
            ),
        ),
        BrakeRefusal::Busy => ("busy", String::from("the helper thread's queue is full")),
        BrakeRefusal::Kernel(errno) => {
            return ("refused", std::io::Error::from_raw_os_error(errno).to_string(), Some(errno));
        }
    };
    (reason, message, None)
}

/// The data for thresholds that are not armed, if any.
pub(super) fn unarmed(unarmed: &Thresholds) -> Degraded {
    let shown: Vec<_> = unarmed
        .iter()
        .map(|threshold| {
            let soft = if threshold.is_hard() { "" } else { " (soft)" };
            format!("{}<{}{soft}", threshold.signal.as_str(), threshold.value)
        })
        .collect();
    let message = if shown.is_empty() {
        String::from("every threshold is armed")
    } else {
        format!(
            "{} was already crossed when it was loaded, and is not armed: no pod is evicted for it, and decisions are \
             only reported, as in dry-run, until it is not crossed once. If this is intended: enforcer reload --arm",
            shown.join(", ")
        )
    };
    Degraded { thresholds: Some(shown), message: Some(message), ..Degraded::of("unarmed") }
}

pub(super) fn kill_reason(reason: KillReason) -> &'static str {
    match reason {
        KillReason::GracePassed => "gracePassed",
        KillReason::HardThreshold => "hardThreshold",
        KillReason::Exhausting => "exhausting",
        KillReason::HookOver => "hookOver",
        KillReason::Unanswered => "unanswered",
    }
}

/// The event that no pod is evicted.
pub(super) fn suppressed(signal: Signal, reason: Suppression) -> Event {
    let (reason, message) = suppression(signal, reason);
    let data = EvictionSuppressed {
        signal: signal.as_str().into(),
        reason: reason.into(),
        message: message.to_owned(),
    };
    Event::new(Subject::Node, Payload::EvictionSuppressed(data))
}

fn suppression(signal: Signal, reason: Suppression) -> (&'static str, &'static str) {
    match reason {
        Suppression::NoCandidate if Resource::of(signal) == Some(Resource::Pids) => {
            ("noCandidate", "process ids are short and no pod may be evicted")
        }
        Suppression::NoCandidate => ("noCandidate", "memory is short and no pod may be evicted"),
        Suppression::BreakerOpen => (
            "breakerOpen",
            "too many evictions within the breaker's window: from now on they are only decided, not carried out, until \
             the configuration is reloaded",
        ),
        Suppression::DisruptionBudget => (
            "disruptionBudget",
            "a PodDisruptionBudget does not allow the soft eviction of the pod that is first in the order: it is requested \
             again each minute, and a hard threshold does not ask",
        ),
        Suppression::OutOfReach => (
            "outOfReach",
            "the threshold asks for more than would be available if every pod that may be evicted were gone: no pod is \
             evicted for it; lower it, or find out what else uses the resource",
        ),
    }
}
