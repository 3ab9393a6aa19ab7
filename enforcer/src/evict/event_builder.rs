//! Builds events from the reflex's reports.

mod hook;
mod inherited;
mod kubelet_message;
mod reasons;
mod shared;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use enforcer_events::{
    Payload,
    eviction::{
        Controller, Decision as DecisionData, EvictionContained, EvictionDecided, EvictionEnded,
        EvictionSignalled, EvictionVictim, Excluded, Pressure, Ranked as RankedData, SharedMemory, Timeline,
        VictimSpec,
    },
    node::{Degraded, SharedMemoryReported, UnmappedMemory},
    pressure::{PressureCleared, Shortage as ShortageData, ShortageOver},
};
use ulid::Ulid;

use self::{
    hook::HookNotes,
    kubelet_message::kubelet_message,
    reasons::{brake_refusal, kill_reason, unarmed},
    shared::Places,
};
use super::{
    candidate::{Candidate, Identity},
    failure::failed_data,
    report::{Report, Stuck},
};
use crate::{
    journal::{Event, Subject},
    model::{Knowledge, OwnerReference, SpecOrigin},
    policy::{
        engine::{
            BrakeCause, Completion, Containment, Decision, Failure, Moments, RankKey, Ranked, Reading,
            Resource, Shortage, Thresholds,
        },
        rank::DecidedBy,
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
            Report::Conditions(_)
            | Report::ToBeAsked { .. }
            | Report::Requested { .. }
            | Report::Inherited { .. } => return None,
            Report::InheritedEnded { eviction, end } => inherited::ended(eviction, end),
            Report::Arming { armed: _, unarmed } => return self.arming(unarmed),
            Report::Stuck(stuck) => stuck_event(stuck),
            Report::Hooked { id, signal: _, candidate: _, plan, ran } => {
                self.hooks.ended(*id, *plan, ran);
                return None;
            }
            Report::Crossed { now_ns: _, shortage } => {
                Event::new(Subject::Node, Payload::ThresholdCrossed(shortage_data(shortage)))
            }
            Report::Cleared { now_ns, shortage, crossed_ns } => {
                let over = ShortageOver {
                    shortage: shortage_data(shortage),
                    crossed_to_cleared_ms: milliseconds(*crossed_ns, *now_ns),
                };
                Event::new(Subject::Node, Payload::PressureCleared(PressureCleared::Shortage(over)))
            }
            Report::Decided { id, decision, members, containers } => {
                self.hooks.decided(*id, decision.hook);
                self.decided(*id, decision, members, containers)
            }
            Report::Terminated { id, signal, number: _, candidate, grace_ns, moments } => {
                let data = EvictionSignalled {
                    signal: Some(signal.as_str().into()),
                    grace_ms: Some(grace_ns / 1_000_000),
                    boot_ms: boot_ms(moments.terminated_ns),
                    timeline: timeline(moments),
                    hook: self.hooks.signalled(*id, waited_ns(moments)),
                    ..signalled_data(*id, candidate, "SIGTERM")
                };
                pod_event(candidate, Payload::EvictionSignalled(data))
            }
            Report::Signalled { id, candidate, moments, brakes_failed, .. } => {
                let data = EvictionSignalled {
                    brakes_failed: Some(*brakes_failed),
                    timeline: timeline(moments),
                    hook: self.hooks.signalled(*id, waited_ns(moments)),
                    ..killed_data(report)?
                };
                pod_event(candidate, Payload::EvictionSignalled(data))
            }
            Report::Completed { id, signal, candidate, completion } => {
                let Completion { moments, predicted_freed_bytes, freed_bytes, .. } = completion;
                let data = EvictionEnded {
                    signal: Some(signal.as_str().into()),
                    timeline: timeline(moments),
                    predicted_freed_bytes: Some(*predicted_freed_bytes),
                    freed_bytes: *freed_bytes,
                    hook: self.hooks.over(*id, is_signalled(moments)),
                    ..ended_data(*id, candidate)
                };
                pod_event(candidate, Payload::EvictionCompleted(data))
            }
            Report::Failed { id, signal, candidate, failure } => {
                let Failure { moments, given_up_ns, predicted_freed_bytes, freed_bytes, reason, .. } =
                    failure;
                let data = EvictionEnded {
                    signal: Some(signal.as_str().into()),
                    timeline: timeline(moments),
                    crossed_to_given_up_ms: Some(milliseconds(moments.crossed_ns, *given_up_ns)),
                    predicted_freed_bytes: Some(*predicted_freed_bytes),
                    freed_bytes: *freed_bytes,
                    hook: self.hooks.over(*id, is_signalled(moments)),
                    ..failed_data(ended_data(*id, candidate), *reason)
                };
                pod_event(candidate, Payload::EvictionFailed(data))
            }
            Report::Contained { .. } | Report::Uncontained { .. } | Report::Eased { .. } => {
                return containment_event(report);
            }
            Report::Suppressed { now_ns: _, signal, reason } => reasons::suppressed(*signal, *reason),
            Report::SharedMemoryHeld { bytes, limit_bytes, members } => {
                self.shared_memory_held(*bytes, *limit_bytes, members)
            }
            Report::SharedMemoryFreed { bytes } => {
                let freed = SharedMemoryReported::Freed(UnmappedMemory { unmapped_bytes: *bytes });
                let data = Degraded { shared_memory: Some(freed), ..Degraded::of(SHARED_MEMORY) };
                Event::new(Subject::Node, Payload::DegradedLeft(data))
            }
            Report::Blind(signal, why) => {
                let message = format!("{why}; no pod is evicted for it until it can be read");
                let data = Degraded { message: Some(message), ..Degraded::of(signal.as_str()) };
                Event::new(Subject::Node, Payload::DegradedEntered(data))
            }
            Report::Sighted(signal) => {
                Event::new(Subject::Node, Payload::DegradedLeft(Degraded::of(signal.as_str())))
            }
        })
    }

    /// The event that no eviction frees the missing memory, with the location of the unmapped shared memory.
    fn shared_memory_held(&self, bytes: u64, limit_bytes: u64, members: &[Arc<Candidate>]) -> Event {
        let held = self.places.as_ref().map(|places| places.look(members)).unwrap_or_default();
        let data = Degraded {
            message: Some(held.message(bytes, limit_bytes)),
            shared_memory: Some(SharedMemoryReported::Held(held.data(bytes))),
            ..Degraded::of(SHARED_MEMORY)
        };
        Event::new(Subject::Node, Payload::DegradedEntered(data))
    }

    /// The event that thresholds are not armed, or that all are again; `None` if nothing changed.
    fn arming(&mut self, thresholds: &Thresholds) -> Option<Event> {
        if *thresholds == std::mem::replace(&mut self.unarmed, *thresholds) {
            return None;
        }
        let data = unarmed(thresholds);
        let payload =
            if thresholds.is_empty() { Payload::DegradedLeft(data) } else { Payload::DegradedEntered(data) };
        Some(Event::new(Subject::Node, payload))
    }

    /// The memory stalls of the last ten seconds.
    fn pressure(&self) -> Option<Pressure> {
        let text = std::fs::read(self.pressure.as_ref()?).ok()?;
        let Stalls { some, full } = Stalls::parse(&text).ok()?;
        let percent = |stall: Stall| f64::from(stall.avg10_centipercent) / 100.0;
        Some(Pressure { some_avg10_percent: percent(some), full_avg10_percent: percent(full) })
    }

    /// Unmapped shared memory, if it exceeds what the threshold keeps free. No eviction frees it.
    fn shared_memory(&self, decision: &Decision, members: &[Arc<Candidate>]) -> Option<SharedMemory> {
        let Shortage { threshold, .. } = decision.shortage;
        let is_of_memory = decision.shortage.resource() == Resource::Memory;
        let bytes = Some(decision.unmapped_shmem_bytes).filter(|bytes| is_of_memory && *bytes > threshold)?;
        Some(self.places.as_ref().map(|places| places.look(members)).unwrap_or_default().data(bytes))
    }

    fn decided(
        &self,
        id: Ulid,
        decision: &Decision,
        members: &[Arc<Candidate>],
        containers: &[(String, u64)],
    ) -> Event {
        let identity = |index: usize| members.get(index).map(|member| member.identity());
        let ranking: Vec<_> = (1_u32..)
            .zip(decision.ranking.iter())
            .filter_map(|(rank, ranked)| {
                Some(ranked_data(rank, ranked, identity(ranked.index.0)?, decision.decided_ns))
            })
            .collect();
        let excluded: Vec<_> = decision
            .excluded
            .iter()
            .filter_map(|left_out| {
                let (namespace, name) = named(identity(left_out.index.0)?);
                Some(Excluded { namespace, name, reason: left_out.reason.as_str().into() })
            })
            .collect();
        let victim = members.get(decision.index.0);
        let message = kubelet_message(decision, victim.map(Arc::as_ref), containers);
        let ShortageData { signal, hard, threshold_bytes, threshold_count, observed_bytes, observed_count } =
            shortage_data(&decision.shortage);
        let data = DecisionData {
            eviction_id: id.to_string(),
            dry_run: decision.dry_run,
            signal: Some(signal),
            hard,
            threshold_bytes,
            threshold_count,
            observed_bytes,
            observed_count,
            grace_ms: decision.grace_ns / 1_000_000,
            victim: victim
                .map(|victim| victim_data(victim, &decision.reading, decision.growth_bytes_per_second)),
            decided_by: DecidedBy::of(decision.decided_by).into(),
            operator: None,
            ranking,
            ranked_count: usize::try_from(decision.ranked_count).unwrap_or(usize::MAX),
            excluded,
            excluded_count: usize::try_from(decision.excluded_count).unwrap_or(usize::MAX),
            predicted_freed_bytes: decision.predicted_freed_bytes,
            crossed_to_decided_ms: Some(milliseconds(decision.crossed_ns, decision.decided_ns)),
            message: message.text,
            annotations: message.annotations.into_iter().map(|(key, text)| (key.into(), text)).collect(),
            config_hash: self.config_hash.clone(),
            paused: decision.paused,
            unarmed: decision.unarmed,
            pressure: self.pressure(),
            free_lists_bytes: Some(decision.free_lists_bytes).filter(|bytes| *bytes > 0),
            shared_memory: self.shared_memory(decision, members),
            hook: hook::planned(decision.hook),
            evicted_before: decision.returned.map(|returned| returned.evictions),
            back_off_left_ms: decision
                .returned
                .map(|returned| returned.until_ns.saturating_sub(decision.decided_ns) / 1_000_000),
        };
        let subject = victim.map_or(Subject::Node, |victim| Subject::Pod(victim.identity().pod.clone()));
        Event::new(subject, Payload::EvictionDecided(EvictionDecided::Decision(Box::new(data))))
    }
}

