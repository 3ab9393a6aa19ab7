mod storms;

use super::*;
use crate::kube::tests::{SETTINGS, signalled, signalled_live};

fn now(ms: u64, start: Instant) -> Now {
    let instant = start + Duration::from_millis(ms);
    Now { instant, time_ms: i64::try_from(ms).unwrap(), boot_ms: ms }
}

fn taken(settings: ApiSettings, start: Instant) -> Outbox {
    let mut outbox = Outbox::new(settings, 0);
    let signalled = EvictionSignalled { boot_ms: Some(0), ..signalled("e1", "web", "u1") };
    assert_eq!(outbox.take(7, 0, None, &Payload::EvictionSignalled(signalled), now(0, start)), None);
    outbox
}

#[test]
fn a_pod_that_is_killed_twice_before_the_server_is_back_is_asked_for_once() {
    let start = Instant::now();
    let mut outbox = taken(SETTINGS, start);
    let again = EvictionSignalled { boot_ms: Some(5), ..signalled("e2", "web", "u1") };
    assert_eq!(outbox.take(9, 5, None, &Payload::EvictionSignalled(again), now(5, start)), None);
    let (id, _) = outbox.next(now(5, start)).unwrap();
    outbox.answered(&id, Some(Outcome::Missing), now(5, start), now(5, start));
    assert_eq!((outbox.next(now(10_000, start)), outbox.position(40)), (None, 40));
}

#[test]
fn a_pod_that_is_killed_again_is_asked_for_until_an_hour_after_the_last_kill() {
    const MINUTE_MS: u64 = 60_000;
    let start = Instant::now();
    let mut outbox = taken(SETTINGS, start);
    let again = EvictionSignalled { boot_ms: Some(55 * MINUTE_MS), ..signalled("e2", "web", "u1") };
    let payload = Payload::EvictionSignalled(again);
    assert_eq!(outbox.take(9, 0, None, &payload, now(55 * MINUTE_MS, start)), None);
    let found = || {
        let controller = Some(String::from("ReplicaSet"));
        Outcome::Found(FoundPod { uid: String::from("u1"), controller, ..FoundPod::default() })
    };
    let back = now(61 * MINUTE_MS, start);
    let (id, call) = outbox.next(back).unwrap();
    assert!(matches!(call, Call::Look(_)), "{call:?}");
    assert_eq!(outbox.answered(&id, Some(found()), back, back), None);
    assert_eq!(outbox.open(back)[0].killed_ms, Some(55 * MINUTE_MS));
    assert!(matches!(outbox.next(back), Some((_, Call::Discover))), "it is no longer requested");
    let late = now(116 * MINUTE_MS, start);
    let Some(Payload::EvictionRequested(requested)) = outbox.answered(&id, Some(found()), late, late) else {
        panic!("it is asked for for ever");
    };
    assert_eq!(requested.outcome, "expired");
}

#[test]
fn a_budget_is_asked_again_when_the_server_says() {
    let start = Instant::now();
    let mut outbox = Outbox::new(ApiSettings { on_pdb: OnPdb::Respect, ..SETTINGS }, 3);
    outbox.discovered(Some(String::from("policy/v1")));
    outbox.take_kill(6, &killed(), now(1, start));
    let (id, _) = outbox.next(now(1, start)).unwrap();
    let budget = Outcome::Budget { words: String::from("needs 1"), after_ms: Some(10_000) };
    assert!(outbox.answered(&id, Some(budget), now(1, start), now(20, start)).is_some());
    assert_eq!(outbox.next(now(10_019, start)), None);
    assert!(outbox.next(now(10_020, start)).is_some());
}

fn killed() -> EvictionSignalled {
    EvictionSignalled { boot_ms: Some(0), ..signalled_live("e1", "web", "u1", Some("ReplicaSet")) }
}

