//! The whole sink with a fake API server: what arrives there, once, and in which form.
use std::{sync::Arc, time::Duration};

use enforcer_events::{Payload, eviction::EvictionEnded};
use serde_json::{Value, json};

use super::is_for_ever;
use crate::{
    journal::{EventType, Journal, RawEvent, Subject},
    kube::{Access, ApiServer, ApiSettings, Evictions},
    model::PodName,
    network::{
        Certificates, Endpoint, Network, Security, Trust,
        fake::{Authority, Validity},
    },
    sink::{Ground, Healths, KubernetesSettings, Sink, Wanted},
    specs::{
        ApiServerFeed, HttpsFeed,
        fake_api::{FakeApi, Refusal},
    },
};

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/shop/events";

struct Scene {
    api: FakeApi,
    ground: Ground,
    _state: tempfile::TempDir,
}

impl Scene {
    async fn new() -> Self {
        let api = FakeApi::new("secret");
        let authority = Authority::new().unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(api.clone().serve(listener, authority.sign("127.0.0.1", Validity::Valid).unwrap()));
        let trust = Trust::Roots(Certificates { path: "/ca.crt".into(), bytes: authority.pem().into() });
        let endpoint = Endpoint {
            client: String::from("kube"),
            tls: true,
            host: address.ip().to_string(),
            port: address.port(),
            authority: address.to_string(),
            connect_timeout_ms: 5_000,
        };
        let security = Security { trust, ..Security::default() };
        let https = HttpsFeed { endpoint, security, token: Some(String::from("secret")) };
        let feed = ApiServerFeed { https, base: String::new(), node: String::from("n") };
        let access: Access = Arc::new(move || Ok(feed.clone()));
        let state = tempfile::tempdir().unwrap();
        let ground = Ground {
            journal: Journal::new("n", "b"),
            state_dir: state.path().to_owned(),
            node: String::from("n"),
            healths: Healths::default(),
            network: Network::in_this_process().unwrap(),
            api_server: ApiServer::in_this_process("n", access).unwrap(),
            evicts: true,
        };
        Self { api, ground, _state: state }
    }

    fn start(&self, dry_run: bool) -> Sink {
        let wanted = Wanted::Kubernetes(KubernetesSettings { enabled: true, dry_run });
        Sink::start(&self.ground, &wanted, 0, None).unwrap()
    }

    fn emit(&self, kind: EventType, data: Value) {
        let subject = Subject::Pod(PodName { namespace: String::from("shop"), name: String::from("web") });
        self.ground.journal.append_raw(RawEvent { kind, subject, data });
    }

    fn stall(&self, kind: &str) {
        let data = json!({
            "namespace": "shop", "pod": "web", "uid": "u1", "container": "app", "cgroup": "/c", "cgroupId": 7,
            "kind": kind, "stallMs": 20, "windowStallMs": 300, "limitOwner": "/c", "limitSource": "argument", "pid": 1,
            "tid": 1, "comm": "java", "lastingMs": 0,
        });
        self.emit(EventType::PressureRising, data);
    }

    fn fail(&self, name: &str) {
        let text = || Some(name.to_owned());
        let ended = EvictionEnded {
            eviction_id: name.to_owned(),
            namespace: Some(String::from("shop")),
            name: text(),
            uid: text(),
            ..EvictionEnded::default()
        };
        self.ground.journal.emit(Subject::Node, Payload::EvictionFailed(ended));
    }

    /// An OOM kill with a victim in each of these pods.
    fn kill(&self, pods: &[&str]) {
        let victim = |pod: &&str| {
            json!({
                "pid": 7, "comm": "java", "namespace": "shop", "pod": pod, "uid": pod, "container": "app",
                "anonBytes": 1 << 20, "fileBytes": 0, "shmemBytes": 0, "swapBytes": 0, "pgtablesBytes": 0,
            })
        };
        let victims: Vec<_> = pods.iter().map(victim).collect();
        let counters = json!({"oom": 1, "oomKill": 1, "oomGroupKill": 0});
        let data = json!({
            "incidentId": "01J0000000000000000000000A", "scope": "qos", "limitOwner": "/kubepods", "limitSource": "traced",
            "kills": pods.len(), "victims": victims, "timelineMs": {}, "counters": counters, "countersBefore": counters,
            "countersAfter": counters, "reconciled": true, "reconciliation": "matched", "reconstructed": false,
        });
        self.emit(EventType::OomIncident, data);
    }

