//! What the nodes of a cluster ask of the API server although none evicts, in virtual time.

use enforcer_events::pressure::Shortage;

use super::{
    super::pace::{EVERY, Pace, Warmth},
    outages::until,
    *,
};
use crate::specs::watch_requests;

const NODES: usize = 5_000;
const HOUR: Duration = Duration::from_hours(1);
const HOUR_S: u64 = 3_600;

/// The requests of each second in two hours after all nodes have started together: for their pods, of a server that gives
/// lists in watches or does not, for the node's condition, and of those that evict for the version of evictions.
fn requests(gives_streams: bool, evict: bool) -> BTreeMap<u64, usize> {
    let end = 2 * HOUR;
    let mut requests = watch_requests(NODES, gives_streams, end);
    let mut note = |at: Duration| *requests.entry(at.as_secs()).or_default() += 1;
    for _ in 0..NODES {
        let mut disk = Pace::new(EVERY);
        let mut at = disk.first();
        while at < end {
            note(at);
            at += disk.answered();
        }
        // Nothing follows if it is answered, and no request keeps the connection open.
        assert_eq!(Warmth::default().due(), None);
        if evict {
            note(Pace::new(EVERY).first());
        }
    }
    requests
}

#[test]
fn a_node_at_rest_makes_20_requests_an_hour() {
    for (gives_streams, evict) in [(true, false), (true, true), (false, false), (false, true)] {
        let requests = requests(gives_streams, evict);
        let tenths = |from: u64| {
            let hour = requests.range(from..from + HOUR_S).map(|(_, requests)| *requests);
            hour.sum::<usize>() * 10 / NODES
        };
        let (first, second) = (tenths(0), tenths(HOUR_S));
        println!(
            "lists in watches: {gives_streams}, evicts: {evict}; tenths of requests in the first hour: {first}, in the second: \
             {second}"
        );
        // A watch of 5 to 10 minutes, and the node each 5.
        assert!((195..=205).contains(&second), "{second}");
        assert!((195..=245).contains(&first), "{first}");
    }
}

#[test]
fn thousands_of_nodes_that_start_together_do_not_ask_in_step_later() {
    for (gives_streams, bound) in [(true, 1_600), (false, 3_700)] {
        let requests = requests(gives_streams, true);
        let most = |from: u64| requests.range(from..).map(|(_, requests)| *requests).max().unwrap();
        let (first, later) = (most(0), most(60));
        println!(
            "{NODES} starts at once, lists in watches: {gives_streams}; at most {first} requests a second, after a minute at most \
             {later}"
        );
        // With its first requests within 30 s, the condition of all nodes would come back as 167 a second.
        assert!(later < 130, "{later}");
        assert!(first < bound, "{first}");
    }
}

#[test]
fn a_connection_is_kept_open_only_while_an_eviction_may_follow() {
    let start = Instant::now();
    let mut open = Warmth::default();
    open.used(start);
    assert_eq!(open.due(), None);
    assert!(open.warn(start + Duration::from_secs(1)));
    assert!(open.due() > Some(start + Duration::from_secs(40)), "nothing is asked over it");
    assert!(!open.warn(start + Duration::from_secs(2)), "that is no news");
    let mut warmth = Warmth::default();
    warmth.warn(start);
    assert_eq!(warmth.due(), Some(start), "it is opened at once");
    let (mut now, mut uses) = (start, 0);
    while let Some(due) = warmth.due() {
        assert!(due.duration_since(now) < Duration::from_secs(90), "the API server would have closed it");
        now = due;
        warmth.used(now);
        uses += 1;
        // Another warning while it is open asks for nothing at once.
        if uses == 1 {
            warmth.warn(now);
            assert_ne!(warmth.due(), Some(now));
        }
    }
    assert!((9..=15).contains(&uses), "{uses}");
}

#[test]
fn what_fails_is_asked_again_soon_and_then_every_other_minute() {
    let mut pace = Pace::new(EVERY);
    assert!(pace.failed() <= Duration::from_mins(1));
    let last = (0..10).map(|_| pace.failed()).last().unwrap();
    assert!(last >= EVERY / 5 && last <= EVERY / 5 * 2, "{last:?}");
    let next = pace.answered();
    assert!(next >= EVERY * 4 / 5 && next <= EVERY * 6 / 5, "{next:?}");
    assert!(pace.failed() <= Duration::from_mins(1));
}

#[test]
fn a_threshold_that_is_crossed_has_the_version_asked_for_before_an_eviction() {
    let mut scene = Scene::new(SETTINGS);
    let asked = |scene: &Scene| scene.api.change(|server| server.asked.clone());
    until("the version of evictions", || !asked(&scene).is_empty());
    // Another daemon, whose first question is not due for hours.
    scene.start_paced(SETTINGS, Pace::new(Duration::from_hours(1_000)));
    let before = asked(&scene).len();
    let shortage = Shortage {
        signal: "memory.available".into(),
        hard: true,
        threshold_bytes: Some(2),
        threshold_count: None,
        observed_bytes: Some(1),
        observed_count: None,
    };
    scene.journal.emit(Subject::Node, Payload::ThresholdCrossed(shortage));
    until("the version of evictions", || asked(&scene).len() > before);
    assert_eq!(asked(&scene).last().unwrap(), "GET /api/v1");
}