#[test]
fn a_kill_is_requested_before_its_event_and_once() {
    let start = Instant::now();
    let mut outbox = Outbox::new(SETTINGS, 3);
    outbox.discovered(Some(String::from("policy/v1")));
    outbox.take_kill(6, &killed(), now(1, start));
    // The event of a second kill of that pod changes nothing.
    outbox.take_kill(6, &killed(), now(1, start));
    // Who begins behind 6 reads the event.
    assert_eq!((outbox.position(40), outbox.is_recorded("e1")), (6, false));
    let (id, call) = outbox.next(now(1, start)).unwrap();
    assert!(matches!(call, Call::Evict { .. }), "{call:?}");
    assert_eq!(outbox.take(8, 0, None, &Payload::EvictionSignalled(killed()), now(30, start)), None);
    assert_eq!((outbox.position(40), outbox.is_recorded("e1")), (6, true));
    let done = Outcome::Done { sent_boot_ms: 2 };
    let payload = outbox.answered(&id, Some(done), now(1, start), now(40, start));
    let Some(Payload::EvictionRequested(requested)) = payload else { panic!("{payload:?}") };
    let EvictionRequested { outcome, requests, signalled_to_requested_ms, .. } = requested;
    assert_eq!((&*outcome, requests, signalled_to_requested_ms), ("accepted", 1, Some(2)));
    assert_eq!(outbox.next(now(50, start)), None);
}

#[test]
fn an_event_that_is_there_and_not_yet_read_is_read_again_after_a_crash() {
    let start = Instant::now();
    let mut outbox = Outbox::new(SETTINGS, 3);
    outbox.take_kill(9, &killed(), now(1, start));
    assert_eq!(outbox.position(7), 7);
    assert_eq!(outbox.take(8, 0, None, &Payload::EvictionSignalled(killed()), now(2, start)), None);
    assert_eq!(outbox.position(40), 7);
}

#[test]
fn a_kill_that_needs_a_look_or_no_request_waits_for_its_event() {
    let start = Instant::now();
    let status = ApiSettings { action: Some(Action::Status), ..SETTINGS };
    let none = ApiSettings { action: None, ..SETTINGS };
    for (settings, killed) in [
        (status, killed()),
        (none, killed()),
        (SETTINGS, signalled_live("e1", "web", "u1", None)),
        (SETTINGS, signalled("e1", "web", "u1")),
        (SETTINGS, EvictionSignalled { terminating: true, ..killed() }),
        (SETTINGS, EvictionSignalled { killed_because: Some("expired".into()), ..killed() }),
        (SETTINGS, EvictionSignalled { boot_ms: None, ..killed() }),
    ] {
        let mut outbox = Outbox::new(settings, 3);
        outbox.take_kill(6, &killed, now(1, start));
        assert_eq!((outbox.next(now(1, start)), outbox.position(40)), (None, 40), "{killed:?}");
        assert!(outbox.is_recorded("e1"));
    }
}