/// The time from the decision to the first signal.
fn waited_ns(moments: &Moments) -> u64 {
    let signal_ns = moments.asked_ns().or(moments.signalled_ns);
    signal_ns.map_or(0, |at_ns| at_ns.saturating_sub(moments.decided_ns))
}

/// Whether a signal was sent, which has an event of its own.
fn is_signalled(moments: &Moments) -> bool {
    moments.terminated_ns.or(moments.signalled_ns).is_some()
}

pub(super) fn victim_data(
    victim: &Candidate,
    reading: &Reading,
    growth_bytes_per_second: i64,
) -> EvictionVictim {
    let Identity { pod, uid, qos_class, limit_bytes, cgroup, controller, placed: _, spec } =
        victim.identity();
    let (facts, usage) = (victim.facts(), reading.usage());
    EvictionVictim {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: uid.to_string(),
        qos_class: qos_class.as_str().into(),
        priority: facts.priority,
        cgroup: cgroup.to_string(),
        cgroup_id: facts.cgroup.0,
        killed_cgroup_ids: Vec::new(),
        request_bytes: facts.request_bytes,
        limit_bytes: *limit_bytes,
        stats_missing: usage.is_none(),
        growth_bytes_per_second,
        usage_bytes: usage.map(|usage| usage.working_set_bytes),
        current_bytes: usage.map(|usage| usage.current_bytes),
        anon_bytes: usage.map(|usage| usage.anon_bytes),
        file_bytes: usage.map(|usage| usage.file_bytes),
        shmem_bytes: usage.map(|usage| usage.shmem_bytes),
        process_count: reading.process_count(),
        controller: controller.as_deref().map(controller_data),
        spec: spec.get().map(spec_data),
    }
}

