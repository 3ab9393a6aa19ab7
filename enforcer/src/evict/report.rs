use std::sync::Arc;

use serde_json::{Map, Value, json};
use ulid::Ulid;

use super::candidate::{Candidate, Identity};
use crate::{
    journal::{Event, EventType, Subject},
    policy::{
        engine::{
            Completion, Decision, Exclusion, Failure, FailureReason, Moments, Ranked, Refusal, Suppression,
        },
        message,
        threshold::Signal,
    },
    sense::MeminfoError,
};

/// What the reflex tells; times are nanoseconds of `CLOCK_BOOTTIME`. Nothing in it is allocated where it is made.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation on the reflex thread")]
pub enum Report {
    /// The threshold was crossed.
    Crossed {
        /// When it was seen.
        now_ns: u64,
        /// What was available.
        available_bytes: u64,
        /// The threshold.
        threshold_bytes: u64,
    },
    /// The shortage is over.
    Cleared {
        /// When it was seen.
        now_ns: u64,
        /// What was available.
        available_bytes: u64,
        /// The threshold.
        threshold_bytes: u64,
        /// When it had been crossed.
        crossed_ns: u64,
    },
    /// A victim was chosen.
    Decided {
        /// The eviction.
        id: Ulid,
        /// All about it.
        decision: Decision,
        /// The candidates that its indices point into.
        members: Arc<[Arc<Candidate>]>,
    },
    /// It was signalled.
    Signalled {
        /// The eviction.
        id: Ulid,
        /// Its number, as the engine counts them.
        number: u64,
        /// The victim.
        candidate: Arc<Candidate>,
        /// When what happened.
        moments: Moments,
        /// How many of `cpu.max` and `memory.high` could not be raised before.
        brakes_failed: usize,
    },
    /// It is dead, and its memory is back or overdue.
    Completed {
        /// The eviction.
        id: Ulid,
        /// The victim.
        candidate: Arc<Candidate>,
        /// All about it.
        completion: Completion,
    },
    /// It could not be signalled, or did not die.
    Failed {
        /// The eviction.
        id: Ulid,
        /// Who should have been the victim.
        candidate: Arc<Candidate>,
        /// All about it.
        failure: Failure,
    },
    /// Nobody is evicted although memory is short.
    Suppressed {
        /// When.
        now_ns: u64,
        /// Why.
        reason: Suppression,
    },
    /// The node's memory cannot be read: until it can, nothing is decided.
    Blind(MeminfoError),
    /// It can be read again.
    Sighted,
}

/// The one signal that there is so far, as configuration and events name it.
const SIGNAL: &str = "memory.available";

/// Makes events of reports.
#[derive(Clone, Debug)]
pub struct Teller {
    config_hash: String,
}

impl Teller {
    /// With the hash of the configuration in force, which every decision names.
    #[must_use]
    pub fn new(config_hash: String) -> Self {
        Self { config_hash }
    }