    fn decide(&self, dry_run: bool) {
        let victim = json!({
            "namespace": "shop", "name": "web", "uid": "u1", "qosClass": "Burstable", "priority": 0, "cgroup": "/c",
            "cgroupId": 7, "requestBytes": 1, "statsMissing": false, "usageBytes": 2, "anonBytes": 2, "fileBytes": 0,
            "shmemBytes": 0, "processCount": 1, "growthBytesPerSecond": 0,
        });
        let data = json!({
            "evictionId": "e", "dryRun": dry_run, "hard": true, "graceMs": 0, "victim": victim, "decidedBy": "order",
            "ranking": [], "rankedCount": 1, "excluded": [], "excludedCount": 0, "predictedFreedBytes": 1,
            "message": "The node was low on resource: memory. ", "annotations": {"starved_resource": "memory"},
            "configHash": "h",
        });
        self.emit(EventType::EvictionDecided, data);
    }

    fn signal(&self, sent: &str) {
        let data = json!({"evictionId": "e", "namespace": "shop", "name": "web", "uid": "u1", "sent": sent});
        self.emit(EventType::EvictionSignalled, data);
    }

    /// The reasons of the Events, in order.
    async fn reasons(&self, count: usize) -> Vec<Value> {
        self.changed(count).await.into_iter().map(|(_, body)| body["reason"].clone()).collect()
    }