fn spec_data(SpecOrigin { source, freshness }: SpecOrigin) -> VictimSpec {
    let provenance = freshness.as_str().into();
    VictimSpec { source: source.into(), provenance, read_ms: freshness.read_ms() }
}

fn controller_data(OwnerReference { kind, name, .. }: &OwnerReference) -> Controller {
    Controller { kind: kind.clone(), name: name.clone() }
}

fn ranked_data(rank: u32, ranked: &Ranked, identity: &Identity, decided_ns: u64) -> RankedData {
    let Ranked { index: _, cgroup: _, standing, read_ns } = ranked;
    let (namespace, name) = named(identity);
    let read_ago_ms = (*read_ns < decided_ns).then(|| milliseconds(*read_ns, decided_ns));
    match standing {
        RankKey::Memory(key) => RankedData {
            rank,
            namespace,
            name,
            evictable: true,
            stats_missing: key.usage_bytes.is_none(),
            exceeds_request: Some(key.exceeds_request()),
            priority: key.priority,
            request_bytes: Some(key.request_bytes),
            usage_bytes: key.usage_bytes,
            above_request_bytes: key.above_request_bytes(),
            process_count: None,
            read_ago_ms,
        },
        RankKey::Pids(key) => RankedData {
            rank,
            namespace,
            name,
            evictable: true,
            stats_missing: key.process_count.is_none(),
            exceeds_request: None,
            priority: key.priority,
            request_bytes: None,
            usage_bytes: None,
            above_request_bytes: None,
            process_count: key.process_count,
            read_ago_ms,
        },
    }
}

