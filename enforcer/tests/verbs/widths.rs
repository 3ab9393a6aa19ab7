//! How wide tables are: names are whole where nothing cuts them, and on a terminal cut only as far as needed.
use serde_json::json;
use unicode_width::UnicodeWidthStr;

use crate::{
    Scene, assert_harmless,
    foreseen::{answers, headroom, ranking},
    journal::eviction,
    shells::on_columns,
};

const LONG: &str = "default/queue-with-a-rather-long-name-7d9f8c6b5-x2x4z";

fn answered() -> Scene {
    let scene = Scene::new();
    scene.answer(answers(&ranking(), &headroom(), "enforce", &json!([])));
    scene
}

#[test]
fn a_terminal_of_80_columns_gets_names_that_are_cut() {
    let shown = on_columns(&answered(), 80, "next");
    assert_harmless(&shown);
    insta::assert_snapshot!(shown);
}

#[test]
fn a_terminal_of_200_columns_gets_whole_names() {
    let shown = on_columns(&answered(), 200, "next");
    assert_harmless(&shown);
    insta::assert_snapshot!(shown);
}

#[test]
fn a_name_is_cut_where_a_terminal_ends_and_nowhere_else() {
    let scene = answered();
    let remembered = Scene::new();
    remembered.remember(&eviction());
    for (scene, verb) in [(&scene, "next"), (&remembered, "why")] {
        for columns in [70, 80, 100] {
            let shown = on_columns(scene, columns, verb);
            assert!(shown.contains('…') && !shown.contains(LONG), "{verb}: {shown}");
            let rows = shown.lines().filter(|line| line.contains('…') && line.contains("x2x4z"));
            // With the word that is missing in the last row, a line takes all there is.
            let widest = rows.map(UnicodeWidthStr::width).max().unwrap();
            assert!(widest <= usize::from(columns) && widest + 9 >= usize::from(columns), "{verb}: {shown}");
        }
        assert!(on_columns(scene, 200, verb).contains(LONG), "{verb}");
        assert!(on_columns(scene, 80, &format!("-o wide {verb}")).contains(LONG), "{verb}");
        let piped = scene.run(&[verb]).out;
        assert!(piped.contains(LONG) && !piped.contains('…'), "{verb}: {piped}");
    }
}

#[test]
fn manifests_with_long_names_are_planned_and_ranked_with_whole_names_in_a_pipe() {
    let scene = Scene::new();
    let name = "queue-with-a-rather-long-name-7d9f8c6b5-x2x4z";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "app"}, {"name": "a-sidecar-that-has-a-name-as-long-as-it-may-be-of-63-characters"}]}});
    std::fs::write(scene.path("pods/long.yaml"), pod.to_string()).unwrap();
    let known = json!({"pods": {format!("default/{name}"): {"workingSetBytes": 1}}});
    std::fs::write(scene.path("stats.json"), known.to_string()).unwrap();
    let (pods, stats) =
        (scene.path("pods").display().to_string(), scene.path("stats.json").display().to_string());
    let planned = scene.run(&["plan", "-f", &pods, "--capacity", "cpu=4,memory=8Gi"]);
    assert!(planned.out.contains(LONG) && planned.out.contains("of-63-characters "), "{planned:?}");
    let ranked = scene.run(&["rank", "-f", &pods, "--stats", &stats]);
    assert!(ranked.out.contains(LONG), "{ranked:?}");
    for verb in
        [format!("plan -f {pods} --capacity cpu=4,memory=8Gi"), format!("rank -f {pods} --stats {stats}")]
    {
        let shown = on_columns(&scene, 80, &verb);
        assert!(shown.contains('…') && shown.lines().all(|line| line.width() <= 80), "{shown}");
        assert!(on_columns(&scene, 200, &verb).contains(LONG), "{verb}");
    }
}

#[test]
fn pods_are_chosen_by_namespace_and_label() {
    let mut set = answers(&ranking(), &headroom(), "enforce", &json!([]));
    let pod = |name: &str, app: &str| {
        json!({"namespace": "default", "name": name, "uid": "u", "qosClass": "Burstable", "priority": 0, "state": "active",
            "reason": null, "startsUnderMemoryPressure": true, "cgroup": "/x", "labels": {"app": app}, "containers": []})
    };
    let mut ranked = ranking();
    ranked["order"][1]["uid"] = json!("other");
    let mut cache = pod("cache", "cache");
    cache["uid"] = json!("other");
    let view = json!({"mode": "enforce", "memoryPressure": false, "pods": [pod("hog", "hog"), cache]});
    set.insert("/v1/pods", view.to_string().into_bytes());
    set.insert("/v1/ranking", ranked.to_string().into_bytes());
    let scene = Scene::new();
    scene.answer(set);
    let names = |arguments: &[&str]| {
        let printed = scene.raw(&[&["-o", "json", "next"], arguments].concat());
        let document: serde_json::Value = serde_json::from_str(&printed.out).unwrap();
        let row = |row: &serde_json::Value| format!("{}{}", row["rank"], row["name"].as_str().unwrap());
        document["order"].as_array().unwrap().iter().map(row).collect::<Vec<_>>()
    };
    assert_eq!(names(&["-n", "default"]), names(&["-A"]));
    assert_eq!(names(&["-n", "other"]), Vec::<String>::new());
    // A rank is that on the node.
    assert_eq!(names(&["-l", "app=cache"]), ["2cache"]);
    assert_eq!(names(&["-l", "app notin (hog)", "--number", "1"]), ["2cache"]);
    let none = scene.run(&["next", "-n", "other"]);
    assert!(none.out.starts_with("default/hog would be evicted next"), "{none:?}");
    assert!(none.out.contains("None of the pods that were asked for may be evicted."), "{none:?}");
    let wrong = scene.run(&["next", "-l", "a b"]);
    assert!(wrong.status == 64 && wrong.err.contains("is not a requirement"), "{wrong:?}");
}
