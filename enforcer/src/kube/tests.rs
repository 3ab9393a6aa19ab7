//! With a fake API server, and a kube process that is a thread.

mod credentials;
mod disk;
mod kills;
mod node;
mod outages;
mod pace;
mod scene;
mod server;
mod soft;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use enforcer_events::{
    Event, EventType, Payload,
    eviction::{EvictionEnded, EvictionSignalled},
};
use serde_json::{Value, json};

pub(super) use self::scene::{SETTINGS, signalled, signalled_live};
use self::{
    scene::Scene,
    server::{Api, Server},
};
use super::*;
use crate::{
    journal::{Batch, Filter, Journal, Subject},
    model::PodName,
};

/// A daemon in a pod has that pod's name, and its successor another one.
#[test]
fn an_eviction_that_a_daemon_of_another_name_left_is_requested_in_the_same_boot() {
    let asked = |boot: &str| {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let open = |node, boot| Journal::open(node, boot, dirs[0].path(), dirs[1].path()).unwrap().0;
        let journal = open("enforcer-x7k2p", "b");
        let subject = Subject::Pod(PodName { namespace: String::from("shop"), name: String::from("web") });
        journal.emit(subject, Payload::EvictionSignalled(signalled("e1", "web", "u1")));
        journal.close();
        drop(journal);
        let state = tempfile::tempdir().unwrap();
        let journal = open("enforcer-9qzvd", boot);
        let mut scene = Scene { journal, state, api: Api::serve(), evictions: None };
        scene.api.put("web", "u1", Some("ReplicaSet"));
        scene.start(SETTINGS);
        let outcome = scene.requested().outcome.into_owned();
        (outcome, scene.api.done().len())
    };
    assert_eq!(asked("b"), (String::from("accepted"), 1));
    // The kubelet has started it anew since.
    assert_eq!(asked("later"), (String::from("expired"), 0));
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
