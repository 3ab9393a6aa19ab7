use std::time::Duration;

use enforcer_events::{
    Payload,
    eviction::{EvictionRepeated, EvictionSignalled},
};

use super::{
    super::super::{
        message::{FoundPod, Outcome},
        tests::{SETTINGS, signalled_live},
    },
    super::{ApiSettings, EXPIRY, OnPdb},
    *,
};

fn now(ms: u64, start: Instant) -> Now {
    let instant = start + Duration::from_millis(ms);
    Now { instant, time_ms: i64::try_from(ms).unwrap(), boot_ms: ms }
}

/// An outbox with the eviction of a pod of that kind of controller.
fn outbox(settings: ApiSettings, kind: Option<&str>, replayed: u64, start: Instant) -> Outbox {
    let mut outbox = Outbox::new(settings, replayed);
    outbox.discovered(Some(String::from("policy/v1")));
    let live = EvictionSignalled { boot_ms: Some(0), ..signalled_live("e1", "web", "u1", kind) };
    let _payload = outbox.take(7, 0, None, &Payload::EvictionSignalled(live), now(0, start));
    outbox
}

fn removals(outbox: &Outbox, at: Now) -> Vec<Removal> {
    outbox.open(at).into_iter().map(|open| open.removal).collect()
}

/// Gives that answer to what is asked next.
fn answer(outbox: &mut Outbox, answer: Option<Outcome>, at: Now) {
    let (id, _) = outbox.next(at).unwrap();
    let _payload = outbox.answered(&id, answer, at, at);
}

fn found(kind: Option<&str>) -> Outcome {
    let controller = kind.map(str::to_owned);
    Outcome::Found(FoundPod { uid: String::from("u1"), controller, ..FoundPod::default() })
}

#[test]
fn an_eviction_is_open_from_the_signal_until_the_pod_is_gone() {
    let start = Instant::now();
    let mut outbox = outbox(SETTINGS, Some("Job"), 0, start);
    assert_eq!(removals(&outbox, now(0, start)), [Removal::Asked]);
    answer(&mut outbox, None, now(1, start));
    assert_eq!(removals(&outbox, now(1, start)), [Removal::Waiting], "it could not be asked");
    answer(&mut outbox, Some(found(Some("Job"))), now(1_000, start));
    answer(&mut outbox, Some(Outcome::Done { sent_boot_ms: 1_000 }), now(1_000, start));
    let open = outbox.open(now(1_000, start));
    assert_eq!((&*open[0].id, &*open[0].pod.uid, open[0].removal), ("e1", "u1", Removal::Accepted));
    let repeated =
        |count| EvictionRepeated { eviction_id: String::from("e1"), count, ..EvictionRepeated::default() };
    for count in [1, 2] {
        let payload = Payload::EvictionRepeated(repeated(count));
        assert_eq!(outbox.take(9, 0, None, &payload, now(1_500, start)), None);
    }
    assert_eq!(outbox.open(now(1_500, start))[0].repeats, 2);
    assert_eq!(outbox.open(now(u64::try_from(EXPIRY.as_millis()).unwrap(), start)), []);
    answer(&mut outbox, Some(Outcome::Missing), now(3_000, start));
    assert_eq!(outbox.open(now(3_000, start)), []);
}

/// The event comes before the signal: an earlier process may have ended between them.
#[test]
fn only_an_earlier_process_may_have_reported_a_kill_that_it_did_not_do() {
    let start = Instant::now();
    let replayed = 9;
    let mut outbox = outbox(SETTINGS, Some("Job"), replayed, start);
    answer(&mut outbox, Some(found(Some("Job"))), now(0, start));
    let mut unsure_after = |sequence, outcome: &'static str| {
        let repeated = EvictionRepeated {
            eviction_id: String::from("e1"),
            outcome: outcome.into(),
            cgroup_ids: vec![4, 5],
            count: 1,
            ..EvictionRepeated::default()
        };
        let payload = Payload::EvictionRepeated(repeated);
        let _none = outbox.take(sequence, 0, None, &payload, now(0, start));
        outbox.open(now(0, start))[0].unsure.clone()
    };
    assert_eq!(unsure_after(replayed, "killed"), [CgroupId(4), CgroupId(5)]);
    assert_eq!(unsure_after(replayed + 1, "killed"), []);
    assert_eq!(unsure_after(replayed, "spared"), []);
}

/// The event or the look says whose pod it is.
#[test]
fn nothing_is_open_where_the_pod_is_not_removed() {
    let start = Instant::now();
    let of = |settings, kind, replayed| removals(&outbox(settings, kind, replayed, start), now(0, start));
    for kind in [None, Some("DaemonSet")] {
        assert_eq!(of(SETTINGS, kind, 0), []);
        assert_eq!(of(SETTINGS, kind, 7), [], "before the look");
    }
    for action in [None, Some(Action::Status)] {
        assert_eq!(of(ApiSettings { action, ..SETTINGS }, Some("Job"), 0), []);
        assert_eq!(of(ApiSettings { action, ..SETTINGS }, Some("Job"), 7), []);
    }
    let settings = ApiSettings { bare_pods: Some(Action::Delete), ..SETTINGS };
    assert_eq!(of(settings, None, 0), [Removal::Asked]);

    // A status that was accepted removes nothing.
    let settings = ApiSettings { action: Some(Action::Status), ..SETTINGS };
    let mut marked = outbox(settings, Some("Job"), 0, start);
    answer(&mut marked, Some(found(Some("Job"))), now(0, start));
    answer(&mut marked, Some(Outcome::Done { sent_boot_ms: 0 }), now(0, start));
    assert_eq!(marked.open(now(0, start)), []);
}

#[test]
fn an_eviction_of_an_earlier_process_is_open_before_the_look_and_after_it() {
    let start = Instant::now();
    let mut again = outbox(SETTINGS, Some("Job"), 7, start);
    assert_eq!(removals(&again, now(0, start)), [Removal::Asked]);
    let terminating = FoundPod { uid: String::from("u1"), is_terminating: true, ..FoundPod::default() };
    answer(&mut again, Some(Outcome::Found(terminating)), now(0, start));
    assert_eq!(removals(&again, now(0, start)), [Removal::Accepted]);
    // Another pod has the name.
    let mut replaced = outbox(SETTINGS, Some("Job"), 7, start);
    let other = FoundPod { uid: String::from("u2"), ..FoundPod::default() };
    answer(&mut replaced, Some(Outcome::Found(other)), now(0, start));
    assert_eq!(replaced.open(now(0, start)), []);
}

#[test]
fn a_budget_that_is_respected_leaves_the_pod_waiting() {
    let start = Instant::now();
    let settings = ApiSettings { on_pdb: OnPdb::Respect, ..SETTINGS };
    let mut refused = outbox(settings, Some("Job"), 0, start);
    answer(&mut refused, Some(Outcome::Budget { words: String::new(), after_ms: None }), now(0, start));
    assert_eq!(removals(&refused, now(0, start)), [Removal::Waiting]);
    let mut overridden = outbox(SETTINGS, Some("Job"), 0, start);
    answer(&mut overridden, Some(Outcome::Budget { words: String::new(), after_ms: None }), now(0, start));
    assert_eq!(removals(&overridden, now(0, start)), [Removal::Asked]);
}
