//! Builds events from the reflex's reports.

mod hook;
mod reasons;
mod shared;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::{Map, Value, json};
use ulid::Ulid;

use self::{
    hook::HookNotes,
    reasons::{brake_refusal, kill_reason, suppression, unarmed_data},
    shared::Places,
};
use super::{
    candidate::{Candidate, Identity},
    failure::failure_reason,
    report::{Report, Stuck},
};
use crate::{
    journal::{Event, EventType, Subject},
    policy::{
        engine::{
            BrakeCause, Completion, Containment, Decision, Failure, Moments, RankKey, Ranked, Reading,
            Resource, Returned, Shortage, Thresholds,
        },
        message::{self, Message, Usages},
        rank::DecidedBy,
        threshold::Signal,
    },
    sense::snapshot::{Stall, Stalls},
};

/// `what` of the degraded state in which unmapped shared memory takes up what a threshold is to keep free.
const SHARED_MEMORY: &str = "sharedMemory";

/// Builds events from reports.
#[derive(Clone, Debug)]
pub struct EventBuilder {
    config_hash: String,
    hooks: HookNotes,
    /// The thresholds that were reported as not armed.
    unarmed: Thresholds,
    /// The file with the node's memory pressure, if events include it.
    pressure: Option<PathBuf>,
    /// Where to look for unmapped shared memory, if events include it.
    places: Option<Places>,
}

impl EventBuilder {
    /// `config_hash` is the hash of the current configuration; every decision includes it.
    #[must_use]
    pub fn new(config_hash: String) -> Self {
        Self {
            config_hash,
            hooks: HookNotes::default(),
            unarmed: Thresholds::new(),
            pressure: None,
            places: None,
        }
    }

    /// Adds the node's pressure to every decision, read from this file, usually
    /// [`NODE_PRESSURE`](crate::sense::NODE_PRESSURE).
    #[must_use]
    pub fn with_pressure(self, pressure: &Path) -> Self {
        Self { pressure: Some(pressure.to_owned()), ..self }
    }

    /// Adds the location of unmapped shared memory, found through the mounts in `proc` and the cgroups of the pods, all
    /// below the folder `kubepods`.
    #[must_use]
    pub fn with_shared_memory(self, proc: &Path, kubepods: &Path) -> Self {
        let places = Places { proc: proc.to_owned(), kubepods: kubepods.to_owned() };
        Self { places: Some(places), ..self }
    }

    /// Sets the hash of a configuration that applies from now on.
    pub fn configured(&mut self, config_hash: String) {
        self.config_hash = config_hash;
    }

