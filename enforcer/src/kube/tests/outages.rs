//! What goes wrong between a kill and the API server's answer, whatever it is: the pod is evicted once.
use std::net::SocketAddr;

use super::*;
use crate::{
    network::fake::{Authority, Validity, Way},
    specs::{ClusterAccess, KeptCredentials, KubeletFolders, fake_api::FakeApi},
};

/// Runs that for ever, on a thread of its own.
pub(super) fn spawn<F: Future<Output = std::io::Result<()>>>(serve: impl FnOnce() -> F + Send + 'static) {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { serve().await })
    });
}

pub(super) fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What was reported about requests, in order.
fn outcomes(scene: &Scene) -> Vec<String> {
    let of = |event: Event| {
        let Payload::EvictionRequested(requested) = event.payload else { panic!() };
        requested.outcome.into_owned()
    };
    scene.events(EventType::EvictionRequested).into_iter().map(of).collect()
}

/// A scene whose requests reach that server by a way of their own.
fn on_the_way_to(api: &Api) -> (Way, Scene) {
    let (way, passing) = Way::to(api.1).unwrap();
    spawn(move || passing);
    let scene = Scene {
        journal: Journal::new("n", "b"),
        state: tempfile::tempdir().unwrap(),
        api: Api(Arc::clone(&api.0), way.address()),
        evictions: None,
    };
    (way, scene)
}

/// The request arrives nowhere, or it is done and the answer never comes: no connection ends, and no error comes.
#[test]
fn over_a_half_open_connection_a_pod_is_evicted_once() {
    let run = |arrives: bool| {
        let api = Api::serve();
        let server = api.1;
        let (way, mut scene) = on_the_way_to(&api);
        for (name, uid) in [("first", "u0"), ("web", "u1")] {
            scene.api.put(name, uid, Some("ReplicaSet"));
        }
        scene.start(SETTINGS);
        // Once that is answered, there is a connection, and the version of evictions is known.
        scene.emit(signalled_live("e0", "first", "u0", Some("ReplicaSet")));
        assert_eq!(scene.requested().outcome, "accepted");
        if arrives {
            api.change(|server| server.keeps_answers = true);
        } else {
            way.vanish();
        }
        scene.emit(signalled_live("e1", "web", "u1", Some("ReplicaSet")));
        if !arrives {
            scene.wait(EventType::DegradedEntered, 1);
            assert_eq!((api.done().len(), outcomes(&scene).len()), (1, 1));
            way.lead_to(server);
        }
        // Over another connection the server says what was done.
        let (outcome, requests) = if arrives { ("terminating", 1) } else { ("accepted", 2) };
        let requested = scene.wait(EventType::EvictionRequested, 2).pop().unwrap();
        let Payload::EvictionRequested(requested) = requested.payload else { panic!() };
        assert_eq!((&*requested.outcome, requested.requests), (outcome, requests));
        assert_eq!(scene.events(EventType::DegradedEntered).len(), usize::from(!arrives));
        api.change(|server| server.pods.clear());
        scene.wait(EventType::EvictionConfirmed, 2);
        let done = ["first", "web"].map(|pod| (String::from("POST eviction"), pod.to_owned()));
        assert_eq!(api.done(), done, "{arrives}");
        assert_eq!(outcomes(&scene), ["accepted", outcome], "{arrives}");
    };
    std::thread::scope(|scope| {
        for arrives in [false, true] {
            scope.spawn(move || run(arrives));
        }
    });
}

/// A firewall has forgotten the connection, and the server is there: what is lost is sent again, after a look.
#[test]
fn an_eviction_does_not_wait_for_the_end_of_a_connection_that_is_half_open() {
    let api = Api::serve();
    let server = api.1;
    let (way, mut scene) = on_the_way_to(&api);
    for (name, uid) in [("first", "u1"), ("web", "u2")] {
        scene.api.put(name, uid, Some("ReplicaSet"));
    }
    scene.start(SETTINGS);
    until("the version of evictions", || {
        api.change(|server| server.asked.iter().any(|asked| asked == "GET /api/v1"))
    });
    scene.emit(signalled_live("e1", "first", "u1", Some("ReplicaSet")));
    assert_eq!(scene.requested().outcome, "accepted");
    way.vanish();
    until("half-open connections", || way.has_vanished());
    way.lead_to(server);
    let signalled = signalled_live("e2", "web", "u2", Some("ReplicaSet"));
    let signalled_ms = signalled.boot_ms.unwrap();
    scene.emit(signalled);
    until("the second request", || {
        api.change(|server| {
            server.pod_requests.contains(&(String::from("POST eviction"), String::from("web")))
        })
    });
    let received_ms = crate::clock::boottime_ms();
    let requested = scene.wait(EventType::EvictionRequested, 2).pop().unwrap();
    let Payload::EvictionRequested(requested) = requested.payload else { panic!() };
    assert_eq!((&*requested.eviction_id, &*requested.outcome, requested.requests), ("e2", "accepted", 2));
    let first_ms = signalled_ms + requested.signalled_to_requested_ms.unwrap();
    assert!(first_ms + 250 <= received_ms, "{first_ms} is not the time of the first, {received_ms}");
    assert_eq!(scene.events(EventType::DegradedEntered).len(), 0);
    let asked = api.change(|server| server.pod_requests.clone());
    let of_web: Vec<_> = asked.iter().filter(|(_, pod)| pod == "web").map(|(request, _)| request).collect();
    assert_eq!(of_web[..2], ["GET", "POST eviction"]);
    let done = ["first", "web"].map(|pod| (String::from("POST eviction"), pod.to_owned()));
    assert_eq!(api.done(), done);
}

