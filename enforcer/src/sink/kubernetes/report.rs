//! Which events become Events of Kubernetes, and in which words: those of the kubelet where it has them.

use std::collections::BTreeMap;

use enforcer_events::{
    Event, EventType, Payload,
    eviction::{EvictionDecided, EvictionEnded},
    oom::{Incident, Scope, Victim},
    pod::Place,
    pressure::{PressureRising, Stalling},
};

use super::evictions::Decided;
use crate::{
    kube::{About, ContainerList, ContainerRef, PodRef, Report},
    render::{escape, human_bytes},
};

/// The types that become Events.
pub(in crate::sink) const TYPES: &[EventType] = &[
    EventType::ThresholdCrossed,
    EventType::PressureRising,
    EventType::EvictionDecided,
    EventType::EvictionSignalled,
    EventType::EvictionRequested,
    EventType::EvictionCompleted,
    EventType::EvictionFailed,
    EventType::OomIncident,
];

/// The longest name of a pod that is in an Event's name: with the event's id it must be a name too.
const MOST_NAME_BYTES: usize = 200;

/// Which Events are sent that do not always suit.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::sink) struct Optional {
    /// `WouldEvict`.
    pub(in crate::sink) would_evict: bool,
    /// `EvictionThresholdMet`, which says that memory is reclaimed: where nothing is evicted, it is not.
    pub(in crate::sink) threshold_met: bool,
}

/// The Events for an event; none for most. `evicted` is the pod that is evicted by it, and what was decided.
pub(super) fn reports(
    event: &Event,
    evicted: Option<(PodRef, Decided)>,
    node: &str,
    optional: Optional,
) -> Vec<Report> {
    let make = |about: About, reason: &str, action: &str, note: String| {
        let of = match &about {
            About::Pod(pod, _) => &pod.name,
            About::Node => node,
        };
        let of = of.get(..MOST_NAME_BYTES).unwrap_or(of).trim_end_matches(['.', '-']);
        Report {
            name: format!("{of}.{}", event.id.to_ascii_lowercase()),
            about,
            node: node.to_owned(),
            reason: reason.to_owned(),
            action: action.to_owned(),
            is_warning: true,
            note,
            annotations: BTreeMap::new(),
            time_ms: event.time.parse().map_or(0, jiff::Timestamp::as_millisecond),
        }
    };
    let mut reports = match &event.payload {
        Payload::ThresholdCrossed(shortage) if optional.threshold_met => {
            // `pkg/kubelet/eviction/eviction_manager.go`: "Attempting to reclaim %s".
            let resource = shortage.signal.split('.').next().unwrap_or_default();
            vec![make(
                About::Node,
                "EvictionThresholdMet",
                "Reclaim",
                format!("Attempting to reclaim {resource}"),
            )]
        }
        // What is decided is not done yet: a budget may refuse it, or the pod may be spared.
        Payload::EvictionDecided(EvictionDecided::Decision(decision))
            if decision.dry_run && optional.would_evict =>
        {
            let victim = decision.victim.as_ref().map(|victim| PodRef {
                namespace: victim.namespace.clone(),
                name: victim.name.clone(),
                uid: victim.uid.clone(),
            });
            let would = |victim| eviction(victim, "WouldEvict", Decided::of(decision), make);
            victim.map(would).into_iter().collect()
        }
        Payload::EvictionFailed(ended) => failed(&event.subject, ended, make),
        Payload::OomIncident(incident) => oom(incident, make),
        Payload::PressureRising(PressureRising::Stalls(stalling)) => stalls(stalling, make),
        _ => evicted.map(|(pod, decided)| eviction(pod, "Evicted", decided, make)).into_iter().collect(),
    };
    // A pod whose name is not known has no object at the API server.
    reports.retain(|report| match &report.about {
        About::Pod(pod, _) => pod.is_valid(),
        About::Node => true,
    });
    for (number, report) in reports.iter_mut().enumerate().skip(1) {
        report.name.push_str(&format!(".{number}"));
    }
    reports
}