    /// The event for a report; `None` if the report has none.
    pub fn event(&mut self, report: &Report) -> Option<Event> {
        Some(match report {
            // Admission shows these.
            Report::Conditions(_) | Report::ToBeAsked { .. } => return None,
            Report::Arming { armed: _, unarmed } => return self.arming(unarmed),
            Report::Stuck(stuck) => stuck_event(stuck),
            Report::Hooked { id, signal: _, candidate: _, plan, ran } => {
                self.hooks.ended(*id, *plan, ran);
                return None;
            }
            Report::Crossed { now_ns: _, shortage } => {
                let data = Value::Object(shortage_data(shortage));
                Event { kind: EventType::ThresholdCrossed, subject: Subject::Node, data }
            }
            Report::Cleared { now_ns, shortage, crossed_ns } => {
                let mut data = shortage_data(shortage);
                data.insert("crossedToClearedMs".into(), milliseconds(*crossed_ns, *now_ns));
                Event { kind: EventType::PressureCleared, subject: Subject::Node, data: Value::Object(data) }
            }
            Report::Decided { id, decision, members } => {
                self.hooks.decided(*id, decision.hook);
                self.decided(*id, decision, members)
            }
            Report::Terminated { id, signal, number: _, candidate, grace_ns, moments } => {
                let mut data = about(*id, *signal, candidate);
                data.insert("sent".into(), json!("SIGTERM"));
                data.insert("graceMs".into(), json!(grace_ns / 1_000_000));
                data.insert("bootMs".into(), boot_ms(moments.terminated_ns));
                data.append(&mut timeline(moments));
                data.extend(hooked(self.hooks.signalled(*id, waited_ns(moments))));
                pod_event(EventType::EvictionSignalled, candidate, data)
            }
            Report::Signalled { id, signal, number: _, candidate, cut_short, moments, brakes_failed } => {
                let mut data = about(*id, *signal, candidate);
                data.insert("sent".into(), json!("SIGKILL"));
                if let Some(reason) = cut_short {
                    data.insert("killedBecause".into(), json!(kill_reason(*reason)));
                }
                data.insert("brakesFailed".into(), json!(brakes_failed));
                data.insert("bootMs".into(), boot_ms(moments.signalled_ns));
                data.append(&mut timeline(moments));
                data.extend(hooked(self.hooks.signalled(*id, waited_ns(moments))));
                pod_event(EventType::EvictionSignalled, candidate, data)
            }
            Report::Completed { id, signal, candidate, completion } => {
                let mut data = about(*id, *signal, candidate);
                data.append(&mut completion_data(completion));
                data.extend(hooked(self.hooks.over(*id, is_signalled(&completion.moments))));
                pod_event(EventType::EvictionCompleted, candidate, data)
            }
            Report::Failed { id, signal, candidate, failure } => {
                let mut data = about(*id, *signal, candidate);
                data.append(&mut failure_data(failure));
                data.extend(hooked(self.hooks.over(*id, is_signalled(&failure.moments))));
                pod_event(EventType::EvictionFailed, candidate, data)
            }
            Report::Contained { id, candidate, containment, now_ns } => {
                let mut data = containment_data(*id, candidate, containment);
                data.insert("state".into(), json!("contained"));
                data.insert("decidedToContainedMs".into(), milliseconds(containment.decided_ns, *now_ns));
                pod_event(EventType::EvictionContained, candidate, data)
            }
            Report::Uncontained { id, candidate, containment, now_ns, reason } => {
                let mut data = containment_data(*id, candidate, containment);
                data.insert("state".into(), json!("refused"));
                data.insert("decidedToRefusedMs".into(), milliseconds(containment.decided_ns, *now_ns));
                data.append(&mut brake_refusal(*reason));
                pod_event(EventType::EvictionContained, candidate, data)
            }
            Report::Eased { id, candidate, containment, since_ns, now_ns, given_back } => {
                let mut data = containment_data(*id, candidate, containment);
                data.insert("state".into(), json!(if *given_back { "released" } else { "stuck" }));
                data.insert("heldMs".into(), milliseconds(*since_ns, *now_ns));
                pod_event(EventType::EvictionContained, candidate, data)
            }
            Report::Suppressed { now_ns: _, signal, reason } => {
                let (reason, message) = suppression(*signal, *reason);
                let data = json!({"signal": signal.as_str(), "reason": reason, "message": message});
                Event { kind: EventType::EvictionSuppressed, subject: Subject::Node, data }
            }
            Report::SharedMemoryHeld { bytes, limit_bytes, members } => {
                self.shared_memory_held(*bytes, *limit_bytes, members)
            }
            Report::SharedMemoryFreed { bytes } => {
                let data = json!({"what": SHARED_MEMORY, "sharedMemory": {"unmappedBytes": bytes}});
                Event { kind: EventType::DegradedLeft, subject: Subject::Node, data }
            }
            Report::Blind(signal, why) => {
                let data = json!({
                    "what": signal.as_str(),
                    "message": format!("{why}; no pod is evicted for it until it can be read"),
                });
                Event { kind: EventType::DegradedEntered, subject: Subject::Node, data }
            }
            Report::Sighted(signal) => {
                let data = json!({"what": signal.as_str()});
                Event { kind: EventType::DegradedLeft, subject: Subject::Node, data }
            }
        })
    }

    /// The event that no eviction frees the missing memory, with the location of the unmapped shared memory.
    fn shared_memory_held(&self, bytes: u64, limit_bytes: u64, members: &[Arc<Candidate>]) -> Event {
        let held = self.places.as_ref().map(|places| places.look(members)).unwrap_or_default();
        let data = json!({
            "what": SHARED_MEMORY,
            "message": held.message(bytes, limit_bytes),
            "sharedMemory": held.data(bytes),
        });
        Event { kind: EventType::DegradedEntered, subject: Subject::Node, data }
    }

    /// The event that thresholds are not armed, or that all are again; `None` if nothing changed.
    fn arming(&mut self, unarmed: &Thresholds) -> Option<Event> {
        if *unarmed == std::mem::replace(&mut self.unarmed, *unarmed) {
            return None;
        }
        let kind = if unarmed.is_empty() { EventType::DegradedLeft } else { EventType::DegradedEntered };
        Some(Event { kind, subject: Subject::Node, data: Value::Object(unarmed_data(unarmed)) })
    }

