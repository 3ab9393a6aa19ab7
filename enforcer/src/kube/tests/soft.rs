//! Requests before anything is signalled.
use super::{
    outages::{spawn, until},
    *,
};
use crate::network::fake::Way;

fn pod(uid: &str) -> PodRef {
    PodRef { namespace: String::from("shop"), name: String::from("web"), uid: uid.to_owned() }
}

/// A scene with a pod `web` that has a grace period of 30 s, and the answer to one request for it.
fn request(
    change: impl FnOnce(&mut Server),
    settings: ApiSettings,
    uid: &str,
    owner: Owner,
) -> (Scene, SoftOutcome) {
    let scene = Scene::new(settings);
    scene.api.put("web", "u1", Some("ReplicaSet"));
    scene.api.change(|server| {
        server.grace_seconds = 30;
        change(server);
    });
    let soft = SoftEvictions::new(&scene.api.server(), settings, &scene.journal);
    let outcome = soft.request("e1", &pod(uid), owner, Duration::from_millis(29_500), &|| false);
    (scene, outcome)
}

#[test]
fn an_accepted_request_is_reported_once_and_confirmed_when_the_pod_is_gone() {
    let (scene, outcome) = request(|_| (), SETTINGS, "u1", Owner::Controller);
    assert_eq!(outcome, SoftOutcome::Accepted);
    let requested = scene.requested();
    assert_eq!((&*requested.outcome, requested.action.as_deref()), ("accepted", Some("evict")));
    assert_eq!((&*requested.eviction_id, &*requested.uid), ("e1", "u1"));
    // What follows later under the same id is no other eviction.
    scene.signal("e1", "web", "u1");
    scene.api.change(|server| server.pods.clear());
    scene.wait(EventType::EvictionConfirmed, 1);
    assert_eq!(scene.api.done(), [(String::from("POST eviction"), String::from("web"))]);
    assert_eq!(scene.events(EventType::EvictionRequested).len(), 1);
}

#[test]
fn a_budget_refuses_and_is_not_overridden() {
    let (scene, outcome) = request(|server| server.has_budget = true, SETTINGS, "u1", Owner::Controller);
    assert_eq!(outcome, SoftOutcome::Budget);
    let requested = scene.requested();
    assert_eq!((&*requested.outcome, requested.reason.as_deref()), ("refused", Some("disruptionBudget")));
    assert_eq!(scene.api.done(), []);
}

#[test]
fn another_pod_of_the_name_is_not_touched() {
    let (scene, outcome) = request(|_| (), SETTINGS, "u0", Owner::Controller);
    assert_eq!((outcome, scene.api.done()), (SoftOutcome::Unanswered, Vec::new()));
}

#[test]
fn without_an_answer_the_victim_is_signalled_here() {
    for status in [401, 403, 500, 503] {
        let (scene, outcome) =
            request(|server| server.fails_with = Some(status), SETTINGS, "u1", Owner::Controller);
        assert_eq!(outcome, SoftOutcome::Unanswered);
        let requested = scene.requested();
        assert!(requested.message.contains("SIGTERM"), "{status}");
        assert_eq!(requested.requests, 0, "the version was not found: {status}");
    }
}

/// An API server that has a pod `web`, and who asks it for evictions. It was asked for another before, so that there is
/// a connection, and the version of evictions is known.
fn known() -> (Api, SoftEvictions) {
    let api = Api::serve();
    api.put("first", "u0", Some("ReplicaSet"));
    api.put("web", "u1", Some("ReplicaSet"));
    api.change(|server| server.grace_seconds = 30);
    let soft = SoftEvictions::new(&api.server(), SETTINGS, &Journal::new("n", "b"));
    let first = PodRef { name: String::from("first"), ..pod("u0") };
    let outcome = soft.request("e0", &first, Owner::Controller, Duration::from_secs(30), &|| false);
    assert_eq!(outcome, SoftOutcome::Accepted);
    api.change(|server| {
        server.asked.clear();
        server.done.clear();
    });
    (api, soft)
}

