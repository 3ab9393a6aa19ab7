//! An eviction by order of an operator, and its events.

use std::{sync::Arc, time::Duration};

use rustix::time::ClockId;
use serde_json::{Map, Value, json};
use ulid::Ulid;

use super::{
    candidate::Candidate,
    event_builder::{milliseconds, names, pod_event, victim_data},
    eviction_loop::now_ns,
    failure::failure_reason,
    graceful::{self, EndError, Ending, Sent},
};
use crate::{
    journal::{Event, EventType, Subject},
    policy::engine::{FailureReason, Reading, Refusal, Spared, Usage},
};

/// The operator who ordered it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Operator {
    /// The user id, from the kernel.
    pub uid: u32,
    /// The process, which may have ended.
    pub pid: u32,
    /// The operator's reason.
    pub reason: String,
}

/// An eviction that an operator ordered.
#[derive(Clone, Debug)]
pub struct ManualEviction {
    /// The eviction's id in events.
    pub id: Ulid,
    /// The victim.
    pub candidate: Arc<Candidate>,
    /// Who ordered it, and why.
    pub operator: Operator,
    /// The victim's grace period.
    pub grace: Duration,
    /// The victim's usage at the decision.
    reading: Reading,
    decided_ns: u64,
}

impl ManualEviction {
    /// An eviction that is decided now.
    #[must_use]
    pub fn new(candidate: Arc<Candidate>, operator: Operator, grace: Duration) -> Self {
        let (reading, decided_ns) = (candidate.usage(), now_ns(ClockId::Boottime));
        Self { id: Ulid::generate(), candidate, operator, grace, reading, decided_ns }
    }

    /// The event of the decision.
    #[must_use]
    pub fn decided(&self, dry_run: bool, config_hash: &str) -> Event {
        let Operator { uid, pid, reason } = &self.operator;
        let data = json!({
            "evictionId": self.id.to_string(),
            "dryRun": dry_run,
            "hard": false,
            "graceMs": self.grace_ms(),
            "victim": victim_data(&self.candidate, &self.reading, 0),
            "decidedBy": "operator",
            "operator": {"uid": uid, "pid": pid, "reason": reason},
            "ranking": [],
            "rankedCount": 0,
            "excluded": [],
            "excludedCount": 0,
            "predictedFreedBytes": self.reading.usage().map_or(0, Usage::freed_by_death_bytes),
            "message": format!("Evicted by order of uid {uid}: {reason}"),
            "configHash": config_hash,
        });
        let subject = Subject::Pod(self.candidate.identity().pod.clone());
        Event { kind: EventType::EvictionDecided, subject, data }
    }

    /// Carries it out: SIGTERM, the grace period, SIGKILL, with an event for each step. It blocks until the end, so it
    /// needs its own thread. A pod that is `spared` at the end of its grace period is not killed.
    pub fn carry_out(
        &self,
        spared: impl Fn() -> Option<Spared>,
        mut emit: impl FnMut(Event),
    ) -> Result<Ending, EndError> {
        let ended = graceful::end(&self.candidate, self.grace, spared, |sent| emit(self.signalled(sent)));
        emit(match &ended {
            Ok(ending) => self.completed(*ending),
            Err(error) => self.failed(error),
        });
        ended
    }

    /// The event that it was not started, as the decision could not be recorded.
    #[must_use]
    pub fn unrecorded(&self) -> Event {
        self.failed(&EndError::Refused(Refusal::Unrecorded))
    }

    fn signalled(&self, sent: Sent) -> Event {
        let mut data = self.about();
        match sent {
            Sent::Term => {
                data.insert("sent".into(), json!("SIGTERM"));
                data.insert("graceMs".into(), json!(self.grace_ms()));
                data.insert("decidedToTerminatedMs".into(), self.since());
            }
            Sent::Kill => {
                data.insert("sent".into(), json!("SIGKILL"));
                data.insert("killedBecause".into(), json!("gracePassed"));
                data.insert("decidedToSignalledMs".into(), self.since());
            }
        }
        pod_event(EventType::EvictionSignalled, &self.candidate, data)
    }

    fn completed(&self, ending: Ending) -> Event {
        let mut data = self.about();
        let left_bytes = match self.candidate.charged() {
            Reading::Usage(usage) => Some(usage.current_bytes),
            // A cgroup that is gone has no charge.
            Reading::Gone => Some(0),
            Reading::Missing => None,
        };
        if let (Some(before), Some(left_bytes)) = (self.reading.usage(), left_bytes) {
            data.insert("freedBytes".into(), json!(before.current_bytes.saturating_sub(left_bytes)));
            data.insert("predictedFreedBytes".into(), json!(before.freed_by_death_bytes()));
        }
        data.insert(
            "endedBy".into(),
            json!(match ending {
                Ending::OnTerm => "SIGTERM",
                Ending::OnKill => "SIGKILL",
            }),
        );
        data.insert("decidedToDeadMs".into(), self.since());
        pod_event(EventType::EvictionCompleted, &self.candidate, data)
    }

    fn failed(&self, error: &EndError) -> Event {
        let mut data = self.about();
        data.append(&mut match error {
            EndError::StillAlive => failure_reason(FailureReason::StillPopulated),
            EndError::Spared(spared) => failure_reason(FailureReason::Spared(*spared)),
            EndError::Refused(refusal) => failure_reason(FailureReason::Refused(*refusal)),
            EndError::Forbidden(_) | EndError::Cgroup(_) => Map::from_iter([
                (String::from("reason"), json!("refused")),
                (String::from("message"), json!(crate::chain(error))),
            ]),
        });
        pod_event(EventType::EvictionFailed, &self.candidate, data)
    }

    fn about(&self) -> Map<String, Value> {
        let mut data = names(self.candidate.identity());
        data.insert("evictionId".into(), json!(self.id.to_string()));
        data.insert("uid".into(), json!(self.candidate.identity().uid.as_str()));
        data.insert("operator".into(), json!({"uid": self.operator.uid, "reason": self.operator.reason}));
        data
    }

    fn since(&self) -> Value {
        milliseconds(self.decided_ns, now_ns(ClockId::Boottime))
    }

    fn grace_ms(&self) -> u64 {
        u64::try_from(self.grace.as_millis()).unwrap_or(u64::MAX)
    }
}