/// As a webhook makes it: the request is not given up for the silence before its answer, and sent once.
#[test]
fn an_api_server_that_takes_its_time_is_waited_for() {
    let scene = Scene::new(SETTINGS);
    scene.api.put("web", "u1", Some("ReplicaSet"));
    until("the version of evictions", || {
        scene.api.change(|server| server.asked.iter().any(|asked| asked == "GET /api/v1"))
    });
    scene.api.change(|server| server.takes = Duration::from_secs(2));
    scene.emit(signalled_live("e1", "web", "u1", Some("ReplicaSet")));
    let requested = scene.requested();
    // It was looked at beside, and as the server has the request, not sent again.
    assert_eq!((&*requested.outcome, requested.requests), ("accepted", 1));
    let asked = scene.api.change(|server| server.pod_requests.clone());
    let [look, evicted] =
        ["GET", "POST eviction"].map(|request| (String::from(request), String::from("web")));
    assert_eq!(asked, [look, evicted]);
    assert_eq!(scene.events(EventType::DegradedEntered).len(), 0);
}

/// A busy one stores a change before it answers, and may fail in between: a look sees it, and it was made here.
#[test]
fn an_answer_after_the_change_is_seen_counts_if_it_says_no_less() {
    for (answers_with, outcome) in [(None, "accepted"), (Some(500), "terminating")] {
        let scene = Scene::new(SETTINGS);
        scene.api.put("web", "u1", Some("ReplicaSet"));
        until("the version of evictions", || {
            scene.api.change(|server| server.asked.iter().any(|asked| asked == "GET /api/v1"))
        });
        scene.api.change(|server| {
            server.answers_after = Duration::from_millis(700);
            server.answers_with = answers_with;
        });
        scene.emit(signalled_live("e1", "web", "u1", Some("ReplicaSet")));
        let requested = scene.requested();
        assert_eq!((&*requested.outcome, requested.requests), (outcome, 1));
        assert_eq!(requested.signalled_to_requested_ms.is_some(), outcome == "accepted");
        assert_eq!(scene.api.done().len(), 1);
        assert_eq!(scene.events(EventType::DegradedEntered).len(), 0);
    }
}

/// An API server over HTTPS, and the folder with the credentials of a node.
struct Cluster {
    api: FakeApi,
    authority: Authority,
    folder: tempfile::TempDir,
    journal: Journal,
    state: tempfile::TempDir,
}

impl Cluster {
    /// One that takes that token, or who has a certificate of its authority and no token.
    fn new(token: Option<&str>) -> (Self, SocketAddr) {
        let api = FakeApi::new(token.unwrap_or_default());
        let authority = Authority::new().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (serving, has_token) = (api.clone(), token.is_some());
        let (pem, certificate) = (authority.pem(), authority.sign("127.0.0.1", Validity::Valid).unwrap());
        spawn(move || async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            if has_token {
                serving.serve(listener, certificate).await
            } else {
                serving.serve_to(listener, certificate, &pem).await
            }
        });
        api.put(json!({
            "metadata": {
                "namespace": "shop", "name": "web", "uid": "u1",
                "ownerReferences": [{"kind": "ReplicaSet", "controller": true}],
            },
            "spec": {"nodeName": "n"},
            "status": {"phase": "Running"},
        }));
        let [folder, state] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let cluster = Self { api, authority, folder, journal: Journal::new("n", "b"), state };
        cluster.write("ca.crt", &cluster.authority.pem());
        (cluster, address)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    /// Starts to read the journal, signals the pod, and waits until the server has refused that often.
    fn signal(&self, place: ClusterAccess, is_refused: impl Fn() -> bool) -> Evictions {
        let access: Access = Arc::new(move || {
            let read = place.api_server("n", &mut KeptCredentials::default());
            read.map_err(|error| crate::chain(&error))
        });
        let server = ApiServer::in_this_process("n", access).unwrap();
        let evictions = Evictions::start(&self.journal, self.state.path(), 0, SETTINGS, server).unwrap();
        let subject = Subject::Pod(PodName { namespace: String::from("shop"), name: String::from("web") });
        let signalled = signalled_live("e1", "web", "u1", Some("ReplicaSet"));
        self.journal.emit(subject, Payload::EvictionSignalled(signalled));
        until("a refusal", is_refused);
        assert_eq!(self.api.changed(), []);
        evictions
    }

