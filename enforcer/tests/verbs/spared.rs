//! `why` about what was no eviction: a rejected pod, a pod that was spared, what is degraded; and for a ticket.
use enforcer::journal::EventType;
use serde_json::{Value, json};

use crate::{
    Scene, assert_harmless,
    journal::{FIRST, Recorded, added, cleared, crossed, decided, eviction, oom, with},
};

/// What `why` prints, in one line, with its words apart by one space.
fn why(scene: &Scene, what: &str) -> String {
    let printed = scene.run(&["why", what]);
    printed.tame();
    assert_eq!(printed.status, 0, "{printed:?}");
    printed.out.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn scene(reported: &[Recorded]) -> Scene {
    let scene = Scene::new();
    scene.remember(reported);
    scene
}

fn rejected(pod: &'static str, reason: Option<&str>, message: &str) -> Recorded {
    let (namespace, name) = pod.split_once('/').unwrap();
    let mut data =
        json!({"namespace": namespace, "name": name, "uid": "u", "source": "static", "message": message});
    if let Some(reason) = reason {
        data["reason"] = json!(reason);
    }
    (EventType::PodRejected, Some(pod), data)
}

fn degraded(kind: EventType, what: &str, message: &str) -> Recorded {
    (kind, None, json!({"what": what, "message": message}))
}

#[test]
fn a_rejected_pod_has_its_reason_and_what_to_look_at() {
    let message = "Node didn't have enough resource: memory, requested: 9, used: 1, capacity: 8";
    let scene_ = scene(&[rejected("default/big", Some("OutOfmemory"), message)]);
    for what in ["default/big", "big", "latest"] {
        let shown = why(&scene_, what);
        assert!(
            shown.starts_with(&format!("default/big was rejected: OutOfmemory: {message}. event ")),
            "{shown}"
        );
        assert!(shown.contains("source static") && shown.contains("`enforcer allocatable` shows"), "{shown}");
    }
    let invalid = scene(&[rejected("default/bad", None, "bad.yaml:3: spec.containers: no containers")]);
    let shown = why(&invalid, "bad");
    assert!(
        shown.contains("its manifest is invalid: bad.yaml:3") && shown.contains("correct the manifest"),
        "{shown}"
    );
    assert!(!shown.contains("allocatable"), "{shown}");
    let later =
        scene(&[rejected("default/big", Some("OutOfmemory"), "m"), added("default/big", "Burstable")]);
    assert!(why(&later, "big").contains("OutOfmemory: m; it was admitted later."));
}

#[test]
fn a_pod_that_was_spared_has_what_came_before_it_or_left_it_out() {
    let scene = scene(&eviction());
    let shown = why(&scene, "web");
    let expected = "default/web was not evicted though memory.available fell to 199Mi, below 200Mi: it ranked 3 of 9; \
                    default/cache came before default/web because it is 100Mi below its request, and default/web 300Mi \
                    below its request. eviction ";
    assert!(shown.starts_with(expected), "{shown}");
    assert!(shown.contains("victim default/hog was evicted instead"), "{shown}");
    assert!(shown.contains(&format!("`enforcer why {FIRST}` explains that eviction")), "{shown}");
    assert!(shown.contains("then the shortage was over"), "{shown}");
    let shown = why(&scene, "billing");
    assert!(shown.contains("it was left out of the ranking: protected by an operator."), "{shown}");
    // One of which the decision says nothing.
    let mut more = eviction();
    more.push(added("default/quiet", "Guaranteed"));
    let shown = why(&self::scene(&more), "quiet");
    assert!(shown.contains("it is not among the 6 pods that the decision names of 9."), "{shown}");
    let document: Value = serde_json::from_str(&scene.run(&["-o", "json", "why", "web"]).out).unwrap();
    assert_eq!((document["kind"].as_str(), document["pod"].as_str()), (Some("spared"), Some("default/web")));
    assert_eq!(document["decided"]["data"], decided());
}

#[test]
fn a_pod_that_was_spared_as_no_pod_may_be_evicted_has_the_reason() {
    let message = "memory is short and no pod may be evicted";
    let suppressed = json!({"signal": "memory.available", "reason": "noCandidate", "message": message});
    let reported = [
        added("default/web", "Burstable"),
        crossed(),
        (EventType::EvictionSuppressed, None, suppressed),
        cleared(),
    ];
    let shown = why(&scene(&reported), "web");
    assert!(
        shown.starts_with(
            "default/web was not evicted though memory.available fell to 199Mi, below 200Mi: no pod was, as memory is \
             short and no pod may be evicted. event "
        ),
        "{shown}"
    );
    assert!(shown.contains("then the shortage was over"), "{shown}");
}

#[test]
fn what_is_degraded_has_its_reason_and_whether_it_is_over() {
    let open = scene(&[
        degraded(EventType::DegradedEntered, "btf", "the kernel has no type information"),
        degraded(EventType::DegradedEntered, "stateDir", "the disk is full"),
        degraded(EventType::DegradedLeft, "stateDir", "no longer so: the disk is full"),
    ]);
    for what in ["btf", "degraded", "latest"] {
        let shown = why(&open, what);
        assert!(shown.starts_with("btf is degraded: the kernel has no type information. event "), "{shown}");
        assert!(shown.contains("`enforcer doctor` shows what is lost"), "{shown}");
    }
    let over = why(&open, "stateDir");
    assert!(
        over.starts_with("stateDir was degraded, and is whole again: the disk is full. event "),
        "{over}"
    );
    assert!(over.contains("until 2026-01-31T12:00:00.123456Z"), "{over}");
    // An eviction is what is asked for first.
    let both = scene(&[eviction(), vec![degraded(EventType::DegradedEntered, "btf", "m")]].concat());
    assert!(why(&both, "latest").starts_with("default/hog was evicted"));
    assert!(why(&both, "degraded").starts_with("btf is degraded"));
}

#[test]
fn for_a_ticket_it_is_markdown() {
    let scene_ = scene(&[eviction(), oom()].concat());
    let markdown = |what: &str| scene_.run(&["why", "--markdown", what]).out;
    let shown = markdown("hog");
    assert!(
        shown.starts_with("default/hog was evicted because memory.available fell to 199Mi, below 200Mi;"),
        "{shown}"
    );
    for line in [
        &format!("| eviction | {FIRST} at 2026-01-31T12:00:00.123456Z |"),
        "| trigger | memory.available 199Mi \\< 200Mi \\(hard\\) |",
        "| \\# | POD | EXCEEDS | PRIORITY | ABOVE | USAGE | REQUEST | BY |",
        "| 4 | default/queue-with-a-rather-long-name-7d9f8c6b5-x2x4z | no | 1000 | -310Mi | 90Mi | 400Mi | priority |",
    ] {
        assert!(shown.replace("| # |", "| \\# |").lines().any(|shown| shown == line), "{line}: {shown}");
    }
    let killed = markdown("p");
    assert!(killed.contains("| PID | COMM | WHERE | ANON | FILE | SHMEM | SCORE | INIT |"), "{killed}");
    // The rows of a table have as many cells as its head.
    for text in [&shown, &killed] {
        for block in text.split("\n\n").filter(|block| block.starts_with('|')) {
            let cells = |line: &str| line.replace("\\|", "").matches('|').count();
            let head = block.lines().next().map(cells);
            assert!(block.lines().all(|line| Some(cells(line)) == head), "{block}");
        }
    }
    let refused = scene_.run(&["-o", "json", "why", "--markdown"]);
    assert!(refused.status == 64 && refused.err.contains("leave out -o"), "{refused:?}");
}

#[test]
fn a_hostile_name_is_no_markup_in_a_ticket() {
    let hostile = "a|b\u{1b}[2J\n<img src=x> [c](http://d) @e `f`";
    let victim = with(decided()["victim"].clone(), &json!({"name": hostile}));
    let scene = scene(&[(
        EventType::EvictionDecided,
        Some("default/hog"),
        with(decided(), &json!({"victim": victim})),
    )]);
    let shown = scene.run(&["why", "--markdown"]).out;
    assert_harmless(&shown);
    // Without what a backslash makes text of.
    let (mut markup, mut characters) = (String::new(), shown.chars());
    while let Some(character) = characters.next() {
        if character == '\\' {
            characters.next();
        } else {
            markup.push(character);
        }
    }
    assert!(!markup.contains(['<', '`', '[', '@']) && !markup.contains("://"), "{markup}");
    assert!(shown.contains("\\<img src=x\\>"), "{shown}");
}