#[test]
fn what_was_signalled_before_the_last_boot_is_not_asked_for() {
    let start = Instant::now();
    let pod = PodName { namespace: String::from("shop"), name: String::from("web") };
    let signalled = |boot_ms| {
        let signalled = EvictionSignalled { boot_ms: Some(boot_ms), ..signalled("e1", "web", "u1") };
        Payload::EvictionSignalled(signalled)
    };
    let (eviction_id, uid) = (String::from("e1"), Some(String::from("u1")));
    let ended = EvictionEnded { eviction_id, uid, ..EvictionEnded::default() };
    // By its time after the start; by the source of its event, whatever its time.
    let cases = [(signalled(90_000), false), (signalled(5), true), (Payload::EvictionCompleted(ended), true)];
    for (payload, is_of_earlier_boot) in cases {
        let mut outbox = Outbox::new(SETTINGS, 0);
        if is_of_earlier_boot {
            outbox.note_earlier_boot(7);
        }
        assert_eq!(outbox.take(7, 0, Some(&pod), &payload, now(10, start)), None);
        assert_eq!(outbox.entries["e1"].killed_ms.is_none(), is_of_earlier_boot, "{payload:?}");
        let (id, call) = outbox.next(now(10, start)).unwrap();
        assert!(matches!(call, Call::Look(_)));
        let controller = Some(String::from("Job"));
        let found = FoundPod { uid: String::from("u1"), controller, ..FoundPod::default() };
        let answer = outbox.answered(&id, Some(Outcome::Found(found)), now(10, start), now(11, start));
        let Some(Payload::EvictionRequested(requested)) = answer else { panic!("{payload:?}: {answer:?}") };
        assert_eq!(requested.outcome, "expired", "{payload:?}");
    }
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
                Outcome::Done { sent_boot_ms: 0 }
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

/// The server is back, and the pod runs there as before. The next process reads the events again, with or without what this one
/// reported.
#[test]
fn an_api_server_that_is_back_after_an_hour_is_asked_to_change_nothing() {
    let start = Instant::now();
    let late = now(3_600_001, start);
    let expire = |outbox: &mut Outbox| {
        let (id, call) = outbox.next(late).unwrap();
        assert!(matches!(call, Call::Look(_)), "{call:?}");
        let controller = Some(String::from("ReplicaSet"));
        let found = FoundPod { uid: String::from("u1"), controller, ..FoundPod::default() };
        let payload = outbox.answered(&id, Some(Outcome::Found(found)), late, late).unwrap();
        let Payload::EvictionRequested(requested) = &payload else { panic!("{payload:?}") };
        assert_eq!((&*requested.outcome, requested.requests), ("expired", 0));
        assert_eq!((outbox.due(), outbox.position(40)), (None, 40));
        payload
    };
    let reported = expire(&mut taken(SETTINGS, start));

    let signalled =
        EvictionSignalled { boot_ms: Some(0), ..signalled_live("e1", "web", "u1", Some("ReplicaSet")) };
    let again = || {
        let mut outbox = Outbox::new(SETTINGS, 40);
        let signalled = Payload::EvictionSignalled(signalled.clone());
        assert_eq!(outbox.take(7, 0, None, &signalled, late), None);
        outbox
    };
    expire(&mut again());
    let mut informed = again();
    assert_eq!(informed.take(8, 0, None, &reported, late), None);
    assert_eq!((informed.due(), informed.position(40)), (None, 40));
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
    let Call::Evict { group_version, .. } = step(&mut outbox, Outcome::Done { sent_boot_ms: 0 }) else {
        panic!()
    };
    assert_eq!(group_version, "policy/v1");
}

/// What the first call is for an eviction whose event has this position, so long after the signal.
fn first(settings: ApiSettings, signalled: EvictionSignalled, sequence: u64, age_ms: u64) -> Option<Call> {
    let start = Instant::now();
    let mut outbox = Outbox::new(settings, 6);
    outbox.discovered(Some(String::from("policy/v1")));
    let signalled = EvictionSignalled { boot_ms: Some(1_000), ..signalled };
    let present = now(1_000 + age_ms, start);
    let payload = outbox.take(sequence, 1_000, None, &Payload::EvictionSignalled(signalled), present);
    let call = outbox.next(present).map(|(_, call)| call);
    assert_eq!(outbox.is_urgent(present), call.as_ref().is_some_and(|call| !call.changes_nothing()));
    assert_eq!(payload.is_some(), call.is_none(), "{payload:?} {call:?}");
    call
}

#[test]
fn only_what_is_known_from_this_moment_is_asked_for_without_a_look() {
    let live = || signalled_live("e1", "web", "u1", Some("ReplicaSet"));
    let call = first(SETTINGS, live(), 7, 20);
    let Some(Call::Evict { pod, .. }) = call else { panic!("{call:?}") };
    assert_eq!(pod.uid, "u1", "the precondition");
    let is_looked_at = |signalled: EvictionSignalled, sequence, age_ms| {
        let call = first(SETTINGS, signalled, sequence, age_ms);
        assert!(matches!(call, Some(Call::Look(_))), "{call:?}");
    };
    // Of an earlier process, which may have asked already; and one that is read late.
    is_looked_at(live(), 6, 20);
    is_looked_at(live(), 7, 5_000);
    is_looked_at(EvictionSignalled { spec: Some("disk".into()), ..live() }, 7, 20);
    is_looked_at(EvictionSignalled { spec: None, ..live() }, 7, 20);
    is_looked_at(EvictionSignalled { terminating: true, ..live() }, 7, 20);
    is_looked_at(signalled("e1", "web", "u1"), 7, 20);
    is_looked_at(EvictionSignalled { spec: Some("disk".into()), controller: None, ..live() }, 7, 20);
}

#[test]
fn the_action_follows_from_the_controller_in_the_event() {
    let of = |settings, kind| first(settings, signalled_live("e1", "web", "u1", kind), 7, 20);
    let deletes = ApiSettings {
        action: Some(Action::Delete),
        bare_pods: Some(Action::Evict),
        daemon_set_pods: Some(Action::Status),
        ..SETTINGS
    };
    assert!(matches!(of(deletes, Some("Job")), Some(Call::Delete { .. })));
    assert!(matches!(of(deletes, None), Some(Call::Evict { .. })));
    // A phase must not be written over another that the pod has by now.
    assert!(matches!(of(deletes, Some("DaemonSet")), Some(Call::Look(_))));
    assert_eq!((of(SETTINGS, None), of(SETTINGS, Some("DaemonSet"))), (None, None));
}

/// Whatever comes between, a second request is preceded by a look.
#[test]
fn a_first_request_that_is_not_answered_is_followed_by_a_look() {
    let refused = || Outcome::Refused { status: 503, words: String::new(), after_ms: None };
    for (is_discovered, answer) in [
        (true, None),
        (true, Some(Outcome::Conflict)),
        (true, Some(Outcome::Missing)),
        (true, Some(refused())),
        // The version of evictions cannot be found.
        (false, None),
        (false, Some(refused())),
    ] {
        let start = Instant::now();
        let mut outbox = Outbox::new(SETTINGS, 0);
        outbox.discovered(is_discovered.then(|| String::from("policy/v1")));
        let live = signalled_live("e1", "web", "u1", Some("Job"));
        let live = EvictionSignalled { boot_ms: Some(0), ..live };
        assert_eq!(outbox.take(7, 0, None, &Payload::EvictionSignalled(live), now(0, start)), None);
        let (id, call) = outbox.next(now(0, start)).unwrap();
        assert_eq!(call.changes_nothing(), !is_discovered);
        outbox.answered(&id, answer.clone(), now(0, start), now(1, start));
        let (_, call) = outbox.next(now(60_000, start)).unwrap();
        assert!(matches!(call, Call::Look(_)), "{answer:?}: {call:?}");
    }
}

/// An outbox whose first request, to delete the pod, is due at that time, and the eviction's id.
fn deleting(at: Now) -> (Outbox, String) {
    let mut outbox = Outbox::new(ApiSettings { action: Some(Action::Delete), ..SETTINGS }, 0);
    let live = signalled_live("e1", "web", "u1", Some("Job"));
    let live = EvictionSignalled { boot_ms: Some(0), ..live };
    assert_eq!(outbox.take(7, 0, None, &Payload::EvictionSignalled(live), at), None);
    let (id, call) = outbox.next(at).unwrap();
    assert!(matches!(call, Call::Delete { .. }), "{call:?}");
    (outbox, id)
}

#[test]
fn the_time_of_sending_is_what_can_be() {
    for (sent_boot_ms, reported) in [(30, 30), (0, 20), (u64::MAX, 50)] {
        let start = Instant::now();
        let (mut outbox, id) = deleting(now(20, start));
        let done = Some(Outcome::Done { sent_boot_ms });
        let payload = outbox.answered(&id, done, now(20, start), now(50, start));
        let Some(Payload::EvictionRequested(requested)) = payload else { panic!("{payload:?}") };
        assert_eq!(requested.signalled_to_requested_ms, Some(reported));
    }
}

#[test]
fn what_was_sent_twice_counts_twice() {
    let pod = |uid: &str, is_terminating| {
        Outcome::Found(FoundPod { uid: uid.to_owned(), is_terminating, ..FoundPod::default() })
    };
    let resent = |outcome| Outcome::Resent(Box::new(outcome));
    let answers = [
        (Outcome::Done { sent_boot_ms: 1 }, "accepted", 1),
        (resent(Outcome::Done { sent_boot_ms: 1 }), "accepted", 2),
        (resent(Outcome::Refused { status: 500, words: String::new(), after_ms: None }), "refused", 2),
        // There was no answer, and the pod was looked at.
        (pod("u1", true), "terminating", 1),
        (pod("u2", false), "anotherPod", 1),
    ];
    for (answer, outcome, requests) in answers {
        let start = Instant::now();
        let (mut outbox, id) = deleting(now(0, start));
        let payload = outbox.answered(&id, Some(answer), now(0, start), now(1, start));
        let Some(Payload::EvictionRequested(requested)) = payload else { panic!("{payload:?}") };
        assert_eq!((&*requested.outcome, requested.requests), (outcome, requests));
    }
}

#[test]
fn without_any_answer_what_was_sent_twice_counts_twice_too() {
    let start = Instant::now();
    let (mut outbox, id) = deleting(now(0, start));
    let failed = Outcome::Resent(Box::new(Outcome::Failed(String::from("no answer within 5000 ms"))));
    assert_eq!(outbox.answered(&id, Some(failed), now(0, start), now(5_000, start)), None);
    let (id, call) = outbox.next(now(9_000, start)).unwrap();
    assert!(matches!(call, Call::Look(_)), "{call:?}");
    let payload = outbox.answered(&id, Some(Outcome::Missing), now(9_000, start), now(9_001, start));
    let Some(Payload::EvictionRequested(requested)) = payload else { panic!("{payload:?}") };
    assert_eq!((&*requested.outcome, requested.requests), ("gone", 2));
}

/// The accepted request of a soft eviction.
fn accepted() -> Payload {
    Payload::EvictionRequested(EvictionRequested {
        eviction_id: String::from("e1"),
        namespace: String::from("shop"),
        name: String::from("web"),
        uid: String::from("u1"),
        outcome: "accepted".into(),
        action: Some("evict".into()),
        boot_ms: Some(0),
        ..EvictionRequested::default()
    })
}

#[test]
fn a_soft_request_that_was_accepted_is_only_confirmed() {
    let start = Instant::now();
    let mut outbox = Outbox::new(SETTINGS, 0);
    let accepted = accepted();
    assert_eq!(outbox.take(7, 0, None, &accepted, now(0, start)), None);
    assert_eq!(outbox.next(now(999, start)), None);
    // Its containers have time to end, whatever becomes of the eviction here.
    for reconstructed in [false, true] {
        let ended =
            EvictionEnded { eviction_id: String::from("e1"), reconstructed, ..EvictionEnded::default() };
        assert_eq!(outbox.take(8, 0, None, &Payload::EvictionFailed(ended), now(0, start)), None);
        assert_eq!(outbox.open(now(0, start)), []);
    }
    let (id, call) = outbox.next(now(1_000, start)).unwrap();
    assert!(matches!(call, Call::Look(_)));
    let gone = outbox.answered(&id, Some(Outcome::Missing), now(1_000, start), now(1_001, start));
    assert!(matches!(gone, Some(Payload::EvictionConfirmed(_))), "{gone:?}");
    // Read again later, it is settled.
    assert_eq!(outbox.take(7, 0, None, &accepted, now(2_000, start)), None);
    assert_eq!(outbox.next(now(9_000, start)), None);
}

/// The request of a soft eviction may have arrived although its answer is missing.
#[test]
fn what_had_time_to_end_is_looked_at_before_it_is_requested() {
    let start = Instant::now();
    for (killed_because, looks) in [(None, false), (Some("hardThreshold"), true)] {
        let mut outbox = Outbox::new(SETTINGS, 0);
        let killed = EvictionSignalled {
            boot_ms: Some(1),
            killed_because: killed_because.map(Into::into),
            ..signalled_live("e1", "web", "u1", Some("ReplicaSet"))
        };
        assert_eq!(outbox.take(7, 0, None, &Payload::EvictionSignalled(killed), now(2, start)), None);
        let (_, call) = outbox.next(now(2, start)).unwrap();
        assert_eq!(matches!(call, Call::Look(_)), looks, "{call:?}");
    }
}

#[test]
fn a_request_of_a_pod_that_was_killed_is_no_kill() {
    let start = Instant::now();
    let mut outbox = taken(SETTINGS, start);
    let killed_ms = outbox.entries["e1"].killed_ms;
    let Payload::EvictionRequested(requested) = accepted() else { unreachable!() };
    let soft = EvictionRequested { eviction_id: String::from("e2"), boot_ms: Some(500), ..requested };
    assert_eq!(outbox.take(9, 500, None, &Payload::EvictionRequested(soft), now(500, start)), None);
    assert_eq!(outbox.entries["e1"].killed_ms, killed_ms);
    // An order's event does not say when it was, since the machine was started.
    let ordered = EvictionSignalled { boot_ms: None, ..signalled("e3", "web", "u1") };
    let _later = outbox.take(10, 600, None, &Payload::EvictionSignalled(ordered), now(700, start));
    assert_eq!(outbox.entries["e1"].killed_ms, Some(600));
}

#[test]
fn a_soft_eviction_that_is_killed_after_all_is_open() {
    let start = Instant::now();
    let mut outbox = Outbox::new(SETTINGS, 0);
    assert_eq!(outbox.take(7, 0, None, &accepted(), now(0, start)), None);
    assert_eq!(outbox.entries["e1"].killed_ms, None, "it was not killed yet");
    let killed =
        EvictionSignalled { boot_ms: Some(1), ..signalled_live("e1", "web", "u1", Some("ReplicaSet")) };
    assert_eq!(outbox.take(8, 1, None, &Payload::EvictionSignalled(killed), now(1, start)), None);
    let open = outbox.open(now(1, start));
    assert_eq!(
        open.iter().map(|open| (open.id.as_str(), open.removal)).collect::<Vec<_>>(),
        [("e1", Removal::Accepted)]
    );
    assert_eq!(open[0].killed_ms, Some(1));
}