/// Namespace and name.
pub(super) fn named(identity: &Identity) -> (String, String) {
    (identity.pod.namespace.clone(), identity.pod.name.clone())
}

/// A threshold and its observed value, in bytes for memory and as a count otherwise.
pub(crate) fn shortage_data(shortage: &Shortage) -> ShortageData {
    let Shortage { signal, hard, threshold, observed } = *shortage;
    let (memory, pids) = match shortage.resource() {
        Resource::Memory => (Some((threshold, observed)), None),
        Resource::Pids => (None, Some((threshold, observed))),
    };
    ShortageData {
        signal: signal.as_str().into(),
        hard,
        threshold_bytes: memory.map(|(threshold, _)| threshold),
        threshold_count: pids.map(|(threshold, _)| threshold),
        observed_bytes: memory.map(|(_, observed)| observed),
        observed_count: pids.map(|(_, observed)| observed),
    }
}

/// The event that a candidate was throttled or released, or why not.
fn containment_event(report: &Report) -> Option<Event> {
    Some(match report {
        Report::Contained { id, candidate, containment, now_ns } => {
            let data = EvictionContained {
                decided_to_contained_ms: Some(milliseconds(containment.decided_ns, *now_ns)),
                ..containment_data(*id, candidate, containment, "contained")
            };
            pod_event(candidate, Payload::EvictionContained(data))
        }
        Report::Uncontained { id, candidate, containment, now_ns, reason } => {
            let (reason, message, errno) = brake_refusal(*reason);
            let data = EvictionContained {
                decided_to_refused_ms: Some(milliseconds(containment.decided_ns, *now_ns)),
                reason: Some(reason.into()),
                message: Some(message),
                errno,
                ..containment_data(*id, candidate, containment, "refused")
            };
            pod_event(candidate, Payload::EvictionContained(data))
        }
        Report::Eased { id, candidate, containment, since_ns, now_ns, given_back } => {
            let state = if *given_back { "released" } else { "stuck" };
            let data = EvictionContained {
                held_ms: Some(milliseconds(*since_ns, *now_ns)),
                ..containment_data(*id, candidate, containment, state)
            };
            pod_event(candidate, Payload::EvictionContained(data))
        }
        _ => return None,
    })
}

fn containment_data(
    id: Ulid,
    candidate: &Candidate,
    containment: &Containment,
    state: &'static str,
) -> EvictionContained {
    let identity = candidate.identity();
    let (namespace, name) = named(identity);
    let cause = match containment.cause {
        BrakeCause::Grace => "grace",
        BrakeCause::Release => "release",
    };
    EvictionContained {
        eviction_id: id.to_string(),
        namespace,
        name,
        uid: identity.uid.to_string(),
        cgroup: identity.cgroup.to_string(),
        state: state.into(),
        cause: cause.into(),
        usage_bytes: containment.usage_bytes,
        memory_high_bytes: containment.high_bytes,
        fill_bytes_per_second: containment.fill_bytes_per_second,
        headroom_bytes: containment.headroom_bytes,
        awaited_ms: containment.awaited_ns / 1_000_000,
        decided_to_contained_ms: None,
        decided_to_refused_ms: None,
        held_ms: None,
        reason: None,
        message: None,
        errno: None,
    }
}