/// Its priority and fairness limits what it takes in: it is not away, and budgets count.
#[test]
fn an_api_server_that_has_too_much_to_do_is_asked_again() {
    let grace = Duration::from_secs(30);
    let evict = "POST /api/v1/namespaces/shop/pods/web/eviction";
    let look = "GET /api/v1/namespaces/shop/pods/web";
    for (is_looked_at, asked) in [(false, vec![evict, evict]), (true, vec![look, look, evict])] {
        let (api, soft) = known();
        api.change(|server| server.busy = 1);
        let begin = Instant::now();
        let outcome = if is_looked_at {
            soft.request_after_look("e1", &pod("u1"), grace, &|| false)
        } else {
            soft.request("e1", &pod("u1"), Owner::Controller, grace, &|| false)
        };
        assert_eq!(outcome, SoftOutcome::Accepted);
        assert!(begin.elapsed() >= Duration::from_secs(1), "{:?}", begin.elapsed());
        assert_eq!(api.change(|server| server.asked.clone()), asked);
        assert_eq!(api.done(), [(String::from("POST eviction"), String::from("web"))]);
    }
}

#[test]
fn an_api_server_that_has_too_much_to_do_for_longer_counts_as_away() {
    let (scene, outcome) = request(|server| server.busy = u32::MAX, SETTINGS, "u1", Owner::Controller);
    assert_eq!((outcome, scene.api.done()), (SoftOutcome::Unanswered, Vec::new()));
    let message = scene.requested().message;
    assert!(message.contains("429") && message.contains("SIGTERM"), "{message}");
}

#[test]
fn what_is_withdrawn_while_the_server_has_too_much_to_do_is_not_sent_again() {
    let (api, soft) = known();
    api.change(|server| server.busy = 1);
    let was_asked = || api.change(|server| !server.asked.is_empty());
    let outcome = soft.request("e1", &pod("u1"), Owner::Controller, Duration::from_secs(30), &was_asked);
    assert_eq!((outcome, api.done()), (SoftOutcome::Unanswered, Vec::new()));
    let asked = api.change(|server| server.asked.clone());
    assert_eq!(asked.iter().filter(|asked| asked.starts_with("POST ")).count(), 1, "{asked:?}");
}

/// The shortage ends while the API server is asked what it offers.
#[test]
fn what_is_withdrawn_before_it_could_be_sent_is_not_sent() {
    let (api, journal) = (Api::serve(), Journal::new("n", "b"));
    api.put("web", "u1", Some("ReplicaSet"));
    let soft = SoftEvictions::new(&api.server(), SETTINGS, &journal);
    let (owner, grace, newest) = (Owner::Controller, Duration::from_secs(30), journal.range().newest);
    let was_asked = || api.change(|server| !server.asked.is_empty());
    let outcome = soft.request("e1", &pod("u1"), owner, grace, &was_asked);
    assert_eq!((outcome, api.done()), (SoftOutcome::Unanswered, Vec::new()));
    assert_eq!(journal.range().newest, newest, "that it is spared has an event of its own");
}

#[test]
fn what_the_settings_leave_to_the_kubelet_is_not_requested() {
    let status = ApiSettings { action: Some(Action::Status), ..SETTINGS };
    for (settings, owner) in
        [(SETTINGS, Owner::None), (SETTINGS, Owner::DaemonSet), (status, Owner::Controller)]
    {
        let (scene, outcome) = request(|_| (), settings, "u1", owner);
        assert_eq!((outcome, scene.api.done()), (SoftOutcome::Unanswered, Vec::new()), "{owner:?}");
        assert_eq!(scene.events(EventType::EvictionRequested).len(), 0);
    }
    let bare = ApiSettings { bare_pods: Some(Action::Delete), ..SETTINGS };
    let (scene, outcome) = request(|_| (), bare, "u1", Owner::None);
    assert_eq!(outcome, SoftOutcome::Accepted);
    assert_eq!(scene.api.done(), [(String::from("DELETE"), String::from("web"))]);
}

