//! What the other verbs print: the events, an order, a configuration, a recording, and what this host offers.
use std::fs;

use enforcer::{
    model::CgroupId,
    policy::{
        engine::{
            Action, CandidateFacts, Candidates, Engine, EngineSettings, Input, Mode, NodeSample, PodKey,
            Reading, Usage, followed,
        },
        flight::{Member, Origin, RecordRef, StepRef, Writer, encode},
        threshold::{Signal, Threshold, ThresholdValue},
    },
};
use serde_json::{Value, json};
use ulid::Ulid;

use crate::{
    Printed, Scene,
    daemon::Answers,
    foreseen::{answers, headroom, ranking},
    journal::{eviction, oom},
};

const MIB: u64 = 1 << 20;

/// Lines of events, which are as long as they are, with the age that they begin with as it is always.
fn lines(scene: &Scene, arguments: &[&str]) -> String {
    let printed = scene.run(arguments);
    crate::assert_harmless(&printed.out);
    let out: String = printed.out.lines().flat_map(|line| ["   0s ago", &line[9..], "\n"]).collect();
    Printed { out: String::new(), ..printed }.whole().replacen("", &out, 1)
}

#[test]
fn the_schema_of_events_is_printed_without_a_daemon() {
    let scene = Scene::new();
    let printed = scene.raw(&["events", "--schema"]);
    let schema: Value = serde_json::from_str(&printed.out).unwrap();
    assert_eq!(schema, serde_json::from_str::<Value>(enforcer_events::SCHEMA).unwrap());
    assert!(schema["$id"].is_string() && schema["$defs"]["Decision"].is_object());
    let answers = scene.raw(&["events", "--schema", "-f"]);
    assert!(answers.err.contains("cannot be used with"), "{}", answers.err);
}

#[test]
fn each_event_is_a_line() {
    let scene = Scene::new();
    scene.remember(&eviction());
    scene.remember(&oom());
    let mut reported = lines(&scene, &["events"]);
    for arguments in [
        &["events", "--type", "eviction.signalled"][..],
        &["events", "--pod", "default/hog", "--type", "pressure.crossed"],
        &["events", "--type", "eviction.signaled"],
    ] {
        reported.push_str(&format!("$ {}\n{}", arguments.join(" "), lines(&scene, arguments)));
    }
    insta::assert_snapshot!(reported);
    let lines = scene.raw(&["-o", "jsonl", "events"]).out;
    let sequences: Vec<u64> = lines
        .lines()
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["sequence"].as_str().unwrap().parse().unwrap()
        })
        .collect();
    let count = u64::try_from(eviction().len() + oom().len()).unwrap();
    assert_eq!(sequences, (1..=count).collect::<Vec<_>>());
}

#[test]
fn a_range_a_tail_and_a_reason_leave_out_the_rest() {
    let scene = Scene::new();
    scene.remember(&eviction());
    let suppressed = json!({"signal": "memory.available", "reason": "noCandidate", "message": "m"});
    scene.remember(&[(enforcer::journal::EventType::EvictionSuppressed, None, suppressed)]);
    let lines = |arguments: &[&str]| scene.raw(&[&["-o", "jsonl", "events"], arguments].concat()).out;
    let all = lines(&[]);
    let all: Vec<_> = all.lines().collect();
    assert_eq!(lines(&["--since", "1h"]).lines().collect::<Vec<_>>(), all);
    assert_eq!(lines(&["--until", "1h"]), "");
    assert_eq!(lines(&["--since", "7d", "--until", "2100-01-01T00:00:00Z"]).lines().collect::<Vec<_>>(), all);
    assert_eq!(lines(&["--tail", "2"]).lines().collect::<Vec<_>>(), all[all.len() - 2..]);
    assert_eq!(lines(&["--reason", "noCandidate"]).lines().collect::<Vec<_>>(), all[all.len() - 1..]);
    assert_eq!(lines(&["-n", "default"]).lines().count(), lines(&["--namespace", "default"]).lines().count());
    assert_eq!(lines(&["-A"]).lines().collect::<Vec<_>>(), all);
    let wrong = scene.raw(&["events", "--reason", "noCandidat"]);
    assert_eq!((wrong.out.as_str(), wrong.status), ("", 0));
    assert!(
        wrong.err.ends_with("no event has the reason noCandidat; there are these reasons: noCandidate\n"),
        "{wrong:?}"
    );
    for (arguments, reported) in [
        (
            &["events", "--since", "2w"][..],
            "--since: \"2w\" is not a time: write an age such as 5m, 2h or 7d",
        ),
        (&["events", "--until", "5m", "-f"], "cannot be used with"),
        (&["events", "-A", "-n", "default"], "cannot be used with"),
    ] {
        let refused = scene.raw(arguments);
        assert!(refused.status == 64 && refused.err.contains(reported), "{refused:?}");
    }
    // How long ago, and the whole time on request.
    assert!(scene.raw(&["events"]).out.lines().all(|line| line[..9].ends_with("s ago")));
    for option in ["--timestamps", "--utc"] {
        let out = scene.raw(&["events", option]).out;
        let time = out.split(' ').next().unwrap();
        assert!(time.len() == 27 && time.ends_with('Z') && time.as_bytes()[10] == b'T', "{out}");
    }
}

