//! `why`, over recorded journals.
use std::fs;

use enforcer::journal::EventType;
use serde_json::{Value, json};

use crate::{
    Scene,
    journal::{FIRST, Recorded, SECOND, about, cleared, crossed, decided, eviction, oom, with},
};

fn why(reported: &[Recorded], arguments: &[&str]) -> String {
    let scene = Scene::new();
    scene.remember(reported);
    scene.run(&[&["why"], arguments].concat()).whole()
}

#[test]
fn an_eviction_is_one_screen() {
    insta::assert_snapshot!(why(&eviction(), &[]));
}

#[test]
fn a_kill_by_the_kernel_is_one_screen() {
    insta::assert_snapshot!(why(&oom(), &["latest"]));
}

#[test]
fn every_way_to_name_it_leads_to_the_same() {
    let scene = Scene::new();
    scene.remember(&[eviction(), oom()].concat());
    let whole = scene.run(&["why", "default/hog"]).out;
    assert!(whole.starts_with("default/hog was evicted because memory.available fell to 199Mi"), "{whole}");
    let events = scene.raw(&["-o", "jsonl", "events"]).out;
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let id = |kind: &str| {
        let of_kind = |event: &&Value| event["type"] == format!("dev.enforcer.{kind}");
        events.iter().find(of_kind).unwrap()["id"].as_str().unwrap().to_owned()
    };
    let (crossed, completed, lower) =
        (id("threshold.crossed"), id("eviction.completed"), FIRST.to_ascii_lowercase());
    for what in ["hog", FIRST, &lower, &crossed, &completed] {
        assert_eq!(scene.run(&["why", what]).out, whole, "{what}");
    }
    let killed = scene.run(&["why", SECOND]).out;
    for what in ["p", "default/p", "latest", &id("oom.detected"), &id("oom.incident")] {
        assert_eq!(scene.run(&["why", what]).out, killed, "{what}");
    }
    let other = scene.run(&["why", &id("pod.added")]);
    assert!(other.status == 1 && other.err.contains("is pod.added: only evictions"), "{other:?}");
    // It is offered to be run again where that can be done.
    assert!(!whole.contains("enforcer replay"), "{whole}");
    fs::create_dir_all(scene.path("state/recordings")).unwrap();
    let recording = enforcer::recorder::path(&scene.path("state"), FIRST.parse().unwrap());
    fs::write(recording, "").unwrap();
    assert!(scene.run(&["why", "hog"]).out.contains(&format!("`enforcer replay {FIRST}` decides again")));
}

/// Each scene's screen.
fn screens(scenes: &[(&str, &[Recorded], &str)]) -> String {
    let screen = |(name, reported, what): &(&str, &[Recorded], &str)| {
        format!("===== {name}\n{}\n", why(reported, &[what]))
    };
    scenes.iter().map(screen).collect()
}

const HOG: Option<&str> = Some("default/hog");

/// The decision with other values.
fn otherwise(more: &Value) -> Recorded {
    (EventType::EvictionDecided, HOG, with(decided(), more))
}

#[test]
fn what_was_only_decided_says_so_first() {
    insta::assert_snapshot!(screens(&[
        ("dry run", &[crossed(), otherwise(&json!({"dryRun": true}))], "latest"),
        ("paused", &[crossed(), otherwise(&json!({"dryRun": true, "paused": true})), cleared()], "latest"),
        ("under way", &[crossed(), otherwise(&json!({}))], "latest"),
    ]));
}

#[test]
fn one_that_failed_says_why_and_who_came_then() {
    let alone = json!({"ranking": [decided()["ranking"][0]], "rankedCount": 1, "decidedBy": "onlyCandidate"});
    let failed = json!({
        "reason": "stillPopulated", "crossedToGivenUpMs": 3_402.1, "predictedFreedBytes": 4_096,
        "message": "it was killed and still holds processes after its deadline",
    });
    let cache = with(decided()["victim"].clone(), &json!({"name": "cache"}));
    let then = json!({"evictionId": SECOND, "victim": cache});
    let reported = [
        crossed(),
        otherwise(&alone),
        (EventType::EvictionFailed, HOG, about(FIRST, &failed)),
        (EventType::EvictionDecided, Some("default/cache"), with(decided(), &then)),
    ];
    insta::assert_snapshot!(why(&reported, &[FIRST]));
}