/// A scene whose first request may have been made by a process that was killed, or where what is known of the pod is
/// old, and the answer to a request after a look.
fn request_after_look(change: impl FnOnce(&mut Server), uid: &str) -> (Scene, SoftOutcome) {
    let scene = Scene::new(SETTINGS);
    scene.api.put("web", "u1", Some("ReplicaSet"));
    scene.api.change(|server| {
        server.grace_seconds = 30;
        change(server);
    });
    let soft = SoftEvictions::new(&scene.api.server(), SETTINGS, &scene.journal);
    let outcome = soft.request_after_look("e1", &pod(uid), Duration::from_secs(30), &|| false);
    (scene, outcome)
}

#[test]
fn a_request_of_which_no_one_knows_is_found_by_a_look_and_not_repeated() {
    let is_going = |server: &mut Server| server.pods.get_mut("shop/web").unwrap().is_terminating = true;
    let (scene, outcome) = request_after_look(is_going, "u1");
    assert_eq!((outcome, scene.api.done()), (SoftOutcome::Accepted, Vec::new()));
    let requested = scene.requested();
    assert_eq!((&*requested.outcome, requested.requests, &*requested.eviction_id), ("terminating", 0, "e1"));
    assert!(requested.boot_ms.is_some(), "without a signal, it counts from now on");
    scene.api.change(|server| server.pods.clear());
    scene.wait(EventType::EvictionConfirmed, 1);
    assert_eq!(scene.api.done(), []);
}

#[test]
fn one_that_was_not_made_is_made_after_a_look() {
    let (scene, outcome) = request_after_look(|_| (), "u1");
    assert_eq!(outcome, SoftOutcome::Accepted);
    assert_eq!(scene.api.done(), [(String::from("POST eviction"), String::from("web"))]);
    assert_eq!(&*scene.requested().outcome, "accepted");
}

/// The controller is that of the API server: what is known of it here may be old, or nothing.
#[test]
fn after_a_look_a_pod_is_requested_by_the_controller_that_it_has_now() {
    for controller in [None, Some("DaemonSet")] {
        let change = |server: &mut Server| server.pods.get_mut("shop/web").unwrap().controller = controller;
        let (scene, outcome) = request_after_look(change, "u1");
        assert_eq!((outcome, scene.api.done()), (SoftOutcome::Unanswered, Vec::new()), "{controller:?}");
    }
    let (scene, outcome) = request_after_look(|server| server.has_budget = true, "u1");
    assert_eq!((outcome, scene.api.done()), (SoftOutcome::Budget, Vec::new()));
}

#[test]
fn nothing_is_sent_for_a_pod_that_was_made_anew_or_is_gone() {
    for (is_gone, uid) in [(false, "u0"), (true, "u1")] {
        let change = |server: &mut Server| server.pods.retain(|_, _| !is_gone);
        let (scene, outcome) = request_after_look(change, uid);
        assert_eq!((outcome, scene.api.done()), (SoftOutcome::Unanswered, Vec::new()), "{uid}");
        assert_eq!(&*scene.requested().outcome, "refused");
    }
}

#[test]
fn an_api_server_that_is_away_after_a_restart_settles_nothing() {
    let (scene, outcome) = request_after_look(|server| server.fails_with = Some(503), "u1");
    assert_eq!((outcome, scene.api.done()), (SoftOutcome::Unanswered, Vec::new()));
    assert!(scene.requested().message.contains("SIGTERM"));
}

#[test]
fn only_a_pod_that_is_being_deleted_counts_as_requested_and_a_look_sends_nothing() {
    type Change = fn(&mut Server);
    let was_requested = |change: Change, uid: &str| {
        let scene = Scene::new(SETTINGS);
        scene.api.put("web", "u1", Some("ReplicaSet"));
        scene.api.change(change);
        let soft = SoftEvictions::new(&scene.api.server(), SETTINGS, &scene.journal);
        let was_requested = soft.was_requested("e1", &pod(uid));
        assert_eq!(scene.api.done(), Vec::new());
        (scene, was_requested)
    };
    let is_going = |server: &mut Server| server.pods.get_mut("shop/web").unwrap().is_terminating = true;
    let (scene, is_found) = was_requested(is_going, "u1");
    assert!(is_found);
    assert_eq!(&*scene.requested().outcome, "terminating");
    let others: [(Change, &str); 4] = [
        (|_| (), "u1"),
        (is_going, "u0"),
        (|server| server.pods.clear(), "u1"),
        (|server| server.fails_with = Some(503), "u1"),
    ];
    for (change, uid) in others {
        let (scene, is_found) = was_requested(change, uid);
        assert!(!is_found, "{uid}");
        assert_eq!(
            scene.events(EventType::EvictionRequested).len(),
            0,
            "what settles nothing is not reported"
        );
    }
}