#[test]
fn orders_and_what_came_of_them() {
    let protect = json!({"order": "protect", "namespace": "default", "name": "billing", "uid": 1_000,
        "reason": "month's end", "given": "2026-01-31T12:00:00Z", "until": "2026-01-31T13:00:00Z", "leftMs": 1_800_000});
    let pause = json!({"order": "pause", "uid": 0, "reason": "a disk is replaced", "given": "2026-01-31T12:00:00Z",
        "until": "2026-01-31T12:10:00Z", "leftMs": 59_000});
    let scene = Scene::new();
    scene.answer(answers(&ranking(), &headroom(), "enforce", &json!([protect, pause])));
    let mut reported = String::new();
    for arguments in
        [&["protect", "--list"][..], &["pause", "--list"], &["evict", "default/web"], &["protect"]]
    {
        reported.push_str(&format!("$ {}\n{}", arguments.join(" "), scene.run(arguments).whole()));
    }
    let done = json!({"message": "default/billing is not evicted until 2026-01-31T13:00:00Z", "order": protect,
        "durable": true, "evictionId": null, "dryRun": false});
    let asked = Scene::new();
    asked.answer(Answers::from([("/v1/orders", done.to_string().into_bytes())]));
    let arguments = ["protect", "default/billing", "--for", "1h", "--reason", "month's end"];
    reported.push_str(&format!("$ {}\n{}", arguments.join(" "), asked.run(&arguments).whole()));
    insta::assert_snapshot!(reported);
}

#[test]
fn a_configuration_is_judged_as_a_whole() {
    let scene = Scene::new();
    let mut reported = scene.run(&["config", "check"]).whole();
    let wrong = "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\nmode: enforced\n\
                 evictionHard: {memory.availabel: 100Mi, memory.available: 120%}\nevictionSoft: {memory.available: 1Gi}\n\
                 breaker: {maxKills: -1}\nstaticPodpath: /pods\n";
    fs::write(scene.path("config.yaml"), wrong).unwrap();
    reported.push_str(&scene.run(&["config", "check"]).whole());
    fs::write(scene.path("config.yaml"), "mode: [\n").unwrap();
    reported.push_str(&scene.run(&["config", "check"]).whole());
    fs::remove_file(scene.path("config.yaml")).unwrap();
    reported.push_str(&scene.run(&["config", "check"]).whole());
    insta::assert_snapshot!(reported);
}

#[test]
fn pods_in_files_are_ranked() {
    let scene = Scene::new();
    let pod = |name: &str, priority: i64, request: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"priority": priority, "containers": [{"name": "app", "resources": {"requests": {"memory": request}}}]}})
    };
    for (name, priority, request) in
        [("hog", 0, "0"), ("web", 2_000, "400Mi"), ("db", 0, "1000Mi"), ("new", 0, "1Mi")]
    {
        fs::write(scene.path(&format!("pods/{name}.yaml")), pod(name, priority, request).to_string())
            .unwrap();
    }
    let used = |mib: u64| json!({"workingSetBytes": mib * MIB, "processCount": mib});
    let stats =
        json!({"pods": {"default/hog": used(1_250), "default/web": used(500), "default/db": used(900)}});
    fs::write(scene.path("stats.json"), stats.to_string()).unwrap();
    let (pods, stats) = (scene.path("pods"), scene.path("stats.json"));
    let (pods, stats) = (pods.to_str().unwrap(), stats.to_str().unwrap());
    let mut reported = scene.run(&["rank", "-f", pods, "--stats", stats]).whole();
    reported
        .push_str(&scene.run(&["rank", "-f", pods, "--stats", stats, "--signal", "pid.available"]).whole());
    reported.push_str(&scene.run(&["rank", "-f", pods]).whole());
    insta::assert_snapshot!(reported);
}

#[test]
fn what_this_host_offers_and_what_is_lost_is_reported() {
    let facility = |name: &str, state: &str| {
        json!({"name": name, "state": state, "found": "as it is found", "uses": "what is made of it",
            "lost": if state == "full" { Value::Null } else { json!("what is lost by that") },
            "remedy": if state == "full" { Value::Null } else { json!("what brings it back") },
            "rungs": [{"uses": "the best", "loses": Value::Null}, {"uses": "what is made of it", "loses": "a little"}]})
    };
    let facilities =
        json!([facility("kernel", "full"), facility("btf", "lesser"), facility("psi", "missing")]);
    let programs = json!({"error": null, "attached": ["oom_mark_victim"], "failed": [
        {"program": "memcg_oom", "hook": "fentry/x", "error": "Permission denied (os error 13)",
         "verifierTail": "0: (b7) r0 = 0\nR1 invalid mem access", "lost": "the limit that was hit"}]});
    let doctor = json!({"facilities": facilities, "programs": programs});
    let scene = Scene::new();
    let mut reported = answers(&ranking(), &headroom(), "enforce", &json!([]));
    reported.insert("/v1/doctor", doctor.to_string().into_bytes());
    scene.answer(reported);
    let mut reported = scene.run(&["doctor"]).whole();
    reported.push_str(&scene.run(&["doctor", "-v"]).whole());
    insta::assert_snapshot!(reported);
}

