//! Kills that are handed on before their events.

use super::{outages::until, *};

/// Hands a kill on, and waits until it is requested.
fn requested_by_kill(scene: &Scene, killed: &EvictionSignalled) {
    scene.api.put("web", "u1", Some("ReplicaSet"));
    scene.evictions.as_ref().unwrap().kills().send(killed.clone());
    until("the request", || !scene.api.done().is_empty());
}

#[test]
fn what_came_of_a_request_is_reported_behind_the_event_of_its_kill() {
    let scene = Scene::new(SETTINGS);
    let killed = signalled_live("e1", "web", "u1", Some("ReplicaSet"));
    requested_by_kill(&scene, &killed);
    scene.emit(killed);
    assert_eq!(scene.requested().outcome, "accepted");
    let kinds = vec![EventType::EvictionSignalled, EventType::EvictionRequested];
    let mut reader = scene.journal.reader(Some(0), Filter { kinds: kinds.clone(), ..Filter::default() });
    let Some(Batch::Records(records)) = reader.read() else { panic!("a gap, or nothing") };
    assert_eq!(records.iter().map(|record| record.kind).collect::<Vec<_>>(), kinds);
    assert_eq!(scene.api.done(), [("POST eviction".to_owned(), "web".to_owned())]);
}

#[test]
fn what_came_of_a_request_is_reported_also_if_the_event_of_its_kill_is_lost() {
    let scene = Scene::new(SETTINGS);
    requested_by_kill(&scene, &signalled_live("e1", "web", "u1", Some("ReplicaSet")));
    let requested = scene.requested();
    assert_eq!((&*requested.eviction_id, &*requested.outcome, requested.requests), ("e1", "accepted", 1));
}