#[test]
fn a_soft_one_of_process_ids_counts_tasks() {
    let decided = json!({
        "evictionId": FIRST, "dryRun": false, "signal": "pid.available", "hard": false, "predictedFreedBytes": 1 << 30,
        "thresholdCount": 1_000, "observedCount": 998, "graceMs": 30_000, "victim": decided()["victim"],
        "decidedBy": "processCount", "rankedCount": 2, "excluded": [], "excludedCount": 0,
        "ranking": [
            {
                "rank": 1, "namespace": "default", "name": "hog", "evictable": true, "statsMissing": false,
                "priority": 0, "processCount": 9_000,
            },
            {
                "rank": 2, "namespace": "default", "name": "web", "evictable": true, "statsMissing": false,
                "priority": 0, "processCount": 12,
            },
        ],
        "message": "The node was low on resource: pids.", "configHash": "c",
    });
    let asked = json!({"sent": "SIGTERM", "graceMs": 30_000, "crossedToTerminatedMs": 90_002.5});
    let asked = (EventType::EvictionSignalled, HOG, about(FIRST, &asked));
    insta::assert_snapshot!(why(&[(EventType::EvictionDecided, HOG, decided), asked], &[]));
}

#[test]
fn one_by_order_names_who_gave_it_and_why() {
    let decided = json!({
        "evictionId": FIRST, "dryRun": false, "hard": false, "victim": decided()["victim"], "decidedBy": "operator",
        "operator": {"uid": 0, "pid": 4_242, "reason": "it hangs"}, "ranking": [], "rankedCount": 0,
        "excluded": [], "excludedCount": 0, "predictedFreedBytes": 1 << 30, "graceMs": 30_000,
        "message": "Evicted by order of uid 0: it hangs", "configHash": "c",
    });
    let completed = json!({
        "operator": {"uid": 0, "reason": "it hangs"}, "endedBy": "SIGTERM", "decidedToDeadMs": 812.4,
        "freedBytes": 1 << 30, "predictedFreedBytes": 1 << 30,
    });
    let completed = (EventType::EvictionCompleted, HOG, about(FIRST, &completed));
    insta::assert_snapshot!(why(&[(EventType::EvictionDecided, HOG, decided), completed], &[]));
}

#[test]
fn what_is_not_kept_is_not_made_up() {
    let amounts = json!({
        "reconstructed": true, "cgroup": "/kubepods/besteffort/pod3f2a", "hard": true,
        "thresholdBytes": 209_715_200, "observedBytes": 209_715_199,
    });
    let interrupted =
        json!({"reconstructed": true, "reason": "interrupted", "message": "the daemon ended meanwhile"});
    let completed = |data: &Value| (EventType::EvictionCompleted, HOG, about(FIRST, data));
    let restarted = [(EventType::EvictionDecided, HOG, about(FIRST, &amounts)), completed(&interrupted)];
    insta::assert_snapshot!(screens(&[
        ("found out after a restart", &restarted, "latest"),
        ("its decision is kept no longer", &[completed(&json!({"crossedToDeadMs": 30.0}))], FIRST),
    ]));
}

#[test]
fn a_suppressed_eviction_has_its_reason() {
    let message = "memory is short and no pod may be evicted";
    let no_candidate = json!({"signal": "memory.available", "reason": "noCandidate", "message": message});
    let reported = [crossed(), (EventType::EvictionSuppressed, None, no_candidate), cleared()];
    insta::assert_snapshot!(why(&reported, &[]));
}