/// What is known of a kill at once; `None` if the report is about something else.
pub(crate) fn killed_data(report: &Report) -> Option<EvictionSignalled> {
    let Report::Signalled { id, signal, number: _, candidate, cut_short, moments, brakes_failed: _ } = report
    else {
        return None;
    };
    Some(EvictionSignalled {
        signal: Some(signal.as_str().into()),
        killed_because: cut_short.map(|reason| kill_reason(reason).into()),
        boot_ms: boot_ms(moments.signalled_ns),
        ..signalled_data(*id, candidate, "SIGKILL")
    })
}

/// The event of a sent signal, with what every one has.
pub(super) fn signalled_data(id: Ulid, candidate: &Candidate, sent: &'static str) -> EvictionSignalled {
    let identity = candidate.identity();
    let (namespace, name) = named(identity);
    EvictionSignalled {
        eviction_id: id.to_string(),
        namespace,
        name,
        uid: identity.uid.to_string(),
        controller: identity.controller.as_deref().map(controller_data),
        spec: identity.spec.get().map(|origin| origin.freshness.as_str().into()),
        terminating: matches!(identity.placed, Some(Knowledge::Spec { is_terminating: true, .. })),
        sent: sent.into(),
        signal: None,
        grace_ms: None,
        killed_because: None,
        brakes_failed: None,
        boot_ms: None,
        timeline: Timeline::default(),
        decided_to_terminated_ms: None,
        decided_to_signalled_ms: None,
        hook: None,
        operator: None,
    }
}

/// The event of an eviction's end, with what every one has.
pub(super) fn ended_data(id: Ulid, candidate: &Candidate) -> EvictionEnded {
    let identity = candidate.identity();
    let (namespace, name) = named(identity);
    EvictionEnded {
        eviction_id: id.to_string(),
        namespace: Some(namespace),
        name: Some(name),
        uid: Some(identity.uid.to_string()),
        ..EvictionEnded::default()
    }
}

fn timeline(moments: &Moments) -> Timeline {
    let Moments {
        crossed_ns,
        decided_ns,
        terminated_ns,
        requested_ns,
        signalled_ns,
        dead_ns,
        memory_back_ns,
    } = *moments;
    let reached = |at_ns: Option<u64>| at_ns.map(|at_ns| milliseconds(crossed_ns, at_ns));
    Timeline {
        crossed_to_decided_ms: reached(Some(decided_ns)),
        crossed_to_terminated_ms: reached(terminated_ns),
        crossed_to_requested_ms: reached(requested_ns),
        crossed_to_signalled_ms: reached(signalled_ns),
        crossed_to_dead_ms: reached(dead_ns),
        crossed_to_memory_back_ms: reached(memory_back_ns),
    }
}

/// The time since boot, as the wall clock may be set meanwhile.
fn boot_ms(at_ns: Option<u64>) -> Option<u64> {
    at_ns.map(|at_ns| at_ns / 1_000_000)
}

/// Milliseconds with three decimals, at most `u32::MAX` µs, about 71 minutes.
pub(super) fn milliseconds(from_ns: u64, to_ns: u64) -> f64 {
    let micros = to_ns.saturating_sub(from_ns) / 1_000;
    f64::from(u32::try_from(micros).unwrap_or(u32::MAX)) / 1_000.0
}

fn stuck_event(stuck: &Stuck) -> Event {
    let Stuck { candidate, cgroup, value, error } = stuck;
    let file = value.file();
    let (namespace, name) = named(candidate.identity());
    let message = match error {
        Some(error) => format!("cannot restore {file} of {cgroup} to {value}, will retry: {error}"),
        None => format!("{file} of {cgroup} is restored"),
    };
    let data = Degraded {
        namespace: Some(namespace),
        name: Some(name),
        place: Some(format!("{cgroup}/{file}")),
        value: Some(value.to_string()),
        message: Some(message),
        ..Degraded::of("limitStuck")
    };
    let is_stuck = error.is_some();
    pod_event(candidate, if is_stuck { Payload::DegradedEntered(data) } else { Payload::DegradedLeft(data) })
}

pub(super) fn pod_event(candidate: &Candidate, payload: Payload) -> Event {
    Event::new(Subject::Pod(candidate.identity().pod.clone()), payload)
}
