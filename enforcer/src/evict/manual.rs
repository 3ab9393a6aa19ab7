//! An eviction by order of an operator, and its events.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use enforcer_events::{
    Payload,
    eviction::{self as events, Decision, EvictionDecided, EvictionEnded, EvictionSignalled, EvictionVictim},
};
use ulid::Ulid;

use super::{
    candidate::Candidate,
    event_builder::{ended_data, milliseconds, pod_event, signalled_data, victim_data},
    failure::failed_data,
    graceful::{self, EndError, Ending, Sent},
};
use crate::{
    clock,
    journal::Event,
    policy::engine::{FailureReason, Reading, Refusal, Resource, Spared},
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
        let (reading, decided_ns) = (candidate.usage(), clock::boottime_ns());
        Self { id: Ulid::generate(), candidate, operator, grace, reading, decided_ns }
    }

    /// The event of the decision.
    #[must_use]
    pub fn decided(&self, dry_run: bool, config_hash: &str) -> Event {
        let Operator { uid, pid, reason } = &self.operator;
        let data = Decision {
            eviction_id: self.id.to_string(),
            dry_run,
            signal: None,
            hard: false,
            threshold_bytes: None,
            threshold_count: None,
            observed_bytes: None,
            observed_count: None,
            grace_ms: self.grace_ms(),
            victim: Some(EvictionVictim {
                killed_cgroup_ids: self.candidate.killed_cgroup_ids(),
                ..victim_data(&self.candidate, &self.reading, 0)
            }),
            decided_by: "operator".into(),
            operator: Some(events::Operator { uid: *uid, pid: Some(*pid), reason: reason.clone() }),
            ranking: Vec::new(),
            ranked_count: 0,
            excluded: Vec::new(),
            excluded_count: 0,
            predicted_freed_bytes: self.reading.freed_by_death(Resource::Memory),
            crossed_to_decided_ms: None,
            message: format!("Evicted by order of uid {uid}: {reason}"),
            annotations: BTreeMap::new(),
            config_hash: config_hash.to_owned(),
            paused: false,
            unarmed: false,
            pressure: None,
            free_lists_bytes: None,
            shared_memory: None,
            hook: None,
            evicted_before: None,
            back_off_left_ms: None,
        };
        pod_event(&self.candidate, Payload::EvictionDecided(EvictionDecided::Decision(Box::new(data))))
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
        let about = |sent| EvictionSignalled {
            operator: Some(self.operator()),
            ..signalled_data(self.id, &self.candidate, sent)
        };
        let data = match sent {
            Sent::Term => EvictionSignalled {
                grace_ms: Some(self.grace_ms()),
                decided_to_terminated_ms: Some(self.since_ms()),
                ..about("SIGTERM")
            },
            Sent::Kill => EvictionSignalled {
                killed_because: Some("gracePassed".into()),
                decided_to_signalled_ms: Some(self.since_ms()),
                ..about("SIGKILL")
            },
        };
        pod_event(&self.candidate, Payload::EvictionSignalled(data))
    }

    fn completed(&self, ending: Ending) -> Event {
        let left_bytes = match self.candidate.charged() {
            Reading::Usage(usage) => Some(usage.current_bytes),
            // A cgroup that is gone has no charge.
            Reading::Gone => Some(0),
            Reading::Missing | Reading::Uncounted { .. } => None,
        };
        let freed = self.reading.usage().zip(left_bytes);
        let ended_by = match ending {
            Ending::OnTerm => "SIGTERM",
            Ending::OnKill => "SIGKILL",
        };
        let data = EvictionEnded {
            freed_bytes: freed.map(|(before, left_bytes)| before.current_bytes.saturating_sub(left_bytes)),
            predicted_freed_bytes: freed.map(|(before, _)| before.freed_by_death_bytes()),
            ended_by: Some(ended_by.into()),
            decided_to_dead_ms: Some(self.since_ms()),
            ..self.ended()
        };
        pod_event(&self.candidate, Payload::EvictionCompleted(data))
    }

    fn failed(&self, error: &EndError) -> Event {
        let failed = |reason| failed_data(self.ended(), reason);
        let data = match error {
            EndError::StillAlive => failed(FailureReason::StillPopulated),
            EndError::Spared(spared) => failed(FailureReason::Spared(*spared)),
            EndError::Refused(refusal) => failed(FailureReason::Refused(*refusal)),
            EndError::Forbidden(_) | EndError::Cgroup(_) => EvictionEnded {
                reason: Some("refused".into()),
                message: Some(crate::chain(error)),
                ..self.ended()
            },
        };
        pod_event(&self.candidate, Payload::EvictionFailed(data))
    }

    fn ended(&self) -> EvictionEnded {
        EvictionEnded { operator: Some(self.operator()), ..ended_data(self.id, &self.candidate) }
    }

    /// The operator as events after the decision name them.
    fn operator(&self) -> events::Operator {
        events::Operator { uid: self.operator.uid, pid: None, reason: self.operator.reason.clone() }
    }

    fn since_ms(&self) -> f64 {
        milliseconds(self.decided_ns, clock::boottime_ns())
    }

    fn grace_ms(&self) -> u64 {
        u64::try_from(self.grace.as_millis()).unwrap_or(u64::MAX)
    }
}