    /// The memory stalls of the last ten seconds.
    fn pressure(&self) -> Option<Value> {
        let text = std::fs::read(self.pressure.as_ref()?).ok()?;
        let Stalls { some, full } = Stalls::parse(&text).ok()?;
        let percent = |stall: Stall| f64::from(stall.avg10_centipercent) / 100.0;
        Some(json!({"someAvg10Percent": percent(some), "fullAvg10Percent": percent(full)}))
    }

    /// Unmapped shared memory, if it exceeds what the threshold keeps free. No eviction frees it.
    fn shared_memory(&self, decision: &Decision, members: &[Arc<Candidate>]) -> Option<Value> {
        let Shortage { threshold, .. } = decision.shortage;
        let is_of_memory = decision.shortage.resource() == Resource::Memory;
        let bytes = Some(decision.unmapped_shmem_bytes).filter(|bytes| is_of_memory && *bytes > threshold)?;
        Some(self.places.as_ref().map(|places| places.look(members)).unwrap_or_default().data(bytes))
    }

    fn decided(&self, id: Ulid, decision: &Decision, members: &[Arc<Candidate>]) -> Event {
        let identity = |index: usize| members.get(index).map(|member| member.identity());
        let ranking: Vec<_> = (1_u32..)
            .zip(decision.ranking.iter())
            .filter_map(|(rank, ranked)| {
                Some(ranked_data(rank, ranked, identity(ranked.index)?, decision.decided_ns))
            })
            .collect();
        let excluded: Vec<_> = decision
            .excluded
            .iter()
            .filter_map(|left_out| {
                let mut data = names(identity(left_out.index)?);
                data.insert("reason".into(), json!(left_out.reason.as_str()));
                Some(Value::Object(data))
            })
            .collect();
        let victim = members.get(decision.index);
        let message = kubelets(decision, victim.map(Arc::as_ref));
        let mut data = json!({
            "evictionId": id.to_string(),
            "dryRun": decision.dry_run,
            "graceMs": decision.grace_ns / 1_000_000,
            "victim": victim
                .map(|victim| victim_data(victim, &decision.reading, decision.growth_bytes_per_second)),
            "decidedBy": DecidedBy::of(decision.decided_by),
            "ranking": ranking,
            "rankedCount": decision.ranked_count,
            "excluded": excluded,
            "excludedCount": decision.excluded_count,
            "predictedFreedBytes": decision.predicted_freed_bytes,
            "crossedToDecidedMs": milliseconds(decision.crossed_ns, decision.decided_ns),
            "message": message.text,
            "configHash": self.config_hash,
        });
        if let Value::Object(data) = &mut data {
            if decision.paused {
                data.insert("paused".into(), json!(true));
            }
            if decision.unarmed {
                data.insert("unarmed".into(), json!(true));
            }
            if !message.annotations.is_empty() {
                data.insert("annotations".into(), json!(message.annotations));
            }
            data.extend(self.pressure().map(|pressure| (String::from("pressure"), pressure)));
            data.append(&mut shortage_data(&decision.shortage));
            if decision.free_lists_bytes > 0 {
                data.insert("freeListsBytes".into(), json!(decision.free_lists_bytes));
            }
            data.extend(self.shared_memory(decision, members).map(|held| (SHARED_MEMORY.to_owned(), held)));
            data.extend(hooked(hook::planned(decision.hook)));
            if let Some(returned) = decision.returned {
                data.append(&mut returned_data(returned, decision.decided_ns));
            }
        }
        let subject = victim.map_or(Subject::Node, |victim| Subject::Pod(victim.identity().pod.clone()));
        Event { kind: EventType::EvictionDecided, subject, data }
    }
}

/// The kubelet's message. A single container is reported with the usage of the pod's reading. Several containers are
/// read now, which is right after the signal of a hard eviction.
fn kubelets(decision: &Decision, victim: Option<&Candidate>) -> Message {
    let Shortage { signal, hard: _, threshold, observed } = decision.shortage;
    let Some(victim) = victim else {
        let text = message::shortage(signal, threshold, observed);
        return Message { text, annotations: BTreeMap::new() };
    };
    let usages = decision.reading.usage().map(|usage| match Resource::of(signal) {
        Some(Resource::Memory) => Usages {
            pod: Some(usage.working_set_bytes),
            containers: match victim.containers.as_slice() {
                [(only, _)] => vec![(only.as_str(), usage.working_set_bytes)],
                _ => victim.containers_apart(),
            },
        },
        // The kubelet names no container for process ids.
        Some(Resource::Pids) | None => Usages::default(),
    });
    let pod = &victim.identity.pod.name;
    message::evicted(signal, threshold, observed, pod, &victim.requested, usages.as_ref())
}

