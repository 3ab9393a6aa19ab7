//! What comes behind the range, and too much of what is under way.

use serde_json::json;

use super::{
    FIRST, Journal, MINUTE_MS, back, completed, decided, ended, incident, losses, shortage, started, warned,
    with,
};

const HOUR_MS: i64 = 60 * MINUTE_MS;

fn outcomes(journal: Journal) -> Vec<(&'static str, u64)> {
    journal.report().evictions.outcomes.into_iter().collect()
}

#[test]
fn an_eviction_that_ends_behind_the_range_has_its_end() {
    let decided = || Journal::new().add(HOUR_MS - 10, "eviction.decided", &decided(FIRST, "hog"));
    let report = decided().add(HOUR_MS + 30, "eviction.completed", &completed(FIRST)).report();
    assert_eq!(report.evictions.items[0].outcome, "completed");
    assert_eq!((report.journal.events, report.evictions.items.len()), (1, 1));
    let failed = decided().add(HOUR_MS + 30, "eviction.failed", &ended(FIRST, &json!({"message": "m"})));
    assert_eq!(outcomes(failed), [("failed", 1)]);
    assert_eq!(outcomes(decided().add(HOUR_MS + 30, "threshold.crossed", &shortage(true))), [("open", 1)]);
    // The end of another, that was not decided in the range.
    let other = Journal::new().add(HOUR_MS + 30, "eviction.completed", &completed(FIRST));
    assert!(outcomes(other).is_empty());
}

#[test]
fn a_warning_comes_true_behind_the_range_or_does_not() {
    let warned =
        || Journal::new().add(-1, "config.loaded", &started("enforce")).add(1, "pressure.rising", &warned());
    let report = warned().add(HOUR_MS + 1, "threshold.crossed", &shortage(true)).report();
    assert_eq!((report.forecasts.came_true, report.forecasts.unforeseen), (1, 0));
    let report = warned().add(HOUR_MS + 1, "pressure.cleared", &back()).report();
    assert_eq!(report.forecasts.did_not, 1);
    // Another daemon does not know it.
    let restarted = warned().add(HOUR_MS + 1, "config.loaded", &started("enforce"));
    let report = restarted.add(HOUR_MS + 2, "threshold.crossed", &shortage(true)).report();
    assert_eq!((report.forecasts.unknown, report.forecasts.unforeseen), (1, 0));
}

#[test]
fn an_oom_that_is_closed_behind_the_range_is_not_open_and_not_of_it() {
    let closed = incident(&json!({}));
    let id = closed["incidentId"].clone();
    let detected = json!({"incidentId": id, "reconstructed": false});
    let detected = || Journal::new().add(1, "oom.detected", &detected);
    assert_eq!(detected().report().oom.open, 1);
    let report = detected().add(HOUR_MS + 1, "oom.incident", &closed).report();
    assert_eq!((report.oom.open, report.oom.incidents), (0, 0));
}

#[test]
fn a_daemon_that_is_started_right_behind_the_range_leaves_its_end_unknown() {
    let before = || {
        Journal::new().add(-1, "config.loaded", &started("enforce")).add(
            10,
            "threshold.crossed",
            &shortage(true),
        )
    };
    let report = before().add(HOUR_MS + 1, "config.loaded", &started("enforce")).report();
    assert_eq!(losses(&report), [("restart", None)]);
    assert_eq!((report.pressure.items[0].end, report.pressure.items[0].lasted_ms), ("restart", 0));
    // Others behind the range show that the former daemon ran until then.
    let alive = before().add(HOUR_MS + 1, "threshold.crossed", &shortage(false));
    let report = alive.add(HOUR_MS + 2, "config.loaded", &started("enforce")).report();
    assert!(losses(&report).is_empty(), "{:?}", report.losses);
    assert_eq!((report.pressure.items[0].end, report.pressure.items[0].lasted_ms), ("open", 3_599_990));
}

#[test]
fn more_open_evictions_than_are_kept_are_counted_once_at_most() {
    let mut journal = Journal::new().add(-1, "config.loaded", &started("enforce"));
    let id = |number: u64| format!("{number:026}");
    for number in 0..1_030 {
        journal = journal.add(1, "eviction.decided", &decided(&id(number), "hog"));
    }
    for number in 0..1_030 {
        let end = with(completed(FIRST), &json!({"evictionId": id(number)}));
        journal = journal.add(2, "eviction.completed", &end);
    }
    let report = journal.report();
    assert_eq!(losses(&report), [("uncounted", Some(6))]);
    assert_eq!(report.evictions.outcomes.into_iter().collect::<Vec<_>>(), [("completed", 1_030)]);
}

#[test]
fn what_comes_after_the_range_is_left_out() {
    let report = Journal::new().add(60 * MINUTE_MS + 1, "eviction.decided", &decided(FIRST, "hog")).report();
    assert!(report.evictions.items.is_empty(), "{report:?}");
    assert_eq!(report.journal.events, 0);
}

#[test]
fn a_report_of_a_long_journal_has_a_bounded_size() {
    let mut journal = Journal::new();
    for number in 0..2_000 {
        let name = format!("hog-{number}");
        let data = with(decided(FIRST, &name), &json!({"dryRun": true}));
        journal =
            journal.add(number, "eviction.decided", &data).add(number, "threshold.crossed", &shortage(true));
    }
    let report = journal.report();
    assert_eq!((report.evictions.items.len(), report.evictions.more), (100, 1_900));
    assert_eq!(report.evictions.items[0].name.as_deref(), Some("hog-1999"));
    assert_eq!(report.evictions.outcomes["dryRun"], 2_000);
    assert_eq!((report.exceeded.requests.items.len(), report.exceeded.requests.more), (20, 1_981));
    assert_eq!((report.pressure.items.len(), report.pressure.more), (100, 1_900));
}
