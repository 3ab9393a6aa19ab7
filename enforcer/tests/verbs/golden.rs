//! A state directory that a daemon of version 0.2 left, of a node with an eviction, an OOM kill and an order: what the
//! verbs say of it stays the same, as documents. `golden/CONTRACTS.md` lists what was changed on purpose.

use std::{collections::BTreeMap, fs, path::Path};

use enforcer::{
    journal::Observer as _,
    metrics::{Counts, Format, Gauges, expose},
};
use enforcer_events::Event;
use serde_json::Value;

use crate::Scene;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");

/// Set, the files are written instead of compared.
const WRITE: &str = "ENFORCER_WRITE_GOLDEN";

/// A scene with a copy of the recorded state directory: reading it may repair it.
fn recorded() -> Scene {
    let scene = Scene::new();
    copy(&Path::new(GOLDEN).join("state"), &scene.path("state"));
    scene
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// What a verb prints as JSON.
fn document(scene: &Scene, arguments: &[&str]) -> Value {
    let printed = scene.raw(&[&["-o", "json"], arguments].concat());
    assert_eq!(printed.status, 0, "{arguments:?}: {printed:?}");
    serde_json::from_str(&printed.out).unwrap()
}

fn compare(name: &str, document: &Value) {
    let path = Path::new(GOLDEN).join(name);
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, serde_json::to_string_pretty(document).unwrap() + "\n").unwrap();
    }
    let expected: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert!(*document == expected, "{name} differs from {}:\n{document:#}", path.display());
}

#[test]
fn events_are_read_as_they_were_written() {
    compare("events.json", &document(&recorded(), &["events"]));
}

/// Each event is of its type, and printing that type gives what was read.
#[test]
fn every_event_has_its_type_and_loses_nothing() {
    let scene = recorded();
    let lines = scene.raw(&["-o", "jsonl", "events"]).out;
    assert!(lines.lines().count() > 20, "{lines}");
    for line in lines.lines() {
        let event = Event::parse(line.as_bytes()).unwrap_or_else(|error| panic!("{error}: {line}"));
        let read: Value = serde_json::from_str(line).unwrap();
        assert_eq!(event.payload.to_value().unwrap(), read["data"], "{line}");
    }
}

#[test]
fn an_eviction_and_a_kill_are_explained_as_before() {
    let scene = recorded();
    for (pod, name) in [("default/hog", "why-eviction.json"), ("default/web", "why-oom.json")] {
        compare(name, &document(&scene, &["why", pod]));
    }
}

#[test]
fn pods_are_planned_as_before() {
    let pods = Path::new(GOLDEN).join("pods").display().to_string();
    let capacity = "cpu=2,memory=2Gi,swap=0,pods=110";
    compare("plan.json", &document(&Scene::new(), &["plan", "-f", &pods, "--capacity", capacity]));
}

#[test]
fn pods_are_ranked_as_before() {
    let golden = Path::new(GOLDEN);
    let (pods, stats) =
        (golden.join("pods").display().to_string(), golden.join("stats.json").display().to_string());
    compare("rank.json", &document(&Scene::new(), &["rank", "-f", &pods, "--stats", &stats]));
}

/// The rows are a set: their names, labels and values.
#[test]
fn metrics_of_these_events_are_counted_as_before() {
    let counts = Counts::default();
    for line in recorded().raw(&["-o", "jsonl", "events"]).out.lines() {
        let event = Event::parse(line.as_bytes()).unwrap();
        let namespace = event.subject.split_once('/').map(|(namespace, _)| namespace.to_owned());
        counts.on_event(namespace.as_deref(), &event.payload);
    }
    let page = expose(&counts, Gauges::default(), Format::OpenMetrics).unwrap();
    let rows: BTreeMap<&str, &str> = page
        .lines()
        .filter(|line| line.starts_with("enforcer_") && !line.starts_with("enforcer_build_info"))
        .filter_map(|row| row.rsplit_once(' '))
        .filter(|(_, value)| *value != "0")
        .collect();
    compare("metrics.json", &serde_json::to_value(rows).unwrap());
}