fn completion_data(completion: &Completion) -> Map<String, Value> {
    let mut data = timeline(&completion.moments);
    data.insert("predictedFreedBytes".into(), json!(completion.predicted_freed_bytes));
    if let Some(freed_bytes) = completion.freed_bytes {
        data.insert("freedBytes".into(), json!(freed_bytes));
    }
    data
}

fn failure_data(failure: &Failure) -> Map<String, Value> {
    let mut data = timeline(&failure.moments);
    let crossed_to_given_up = milliseconds(failure.moments.crossed_ns, failure.given_up_ns);
    data.insert("crossedToGivenUpMs".into(), crossed_to_given_up);
    data.insert("predictedFreedBytes".into(), json!(failure.predicted_freed_bytes));
    if let Some(freed_bytes) = failure.freed_bytes {
        data.insert("freedBytes".into(), json!(freed_bytes));
    }
    data.append(&mut failure_reason(failure.reason));
    data
}

fn hooked(reported: Option<Value>) -> Option<(String, Value)> {
    reported.map(|reported| (String::from("hook"), reported))
}

/// The time from the decision to the first signal.
fn waited_ns(moments: &Moments) -> u64 {
    let signal_ns = moments.terminated_ns.or(moments.signalled_ns);
    signal_ns.map_or(0, |at_ns| at_ns.saturating_sub(moments.decided_ns))
}

fn is_signalled(moments: &Moments) -> bool {
    moments.terminated_ns.or(moments.signalled_ns).is_some()
}

pub(super) fn victim_data(victim: &Candidate, reading: &Reading, growth_bytes_per_second: i64) -> Value {
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
        "statsMissing": reading.usage().is_none(),
        "growthBytesPerSecond": growth_bytes_per_second,
    });
    if let Some(limit_bytes) = limit_bytes {
        data["limitBytes"] = json!(limit_bytes);
    }
    if let Some(usage) = reading.usage() {
        data["usageBytes"] = json!(usage.working_set_bytes);
        data["currentBytes"] = json!(usage.current_bytes);
        data["anonBytes"] = json!(usage.anon_bytes);
        data["fileBytes"] = json!(usage.file_bytes);
        data["shmemBytes"] = json!(usage.shmem_bytes);
        if let Some(process_count) = usage.process_count {
            data["processCount"] = json!(process_count);
        }
    }
    data
}

fn ranked_data(rank: u32, ranked: &Ranked, identity: &Identity, decided_ns: u64) -> Value {
    let Ranked { index: _, cgroup: _, standing, read_ns } = ranked;
    let mut data = names(identity);
    data.insert("rank".into(), json!(rank));
    data.insert("evictable".into(), json!(true));
    match standing {
        RankKey::Memory(standing) => {
            data.insert("statsMissing".into(), json!(standing.usage_bytes.is_none()));
            data.insert("exceedsRequest".into(), json!(standing.exceeds_request()));
            data.insert("priority".into(), json!(standing.priority));
            data.insert("requestBytes".into(), json!(standing.request_bytes));
            if let Some(usage_bytes) = standing.usage_bytes {
                data.insert("usageBytes".into(), json!(usage_bytes));
                data.insert("aboveRequestBytes".into(), json!(standing.above_request_bytes()));
            }
        }
        RankKey::Pids(standing) => {
            data.insert("statsMissing".into(), json!(standing.process_count.is_none()));
            data.insert("priority".into(), json!(standing.priority));
            if let Some(process_count) = standing.process_count {
                data.insert("processCount".into(), json!(process_count));
            }
        }
    }
    if *read_ns < decided_ns {
        data.insert("readAgoMs".into(), milliseconds(*read_ns, decided_ns));
    }
    Value::Object(data)
}

/// The data of a pod that returned after evictions.
fn returned_data(returned: Returned, now_ns: u64) -> Map<String, Value> {
    let Returned { evictions, until_ns } = returned;
    let left_ms = until_ns.saturating_sub(now_ns) / 1_000_000;
    Map::from_iter([
        (String::from("evictedBefore"), json!(evictions)),
        (String::from("backOffLeftMs"), json!(left_ms)),
    ])
}