/// One decision, between two candidates.
fn recording() -> Vec<u8> {
    let origin = Origin {
        node: "node-1".into(),
        boot_id: "b".into(),
        config_hash: "sha256:0123".into(),
        ..Origin::default()
    };
    let mut writer = Writer::new("0.1.0", &origin);
    let pods = [("hog", 7, 1_250, 0), ("web", 8, 500, 400)];
    let members = pods.map(|(name, id, ..)| Member {
        cgroup: CgroupId(id),
        namespace: "default".into(),
        name: name.into(),
        uid: name.into(),
        qos_class: "Burstable".into(),
    });
    writer.names(&members);
    let hard = Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(200 * MIB));
    let settings =
        EngineSettings { mode: Mode::Enforce, thresholds: followed(&[hard]), ..EngineSettings::default() };
    let mut engine = Engine::new(&settings);
    engine.remember_armed(|_| true);
    let mut bytes = Vec::new();
    let mut record = |bytes: &mut Vec<u8>| {
        writer.record(bytes);
        bytes.clear();
    };
    encode(&RecordRef::Key(&engine), &mut bytes);
    record(&mut bytes);
    let candidates = pods.map(|(_, id, _, request_mib)| CandidateFacts {
        cgroup: CgroupId(id),
        pod: PodKey { hash: id },
        priority: 0,
        request_bytes: request_mib * MIB,
        critical: false,
        protected: false,
        grace_period_ns: 0,
        terminating: false,
        torn_down: false,
        in_kubepods: true,
    });
    let candidates = Candidates::new(&candidates);
    encode(&RecordRef::Candidates(&candidates), &mut bytes);
    record(&mut bytes);
    drop(engine.replace(candidates));
    let node = NodeSample::memory(1_000_000, 199 * MIB, 8 << 30);
    let readings = pods.map(|(_, _, mib, _)| {
        Reading::Usage(Usage {
            working_set_bytes: mib * MIB,
            current_bytes: mib * MIB,
            anon_bytes: mib * MIB,
            ..Usage::default()
        })
    });
    let mut evicts = false;
    for input in [Input::Node(node), Input::Usages { node, readings: &readings }] {
        let actions = engine.step(input);
        encode(&RecordRef::Step(StepRef::new(&input, &actions, engine.decision())), &mut bytes);
        record(&mut bytes);
        evicts |= actions.iter().any(|action| *action == Action::Evict);
    }
    assert!(evicts, "no pod is evicted");
    writer.finish()
}

#[test]
fn a_decision_is_run_again_as_it_was_and_otherwise() {
    let scene = Scene::new();
    let file = scene.path("decision.rec");
    fs::write(&file, recording()).unwrap();
    let file = file.to_str().unwrap();
    let otherwise = scene.path("otherwise.yaml");
    let text = fs::read_to_string(scene.path("config.yaml")).unwrap().replace("observe", "enforce");
    fs::write(&otherwise, format!("{text}evictionHard: {{memory.available: 198Mi}}\n")).unwrap();
    let unknown = Ulid::from_parts(1_700_000_000_000, 7).to_string();
    let mut reported = String::new();
    for arguments in [
        &["replay", file][..],
        &["replay", file, "--config", otherwise.to_str().unwrap()],
        &["replay", &unknown],
        &["replay", "latest"],
    ] {
        reported.push_str(&scene.run(arguments).whole());
    }
    insta::assert_snapshot!(reported);
}

#[test]
fn what_would_be_if_is_reported_of_the_daemon_that_runs() {
    let scene = Scene::new();
    let usage = |id: u64, mib: u64| {
        json!({"cgroupId": id, "statsMissing": false, "currentBytes": mib * MIB, "workingSetBytes": mib * MIB,
            "anonBytes": mib * MIB, "fileBytes": 0, "shmemBytes": 0, "processCount": 1})
    };
    scene.answer(Answers::from([
        ("/v1/recording", recording()),
        ("/v1/usages", json!([usage(7, 1_250), usage(8, 500)]).to_string().into_bytes()),
    ]));
    let mut reported = String::new();
    for arguments in [
        &["what-if", "--threshold", "1900Mi"][..],
        &["what-if", "--threshold", "7Gi"],
        &["what-if", "--threshold", "1Mi"],
        &["what-if", "--add", "2Gi", "--pod", "web"],
        &["what-if", "--add", "2Gi", "--pod", "wbe"],
        &["what-if"],
    ] {
        reported.push_str(&format!("$ {}\n{}", arguments.join(" "), scene.run(arguments).whole()));
    }
    insta::assert_snapshot!(reported);
}