    /// The event that tells of a report.
    #[must_use]
    pub fn event(&self, report: &Report) -> Event {
        match report {
            Report::Crossed { now_ns: _, available_bytes, threshold_bytes } => {
                let data = json!({
                    "signal": SIGNAL,
                    "hard": true,
                    "thresholdBytes": threshold_bytes,
                    "observedBytes": available_bytes,
                });
                Event { kind: EventType::ThresholdCrossed, subject: Subject::Node, data }
            }
            Report::Cleared { now_ns, available_bytes, threshold_bytes, crossed_ns } => {
                let data = json!({
                    "signal": SIGNAL,
                    "hard": true,
                    "thresholdBytes": threshold_bytes,
                    "observedBytes": available_bytes,
                    "crossedToClearedMs": milliseconds(*crossed_ns, *now_ns),
                });
                Event { kind: EventType::PressureCleared, subject: Subject::Node, data }
            }
            Report::Decided { id, decision, members } => self.decided(*id, decision, members),
            Report::Signalled { id, number: _, candidate, moments, brakes_failed } => {
                let mut data = about(*id, candidate);
                data.insert("brakesFailed".into(), json!(brakes_failed));
                data.append(&mut timeline(moments));
                pod_event(EventType::EvictionSignalled, candidate, data)
            }
            Report::Completed { id, candidate, completion } => {
                let mut data = about(*id, candidate);
                data.insert("predictedFreedBytes".into(), json!(completion.predicted_freed_bytes));
                if let Some(freed_bytes) = completion.freed_bytes {
                    data.insert("freedBytes".into(), json!(freed_bytes));
                }
                data.append(&mut timeline(&completion.moments));
                pod_event(EventType::EvictionCompleted, candidate, data)
            }
            Report::Failed { id, candidate, failure } => {
                let mut data = about(*id, candidate);
                data.append(&mut timeline(&failure.moments));
                let crossed_to_given_up = milliseconds(failure.moments.crossed_ns, failure.given_up_ns);
                data.insert("crossedToGivenUpMs".into(), crossed_to_given_up);
                data.append(&mut failure_reason(failure.reason));
                pod_event(EventType::EvictionFailed, candidate, data)
            }
            Report::Suppressed { now_ns: _, reason } => {
                let (reason, message) = suppression(*reason);
                let data = json!({"signal": SIGNAL, "reason": reason, "message": message});
                Event { kind: EventType::EvictionSuppressed, subject: Subject::Node, data }
            }
            Report::Blind(error) => {
                let data = json!({
                    "what": "memory.available",
                    "message": format!("{error}; nothing is evicted until it can be read"),
                });
                Event { kind: EventType::DegradedEntered, subject: Subject::Node, data }
            }
            Report::Sighted => {
                let data = json!({"what": "memory.available"});
                Event { kind: EventType::DegradedLeft, subject: Subject::Node, data }
            }
        }
    }

    fn decided(&self, id: Ulid, decision: &Decision, members: &[Arc<Candidate>]) -> Event {
        let identity = |index: usize| members.get(index).map(|member| member.identity());
        let ranking: Vec<_> = (1_u32..)
            .zip(decision.ranking.iter())
            .filter_map(|(rank, ranked)| Some(ranked_data(rank, ranked, identity(ranked.index)?)))
            .collect();
        let excluded: Vec<_> = decision
            .excluded
            .iter()
            .filter_map(|left_out| {
                let mut data = names(identity(left_out.index)?);
                data.insert("reason".into(), json!(exclusion(left_out.reason)));
                Some(Value::Object(data))
            })
            .collect();
        let victim = members.get(decision.index);
        let data = json!({
            "evictionId": id.to_string(),
            "dryRun": decision.dry_run,
            "signal": SIGNAL,
            "hard": true,
            "thresholdBytes": decision.threshold_bytes,
            "observedBytes": decision.observed_bytes,
            "victim": victim.map(|victim| victim_data(decision, victim)),
            "decidedBy": decision.decided_by.map_or("onlyCandidate", |key| key.as_str()),
            "ranking": ranking,
            "rankedCount": decision.ranked_count,
            "excluded": excluded,
            "excludedCount": decision.excluded_count,
            "predictedFreedBytes": decision.predicted_freed_bytes,
            "crossedToDecidedMs": milliseconds(decision.crossed_ns, decision.decided_ns),
            "message": message::shortage(
                Signal::MemoryAvailable,
                decision.threshold_bytes,
                decision.observed_bytes,
            ),
            "configHash": self.config_hash,
        });
        let subject = victim.map_or(Subject::Node, |victim| Subject::Pod(victim.identity().pod.clone()));
        Event { kind: EventType::EvictionDecided, subject, data }
    }
}

fn victim_data(decision: &Decision, victim: &Candidate) -> Value {
    let Identity { pod, uid, qos_class, limit_bytes, cgroup } = victim.identity();
    let facts = victim.facts();
    let mut data = json!({
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": uid.as_str(),
        "qosClass": qos_class.as_str(),
        "priority": facts.priority,
        "cgroup": cgroup.as_str(),
        "cgroupId": facts.cgroup.0,
        "requestBytes": facts.request_bytes,
        "statsMissing": decision.reading.usage().is_none(),
        "growthBytesPerSecond": decision.growth_bytes_per_second,
    });
    if let Some(limit_bytes) = limit_bytes {
        data["limitBytes"] = json!(limit_bytes);
    }
    if let Some(usage) = decision.reading.usage() {
        data["usageBytes"] = json!(usage.working_set_bytes);
        data["currentBytes"] = json!(usage.current_bytes);
        data["anonBytes"] = json!(usage.anon_bytes);
        data["fileBytes"] = json!(usage.file_bytes);
        data["shmemBytes"] = json!(usage.shmem_bytes);
    }
    data
}