fn eviction(
    pod: PodRef,
    reason: &str,
    decided: Decided,
    make: impl Fn(About, &str, &str, String) -> Report,
) -> Report {
    let Decided { message, annotations } = decided;
    let note = message.unwrap_or_else(|| {
        String::from("enforcer evicted the pod; the event log no longer has the decision that says why")
    });
    Report { annotations, ..make(About::Pod(pod, None), reason, "Evict", note) }
}

fn failed(
    subject: &str,
    ended: &EvictionEnded,
    make: impl Fn(About, &str, &str, String) -> Report,
) -> Vec<Report> {
    // A reconstructed one names its pod in the subject only.
    let (of_subject, named) = subject.split_once('/').unzip();
    let namespace = ended.namespace.as_deref().or(of_subject);
    let name = ended.name.as_deref().or(named);
    let (Some(namespace), Some(name), Some(uid)) = (namespace, name, &ended.uid) else { return Vec::new() };
    let pod = PodRef { namespace: namespace.to_owned(), name: name.to_owned(), uid: uid.clone() };
    let why = ended.message.as_deref().or(ended.reason.as_deref()).unwrap_or("for an unknown reason");
    vec![make(About::Pod(pod, None), "EvictionFailed", "Evict", format!("The eviction failed: {why}"))]
}

/// One for each container that lost a process, and one for the node if the machine's memory ran out.
fn oom(incident: &Incident, make: impl Fn(About, &str, &str, String) -> Report) -> Vec<Report> {
    let mut by_container: BTreeMap<About, Vec<&Victim>> = BTreeMap::new();
    for victim in &incident.victims {
        if let Some(about) = about(&victim.place) {
            by_container.entry(about).or_default().push(victim);
        }
    }
    let limit = match (incident.scope, &incident.limit_owner) {
        (Some(Scope::Container), _) => String::from("the container's memory limit was hit"),
        (Some(Scope::Pod), _) => String::from("the pod's memory limit was hit"),
        (Some(Scope::Node), Some(owner)) if owner == "/" => String::from("the node ran out of memory"),
        (_, Some(owner)) => format!("the memory limit of {owner} was hit"),
        (_, None) => String::from("a memory limit was hit"),
    };
    let mut reports: Vec<Report> = by_container
        .into_iter()
        .map(|(about, victims)| {
            let Some(first) = victims.first() else {
                return make(about, "OOMKilling", "Kill", limit.clone());
            };
            let held = first.memory.map(|memory| {
                format!(", which held {}", human_bytes(memory.anon_bytes + memory.shmem_bytes))
            });
            let more = match victims.len() {
                1 => String::new(),
                count => format!(" and {} more", count - 1),
            };
            let note = format!(
                "The kernel killed process {} ({}){}{more}: {limit}",
                first.pid,
                escape(&first.comm),
                held.unwrap_or_default()
            );
            make(about, "OOMKilling", "Kill", note)
        })
        .collect();
    // What is known from counters alone has no victims, but the cgroup that lost them.
    if incident.victims.is_empty()
        && incident.kills > 0
        && let Some(about) = incident.place.as_ref().and_then(about)
    {
        let killed = match (incident.kills, incident.counters.oom_group_kill) {
            (1, _) => String::from("a process"),
            (kills, 0) => format!("{kills} processes"),
            // The kernel counts the first victim of a group twice.
            (kills, _) => format!("up to {kills} processes"),
        };
        reports.push(make(about, "OOMKilling", "Kill", format!("The kernel killed {killed}: {limit}")));
    }
    // `pkg/kubelet/oom/oom_watcher_linux.go`: for the root alone, not for kubepods or a service at its own limit.
    if incident.limit_owner.as_deref() == Some("/") {
        let victim = incident.victims.first();
        let victim =
            victim.map(|victim| format!(", victim process: {}, pid: {}", escape(&victim.comm), victim.pid));
        let note = format!("System OOM encountered{}", victim.unwrap_or_default());
        reports.push(make(About::Node, "SystemOOM", "Kill", note));
    }
    reports
}

