//! The promise of a small daemon after days of change: what churns beside a kubelet leaves nothing on the heap.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test's helpers may panic like the test itself")]

#[path = "counting/live.rs"]
mod live;

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use enforcer::{
    cgroup::{ContainerCgroup, PodCgroup},
    cri::{Container, Listing, Sandbox},
    kube::{ApiSettings, Now, Outbox, Outcome},
    model::{CgroupId, CgroupPath, ContainerId, PodUid, QosClass},
    policy::name::PodPlace,
    source::{AdmittedBy, Entry, Identities, PlacedPods, Provenance, Roster, SourceName, Sources, State},
    specs::{ApiPod, Change},
};
use enforcer_events::{
    Payload,
    eviction::{Controller, EvictionSignalled, Timeline},
};
use live::LIVE_BYTES;

const PODS: u64 = 100;

/// What may differ between two moments at which the same is known: vectors and tables that have grown once.
const SLACK_BYTES: usize = 4 << 10;

/// What a daemon beside a kubelet keeps of pods and evictions.
struct Node {
    identities: Identities,
    pods: PlacedPods,
    sources: Sources,
    roster: Roster,
    outbox: Outbox,
    start: Instant,
    ms: u64,
    restarts: u64,
    evictions: u64,
}

fn uid(pod: u64) -> String {
    format!("6c1a4e95-6bb6-11e6-bc26-{pod:012x}")
}

impl Node {
    fn new() -> Self {
        let identities = Identities::default();
        let sources = Sources::default().with(SourceName::CGROUPS, AdmittedBy::Other);
        Self {
            pods: PlacedPods::new(Duration::from_secs(10), identities.clone()),
            identities,
            sources,
            roster: Roster::new(),
            outbox: Outbox::new(ApiSettings::default(), 0),
            start: Instant::now(),
            ms: 0,
            restarts: 0,
            evictions: 0,
        }
    }

    fn now(&self) -> Now {
        let instant = self.start + Duration::from_millis(self.ms);
        Now { instant, time_ms: i64::try_from(self.ms).unwrap(), boot_ms: self.ms }
    }

    /// The ids of a pod's sandbox and of its container, which was started anew each time.
    fn ids(&self, pod: u64) -> [String; 2] {
        let attempt = self.restarts;
        [format!("{pod:064x}"), format!("c{pod:031x}{attempt:032x}")]
    }