    fn place(&self) -> ClusterAccess {
        ClusterAccess {
            kubelet: KubeletFolders::below(&self.folder.path().join("none")),
            kubelet_port: 1,
            kubeconfig: None,
            service_account: self.folder.path().to_owned(),
            in_cluster: None,
        }
    }

    fn events(&self, kind: EventType) -> Vec<Event> {
        let mut reader = self.journal.reader(Some(0), Filter { kinds: vec![kind], ..Filter::default() });
        let mut events = Vec::new();
        while let Some(Batch::Records(records)) = reader.read() {
            events.extend(records.iter().map(|record| Event::parse(&record.line).unwrap()));
        }
        events
    }

    /// The credentials were renewed: the pod is evicted once, and is seen to go.
    fn until_evicted_once(&self) {
        until("the eviction", || !self.api.changed().is_empty());
        self.api.remove("u1");
        until("the pod's end", || !self.events(EventType::EvictionConfirmed).is_empty());
        let changed: Vec<_> = self.api.changed().into_iter().map(|(request, _)| request).collect();
        assert_eq!(changed, ["POST /api/v1/namespaces/shop/pods/web/eviction"]);
        let requested = self.events(EventType::EvictionRequested);
        let is_accepted = |event: &&Event| matches!(&event.payload, Payload::EvictionRequested(of) if of.outcome == "accepted");
        assert_eq!(requested.iter().filter(is_accepted).count(), 1, "{requested:?}");
        let left = self.events(EventType::DegradedLeft).len();
        assert_eq!((self.events(EventType::DegradedEntered).len(), left), (1, 1));
    }
}

#[test]
fn a_hard_eviction_with_an_expired_token_is_made_once_with_the_next_one() {
    let (cluster, address) = Cluster::new(Some("secret"));
    cluster.write("token", "expired");
    let in_cluster = Some((address.ip().to_string(), address.port().to_string()));
    let place = ClusterAccess { in_cluster, ..cluster.place() };
    let _evictions = cluster.signal(place, || {
        let asked = cluster.api.asked();
        asked.iter().filter(|asked| asked.token == "expired").count() >= 4
    });
    assert_eq!(cluster.events(EventType::DegradedEntered).len(), 1);
    // As a kubelet replaces a projected token.
    cluster.write("token.new", "secret\n");
    std::fs::rename(cluster.folder.path().join("token.new"), cluster.folder.path().join("token")).unwrap();
    cluster.until_evicted_once();
}

#[test]
fn a_hard_eviction_with_an_expired_client_certificate_is_made_once_with_the_next_one() {
    let (cluster, address) = Cluster::new(None);
    let rotate = |validity| {
        let (certificate, key) = cluster.authority.sign("enforcer", validity).unwrap();
        cluster.write("client.key", &key);
        cluster.write("client.crt", &certificate);
    };
    rotate(Validity::Expired);
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: k, cluster: {{server: 'https://{address}', certificate-authority: ca.crt}}}}]\n\
         users: [{{name: u, user: {{client-certificate: client.crt, client-key: client.key}}}}]\n",
    );
    cluster.write("kubeconfig", &kubeconfig);
    let kubeconfig = Some(cluster.folder.path().join("kubeconfig"));
    let place = ClusterAccess { kubeconfig, ..cluster.place() };
    let _evictions = cluster.signal(place, || !cluster.events(EventType::DegradedEntered).is_empty());
    assert_eq!(cluster.api.asked().len(), 0, "no request gets through");
    rotate(Validity::Valid);
    cluster.until_evicted_once();
}

/// Under the pod's name another runs by now: its uid is the condition of every request.
#[test]
fn a_pod_recreated_between_its_kill_and_the_request_is_not_evicted() {
    let scene = Scene::new(SETTINGS);
    scene.api.put("web", "u2", Some("ReplicaSet"));
    scene.emit(signalled_live("e1", "web", "u1", Some("ReplicaSet")));
    assert_eq!(scene.requested().outcome, "anotherPod");
    assert_eq!(scene.api.done(), []);
    assert!(!scene.api.change(|server| server.pods["shop/web"].is_terminating));
}
