//! `report`, over recorded journals.
use enforcer::journal::EventType;
use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr as _;

use crate::{
    Scene, assert_harmless,
    daemon::Answers,
    journal::{FIRST, Recorded, crossed, decided, eviction, oom, with},
    shells::on_columns,
};

fn document(scene: &Scene, arguments: &[&str]) -> Value {
    let printed = scene.raw(&[&["-o", "json", "report"], arguments].concat());
    assert_eq!(printed.status, 0, "{printed:?}");
    serde_json::from_str(&printed.out).unwrap()
}

#[test]
fn a_report_of_the_state_directory_has_evictions_kills_pressure_and_warnings() {
    let scene = Scene::new();
    scene.remember(&[eviction(), oom()].concat());
    let report = document(&scene, &[]);
    assert_eq!(report["node"], "n1");
    assert_eq!(report["evictions"]["outcomes"], json!({"completed": 1}));
    assert_eq!(report["evictions"]["items"][0]["evictionId"], FIRST);
    assert_eq!(report["evictions"]["items"][0]["crossedToDeadMs"], 34.5);
    assert_eq!(report["oom"]["scopes"]["pod"], json!({"incidents": 1, "kills": 2}));
    assert_eq!(report["exceeded"]["triggers"]["items"][0]["victim"], "default/p/c1");
    assert_eq!(report["pressure"]["thresholds"][0]["shortages"], 1);
    assert_eq!(report["pressure"]["thresholds"][0]["open"], false);
    assert_eq!(
        (&report["forecasts"]["cameTrue"], &report["forecasts"]["unforeseen"]),
        (&json!(1), &json!(0))
    );
    assert_eq!(report["losses"][0]["what"], "begins");
    let printed = scene.run(&["report"]);
    assert!(printed.err.contains("the daemon is down: this is what FOLDER/state holds"), "{printed:?}");
    let words = printed.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("of pods 1 evicted; 2 processes killed"), "{printed:?}");
    assert!(words.contains("both unknown: no recording of it is kept"), "{printed:?}");
    printed.tame();
    assert_eq!(scene.run(&["-o", "text", "report"]).out.lines().count(), printed.out.lines().count());
}

#[test]
fn what_is_outside_of_the_range_is_left_out() {
    let scene = Scene::new();
    scene.remember(&eviction());
    let report = document(&scene, &["--since", "2h", "--until", "1h"]);
    assert_eq!(report["evictions"]["items"], json!([]));
    assert_eq!(report["losses"][0]["what"], "empty");
    let wrong = scene.run(&["report", "--since", "1h", "--until", "2h"]);
    assert!(wrong.status == 64 && wrong.err.contains("--since is not before --until"), "{wrong:?}");
}

#[test]
fn without_a_daemon_and_a_journal_there_is_no_report() {
    let printed = Scene::new().run(&["report"]);
    assert_eq!(printed.status, 69, "{printed:?}");
    let scene = Scene::new();
    scene.remember(&eviction());
    assert_eq!(scene.run(&["--live", "report"]).status, 69);
}

/// The daemon's answer is the same stream of lines.
#[test]
fn a_report_is_asked_of_the_daemon_where_it_answers() {
    let recorded = Scene::new();
    recorded.remember(&[eviction(), oom()].concat());
    let lines = recorded.raw(&["-o", "jsonl", "events"]).out;
    let scene = Scene::new();
    scene.answer(Answers::from([("/v1/events", lines.into_bytes())]));
    let printed = scene.raw(&["-o", "json", "--live", "report"]);
    assert_eq!((printed.status, printed.err.as_str()), (0, ""));
    let asked: Value = serde_json::from_str(&printed.out).unwrap();
    let read = document(&recorded, &[]);
    for part in ["evictions", "oom", "exceeded", "suppressed", "stalls"] {
        assert_eq!(asked[part], read[part], "{part}");
    }
}

#[test]
fn names_in_a_report_are_cut_only_where_a_terminal_ends() {
    const LONG: &str = "default/queue-with-a-rather-long-name-7d9f8c6b5-x2x4z";
    let victim =
        with(decided()["victim"].clone(), &json!({"name": "queue-with-a-rather-long-name-7d9f8c6b5-x2x4z"}));
    let decision: Recorded =
        (EventType::EvictionDecided, Some(LONG), with(decided(), &json!({"dryRun": true, "victim": victim})));
    let scene = Scene::new();
    scene.remember(&[crossed(), decision]);
    let narrow = on_columns(&scene, 80, "report");
    assert_harmless(&narrow);
    let mut printed = narrow.lines().filter(|line| !line.contains("this is what"));
    assert!(printed.all(|line| line.width() <= 80), "{narrow}");
    // In tables; sentences have whole names.
    assert!(narrow.lines().any(|line| line.contains('…') && line.contains("x2x4z")), "{narrow}");
    assert!(on_columns(&scene, 200, "report").contains(LONG));
    assert!(scene.run(&["report"]).out.contains(LONG));
}

#[test]
fn what_others_would_have_done_is_unknown_without_a_recording_and_says_why() {
    let scene = Scene::new();
    scene.remember(&eviction());
    let alternatives = document(&scene, &[])["evictions"]["items"][0]["alternatives"].clone();
    for who in ["kubelet", "kernel"] {
        assert_eq!(alternatives[who]["outcome"], "unknown", "{alternatives}");
        assert_eq!(alternatives[who]["reason"], "no recording of it is kept", "{alternatives}");
        assert_eq!(alternatives[who]["steps"], json!([]), "{alternatives}");
    }
}

#[test]
fn a_page_stands_alone_and_has_the_same_evictions() {
    let scene = Scene::new();
    scene.remember(&[eviction(), oom()].concat());
    let printed = scene.raw(&["-o", "html", "report"]);
    assert_eq!(printed.status, 0, "{printed:?}");
    let page = printed.out;
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"), "{page}");
    assert!(page.contains("default-src 'none'") && !page.contains("<script"), "{page}");
    assert!(page.contains("default/hog: evicted (memory)") && page.contains("default/p/c1"), "{page}");
    assert!(page.contains("The kubelet instead: unknown: no recording of it is kept."), "{page}");
}

#[test]
fn html_is_of_the_report_alone() {
    let scene = Scene::new();
    scene.remember(&eviction());
    for arguments in [
        &["-o", "html", "why"][..],
        &["-o", "html", "events"],
        &["-o", "html", "evict", "a/b", "--reason", "r"],
    ] {
        let refused = scene.run(arguments);
        assert!(refused.status == 64 && refused.err.contains("enforcer report"), "{refused:?}");
        assert_eq!(refused.out, "");
    }
}