fn ranked_data(rank: u32, ranked: &Ranked, identity: &Identity) -> Value {
    let Ranked { index: _, cgroup: _, standing } = ranked;
    let mut data = names(identity);
    data.insert("rank".into(), json!(rank));
    data.insert("evictable".into(), json!(true));
    data.insert("statsMissing".into(), json!(standing.usage_bytes.is_none()));
    data.insert("exceedsRequest".into(), json!(standing.exceeds_request()));
    data.insert("priority".into(), json!(standing.priority));
    data.insert("requestBytes".into(), json!(standing.request_bytes));
    if let Some(usage_bytes) = standing.usage_bytes {
        data.insert("usageBytes".into(), json!(usage_bytes));
        data.insert("aboveRequestBytes".into(), json!(standing.above_request_bytes()));
    }
    Value::Object(data)
}

fn names(identity: &Identity) -> Map<String, Value> {
    let mut data = Map::new();
    data.insert("namespace".into(), json!(identity.pod.namespace));
    data.insert("name".into(), json!(identity.pod.name));
    data
}

fn about(id: Ulid, candidate: &Candidate) -> Map<String, Value> {
    let mut data = names(candidate.identity());
    data.insert("evictionId".into(), json!(id.to_string()));
    data.insert("uid".into(), json!(candidate.identity().uid.as_str()));
    data.insert("signal".into(), json!(SIGNAL));
    data
}

fn timeline(moments: &Moments) -> Map<String, Value> {
    let Moments { crossed_ns, decided_ns, signalled_ns, dead_ns, memory_back_ns } = *moments;
    let steps = [
        ("crossedToDecidedMs", Some(decided_ns)),
        ("crossedToSignalledMs", signalled_ns),
        ("crossedToDeadMs", dead_ns),
        ("crossedToMemoryBackMs", memory_back_ns),
    ];
    let reached =
        |(key, at_ns): (&str, Option<u64>)| Some((key.to_owned(), milliseconds(crossed_ns, at_ns?)));
    steps.into_iter().filter_map(reached).collect()
}

/// Milliseconds with three decimals; more than an hour is told as 71 minutes.
fn milliseconds(from_ns: u64, to_ns: u64) -> Value {
    let micros = to_ns.saturating_sub(from_ns) / 1_000;
    json!(f64::from(u32::try_from(micros).unwrap_or(u32::MAX)) / 1_000.0)
}

fn pod_event(kind: EventType, candidate: &Candidate, data: Map<String, Value>) -> Event {
    Event { kind, subject: Subject::Pod(candidate.identity().pod.clone()), data: Value::Object(data) }
}

fn exclusion(reason: Exclusion) -> &'static str {
    match reason {
        Exclusion::Critical => "critical",
        Exclusion::Protected => "protected",
        Exclusion::Gone => "gone",
        Exclusion::Empty => "empty",
        Exclusion::WithinRequest => "withinRequest",
        Exclusion::PassedOver => "passedOver",
    }
}

fn suppression(reason: Suppression) -> (&'static str, &'static str) {
    match reason {
        Suppression::NoCandidate => ("noCandidate", "memory is short and no pod may be evicted"),
        Suppression::BreakerOpen => (
            "breakerOpen",
            "too many evictions within the breaker's window: from now on they are only decided, not carried out, until \
             the configuration is loaded again",
        ),
    }
}

fn failure_reason(reason: FailureReason) -> Map<String, Value> {
    let mut data = Map::new();
    let (reason, message) = match reason {
        FailureReason::StillPopulated => {
            ("stillPopulated", String::from("it was killed and still holds processes after its deadline"))
        }
        FailureReason::Refused(Refusal::Gone) => ("gone", String::from("its cgroup is gone")),
        FailureReason::Refused(Refusal::Empty) => ("empty", String::from("its cgroup holds no process")),
        FailureReason::Refused(Refusal::Replaced) => {
            ("replaced", String::from("its cgroup is not the one that was decided on"))
        }
        FailureReason::Refused(Refusal::Kernel(errno)) => {
            data.insert("errno".into(), json!(errno));
            ("refused", std::io::Error::from_raw_os_error(errno).to_string())
        }
    };
    data.insert("reason".into(), json!(reason));
    data.insert("message".into(), json!(message));
    data
}