#[test]
fn every_limit_of_the_kernels_killer_has_its_words() {
    let incident = oom().remove(1).2;
    let own = with(incident["victims"][0].clone(), &json!({"pid": 412}));
    let scenes: Vec<(&str, Recorded)> = vec![
        (
            "container",
            (
                EventType::OomIncident,
                Some("default/p"),
                with(
                    incident.clone(),
                    &json!({
                        "scope": "container", "limitOwner": "/kubepods/burstable/podu/c2", "victims": [own], "kills": 1,
                        "limitSource": "counters", "reconciliation": "differs",
                    }),
                ),
            ),
        ),
        (
            "node",
            (
                EventType::OomIncident,
                Some("default/p"),
                with(
                    incident.clone(),
                    &json!({
                        "scope": "node", "limitOwner": "/",
                    }),
                ),
            ),
        ),
        (
            "made of counters",
            (
                EventType::OomIncident,
                Some("default/p"),
                json!({
                    "incidentId": SECOND, "limitSource": "unknown", "namespace": "default", "pod": "p", "container": "c1",
                    "cgroup": "/kubepods/burstable/podu/c1", "kills": 1, "victims": [], "timelineMs": {},
                    "counters": {"oom": 1, "oomKill": 1, "oomGroupKill": 0},
                    "countersBefore": {"oom": 0, "oomKill": 0, "oomGroupKill": 0},
                    "countersAfter": {"oom": 1, "oomKill": 1, "oomGroupKill": 0}, "reconciled": false,
                    "reconciliation": "noBaseline", "reconstructed": true,
                }),
            ),
        ),
        ("not closed", oom().remove(0)),
        (
            "averted",
            (EventType::OomAverted, Some("default/p"), with(incident, &json!({"cause": "ownEviction"}))),
        ),
    ];
    let mut reported = String::new();
    for (name, event) in scenes {
        reported.push_str(&format!("===== {name}\n{}\n", why(&[event], &[SECOND])));
    }
    insta::assert_snapshot!(reported);
}

#[test]
fn a_mistyped_name_is_answered_with_the_nearest_and_what_to_do() {
    let mut events = eviction();
    events.push((
        EventType::EvictionDecided,
        Some("other/hog"),
        with(
            decided(),
            &json!({
                "evictionId": SECOND, "victim": with(decided()["victim"].clone(), &json!({"namespace": "other"})),
            }),
        ),
    ));
    let scene = Scene::new();
    scene.remember(&events);
    let mut reported = String::new();
    for what in
        ["default/hgo", "nobody-like-this", "hog", "01J8Z3NDEKTSV4RRFFQ69G5FA9", "01AAAAAAAAAAAAAAAAAAAAAAAA"]
    {
        let printed = scene.run(&["why", what]);
        assert!(printed.out.is_empty() && printed.status != 0, "{printed:?}");
        reported.push_str(&format!("$ enforcer why {what}\n{}", printed.whole()));
    }
    reported.push_str(&scene.run(&["--live", "why"]).whole());
    reported.push_str(&scene.run(&["events", "--type", "eviction.decidde"]).whole());
    reported.push_str(&Scene::new().run(&["why"]).whole());
    let calm = Scene::new();
    calm.remember(&eviction()[..2]);
    reported.push_str(&calm.run(&["why"]).whole());
    reported.push_str(&calm.run(&["why", "web"]).whole());
    insta::assert_snapshot!(reported);
}

#[test]
fn as_json_it_is_all_that_belongs_together() {
    let scene = Scene::new();
    scene.remember(&eviction());
    let whole: Value = serde_json::from_str(&scene.run(&["-o", "json", "why"]).out).unwrap();
    assert_eq!((whole["kind"].as_str(), whole["id"].as_str()), (Some("eviction"), Some(FIRST)));
    assert!(whole["sentence"].as_str().unwrap().starts_with("default/hog was evicted because"));
    assert_eq!(whole["decided"]["data"], decided());
    let steps: Vec<_> =
        whole["steps"].as_array().unwrap().iter().map(|step| step["type"].as_str().unwrap()).collect();
    let expected = ["signalled", "contained", "contained", "completed"]
        .map(|kind| format!("dev.enforcer.eviction.{kind}"));
    assert_eq!(steps, expected);
    for (part, kind) in
        [("warned", "pressure.rising"), ("crossed", "threshold.crossed"), ("cleared", "pressure.cleared")]
    {
        assert_eq!(whole[part]["type"], format!("dev.enforcer.{kind}"));
    }
    let line = scene.run(&["-o", "jsonl", "why", "latest"]).out;
    assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), whole);
    assert!(scene.run(&["-o", "yaml", "why"]).out.contains("kind: eviction\n"));
}