    /// The pods from that one on: their cgroups, their names, and their specs by a list or by events.
    fn look(&mut self, first: u64, is_listed: bool) {
        self.ms += 100;
        let instant = self.now().instant;
        let pods = || first..first + PODS;
        let cgroup = |pod: u64| {
            let place = CgroupPath::parse(&format!("/kubepods/pod{}", uid(pod))).unwrap();
            let container = |id: String| ContainerCgroup {
                path: place.child(&id).unwrap(),
                container: ContainerId::new(&id).unwrap(),
                score: None,
            };
            let containers = self.ids(pod).map(container).into();
            let uid = PodUid::new(&uid(pod)).unwrap();
            let place = PodPlace { uid, class: QosClass::Burstable, path: place.clone() };
            PodCgroup { place, id: CgroupId(pod + 1), containers }
        };
        let cgroups = pods().map(cgroup).collect();
        let sandbox = |pod: u64| Sandbox {
            id: self.ids(pod)[0].clone(),
            pod_uid: uid(pod),
            namespace: String::from("shop"),
            name: format!("web-{pod}"),
            attempt: 0,
            ready: true,
            is_static: false,
        };
        let container = |pod: u64| {
            let [sandbox_id, id] = self.ids(pod);
            Container { id, sandbox_id, name: String::from("app"), attempt: 1, running: true }
        };
        let (sandboxes, containers) = (pods().map(sandbox).collect(), pods().map(container).collect());
        let listing = Listing { runtime: String::from("fake 1"), sandboxes, containers, dropped: 0 };
        self.pods.take(cgroups, instant);
        self.pods.learn(&listing, instant);
        let spec = |pod: u64| -> ApiPod {
            let text = format!(
                r#"{{"metadata": {{"namespace": "shop", "name": "web-{pod}", "uid": "{}", "labels": {{"a": "{}"}}}},
                    "spec": {{"priority": 7, "containers": [{{"name": "app"}}]}}, "status": {{"phase": "Running"}}}}"#,
                uid(pod),
                self.restarts % 2,
            );
            serde_json::from_str(&text).unwrap()
        };
        let change = if is_listed {
            Change::Whole(pods().map(spec).collect())
        } else {
            let removed = first.checked_sub(1).map(uid).into_iter().collect();
            Change::Some { changed: pods().map(spec).collect(), removed }
        };
        let live = Provenance { source: SourceName::API_SERVER, is_from_disk: false };
        self.pods.specify(live, change, 1);
        let (snapshot, placements) = self.pods.snapshot(instant, self.ms);
        assert_eq!((snapshot.pods.len(), placements.len()), (100, 100));
        self.sources.take(SourceName::CGROUPS, snapshot);
        self.roster.apply(self.sources.pods());
        // Their cgroups are gone.
        let is_leaving = |entry: &&Entry| entry.state == State::Leaving;
        let entries = self.roster.entries().into_iter();
        let leaving: Vec<_> = entries.filter(is_leaving).map(|entry| entry.pod.uid.clone()).collect();
        for uid in leaving {
            self.roster.forget(&uid);
        }
        assert_eq!(self.roster.entries().len(), 100);
        assert!(!self.pods.wants_names());
    }

    /// One eviction in a storm: refused for a while, and then the pod is gone.
    fn evict(&mut self) {
        self.evictions += 1;
        let signalled = EvictionSignalled {
            eviction_id: format!("e{}", self.evictions),
            namespace: String::from("shop"),
            name: String::from("web"),
            uid: format!("u{}", self.evictions),
            controller: Some(Controller { kind: String::from("ReplicaSet"), name: String::from("o") }),
            spec: Some("live".into()),
            terminating: false,
            signal: Some("memory.available".into()),
            sent: "SIGKILL".into(),
            grace_ms: None,
            killed_because: None,
            brakes_failed: None,
            boot_ms: Some(self.ms),
            timeline: Timeline::default(),
            decided_to_terminated_ms: None,
            decided_to_signalled_ms: None,
            hook: None,
            operator: None,
        };
        let now = self.now();
        let payload = Payload::EvictionSignalled(signalled);
        assert_eq!(self.outbox.take(self.evictions, now.time_ms, None, &payload, now), None);
        for answer in 0..1_000 {
            let Some(due) = self.outbox.due() else { return };
            let due = due.saturating_duration_since(self.start);
            self.ms = self.ms.max(u64::try_from(due.as_millis()).unwrap() + 1);
            let now = self.now();
            let (id, _call) = self.outbox.next(now).unwrap();
            let refused = Outcome::Refused { status: 429, words: "x".repeat(500), after_ms: Some(10) };
            let answer = if answer < 10 { refused } else { Outcome::Missing };
            drop(self.outbox.answered(&id, Some(answer), now, now));
        }
        panic!("the eviction has no end");
    }

    /// Restarts, pods that come and go, lists that are read again, events and storms; then all is as it was.
    fn churn(&mut self, rounds: u64) {
        for round in 0..rounds {
            self.restarts += 1;
            self.look(round, round % 7 == 0);
            if round % 5 == 0 {
                self.evict();
            }
        }
        // The first pods again.
        self.restarts += self.restarts % 2;
        self.look(0, true);
    }
}

fn live_bytes() -> usize {
    LIVE_BYTES.load(Ordering::Relaxed)
}

#[test]
fn the_heap_stays_flat_while_pods_lists_restarts_and_storms_churn() {
    let mut node = Node::new();
    node.look(0, true);
    let at_first = live_bytes();
    node.churn(200);
    let before = live_bytes();
    assert!(at_first > 50_000, "{at_first}: it counts nothing");
    for _ in 0..5 {
        node.churn(200);
        let after = live_bytes();
        println!("{at_first} bytes at first, {before} after a churn, {after} after more");
        assert!(after < before + SLACK_BYTES, "{before} bytes have become {after}");
    }
    drop(node.identities);
}
