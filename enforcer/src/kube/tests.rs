//! With a fake API server, and a kube process that is a thread.

mod credentials;
mod disk;
mod kills;
mod node;
mod outages;
mod pace;
mod soft;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use enforcer_events::{
    Event, EventType, Payload,
    eviction::{Controller, EvictionEnded, EvictionRequested, EvictionSignalled, Timeline},
};
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, Response, StatusCode, body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use super::*;
use crate::{
    journal::{Batch, Filter, Journal, Subject},
    model::PodName,
    network::{Endpoint, Security},
    specs::{ApiServerFeed, HttpsFeed},
};

/// What the fake has, and what was done to it.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a trouble of its own")]
struct Server {
    /// By namespace and name.
    pods: BTreeMap<String, FakePod>,
    has_budget: bool,
    may_delete: bool,
    /// The grace period that every request must have.
    grace_seconds: u64,
    /// The status of every answer, if it is none that serves.
    fails_with: Option<u16>,
    /// The node `n`, as far as is used.
    node: Value,
    /// Whether it does what is asked, and closes the connection without an answer.
    swallows_answers: bool,
    /// Whether it does what is asked, and never answers.
    keeps_answers: bool,
    /// For how long it does nothing that changes a pod.
    takes: Duration,
    /// What was asked about pods: method and subresource, and the pod's name.
    pod_requests: Vec<(String, String)>,
    /// What changed a pod, alike.
    done: Vec<(String, String)>,
    /// All that was asked: method and path.
    asked: Vec<String>,
}

#[derive(Clone, Debug)]
struct FakePod {
    uid: String,
    controller: Option<&'static str>,
    annotations: Value,
    is_terminating: bool,
}

/// Long enough that a request with it does not fit into what a way receives that passes nothing on.
fn token() -> String {
    "secret".repeat(1_000)
}

#[derive(Clone)]
struct Api(Arc<Mutex<Server>>, SocketAddr);

impl Api {
    /// Serves until the test ends.
    fn serve() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let api = Self(
            Arc::new(Mutex::new(Server { may_delete: true, grace_seconds: 1, ..Server::default() })),
            listener.local_addr().unwrap(),
        );
        let serving = api.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                while let Ok((stream, _)) = listener.accept().await {
                    let api = serving.clone();
                    tokio::spawn(async move {
                        let service = service_fn(|request| api.answer(request));
                        let connection = hyper::server::conn::http1::Builder::new()
                            .serve_connection(TokioIo::new(stream), service);
                        // A swallowed answer breaks the connection.
                        drop(connection.await);
                    });
                }
            });
        });
        api
    }

    fn change<T>(&self, change: impl FnOnce(&mut Server) -> T) -> T {
        change(&mut self.0.lock().unwrap())
    }

    fn put(&self, name: &str, uid: &str, controller: Option<&'static str>) {
        let pod = FakePod { uid: uid.to_owned(), controller, annotations: json!({}), is_terminating: false };
        self.change(|server| server.pods.insert(format!("shop/{name}"), pod));
    }

    fn done(&self) -> Vec<(String, String)> {
        self.change(|server| server.done.clone())
    }

    fn access(&self) -> Access {
        let address = self.1;
        Arc::new(move || {
            let https = HttpsFeed {
                endpoint: Endpoint {
                    client: String::from("kube"),
                    tls: false,
                    host: address.ip().to_string(),
                    port: address.port(),
                    authority: address.to_string(),
                    connect_timeout_ms: 5_000,
                },
                security: Security::default(),
                token: Some(token()),
            };
            Ok(ApiServerFeed { https, base: String::from("/base"), node: String::from("n") })
        })
    }

    /// A client whose process is a thread.
    fn server(&self) -> ApiServer {
        ApiServer::in_this_process("n", self.access()).unwrap()
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, std::io::Error> {
        assert_eq!(request.headers()["authorization"], format!("Bearer {}", token()));
        let (method, path) =
            (request.method().clone(), request.uri().path().strip_prefix("/base").unwrap().to_owned());
        let body = request.into_body().collect().await.map_err(std::io::Error::other)?.to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        if method != Method::GET {
            tokio::time::sleep(self.change(|server| server.takes)).await;
        }
        let (status, answer, is_swallowed, is_kept) = self.change(|server| {
            server.asked.push(format!("{method} {path}"));
            let before = server.done.len();
            let (status, answer) = server.answer(&method, &path, &body);
            let has_done = server.done.len() > before;
            (status, answer, server.swallows_answers && has_done, server.keeps_answers && has_done)
        });
        if is_kept || path.ends_with("/pods/silent") {
            std::future::pending::<()>().await;
        }
        if is_swallowed {
            return Err(std::io::Error::other("no answer"));
        }
        let answer = Response::builder().status(status).body(Full::from(answer.to_string()));
        answer.map_err(std::io::Error::other)
    }
}