pub(super) fn names(identity: &Identity) -> Map<String, Value> {
    let mut data = Map::new();
    data.insert("namespace".into(), json!(identity.pod.namespace));
    data.insert("name".into(), json!(identity.pod.name));
    data
}

/// A threshold and its observed value, in bytes for memory and as a count otherwise.
pub(crate) fn shortage_data(shortage: &Shortage) -> Map<String, Value> {
    let Shortage { signal, hard, threshold, observed } = shortage;
    let (threshold_key, observed_key) = match shortage.resource() {
        Resource::Memory => ("thresholdBytes", "observedBytes"),
        Resource::Pids => ("thresholdCount", "observedCount"),
    };
    let mut data = Map::new();
    data.insert("signal".into(), json!(signal.as_str()));
    data.insert("hard".into(), json!(hard));
    data.insert(threshold_key.into(), json!(threshold));
    data.insert(observed_key.into(), json!(observed));
    data
}

fn containment_data(id: Ulid, candidate: &Candidate, containment: &Containment) -> Map<String, Value> {
    let mut data = names(candidate.identity());
    data.insert("evictionId".into(), json!(id.to_string()));
    data.insert("uid".into(), json!(candidate.identity().uid.as_str()));
    data.insert("cgroup".into(), json!(candidate.identity().cgroup.as_str()));
    let cause = match containment.cause {
        BrakeCause::Grace => "grace",
        BrakeCause::Release => "release",
    };
    data.insert("cause".into(), json!(cause));
    data.insert("usageBytes".into(), json!(containment.usage_bytes));
    data.insert("memoryHighBytes".into(), json!(containment.high_bytes));
    data.insert("fillBytesPerSecond".into(), json!(containment.fill_bytes_per_second));
    data.insert("headroomBytes".into(), json!(containment.headroom_bytes));
    data.insert("awaitedMs".into(), json!(containment.awaited_ns / 1_000_000));
    data
}

fn about(id: Ulid, signal: Signal, candidate: &Candidate) -> Map<String, Value> {
    let mut data = names(candidate.identity());
    data.insert("evictionId".into(), json!(id.to_string()));
    data.insert("uid".into(), json!(candidate.identity().uid.as_str()));
    data.insert("signal".into(), json!(signal.as_str()));
    data
}

fn timeline(moments: &Moments) -> Map<String, Value> {
    let Moments { crossed_ns, decided_ns, terminated_ns, signalled_ns, dead_ns, memory_back_ns } = *moments;
    let steps = [
        ("crossedToDecidedMs", Some(decided_ns)),
        ("crossedToTerminatedMs", terminated_ns),
        ("crossedToSignalledMs", signalled_ns),
        ("crossedToDeadMs", dead_ns),
        ("crossedToMemoryBackMs", memory_back_ns),
    ];
    let reached =
        |(key, at_ns): (&str, Option<u64>)| Some((key.to_owned(), milliseconds(crossed_ns, at_ns?)));
    steps.into_iter().filter_map(reached).collect()
}

/// The time since boot, as the wall clock may be set meanwhile.
fn boot_ms(at_ns: Option<u64>) -> Value {
    json!(at_ns.map(|at_ns| at_ns / 1_000_000))
}

/// Milliseconds with three decimals, at most `u32::MAX` µs, about 71 minutes.
pub(super) fn milliseconds(from_ns: u64, to_ns: u64) -> Value {
    let micros = to_ns.saturating_sub(from_ns) / 1_000;
    json!(f64::from(u32::try_from(micros).unwrap_or(u32::MAX)) / 1_000.0)
}

fn stuck_event(stuck: &Stuck) -> Event {
    let Stuck { candidate, cgroup, file, value, error } = stuck;
    let (kind, message) = match error {
        Some(error) => (
            EventType::DegradedEntered,
            format!("cannot restore {file} of {cgroup} to {value}, will retry: {error}"),
        ),
        None => (EventType::DegradedLeft, format!("{file} of {cgroup} is restored")),
    };
    let mut data = names(candidate.identity());
    data.insert("what".into(), json!("limitStuck"));
    data.insert("place".into(), json!(format!("{cgroup}/{file}")));
    data.insert("value".into(), json!(value));
    data.insert("message".into(), json!(message));
    pod_event(kind, candidate, data)
}

pub(super) fn pod_event(kind: EventType, candidate: &Candidate, data: Map<String, Value>) -> Event {
    Event { kind, subject: Subject::Pod(candidate.identity().pod.clone()), data: Value::Object(data) }
}