fn stalls(stalling: &Stalling, make: impl Fn(About, &str, &str, String) -> Report) -> Vec<Report> {
    let Some(about) = about(&stalling.place) else { return Vec::new() };
    let ms = stalling.window_stall_ms;
    let (reason, note) = match &*stalling.kind {
        "memoryHigh" | "throttled" => {
            ("MemoryThrottled", format!("Its tasks were slowed at memory.high for {ms} ms within a second"))
        }
        "memcgReclaim" => (
            "MemoryStalled",
            format!("Its tasks waited {ms} ms within a second for memory below their limit"),
        ),
        _ => ("MemoryStalled", format!("Its tasks waited {ms} ms within a second for memory of the node")),
    };
    vec![make(about, reason, "Stall", note)]
}

fn about(place: &Place) -> Option<About> {
    let Place { namespace, pod, uid, container, container_kind, .. } = place;
    let list = ContainerList::of(container_kind.as_deref());
    let container = container.clone().map(|name| ContainerRef { name, list });
    let pod = PodRef { namespace: namespace.clone()?, name: pod.clone()?, uid: uid.clone()? };
    Some(About::Pod(pod, container))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(kind: EventType, data: &serde_json::Value) -> Event {
        Event {
            id: String::from("01J0000000000000000000000A"),
            source: String::new(),
            subject: String::new(),
            time: String::from("2026-01-02T03:04:05.678Z"),
            sequence: String::new(),
            payload: Payload::parse(kind, data).unwrap(),
        }
    }

    const WOULD: Optional = Optional { would_evict: true, threshold_met: false };

    fn notes(event: &Event, optional: Optional) -> Vec<(String, String, String)> {
        let of = |report: Report| {
            let about = match report.about {
                About::Node => String::from("node"),
                About::Pod(pod, container) => {
                    let container = container.map(|of| format!("{}.{}", of.list.as_str(), of.name));
                    format!("{}/{}/{} {}", pod.namespace, pod.name, pod.uid, container.unwrap_or_default())
                }
            };
            (about, report.reason, report.note)
        };
        reports(event, None, "n1", optional).into_iter().map(of).collect()
    }

    #[test]
    fn an_eviction_is_reported_in_the_kubelets_words_when_it_is_carried_out() {
        let decision = |dry_run: bool| {
            let victim = json!({
                "namespace": "shop", "name": "web", "uid": "u1", "qosClass": "Burstable", "priority": 0, "cgroup": "/c",
                "cgroupId": 7, "requestBytes": 1, "statsMissing": false, "usageBytes": 2, "anonBytes": 2, "fileBytes": 0,
                "shmemBytes": 0, "processCount": 1, "growthBytesPerSecond": 0,
            });
            event(
                EventType::EvictionDecided,
                &json!({
                    "evictionId": "e", "dryRun": dry_run, "hard": true, "graceMs": 0, "victim": victim,
                    "decidedBy": "order", "ranking": [], "rankedCount": 1, "excluded": [], "excludedCount": 0,
                    "predictedFreedBytes": 1, "message": "The node was low on resource: memory. ",
                    "annotations": {"starved_resource": "memory"}, "configHash": "h",
                }),
            )
        };
        // It is not done yet.
        assert_eq!(reports(&decision(false), None, "n1", Optional::default()), []);
        assert_eq!(reports(&decision(false), None, "n1", WOULD), []);
        assert_eq!(reports(&decision(true), None, "n1", Optional::default()), []);
        let would = reports(&decision(true), None, "n1", WOULD);
        assert_eq!((would.len(), &*would[0].reason), (1, "WouldEvict"));
        assert_eq!(would[0].note, "The node was low on resource: memory. ");
        assert_eq!(would[0].annotations["starved_resource"], "memory");

        let signalled = event(
            EventType::EvictionSignalled,
            &json!({"evictionId": "e", "namespace": "shop", "name": "web", "uid": "u1", "sent": "SIGKILL"}),
        );
        assert_eq!(reports(&signalled, None, "n1", WOULD), [], "another event has shown it before");
        let evicted = |decided: Decided| {
            let pod = PodRef { namespace: "shop".to_owned(), name: "web".to_owned(), uid: "u1".to_owned() };
            let mut evicted = reports(&signalled, Some((pod, decided)), "n1", Optional::default());
            assert_eq!(evicted.len(), 1);
            evicted.remove(0)
        };
        let Payload::EvictionDecided(EvictionDecided::Decision(decided)) = decision(false).payload else {
            panic!("a decision")
        };
        let known = evicted(Decided::of(&decided));
        assert_eq!((&*known.reason, &*known.action), ("Evicted", "Evict"));
        assert_eq!(known.note, "The node was low on resource: memory. ");
        assert_eq!(known.annotations["starved_resource"], "memory");
        assert_eq!(known.name, "web.01j0000000000000000000000a");
        assert_eq!(known.time_ms % 100_000, 45_678);
        let lost = evicted(Decided::default());
        assert!(lost.note.contains("no longer has the decision") && lost.annotations.is_empty(), "{lost:?}");
    }

    #[test]
    fn each_container_that_lost_a_process_has_an_event_of_its_own() {
        let victim = |pid: u32, container: &str| {
            json!({
                "pid": pid, "comm": "java", "namespace": "shop", "pod": "web", "uid": "u1", "container": container,
                "containerKind": if container == "side" { "sidecar" } else { "app" },
                "anonBytes": 1 << 20, "fileBytes": 0, "shmemBytes": 0, "swapBytes": 0, "pgtablesBytes": 0,
            })
        };
        let counters = json!({"oom": 1, "oomKill": 1, "oomGroupKill": 0});
        let of = |scope: &str, owner: &str| {
            event(
                EventType::OomIncident,
                &json!({
                    "incidentId": "01J0000000000000000000000A", "scope": scope, "limitOwner": owner, "limitSource": "traced",
                    "kills": 3, "victims": [victim(7, "app"), victim(8, "app"), victim(9, "side")], "timelineMs": {},
                    "counters": counters, "countersBefore": counters, "countersAfter": counters, "reconciled": true,
                    "reconciliation": "matched", "reconstructed": false,
                }),
            )
        };
        assert_eq!(
            notes(&of("pod", "/kubepods/pod1"), Optional::default()),
            [
                (
                    "shop/web/u1 containers.app".to_owned(),
                    "OOMKilling".to_owned(),
                    "The kernel killed process 7 (java), which held 1Mi and 1 more: the pod's memory limit was hit".to_owned()
                ),
                (
                    "shop/web/u1 initContainers.side".to_owned(),
                    "OOMKilling".to_owned(),
                    "The kernel killed process 9 (java), which held 1Mi: the pod's memory limit was hit".to_owned()
                ),
            ]
        );
        let of_node = reports(&of("node", "/"), None, "n1", Optional::default());
        assert_eq!(
            of_node.last().map(|report| (&*report.reason, report.name.ends_with(".2"))),
            Some(("SystemOOM", true))
        );
        // The kubelet reports none of these as the system's.
        for (scope, owner) in [("node", "/kubepods"), ("qos", "/kubepods/burstable"), ("system", "/a")] {
            let reasons: Vec<_> = reports(&of(scope, owner), None, "n1", Optional::default())
                .into_iter()
                .map(|report| report.reason)
                .collect();
            assert_eq!(reasons, ["OOMKilling", "OOMKilling"], "{owner}");
        }
    }

    /// An incident that only the counters of a cgroup show.
    fn counted(scope: &str, owner: &str, place: &serde_json::Value, kills: u64) -> Event {
        let counters = json!({"oom": 1, "oomKill": kills, "oomGroupKill": u64::from(kills > 2)});
        let mut data = json!({
            "incidentId": "01J0000000000000000000000A", "scope": scope, "limitOwner": owner, "kills": kills,
            "limitSource": "counters", "victims": [], "timelineMs": {}, "counters": counters,
            "countersBefore": counters, "countersAfter": counters, "reconciled": true,
            "reconciliation": "matched", "reconstructed": true,
        });
        data.as_object_mut().unwrap().extend(place.as_object().unwrap().clone());
        event(EventType::OomIncident, &data)
    }

    #[test]
    fn a_service_that_hits_its_own_limit_is_no_event() {
        assert_eq!(notes(&counted("system", "/a.service", &json!({"cgroup": "/a.service"}), 1), WOULD), []);
    }

    #[test]
    fn kills_that_only_counters_show_are_reported_of_the_container_that_they_are_counted_in() {
        let container = json!({
            "namespace": "shop", "pod": "web", "uid": "u1", "container": "side", "containerKind": "sidecar",
            "cgroup": "/kubepods/pod1/side",
        });
        let of = |kills: u64, words: &str| {
            let reported = notes(&counted("container", "/kubepods/pod1/side", &container, kills), WOULD);
            let note = format!("The kernel killed {words}: the container's memory limit was hit");
            let about = "shop/web/u1 initContainers.side".to_owned();
            assert_eq!(reported, [(about, "OOMKilling".to_owned(), note)]);
        };
        of(1, "a process");
        of(2, "2 processes");
        of(3, "up to 3 processes");
        let of_machine = notes(&counted("node", "/", &container, 1), WOULD);
        let reasons: Vec<_> = of_machine.iter().map(|(_, reason, note)| (&**reason, &**note)).collect();
        assert_eq!(
            reasons,
            [
                ("OOMKilling", "The kernel killed a process: the node ran out of memory"),
                ("SystemOOM", "System OOM encountered")
            ]
        );
    }

    /// The daemon was killed in the middle of it, and the next one names the pod in the subject.
    #[test]
    fn an_eviction_that_failed_is_reported_with_its_pod_in_the_subject_only() {
        let failed = |subject: &str, more: &serde_json::Value| {
            let mut data = json!({
                "evictionId": "e", "uid": "u1", "reason": "interrupted", "message": "the daemon ended meanwhile",
            });
            data.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let event = event(EventType::EvictionFailed, &data);
            notes(&Event { subject: subject.to_owned(), ..event }, WOULD)
        };
        let expected = [(
            "shop/web/u1 ".to_owned(),
            "EvictionFailed".to_owned(),
            "The eviction failed: the daemon ended meanwhile".to_owned(),
        )];
        assert_eq!(failed("shop/web", &json!({"reconstructed": true})), expected);
        assert_eq!(failed("n1", &json!({"namespace": "shop", "name": "web"})), expected);
        assert_eq!(failed("n1", &json!({})), []);
        assert_eq!(failed("(unknown)/u1", &json!({})), [], "its name is not known");
    }

    #[test]
    fn what_is_no_trouble_of_a_pod_or_the_node_is_not_reported() {
        let crossed =
            event(EventType::ThresholdCrossed, &json!({"signal": "memory.available", "hard": true}));
        assert_eq!(notes(&crossed, WOULD), [], "nothing is reclaimed");
        let optional = Optional { threshold_met: true, ..Optional::default() };
        assert_eq!(
            notes(&crossed, optional),
            [(
                "node".to_owned(),
                "EvictionThresholdMet".to_owned(),
                "Attempting to reclaim memory".to_owned()
            )]
        );
        let left = event(EventType::DegradedLeft, &json!({"what": "sink"}));
        assert_eq!(notes(&left, optional), []);
    }
}