impl Server {
    fn answer(&mut self, method: &Method, path: &str, body: &Value) -> (StatusCode, Value) {
        let refused = |status: u16, message: &str| {
            (StatusCode::from_u16(status).unwrap(), json!({"kind": "Status", "message": message}))
        };
        if let Some(status) = self.fails_with {
            return refused(status, "not now");
        }
        if path == "/version" {
            return (StatusCode::OK, json!({"major": "1"}));
        }
        if path == "/api/v1" {
            let resources = json!([
                {"name": "pods"},
                {"name": "pods/eviction", "group": "policy", "version": "v1", "kind": "Eviction"},
            ]);
            return (StatusCode::OK, json!({"resources": resources}));
        }
        if let Some(below) = path.strip_prefix("/api/v1/nodes/") {
            return match below.strip_prefix('n') {
                Some(below) => node::answer(&mut self.node, method, below, body),
                None => refused(404, "no such node"),
            };
        }
        let below = path.strip_prefix("/api/v1/namespaces/").unwrap();
        let (namespace, rest) = below.split_once("/pods/").unwrap();
        let (name, subresource) = rest.split_once('/').unwrap_or((rest, ""));
        let request = (format!("{method} {subresource}").trim().to_owned(), name.to_owned());
        self.pod_requests.push(request.clone());
        let Some(pod) = self.pods.get_mut(&format!("{namespace}/{name}")) else {
            return refused(404, "no such pod");
        };
        let is_for = |uid: &Value| uid.as_str() == Some(&pod.uid);
        match (method.as_str(), subresource) {
            ("GET", "") => {
                let owners = pod.controller.map(|kind| json!([{"kind": kind, "controller": true}]));
                let mut metadata = json!({"uid": pod.uid, "annotations": pod.annotations});
                if let Some(owners) = owners {
                    metadata["ownerReferences"] = owners;
                }
                if pod.is_terminating {
                    metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                }
                return (StatusCode::OK, json!({"metadata": metadata, "status": {"phase": "Running"}}));
            }
            ("POST", "eviction") => {
                assert_eq!(body["apiVersion"], "policy/v1");
                assert_eq!(body["deleteOptions"]["gracePeriodSeconds"], self.grace_seconds);
                if !is_for(&body["deleteOptions"]["preconditions"]["uid"]) {
                    return refused(409, "another uid");
                }
                if self.has_budget {
                    let causes = json!({"causes": [{"reason": "DisruptionBudget", "message": "needs 1"}]});
                    let status = json!({"message": "Cannot evict pod", "details": causes});
                    return (StatusCode::TOO_MANY_REQUESTS, status);
                }
            }
            ("DELETE", "") => {
                if !self.may_delete {
                    return refused(403, "pods is forbidden");
                }
                if !is_for(&body["preconditions"]["uid"]) {
                    return refused(409, "another uid");
                }
            }
            ("PATCH", "status") => {
                if !is_for(&body["metadata"]["uid"]) {
                    return refused(409, "another uid");
                }
                assert_eq!(
                    (&body["status"]["phase"], &body["status"]["reason"]),
                    (&json!("Failed"), &json!("Evicted"))
                );
            }
            other => panic!("{other:?} {path}"),
        }
        pod.is_terminating = method != Method::PATCH;
        self.done.push(request);
        (StatusCode::CREATED, json!({}))
    }
}

