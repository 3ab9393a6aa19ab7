//! The disk that the credentials are on hangs.

use std::sync::{
    atomic::{AtomicUsize, Ordering},
    mpsc,
};

use super::{outages::until, *};

/// A scene whose requests nothing has begun to make yet, and a client whose credentials can be read that often.
fn scene(readings: usize) -> (Scene, ApiServer) {
    let scene = Scene {
        journal: Journal::new("n", "b"),
        state: tempfile::tempdir().unwrap(),
        api: Api::serve(),
        evictions: None,
    };
    scene.api.put("web", "u1", Some("ReplicaSet"));
    let (access, left) = (scene.api.access(), AtomicUsize::new(readings));
    let access: Access = Arc::new(move || {
        let reading = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        while reading.is_err() {
            // Until the test ends.
            std::thread::park();
        }
        access()
    });
    (scene, ApiServer::in_this_process("n", access).unwrap())
}

#[test]
fn a_soft_request_without_credentials_fails_so_that_the_victim_is_signalled_here() {
    let (scene, server) = scene(0);
    let soft = SoftEvictions::new(&server, SETTINGS, &scene.journal);
    let (outcome, outcomes) = mpsc::channel();
    std::thread::spawn(move || {
        let (namespace, name, uid) = (String::from("shop"), String::from("web"), String::from("u1"));
        let pod = PodRef { namespace, name, uid };
        outcome.send(soft.request("e1", &pod, Owner::Controller, Duration::from_secs(30), &|| false))
    });
    let outcome = outcomes.recv_timeout(Duration::from_mins(1));
    assert_eq!(outcome, Ok(SoftOutcome::Unanswered), "it hangs with the disk");
    let message = scene.requested().message;
    assert!(message.contains("credentials unreadable") && message.contains("SIGTERM"), "{message}");
    assert_eq!(scene.api.done(), []);
}

#[test]
fn a_pod_is_evicted_with_the_last_credentials() {
    let (mut scene, server) = scene(1);
    let pace = super::super::pace::Pace::new(Duration::from_secs(10));
    let state = scene.state.path().to_owned();
    let evictions = Evictions::start_paced(pace, &scene.journal, &state, 0, (SETTINGS, server));
    scene.evictions = Some(evictions.unwrap());
    until("the version of evictions", || scene.api.change(|server| !server.asked.is_empty()));
    // Its spec is not live: the pod is looked at, which takes new credentials.
    scene.signal("e1", "web", "u1");
    assert_eq!(scene.requested().outcome, "accepted");
    assert_eq!(scene.api.done(), [(String::from("POST eviction"), String::from("web"))]);
    assert_eq!(scene.events(EventType::DegradedEntered).len(), 0);
}

#[test]
fn evictions_without_credentials_report_that_they_cannot_be_read() {
    let (mut scene, server) = scene(0);
    let state = scene.state.path().to_owned();
    scene.evictions = Some(Evictions::start(&scene.journal, &state, 0, SETTINGS, server).unwrap());
    scene.signal("e1", "web", "u1");
    let degraded = scene.wait(EventType::DegradedEntered, 1);
    let message = degraded[0].payload.message().unwrap().to_owned();
    assert!(message.contains("credentials unreadable"), "{message}");
}