#[test]
fn the_version_of_evictions_is_asked_for_once_a_connection() {
    let (api, journal) = (Api::serve(), Journal::new("n", "b"));
    api.change(|server| server.grace_seconds = 30);
    let soft = SoftEvictions::new(&api.server(), SETTINGS, &journal);
    for (id, uid) in [("e1", "u1"), ("e2", "u2"), ("e3", "u3")] {
        api.put("web", uid, Some("ReplicaSet"));
        let outcome = soft.request(id, &pod(uid), Owner::Controller, Duration::from_secs(30), &|| false);
        assert_eq!(outcome, SoftOutcome::Accepted, "{id}");
    }
    let asked = api.change(|server| server.asked.clone());
    let of = |what: &str| asked.iter().filter(|asked| asked.starts_with(what)).count();
    assert_eq!((of("GET /api/v1"), of("POST ")), (1, 3), "{asked:?}");
}

#[test]
fn a_version_that_is_known_is_no_answer_of_the_server() {
    let api = Api::serve();
    let server = api.server();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ask = || runtime.block_on(server.ask(Lane::Looks, Call::Discover)).unwrap();
    let version = String::from("policy/v1");
    assert_eq!(ask(), Outcome::Discovered(Some(version.clone())));
    assert_eq!(ask(), Outcome::Known(version));
    assert_eq!(api.change(|server| server.asked.clone()), ["GET /api/v1"]);
}

/// Who has given up has the processes signalled here: the pod must not be evicted in addition.
#[test]
fn a_request_that_has_waited_too_long_behind_a_look_is_not_sent() {
    let api = Api::serve();
    for (name, uid) in [("silent", "u0"), ("web", "u1")] {
        api.put(name, uid, Some("ReplicaSet"));
    }
    let server = api.server();
    let within = |ms| Instant::now() + Duration::from_millis(ms);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let silent = PodRef { name: String::from("silent"), ..pod("u0") };
        let look = server.ask_until(within(2_000), Lane::Looks, Call::Look(silent));
        let request = async {
            while !api.change(|server| server.pod_requests.iter().any(|(_, name)| name == "silent")) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let evict =
                Call::Evict { pod: pod("u1"), group_version: String::from("policy/v1"), grace_seconds: 1 };
            server.ask_until(within(200), Lane::Looks, evict).await
        };
        let (looked, requested) = tokio::join!(look, request);
        assert!(looked.is_err() && requested.is_err(), "{looked:?} {requested:?}");
        // A lane's questions are taken in order: this one after both.
        server.ask(Lane::Looks, Call::Ping).await.unwrap();
    });
    assert_eq!(api.done(), []);
}

/// A budget must be asked also then: without an answer the pod's processes are sent SIGTERM here.
#[test]
fn a_soft_eviction_does_not_wait_for_the_end_of_a_connection_that_is_half_open() {
    let (api, journal) = (Api::serve(), Journal::new("n", "b"));
    let server = api.1;
    let (way, passing) = Way::to(server).unwrap();
    spawn(move || passing);
    let on_the_way = Api(Arc::clone(&api.0), way.address());
    on_the_way.put("web", "u1", Some("ReplicaSet"));
    on_the_way.change(|server| server.grace_seconds = 30);
    let soft = SoftEvictions::new(&on_the_way.server(), SETTINGS, &journal);
    assert!(!soft.was_requested("e0", &pod("u1")), "a look, which opens the connection");
    way.vanish();
    until("half-open connections", || way.has_vanished());
    way.lead_to(server);
    let outcome = soft.request("e1", &pod("u1"), Owner::Controller, Duration::from_secs(30), &|| false);
    assert_eq!(outcome, SoftOutcome::Accepted);
    assert_eq!(on_the_way.done(), [(String::from("POST eviction"), String::from("web"))]);
}
