//! Names that are meant to do harm: nothing of them reaches a terminal as it is, and no line is broken by one.
use std::fs;

use enforcer::{
    journal::EventType,
    model::CgroupId,
    policy::{
        engine::{CandidateFacts, Candidates, Engine, EngineSettings, Input, NodeSample, PodKey},
        flight::{Member, Origin, RecordRef, StepRef, Writer, encode},
    },
};
use enforcer_events::Payload;
use serde_json::{Value, json};

use crate::{
    Scene, assert_harmless,
    daemon::Answers,
    foreseen::{answers, headroom, ranking},
    journal::{FIRST, Recorded, SECOND, eviction, oom},
    shells::on_a_terminal,
};

/// Clears the screen, breaks the line in five ways, turns the direction of writing, and cannot be seen.
const HOSTILE: &str =
    "a\u{1b}[2J\u{1b}]0;t\u{7}b\nc\r\u{85}\u{9b}31m\u{2028}\u{2029}\u{202e}d\u{200b}\u{7f}e\u{2066}";

/// What an event is found by, and the words without which it is not one.
const STAYS: &[&str] = &[
    "evictionId",
    "incidentId",
    "signal",
    "scope",
    "limitSource",
    "memoryBackSource",
    "reconciliation",
    "sharedBy",
];

/// Every text in it is hostile; what it is found by stays.
fn hostile(value: Value) -> Value {
    match value {
        Value::String(_) => json!(HOSTILE),
        Value::Array(values) => values.into_iter().map(hostile).collect(),
        Value::Object(object) => {
            let stays = |key: &str| STAYS.contains(&key);
            let entry = |(key, value): (String, Value)| {
                let value = if stays(&key) { value } else { hostile(value) };
                (key, value)
            };
            Value::Object(object.into_iter().map(entry).collect())
        }
        other => other,
    }
}

#[test]
fn in_every_event_and_whatever_reports_of_it() {
    let scene = Scene::new();
    let subject: &'static str = Box::leak(format!("{HOSTILE}/{HOSTILE}").into_boxed_str());
    let harm = |(kind, pod, data): Recorded| (kind, pod.map(|_| subject), hostile(data));
    let mut reported: Vec<_> = eviction().into_iter().chain(oom()).map(harm).collect();
    for (kind, _, data) in &reported {
        assert!(Payload::parse(*kind, data).is_ok(), "{kind} is not rendered as what it is: {data}");
    }
    let every = EventType::ALL.iter().filter(|kind| **kind != EventType::EvictionDecided);
    reported.extend(every.map(|kind| {
        (
            *kind,
            Some(subject),
            json!({"message": HOSTILE, "reason": HOSTILE, "files": [
        {"file": HOSTILE, "new": HOSTILE}]}),
        )
    }));
    let count = reported.len();
    scene.remember_raw(&reported);
    for what in [FIRST, SECOND, "latest", HOSTILE] {
        let printed = scene.run(&["why", what]);
        printed.tame();
        assert!(what == HOSTILE || printed.out.contains(r"\u{1b}[2J"), "{printed:?}");
    }
    scene.run(&["report"]).tame();
    let page = scene.run(&["-o", "html", "report"]);
    assert_harmless(&page.out);
    let printed = scene.run(&["events"]);
    assert_harmless(&printed.out);
    assert_eq!(printed.out.lines().count(), count, "a line each");
    // A document too, where it goes to a terminal.
    for arguments in ["-o json why", "-o yaml why", "-o jsonl events"] {
        let shown = on_a_terminal(&scene, arguments, "1").replace("\r\n", "\n");
        assert_harmless(&shown);
        assert!(shown.contains("202e") && !shown.contains('\u{200b}'), "{arguments}: {shown:?}");
    }
}

/// All that the daemon can be asked for.
fn all_hostile() -> Answers {
    let order = json!({"order": "protect", "namespace": "n", "name": "p", "reason": "r", "uid": 0, "given": "g",
        "until": "u", "leftMs": 1_000});
    let mut answers =
        answers(&hostile(ranking()), &hostile(headroom()), HOSTILE, &hostile(json!([order.clone()])));
    let facility = json!({"name": "n", "found": "f", "uses": "u", "lost": "l", "remedy": "r",
        "rungs": [{"uses": "u", "loses": "l"}]});
    let mut facility = hostile(facility);
    facility["state"] = json!("lesser");
    let refused = json!({"program": "p", "hook": "h", "error": "e", "verifierTail": "v", "lost": "l"});
    let programs = hostile(json!({"error": null, "attached": ["a"], "failed": [refused]}));
    let doctor = json!({"facilities": [facility], "programs": programs});
    let done = json!({"message": "m", "order": order, "durable": false, "evictionId": null, "dryRun": true});
    let mut done = hostile(done);
    done["evictionId"] = json!(HOSTILE);
    for (path, body) in [("/v1/doctor", doctor), ("/v1/orders", hostile(json!([order])))] {
        answers.insert(path, body.to_string().into_bytes());
    }
    answers.insert("/v1/recording", recording());
    answers.insert("/v1/usages", usages().to_string().into_bytes());
    answers.insert("/v1/events", b"\xff\x1b[2J\xc2\x9b\n{\"type\":\"\\u001b[2J\\u0085\"}\n".to_vec());
    answers.insert("done", done.to_string().into_bytes());
    answers
}

