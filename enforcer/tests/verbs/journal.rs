//! Journals as a daemon leaves them.
use std::{
    thread,
    time::{Duration, Instant},
};

use enforcer::{
    journal::{EventType, Journal, RawEvent, StoreError, Subject},
    model::PodName,
};
use enforcer_events::Payload;
use serde_json::{Value, json};

use crate::Scene;

/// Ids of evictions and incidents; those of events are drawn.
pub(crate) const FIRST: &str = "01J8Z3NDEKTSV4RRFFQ69G5FA1";
pub(crate) const SECOND: &str = "01J8Z3NDEKTSV4RRFFQ69G5FB2";
const MIB: u64 = 1 << 20;

pub(crate) type Recorded = (EventType, Option<&'static str>, Value);

impl Scene {
    /// Writes these into the state directory; the daemon is down then.
    pub(crate) fn remember(&self, reported: &[Recorded]) {
        let journal = self.open_journal();
        for (kind, pod, data) in reported {
            journal.emit(subject(*pod), Payload::parse(*kind, data).unwrap());
        }
        journal.close();
    }

    /// The same for payloads that no daemon of this version emits.
    pub(crate) fn remember_raw(&self, reported: &[Recorded]) {
        let journal = self.open_journal();
        for (kind, pod, data) in reported {
            journal.append_raw(RawEvent { kind: *kind, subject: subject(*pod), data: data.clone() });
        }
        journal.close();
    }

    /// A child of another test that was forked while the journal was open before has its lock until it executes its program.
    fn open_journal(&self) -> Journal {
        let begin = Instant::now();
        loop {
            match Journal::open("n1", "b1", &self.path("state"), &self.path("run")) {
                Err(StoreError::Locked { .. }) if begin.elapsed() < Duration::from_secs(30) => {
                    thread::sleep(Duration::from_millis(5));
                }
                opened => return opened.unwrap().0,
            }
        }
    }
}

fn subject(pod: Option<&str>) -> Subject {
    pod.map_or(Subject::Node, |pod| {
        let (namespace, name) = pod.split_once('/').unwrap();
        Subject::Pod(PodName { namespace: namespace.into(), name: name.into() })
    })
}

/// A pod that came.
pub(crate) fn added(pod: &'static str, qos_class: &str) -> Recorded {
    let (namespace, name) = pod.split_once('/').unwrap();
    let data = json!({
        "namespace": namespace, "name": name, "uid": "u", "source": "static", "priority": 0, "qosClass": qos_class,
        "critical": false, "requests": {}, "limits": {}, "containers": [{"name": "app", "kind": "app"}],
    });
    (EventType::PodAdded, Some(pod), data)
}

/// A row of a ranking.
fn ranked(rank: u64, name: &str, priority: i64, usage_mib: u64, request_mib: u64) -> Value {
    let above = i64::try_from(usage_mib * MIB).unwrap() - i64::try_from(request_mib * MIB).unwrap();
    json!({
        "rank": rank, "namespace": "default", "name": name, "evictable": true, "statsMissing": false,
        "exceedsRequest": above > 0, "priority": priority, "usageBytes": usage_mib * MIB,
        "requestBytes": request_mib * MIB, "aboveRequestBytes": above,
    })
}

/// A decision about `default/hog` for a shortage of memory.
pub(crate) fn decided() -> Value {
    json!({
        "evictionId": FIRST, "dryRun": false, "signal": "memory.available", "hard": true,
        "thresholdBytes": 200 * MIB, "observedBytes": 199 * MIB, "graceMs": 0,
        "victim": {
            "namespace": "default", "name": "hog", "uid": "3f2a", "qosClass": "BestEffort", "priority": 0,
            "cgroup": "/kubepods/besteffort/pod3f2a", "cgroupId": 77, "requestBytes": 0, "statsMissing": false,
            "growthBytesPerSecond": 100 * MIB, "usageBytes": 1_250 * MIB, "currentBytes": 1_300 * MIB,
            "anonBytes": 1_240 * MIB, "fileBytes": 9 * MIB, "shmemBytes": MIB,
        },
        "decidedBy": "exceedsRequest",
        "ranking": [
            ranked(1, "hog", 0, 1_250, 0), ranked(2, "cache", 0, 300, 400), ranked(3, "web", 0, 100, 400),
            ranked(4, "queue-with-a-rather-long-name-7d9f8c6b5-x2x4z", 1_000, 90, 400),
            ranked(5, "db", 1_000_000, 900, 1_000), ranked(6, "later", 1_000_000, 10, 1_000),
        ],
        "rankedCount": 9,
        "excluded": [
            {"namespace": "kube-system", "name": "dns", "reason": "critical"},
            {"namespace": "default", "name": "billing", "reason": "protected"},
            {"namespace": "default", "name": "stuck", "reason": "passedOver"},
        ],
        "excludedCount": 4, "predictedFreedBytes": 1_240 * MIB, "crossedToDecidedMs": 1.204,
        "message": "The node was low on resource: memory.", "configHash": "c",
    })
}

/// The same with other values.
pub(crate) fn with(mut data: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        data[key.as_str()] = value.clone();
    }
    data
}