pub(super) const SETTINGS: ApiSettings = ApiSettings {
    action: Some(Action::Evict),
    on_pdb: OnPdb::Override,
    bare_pods: None,
    daemon_set_pods: None,
};

/// A journal, and the thread that reads it.
struct Scene {
    journal: Journal,
    state: tempfile::TempDir,
    api: Api,
    evictions: Option<Evictions>,
}

impl Scene {
    fn new(settings: ApiSettings) -> Self {
        let mut scene = Self {
            journal: Journal::new("n", "b"),
            state: tempfile::tempdir().unwrap(),
            api: Api::serve(),
            evictions: None,
        };
        scene.start(settings);
        scene
    }

    fn start(&mut self, settings: ApiSettings) {
        self.start_paced(settings, super::pace::Pace::new(Duration::from_secs(10)));
    }

    fn start_paced(&mut self, settings: ApiSettings, pace: super::pace::Pace) {
        let server = self.api.server();
        let state: &Path = self.state.path();
        let evictions = Evictions::start_paced(pace, &self.journal, state, 0, (settings, server));
        self.evictions = Some(evictions.unwrap());
    }

    fn signal(&self, id: &str, name: &str, uid: &str) {
        self.emit(signalled(id, name, uid));
    }

    fn emit(&self, signalled: EvictionSignalled) {
        let subject = Subject::Pod(PodName { namespace: String::from("shop"), name: signalled.name.clone() });
        self.journal.emit(subject, Payload::EvictionSignalled(signalled));
    }