fn usages() -> Value {
    json!([{"cgroupId": 7, "statsMissing": false, "currentBytes": 1 << 30, "workingSetBytes": 1 << 30,
        "anonBytes": 1 << 30, "fileBytes": 0, "shmemBytes": 0, "processCount": 1}])
}

/// One candidate, whose name is hostile.
fn recording() -> Vec<u8> {
    let text = || String::from(HOSTILE);
    let origin = Origin { node: text(), boot_id: text(), config_hash: text(), ..Origin::default() };
    let mut writer = Writer::new(HOSTILE, &origin);
    let cgroup = CgroupId(7);
    writer.names(&[Member { cgroup, namespace: text(), name: text(), uid: text(), qos_class: text() }]);
    let mut engine = Engine::new(&EngineSettings::default());
    let mut put = |record: RecordRef<'_>| {
        let mut bytes = Vec::new();
        encode(&record, &mut bytes);
        writer.record(&bytes);
    };
    put(RecordRef::Key(&engine));
    let candidates = Candidates::new(&[CandidateFacts {
        cgroup,
        pod: PodKey { hash: 7 },
        priority: 0,
        request_bytes: 0,
        critical: false,
        protected: false,
        grace_period_ns: 0,
        terminating: false,
        torn_down: false,
        in_kubepods: true,
    }]);
    put(RecordRef::Candidates(&candidates));
    drop(engine.replace(candidates));
    let input = Input::Node(NodeSample::memory(1, 1 << 30, 1 << 33));
    let actions = engine.step(input);
    put(RecordRef::Step(StepRef::new(&input, &actions, engine.decision())));
    writer.finish()
}

#[test]
fn in_whatever_the_daemon_answers() {
    let scene = Scene::new();
    scene.answer(all_hostile());
    for arguments in [
        &["next"][..],
        &["headroom"],
        &["doctor"],
        &["doctor", "-v"],
        &["protect", "--list"],
        &["what-if", "--threshold", "2Gi"],
        &["what-if", "--add", "1Gi", "--pod", HOSTILE],
        &["replay", "now"],
        &["why"],
    ] {
        let printed = scene.run(arguments);
        printed.tame();
        let shown = format!("{}{}", printed.out, printed.err);
        assert!(shown.contains(r"\u{1b}[2J") || arguments == ["why"], "{arguments:?}: {printed:?}");
    }
    let printed = scene.run(&["events"]);
    assert_harmless(&printed.out);
    assert_eq!(printed.out.lines().count(), 2, "{printed:?}");
}

#[test]
fn in_what_came_of_an_order() {
    let mut reported = all_hostile();
    let done = reported.remove("done").unwrap();
    reported.insert("/v1/orders", done);
    let scene = Scene::new();
    scene.answer(reported);
    for arguments in [
        &["protect", "default/web", "--for", "1h", "--reason", "r"][..],
        &["pause", "--for", "1h", "--reason", "r"],
        &["evict", "default/web", "--reason", "r"],
    ] {
        let printed = scene.run(arguments);
        printed.tame();
        assert!(printed.out.contains(r"\u{1b}[2J"), "{printed:?}");
    }
}

#[test]
fn in_files_and_their_names() {
    let scene = Scene::new();
    let folder = scene.path(&format!("pods/{}", HOSTILE.replace('\n', "")));
    fs::create_dir(&folder).unwrap();
    let pod = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "app"}]}})
    };
    let hostile_pod = folder.join("hostile.yaml");
    fs::write(&hostile_pod, pod(HOSTILE).to_string()).unwrap();
    fs::write(folder.join("good.yaml"), pod("web").to_string()).unwrap();
    let stats = folder.join("stats.json");
    fs::write(&stats, json!({"pods": {HOSTILE: {"workingSetBytes": 1, (HOSTILE): 3}}}).to_string()).unwrap();
    let (folder, stats) = (folder.display().to_string(), stats.display().to_string());
    for arguments in [
        &["plan", "-f", &folder][..],
        &["-v", "plan", "-f", &folder],
        &["rank", "-f", &folder, "--stats", &stats],
        &["replay", &stats],
        &["--kubelet-config", &stats, "config", "check"],
        &["events", "--type", HOSTILE],
        &["why", HOSTILE],
    ] {
        let printed = scene.run(arguments);
        assert_harmless(&printed.out);
        assert_harmless(&printed.err);
    }
}