pub(crate) fn about(id: &str, more: &Value) -> Value {
    with(
        json!({"namespace": "default", "name": "hog", "evictionId": id, "uid": "3f2a", "signal": "memory.available"}),
        more,
    )
}

/// That threshold was crossed.
pub(crate) fn crossed() -> Recorded {
    let data = json!({"signal": "memory.available", "hard": true, "thresholdBytes": 200 * MIB, "observedBytes": 199 * MIB});
    (EventType::ThresholdCrossed, None, data)
}

pub(crate) fn cleared() -> Recorded {
    let data = json!({
        "signal": "memory.available", "hard": true, "thresholdBytes": 200 * MIB, "observedBytes": 1_430 * MIB,
        "crossedToClearedMs": 1_061.2,
    });
    (EventType::PressureCleared, None, data)
}

/// A whole eviction, from the warning to the end of the shortage.
pub(crate) fn eviction() -> Vec<Recorded> {
    let hog = Some("default/hog");
    let warned = json!({
        "kind": "headroom", "signal": "memory.available", "hard": true, "thresholdBytes": 200 * MIB,
        "availableBytes": 900 * MIB, "fillBytesPerSecond": 100 * MIB, "crossedInMs": 7_000,
        "pods": [{
            "namespace": "default", "name": "hog", "uid": "3f2a", "growthBytesPerSecond": 100 * MIB,
            "usageBytes": 550 * MIB, "requestBytes": 0,
        }],
        "message": "memory.available crosses its threshold in about 7 s: caused by default/hog",
    });
    let contained = json!({
        "namespace": "default", "name": "cache", "evictionId": FIRST, "uid": "9",
        "cgroup": "/kubepods/burstable/pod9", "cause": "release",
        "usageBytes": 300 * MIB, "memoryHighBytes": 270 * MIB, "fillBytesPerSecond": 90 * MIB,
        "headroomBytes": 10 * MIB, "awaitedMs": 150, "state": "contained",
    });
    let released = with(contained.clone(), &json!({"state": "released", "heldMs": 48.3}));
    vec![
        added("default/hog", "BestEffort"),
        added("default/web", "Burstable"),
        (EventType::PressureRising, None, warned),
        crossed(),
        (EventType::EvictionDecided, hog, decided()),
        (
            EventType::EvictionSignalled,
            hog,
            about(
                FIRST,
                &json!({"sent": "SIGKILL", "crossedToDecidedMs": 1.204, "crossedToSignalledMs": 2.011}),
            ),
        ),
        (EventType::EvictionContained, Some("default/cache"), contained),
        (EventType::EvictionContained, Some("default/cache"), released),
        (
            EventType::EvictionCompleted,
            hog,
            about(
                FIRST,
                &json!({
                    "crossedToDecidedMs": 1.204, "crossedToSignalledMs": 2.011, "crossedToDeadMs": 34.5,
                    "crossedToMemoryBackMs": 51.7, "predictedFreedBytes": 1_240 * MIB, "freedBytes": 1_231 * MIB,
                }),
            ),
        ),
        cleared(),
    ]
}

/// A process that the kernel killed.
fn dead(pid: u64, container: &str, anon_mib: u64) -> Value {
    json!({
        "pid": pid, "startTimeMs": 51_234, "comm": "workload", "namespace": "default", "pod": "p", "uid": "u",
        "container": container, "cgroup": format!("/kubepods/burstable/podu/{container}"), "userId": 0,
        "anonBytes": anon_mib * MIB, "fileBytes": 0, "shmemBytes": MIB, "swapBytes": 0, "pgtablesBytes": 4_096,
        "oomScoreAdj": 992, "containerInit": pid == 398, "exitCode": 9, "signal": 9,
    })
}

/// A kill at a pod's limit, while another container allocated.
pub(crate) fn oom() -> Vec<Recorded> {
    let trigger = json!({
        "pid": 412, "tid": 412, "comm": "allocator", "namespace": "default", "pod": "p", "uid": "u", "container": "c2",
        "cgroup": "/kubepods/burstable/podu/c2",
    });
    let counts = json!({"oom": 1, "oomKill": 2, "oomGroupKill": 0});
    let detected = json!({
        "incidentId": SECOND, "scope": "pod", "limitOwner": "/kubepods/burstable/podu", "trigger": trigger,
        "victim": dead(398, "c1", 45), "reconstructed": false,
    });
    let incident = json!({
        "incidentId": SECOND, "scope": "pod", "limitOwner": "/kubepods/burstable/podu", "limitSource": "traced",
        "trigger": trigger, "kills": 2, "victims": [dead(398, "c1", 45), dead(399, "c1", 3)],
        "timelineMs": {"firstReclaim": 0, "marked": 3, "exited": 9, "memoryBack": 11, "memoryBackSource": "traced"},
        "counters": counts, "countersBefore": counts, "countersAfter": counts, "reconciled": true,
        "reconciliation": "matched", "reconstructed": false,
    });
    let pod = Some("default/p");
    vec![(EventType::OomDetected, pod, detected), (EventType::OomIncident, pod, incident)]
}
