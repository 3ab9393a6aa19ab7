use super::*;
use crate::kube::tests::{SETTINGS, signalled};

fn now(ms: u64, start: Instant) -> Now {
    let instant = start + Duration::from_millis(ms);
    Now { instant, time_ms: i64::try_from(ms).unwrap(), boot_ms: ms }
}

fn taken(settings: ApiSettings, start: Instant) -> Outbox {
    let mut outbox = Outbox::new(settings);
    let signalled = EvictionSignalled { boot_ms: Some(0), ..signalled("e1", "web", "u1") };
    outbox.take(7, 0, None, &Payload::EvictionSignalled(signalled), now(0, start));
    outbox
}

#[test]
fn a_pod_that_is_killed_twice_before_the_server_is_back_is_asked_for_once() {
    let start = Instant::now();
    let mut outbox = taken(SETTINGS, start);
    let again = EvictionSignalled { boot_ms: Some(5), ..signalled("e2", "web", "u1") };
    outbox.take(9, 5, None, &Payload::EvictionSignalled(again), now(5, start));
    let (id, _) = outbox.next(now(5, start)).unwrap();
    outbox.answered(&id, Some(Outcome::Missing), now(5, start), now(5, start));
    assert_eq!((outbox.next(now(10_000, start)), outbox.position(40)), (None, 40));
}

#[test]
fn what_was_signalled_before_the_last_boot_is_not_asked_for() {
    let start = Instant::now();
    let mut outbox = Outbox::new(SETTINGS);
    let before = EvictionSignalled { boot_ms: Some(90_000), ..signalled("e1", "web", "u1") };
    outbox.take(7, 0, None, &Payload::EvictionSignalled(before), now(10, start));
    let (id, call) = outbox.next(now(10, start)).unwrap();
    assert!(matches!(call, Call::Look(_)));
    let found =
        FoundPod { uid: String::from("u1"), controller: Some(String::from("Job")), ..FoundPod::default() };
    let payload = outbox.answered(&id, Some(Outcome::Found(found)), now(10, start), now(11, start));
    let Some(Payload::EvictionRequested(requested)) = payload else { panic!("{payload:?}") };
    assert_eq!(requested.outcome, "expired");
}

/// The kubelet may write the phase that it knows over the one that was asked for.
#[test]
fn a_phase_that_does_not_hold_is_asked_for_again_a_few_times() {
    let start = Instant::now();
    let mut outbox = taken(ApiSettings { action: Some(Action::Status), ..SETTINGS }, start);
    let found = |has_ended| {
        let controller = Some(String::from("Job"));
        Outcome::Found(FoundPod { uid: String::from("u1"), controller, has_ended, ..FoundPod::default() })
    };
    let (mut at, mut patches, mut reports) = (0, 0, 0);
    while let Some(due) = outbox.due() {
        at = at.max(u64::try_from(due.duration_since(start).as_millis()).unwrap()) + 1;
        let (id, call) = outbox.next(now(at, start)).unwrap();
        let answer = match call {
            Call::Look(_) => found(false),
            Call::Status { .. } => {
                patches += 1;
                Outcome::Done
            }
            other => panic!("{other:?}"),
        };
        reports += usize::from(outbox.answered(&id, Some(answer), now(at, start), now(at, start)).is_some());
    }
    assert_eq!((patches, reports), (5, 1));
}

#[test]
fn nothing_is_asked_after_an_hour() {
    let start = Instant::now();
    let mut outbox = taken(SETTINGS, start);
    assert_eq!(outbox.position(40), 6);
    let (mut at, mut asked) = (0, 0);
    let payload = loop {
        let present = now(at, start);
        if let Some((id, call)) = outbox.next(present) {
            assert!(matches!(call, Call::Look(_)), "{call:?}");
            asked += 1;
            if let Some(payload) = outbox.answered(&id, None, present, present) {
                break payload;
            }
        }
        at += 50;
    };
    let Payload::EvictionRequested(requested) = payload else { panic!("{payload:?}") };
    assert_eq!((&*requested.outcome, requested.requests), ("expired", 0));
    assert!((3_600_000..3_640_000).contains(&at), "{at}");
    assert!((100..400).contains(&asked), "{asked} requests in an hour");
    assert_eq!((outbox.due(), outbox.position(40)), (None, 40));
}

/// What is refused for a moment is not asked before that is over.
#[test]
fn a_wait_that_the_server_asks_for_is_kept() {
    let start = Instant::now();
    let mut outbox = taken(SETTINGS, start);
    let (id, _look) = outbox.next(now(0, start)).unwrap();
    let refused = Outcome::Refused { status: 429, words: String::new(), after_ms: Some(9_000) };
    assert_eq!(outbox.answered(&id, Some(refused), now(0, start), now(1, start)), None);
    assert!(outbox.due().unwrap() >= start + Duration::from_secs(9));
}

#[test]
fn evictions_of_another_version_are_found_anew() {
    let start = Instant::now();
    let mut outbox = taken(SETTINGS, start);
    outbox.discovered(Some(String::from("policy/v1beta1")));
    let found =
        || FoundPod { uid: String::from("u1"), controller: Some(String::from("Job")), ..FoundPod::default() };
    let mut at = 0;
    let mut step = |outbox: &mut Outbox, answer: Outcome| {
        at += 60_000;
        let (id, call) = outbox.next(now(at, start)).unwrap();
        outbox.answered(&id, Some(answer), now(at, start), now(at, start));
        call
    };
    assert!(matches!(step(&mut outbox, Outcome::Found(found())), Call::Look(_)));
    let Call::Evict { group_version, .. } = step(&mut outbox, Outcome::Missing) else { panic!() };
    assert_eq!(group_version, "policy/v1beta1");
    assert!(matches!(step(&mut outbox, Outcome::Found(found())), Call::Look(_)));
    assert_eq!(step(&mut outbox, Outcome::Discovered(Some(String::from("policy/v1")))), Call::Discover);
    let Call::Evict { group_version, .. } = step(&mut outbox, Outcome::Done) else { panic!() };
    assert_eq!(group_version, "policy/v1");
}