    /// What has arrived, once it is so much.
    async fn changed(&self, count: usize) -> Vec<(String, Value)> {
        let end = std::time::Instant::now() + Duration::from_secs(30);
        while self.api.changed().len() < count {
            assert!(std::time::Instant::now() < end, "{:?}", self.api.changed());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.api.changed()
    }

    /// The names of the pods that the Events are about, in order.
    async fn pods(&self, count: usize) -> Vec<String> {
        let of = |(_, body): (String, Value)| body["regarding"]["name"].as_str().unwrap_or("?").to_owned();
        self.changed(count).await.into_iter().map(of).collect()
    }
}

#[tokio::test]
async fn stalls_are_memory_throttled_or_memory_stalled_and_repeated_ones_patch_the_series() {
    let scene = Scene::new().await;
    let mut sink = scene.start(false);
    for kind in ["memoryHigh", "throttled", "memcgReclaim", "directReclaim", "memoryHigh"] {
        scene.stall(kind);
    }
    let changed = scene.changed(5).await;
    let shown: Vec<_> = changed
        .iter()
        .map(|(request, body)| {
            (request.split(' ').next().unwrap(), body["reason"].as_str(), body["series"]["count"].as_u64())
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("POST", Some("MemoryThrottled"), None),
            ("PATCH", None, Some(2)),
            ("POST", Some("MemoryStalled"), None),
            ("PATCH", None, Some(2)),
            ("PATCH", None, Some(3)),
        ]
    );
    let throttled = &changed[0];
    assert_eq!(throttled.0, format!("POST {EVENTS}"));
    assert_eq!(
        throttled.1["note"], "Its tasks were slowed at memory.high for 300 ms within a second",
        "{throttled:?}"
    );
    let pod = &throttled.1["regarding"];
    assert_eq!(
        (&pod["name"], &pod["uid"], &pod["fieldPath"]),
        (&json!("web"), &json!("u1"), &json!("spec.containers{app}"))
    );
    assert_eq!(changed[2].1["note"], "Its tasks waited 300 ms within a second for memory below their limit");
    // A series is part of the Event that it repeats, and says when it was seen last.
    let name = |of: usize| changed[of].1["metadata"]["name"].as_str().unwrap();
    for (patch, of) in [(1, 0), (3, 2), (4, 0)] {
        assert_eq!(changed[patch].0, format!("PATCH {EVENTS}/{}", name(of)));
        assert!(changed[patch].1["series"]["lastObservedTime"].as_str().unwrap().ends_with('Z'));
    }
    // An Event that the server has forgotten is made anew.
    scene.api.refuse(&Refusal::Status(404, None), 1);
    scene.stall("memoryHigh");
    let changed = scene.changed(6).await;
    assert_eq!(
        (&*changed[5].0, &changed[5].1["reason"]),
        (&*format!("POST {EVENTS}"), &json!("MemoryThrottled"))
    );
    sink.stop().await;
    assert_eq!(scene.api.changed().len(), 6);
}

#[tokio::test]
async fn the_sink_continues_by_its_cursor_over_a_restart_and_sends_nothing_twice() {
    let scene = Scene::new().await;
    let mut sink = scene.start(false);
    scene.fail("a");
    scene.fail("b");
    assert_eq!(scene.pods(2).await, ["a", "b"]);
    sink.stop().await;
    // Meanwhile something happens, and the next one finds the server away.
    scene.fail("c");
    scene.api.refuse(&Refusal::Status(503, None), 1_000);
    let asked = scene.api.asked().len();
    let mut sink = scene.start(false);
    while scene.api.asked().len() < asked + 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    sink.stop().await;
    scene.fail("d");
    scene.api.serve_again();
    let mut sink = scene.start(false);
    assert_eq!(scene.pods(4).await, ["a", "b", "c", "d"]);
    sink.stop().await;
    let mut sink = scene.start(false);
    scene.fail("e");
    assert_eq!(scene.pods(5).await, ["a", "b", "c", "d", "e"]);
    sink.stop().await;
    assert_eq!(scene.api.changed().len(), 5);
}

/// Its namespace is being deleted, for example.
#[tokio::test]
async fn an_event_that_is_refused_for_ever_keeps_no_other_of_the_same_kill_back() {
    let scene = Scene::new().await;
    scene.api.refuse(&Refusal::Status(422, None), 1);
    let mut sink = scene.start(false);
    scene.kill(&["a", "b", "c"]);
    scene.fail("later");
    assert_eq!(scene.pods(3).await, ["b", "c", "later"]);
    sink.stop().await;
    assert_eq!(scene.api.changed().len(), 3);
}

/// As the API server writes them.
#[test]
fn a_refusal_by_quota_webhook_or_policy_is_for_ever_and_a_missing_right_is_not() {
    let forbidden = |why: &str| format!("events.events.k8s.io \"web.01j0\" is forbidden: {why}");
    let of_others = [
        forbidden("unable to create new content in namespace shop because it is being terminated"),
        forbidden("exceeded quota: few, requested: count/events=1, used: count/events=9"),
        String::from("admission webhook \"events.example.com\" denied the request: no"),
        forbidden("ValidatingAdmissionPolicy 'p' with binding 'b' denied request: not here"),
        forbidden(&format!("ValidatingAdmissionPolicy '{}", "x".repeat(400))),
    ];
    for words in &of_others {
        assert!([401, 403].iter().all(|status| is_for_ever(*status, words)), "{words}");
        assert!([429, 500, 503].iter().all(|status| !is_for_ever(*status, words)), "{words}");
    }
    let right = "events.events.k8s.io is forbidden: User \"system:serviceaccount:enforcer-system:enforcer\" \
                 cannot create resource \"events\" in API group \"events.k8s.io\" in the namespace \"shop\"";
    assert!(!is_for_ever(403, right) && !is_for_ever(401, "Unauthorized"));
    assert!([400, 413, 422].iter().all(|status| is_for_ever(*status, "")));
}

#[tokio::test]
async fn what_was_sent_of_a_kill_before_the_server_was_away_is_not_sent_again() {
    let scene = Scene::new().await;
    for refusal in [Refusal::None, Refusal::Status(503, None)] {
        scene.api.refuse(&refusal, 1);
    }
    let mut sink = scene.start(false);
    scene.kill(&["a", "b"]);
    scene.fail("later");
    assert_eq!(scene.pods(3).await, ["a", "b", "later"]);
    sink.stop().await;
    assert_eq!(scene.api.changed().len(), 3);
}

/// A soft threshold and a budget: the pod is chosen again each minute, and runs on.
#[tokio::test]
async fn a_pod_that_is_chosen_and_not_evicted_is_not_reported_as_evicted() {
    let scene = Scene::new().await;
    let mut sink = scene.start(false);
    for _ in 0..3 {
        scene.decide(false);
        let refused = json!({
            "evictionId": "e", "namespace": "shop", "name": "web", "uid": "u1", "outcome": "refused",
            "reason": "disruptionBudget", "requests": 1, "message": "",
        });
        scene.emit(EventType::EvictionRequested, refused);
    }
    scene.fail("web");
    scene.fail("later");
    assert_eq!(scene.reasons(2).await, ["EvictionFailed", "EvictionFailed"]);
    sink.stop().await;
    assert_eq!(scene.api.changed().len(), 2);
}

/// The decision, or the first signal, was before the restart.
#[tokio::test]
async fn an_eviction_is_reported_once_and_with_its_decision_over_restarts() {
    let scene = Scene::new().await;
    let mut sink = scene.start(false);
    scene.decide(false);
    scene.fail("a");
    assert_eq!(scene.reasons(1).await, ["EvictionFailed"]);
    sink.stop().await;
    let mut sink = scene.start(false);
    scene.signal("SIGTERM");
    let changed = scene.changed(2).await;
    let evicted = &changed[1].1;
    assert_eq!(
        (&evicted["reason"], &evicted["note"], &evicted["metadata"]["annotations"]),
        (
            &json!("Evicted"),
            &json!("The node was low on resource: memory. "),
            &json!({"starved_resource": "memory"})
        )
    );
    sink.stop().await;
    let mut sink = scene.start(false);
    scene.signal("SIGKILL");
    scene.fail("b");
    assert_eq!(scene.reasons(3).await, ["EvictionFailed", "Evicted", "EvictionFailed"]);
    sink.stop().await;
    assert_eq!(scene.api.changed().len(), 3);
}

#[tokio::test]
async fn a_container_is_named_in_the_list_of_the_spec_that_it_is_in() {
    let scene = Scene::new().await;
    let mut sink = scene.start(false);
    let kinds = [Some("init"), Some("sidecar"), Some("ephemeral"), Some("app"), None];
    for kind in kinds {
        let data = json!({
            "namespace": "shop", "pod": "web", "uid": kind.unwrap_or("unknown"), "container": "c", "containerKind": kind,
            "cgroup": "/c", "cgroupId": 7, "kind": "memoryHigh", "stallMs": 20, "windowStallMs": 300, "limitOwner": "/c",
            "limitSource": "argument", "pid": 1, "tid": 1, "comm": "java", "lastingMs": 0,
        });
        scene.emit(EventType::PressureRising, data);
    }
    let changed = scene.changed(kinds.len()).await;
    let paths: Vec<_> = changed.iter().map(|(_, body)| body["regarding"]["fieldPath"].clone()).collect();
    assert_eq!(
        paths,
        [
            "spec.initContainers{c}",
            "spec.initContainers{c}",
            "spec.ephemeralContainers{c}",
            "spec.containers{c}",
            "spec.containers{c}",
        ]
    );
    sink.stop().await;
}

/// Neither the sink nor what evicts at the API server does anything there for what is decided only. What has happened has
/// its Events all the same.
#[tokio::test]
async fn a_dry_run_asks_for_no_eviction_and_has_an_event_of_one_only_if_that_is_wanted() {
    let scene = Scene::new().await;
    let Ground { journal, state_dir, api_server, .. } = &scene.ground;
    let settings = ApiSettings::default();
    let evictions = Evictions::start(journal, state_dir, 0, settings, api_server.clone()).unwrap();
    let mut sink = scene.start(false);
    scene.decide(true);
    // What follows it in the log has been read after it.
    scene.kill(&["web"]);
    scene.stall("memoryHigh");
    scene.stall("directReclaim");
    let happened = ["OOMKilling", "MemoryThrottled", "MemoryStalled"];
    assert_eq!(scene.reasons(3).await, happened);
    sink.stop().await;
    drop(evictions);
    let is_plain =
        |asked: &crate::specs::fake_api::Asked| asked.target == "/api/v1" || asked.target == EVENTS;
    let asked = scene.api.asked();
    assert!(asked.iter().all(is_plain), "{asked:?}");
    assert_eq!(scene.api.changed().len(), 3);
    // With `dryRun` of the sink the decision has one.
    let mut sink = scene.start(true);
    scene.decide(true);
    scene.decide(false);
    scene.signal("SIGKILL");
    assert_eq!(scene.reasons(5).await[3..], ["WouldEvict", "Evicted"]);
    sink.stop().await;
}