    /// The events of that type, once there are so many.
    fn wait(&self, kind: EventType, count: usize) -> Vec<Event> {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let events = self.events(kind);
            if events.len() >= count {
                return events;
            }
            assert!(
                Instant::now() < end,
                "{} of {count} {kind}: {:?}",
                events.len(),
                self.api.change(|server| server.asked.len())
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn events(&self, kind: EventType) -> Vec<Event> {
        let mut reader = self.journal.reader(Some(0), Filter { kinds: vec![kind], ..Filter::default() });
        let mut events = Vec::new();
        while let Some(batch) = reader.read() {
            let Batch::Records(records) = batch else { panic!("a gap") };
            events.extend(records.iter().map(|record| Event::parse(&record.line).unwrap()));
        }
        events
    }

    fn requested(&self) -> EvictionRequested {
        let events = self.wait(EventType::EvictionRequested, 1);
        let Payload::EvictionRequested(requested) = events.last().unwrap().payload.clone() else { panic!() };
        requested
    }
}

pub(super) fn signalled(id: &str, name: &str, uid: &str) -> EvictionSignalled {
    EvictionSignalled {
        eviction_id: id.to_owned(),
        namespace: String::from("shop"),
        name: name.to_owned(),
        uid: uid.to_owned(),
        controller: None,
        spec: None,
        terminating: false,
        signal: Some("memory.available".into()),
        sent: "SIGKILL".into(),
        grace_ms: None,
        killed_because: None,
        brakes_failed: None,
        boot_ms: Some(crate::clock::boottime_ms()),
        timeline: Timeline::default(),
        decided_to_terminated_ms: None,
        decided_to_signalled_ms: None,
        hook: None,
        operator: None,
    }
}

/// A signal that says by a live spec whose pod it is.
pub(super) fn signalled_live(id: &str, name: &str, uid: &str, kind: Option<&str>) -> EvictionSignalled {
    let controller = kind.map(|kind| Controller { kind: kind.to_owned(), name: String::from("o") });
    EvictionSignalled { controller, spec: Some("live".into()), ..signalled(id, name, uid) }
}

#[test]
fn a_fresh_eviction_is_requested_without_a_look() {
    let scene = Scene::new(SETTINGS);
    scene.api.put("web", "u1", Some("ReplicaSet"));
    // The same name belongs to another pod by now.
    scene.api.put("again", "u3", Some("ReplicaSet"));
    scene.emit(signalled_live("e1", "web", "u1", Some("ReplicaSet")));
    let requested = scene.requested();
    assert_eq!((&*requested.outcome, requested.requests), ("accepted", 1));
    scene.emit(signalled_live("e2", "again", "u2", Some("ReplicaSet")));
    // The event itself says that nothing is to be asked for these.
    scene.emit(signalled_live("e3", "bare", "u4", None));
    scene.emit(signalled_live("e4", "agent", "u5", Some("DaemonSet")));
    let outcomes: BTreeMap<String, String> = scene
        .wait(EventType::EvictionRequested, 4)
        .into_iter()
        .map(|event| {
            let Payload::EvictionRequested(of) = event.payload else { panic!() };
            (of.eviction_id, of.outcome.into_owned())
        })
        .collect();
    let expected = [("e1", "accepted"), ("e2", "anotherPod"), ("e3", "withheld"), ("e4", "withheld")];
    assert_eq!(outcomes, expected.map(|(id, outcome)| (id.to_owned(), outcome.to_owned())).into());
    let asked = scene.api.change(|server| server.pod_requests.clone());
    let of = |name: &str| -> Vec<String> {
        asked.iter().filter(|(_, pod)| pod == name).map(|(request, _)| request.clone()).collect()
    };
    assert_eq!(of("web")[0], "POST eviction");
    assert_eq!(of("again"), ["POST eviction", "GET"]);
    assert_eq!((of("bare").len(), of("agent").len()), (0, 0));
    assert_eq!(scene.api.done(), [("POST eviction".to_owned(), "web".to_owned())]);
}

/// A look that is not answered, at another pod, does not delay the next eviction.
#[test]
fn a_first_request_does_not_wait_for_a_look() {
    let scene = Scene::new(SETTINGS);
    scene.api.put("web", "u1", Some("ReplicaSet"));
    scene.api.put("silent", "u2", Some("ReplicaSet"));
    scene.signal("e1", "silent", "u2");
    let is_looked_at =
        || scene.api.change(|server| server.pod_requests.iter().any(|(_, name)| name == "silent"));
    while !is_looked_at() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let begin = Instant::now();
    scene.emit(signalled_live("e2", "web", "u1", Some("ReplicaSet")));
    assert_eq!(scene.requested().eviction_id, "e2");
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}

#[test]
fn a_pod_of_a_controller_is_evicted_once_and_seen_to_go() {
    let scene = Scene::new(SETTINGS);
    scene.api.put("web", "u1", Some("ReplicaSet"));
    scene.signal("e1", "web", "u1");
    // A second signal is that of the same eviction.
    scene.signal("e1", "web", "u1");
    let requested = scene.requested();
    assert_eq!(
        (&*requested.outcome, requested.action.as_deref(), requested.requests),
        ("accepted", Some("evict"), 1)
    );
    assert!(requested.signalled_to_requested_ms.is_some(), "{requested:?}");
    scene.api.change(|server| server.pods.clear());
    let confirmed = scene.wait(EventType::EvictionConfirmed, 1);
    assert_eq!(confirmed[0].payload.eviction_id(), Some("e1"));
    assert_eq!(scene.api.done(), [("POST eviction".to_owned(), "web".to_owned())]);
    assert_eq!(scene.events(EventType::EvictionRequested).len(), 1);
}

#[test]
fn what_must_not_be_evicted_is_left_to_the_kubelet() {
    let scene = Scene::new(SETTINGS);
    scene.api.put("bare", "u1", None);
    scene.api.put("agent", "u2", Some("DaemonSet"));
    scene.api.put("mirror", "u3", Some("Node"));
    scene.api.change(|server| {
        server.pods.get_mut("shop/mirror").unwrap().annotations = json!({"kubernetes.io/config.mirror": "h"});
    });
    scene.api.put("again", "u5", Some("ReplicaSet"));
    scene.api.put("going", "u6", Some("ReplicaSet"));
    scene.api.change(|server| server.pods.get_mut("shop/going").unwrap().is_terminating = true);
    for (id, name, uid) in [
        ("e1", "bare", "u1"),
        ("e2", "agent", "u2"),
        ("e3", "mirror", "u3"),
        ("e4", "gone", "u4"),
        // Its name belongs to another pod by now.
        ("e5", "again", "u-before"),
        ("e6", "going", "u6"),
        // A name that would lead elsewhere.
        ("e7", "../../secrets/x", "u7"),
    ] {
        scene.signal(id, name, uid);
    }
    let events = scene.wait(EventType::EvictionRequested, 6);
    let outcomes: BTreeMap<_, _> = events
        .iter()
        .map(|event| {
            let Payload::EvictionRequested(of) = &event.payload else { panic!() };
            (
                of.eviction_id.clone(),
                (of.outcome.to_string(), of.reason.clone().unwrap_or_default().to_string()),
            )
        })
        .collect();
    let is = |id: &str, outcome: &str, reason: &str| {
        assert_eq!(outcomes[id], (outcome.to_owned(), reason.to_owned()), "{id}");
    };
    is("e1", "withheld", "barePod");
    is("e2", "withheld", "daemonSetPod");
    is("e3", "withheld", "staticPod");
    is("e4", "gone", "");
    is("e5", "anotherPod", "");
    is("e6", "terminating", "");
    assert!(scene.api.done().is_empty());
}

#[test]
fn a_bare_pod_can_be_left_failed_as_a_kubelet_does() {
    let scene = Scene::new(ApiSettings { bare_pods: Some(Action::Status), ..SETTINGS });
    scene.api.put("bare", "u1", None);
    scene.signal("e1", "bare", "u1");
    assert_eq!(scene.requested().action.as_deref(), Some("status"));
    assert_eq!(scene.api.done(), [("PATCH status".to_owned(), "bare".to_owned())]);
}

#[test]
fn a_disruption_budget_is_overridden_or_waited_for() {
    let scene = Scene::new(SETTINGS);
    scene.api.put("web", "u1", Some("ReplicaSet"));
    scene.api.change(|server| server.has_budget = true);
    scene.signal("e1", "web", "u1");
    let requested = scene.requested();
    assert_eq!((requested.action.as_deref(), requested.requests), (Some("delete"), 2));

    for (settings, may_delete) in
        [(ApiSettings { on_pdb: OnPdb::Respect, ..SETTINGS }, true), (SETTINGS, false)]
    {
        let scene = Scene::new(settings);
        scene.api.put("web", "u1", Some("ReplicaSet"));
        scene.api.change(|server| (server.has_budget, server.may_delete) = (true, may_delete));
        scene.signal("e1", "web", "u1");
        let refused = scene.requested();
        assert_eq!((&*refused.outcome, refused.reason.as_deref()), ("refused", Some("disruptionBudget")));
        assert!(scene.api.done().is_empty());
        // One report, however often it is asked.
        let asked = scene.api.change(|server| server.asked.len());
        while scene.api.change(|server| server.asked.len()) < asked + 4 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(scene.events(EventType::EvictionRequested).len(), 1);
        scene.api.change(|server| server.has_budget = false);
        scene.wait(EventType::EvictionRequested, 2);
        assert_eq!(scene.requested().outcome, "accepted");
        assert_eq!(scene.api.done().len(), 1);
    }
}

#[test]
fn a_server_that_is_away_is_asked_when_it_is_back_and_only_once() {
    let scene = Scene::new(SETTINGS);
    scene.api.put("web", "u1", Some("ReplicaSet"));
    scene.api.change(|server| server.fails_with = Some(503));
    scene.signal("e1", "web", "u1");
    let degraded = scene.wait(EventType::DegradedEntered, 1);
    assert!(degraded[0].payload.message().unwrap().contains("status 503"), "{degraded:?}");
    scene.api.change(|server| server.fails_with = None);
    assert_eq!(scene.requested().outcome, "accepted");
    scene.wait(EventType::DegradedLeft, 1);
    assert_eq!(scene.api.done().len(), 1);
}

#[test]
fn an_answer_that_is_lost_leads_to_a_look_and_not_to_a_second_eviction() {
    let scene = Scene::new(SETTINGS);
    scene.api.put("web", "u1", Some("ReplicaSet"));
    scene.api.change(|server| server.swallows_answers = true);
    scene.signal("e1", "web", "u1");
    let requested = scene.requested();
    assert_eq!((&*requested.outcome, requested.requests), ("terminating", 1));
    assert_eq!(scene.api.done().len(), 1);
    // It has answered the look.
    assert_eq!(scene.events(EventType::DegradedEntered).len(), 0);
}

#[test]
fn another_process_goes_on_where_the_first_was_killed() {
    let mut scene = Scene::new(SETTINGS);
    scene.api.put("web", "u1", Some("ReplicaSet"));
    scene.api.put("late", "u2", Some("ReplicaSet"));
    scene.api.change(|server| server.fails_with = Some(500));
    scene.signal("e1", "web", "u1");
    scene.wait(EventType::DegradedEntered, 1);
    drop(scene.evictions.take());
    // The next one finds a pod that was killed without an event of the signal.
    let ended = EvictionEnded {
        eviction_id: String::from("e2"),
        uid: Some(String::from("u2")),
        boot_ms: Some(crate::clock::boottime_ms()),
        reconstructed: true,
        ..EvictionEnded::default()
    };
    let subject = Subject::Pod(PodName { namespace: String::from("shop"), name: String::from("late") });
    scene.journal.emit(subject, Payload::EvictionCompleted(ended));
    scene.api.change(|server| server.fails_with = None);
    scene.start(SETTINGS);
    scene.wait(EventType::EvictionRequested, 2);
    let mut done = scene.api.done();
    done.sort();
    assert_eq!(done.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>(), ["late", "web"]);
    // A third one has nothing to do.
    scene.start(SETTINGS);
    scene.signal("e3", "gone", "u3");
    scene.wait(EventType::EvictionRequested, 3);
    assert_eq!(scene.api.done().len(), 2);
}

#[test]
fn what_may_still_be_spared_is_not_asked_for() {
    let scene = Scene::new(SETTINGS);
    scene.api.put("web", "u1", Some("ReplicaSet"));
    scene.api.put("gentle", "u2", Some("ReplicaSet"));
    let subject =
        |name: &str| Subject::Pod(PodName { namespace: String::from("shop"), name: name.to_owned() });
    for (id, name, uid) in [("e1", "web", "u1"), ("e2", "gentle", "u2")] {
        let asked =
            EvictionSignalled { sent: "SIGTERM".into(), grace_ms: Some(30_000), ..signalled(id, name, uid) };
        scene.journal.emit(subject(name), Payload::EvictionSignalled(asked));
    }
    let ended = |id: &str, uid: &str| EvictionEnded {
        eviction_id: id.to_owned(),
        uid: Some(uid.to_owned()),
        ..EvictionEnded::default()
    };
    // One is protected within its grace, the other exits by itself.
    scene.journal.emit(subject("web"), Payload::EvictionFailed(ended("e1", "u1")));
    scene.journal.emit(subject("gentle"), Payload::EvictionCompleted(ended("e2", "u2")));
    assert_eq!(scene.requested().eviction_id, "e2");
    // Killed by a later decision.
    scene.signal("e3", "web", "u1");
    scene.wait(EventType::EvictionRequested, 2);
    let names: Vec<_> = scene.api.done().into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["gentle", "web"]);
}
