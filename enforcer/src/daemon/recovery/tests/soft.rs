//! The journal and the intent page in; what becomes of the eviction out.
use enforcer_events::eviction::{Decision, EvictionRequested, EvictionVictim, Hook};

use super::*;
use crate::{journal, policy::engine::Inherited};

const MS: u64 = 1_000_000;

fn id() -> Ulid {
    Ulid::from(7_u128)
}

fn intent(hard: bool) -> Intent<'static> {
    Intent::Eviction {
        id: id().into(),
        pod: "shop/web".into(),
        uid: "u1".into(),
        path: "/kubepods/burstable/podu1".into(),
        cgroup: CgroupId(42),
        whole: false,
        targets: vec![CgroupId(43)].into(),
        signal: "memory.available".into(),
        hard,
        threshold: 600,
        observed: 500,
        decided_ns: 9_000 * MS,
    }
}

fn decision() -> Decision {
    let data = serde_json::json!({
        "evictionId": id().to_string(), "dryRun": false, "signal": "memory.available", "hard": false,
        "thresholdBytes": 600, "observedBytes": 500, "graceMs": 30_000, "victim": null, "decidedBy": "onlyCandidate",
        "ranking": [], "rankedCount": 1, "excluded": [], "excludedCount": 0, "predictedFreedBytes": 300,
        "crossedToDecidedMs": 1_500.5, "message": "", "configHash": "",
    });
    serde_json::from_value(data).unwrap()
}

fn victim() -> EvictionVictim {
    let data = serde_json::json!({
        "namespace": "shop", "name": "web", "uid": "u1", "qosClass": "Burstable", "priority": 0,
        "cgroup": "/kubepods/burstable/podu1", "cgroupId": 42, "requestBytes": 0, "statsMissing": false,
        "growthBytesPerSecond": 0, "currentBytes": 400, "processCount": 3,
    });
    serde_json::from_value(data).unwrap()
}

fn requested(outcome: &'static str, boot_ms: Option<u64>) -> Payload {
    Payload::EvictionRequested(EvictionRequested {
        eviction_id: id().to_string(),
        outcome: outcome.into(),
        boot_ms,
        ..EvictionRequested::default()
    })
}

fn ended() -> Payload {
    Payload::EvictionFailed(EvictionEnded { eviction_id: id().to_string(), ..EvictionEnded::default() })
}

/// A journal with those events, in memory: all of it counts as durable once it is.
fn journal(reported_before: &[Payload]) -> Journal {
    let journal = Journal::new("n", "b");
    for payload in reported_before {
        journal.emit(subject("shop/web"), payload.clone());
    }
    journal
}

fn decided(decision: Decision) -> Payload {
    Payload::EvictionDecided(EvictionDecided::Decision(Box::new(decision)))
}

/// What becomes of the eviction if its victim lives on, and the events that are added.
fn recovered(
    reported_before: &[Payload],
    intent: Intent<'static>,
    may: MayGoOn,
    holding: Holding,
) -> (Option<Inherited>, Vec<EventType>) {
    let journal = journal(reported_before);
    let before = journal.range().newest;
    let evicted = evictions(std::slice::from_ref(&intent), &journal, may, |_, _, _| holding);
    let inherited = evicted.inherited.map(|(eviction, kept)| {
        assert_eq!((eviction.id, kept), (id(), intent));
        assert_eq!((eviction.pod.to_string(), eviction.uid.to_string()), ("shop/web".into(), "u1".into()));
        eviction.facts
    });
    let mut reader = journal.reader(Some(before), Filter::default());
    let mut kinds = Vec::new();
    while let Some(Batch::Records(records)) = reader.read() {
        kinds.extend(records.iter().map(|record| record.kind));
    }
    (inherited, kinds)
}

#[test]
fn a_request_that_was_accepted_is_under_way_and_nothing_is_reported() {
    let decision = Decision { victim: Some(victim()), ..decision() };
    let reported_before = [decided(decision), requested("accepted", Some(9_200))];
    let (inherited, reported) = recovered(&reported_before, intent(false), ANY, Holding::Living);
    assert_eq!(reported, []);
    assert_eq!(
        inherited,
        Some(Inherited {
            cgroup: CgroupId(42),
            pod: crate::evict::pod_key(&PodName { namespace: "shop".into(), name: "web".into() }),
            shortage: Shortage {
                signal: Signal::MemoryAvailable,
                hard: false,
                threshold: 600,
                observed: 500
            },
            crossed_ns: 7_499_500_000,
            decided_ns: 9_000 * MS,
            requested_ns: Some(9_200 * MS),
            signalled_ns: None,
            grace_ns: 30_000 * MS,
            predicted_freed_bytes: 300,
            current_bytes: Some(400),
            process_count: Some(3),
        })
    );
}

/// The first sync after a start is not waited for: a hard eviction may be needed at once. Who asks waits for it.
#[test]
fn whether_it_was_requested_is_found_out_even_if_its_decision_is_not_synced_again_yet() {
    let mut sequence = 0;
    let journal = journal::tests::not_synced_yet(|journal| {
        sequence = journal.emit(subject("shop/web"), decided(decision()));
    });
    assert!(*journal.durable().borrow() < sequence, "the disk takes its time");
    let before = journal.range().newest;
    let evicted = evictions(&[intent(false)], &journal, ANY, |_, _, _| Holding::Living);
    let (eviction, kept) = evicted.inherited.expect("it goes on");
    assert_eq!((eviction.facts.requested_ns, eviction.sequence, kept), (None, sequence, intent(false)));
    assert_eq!(journal.range().newest, before, "nothing is reported");
}

#[test]
fn what_was_signalled_ended_or_hard_does_not_go_on() {
    let accepted = || [decided(decision()), requested("accepted", Some(9_200))];
    let is_inherited = |reported_before: &[Payload], hard, asked, holding| {
        let may = MayGoOn { asked, dying: false };
        recovered(reported_before, intent(hard), may, holding).0.is_some()
    };
    assert!(is_inherited(&accepted(), false, true, Holding::Living));
    assert!(!is_inherited(&accepted(), false, false, Holding::Living), "another mode");
    assert!(!is_inherited(&accepted(), true, true, Holding::Living));
    for holding in [Holding::NoProcess, Holding::Doomed] {
        assert!(!is_inherited(&accepted(), false, true, holding));
    }
    let [decision_event, request] = accepted();
    assert!(!is_inherited(&[decision_event.clone(), request.clone(), ended()], false, true, Holding::Living));
    assert!(
        !is_inherited(std::slice::from_ref(&request), false, true, Holding::Living),
        "its decision is not known"
    );
    let refused = [decision_event, requested("refused", None)];
    assert!(is_inherited(&refused, false, true, Holding::Living), "it has not failed yet");
    let hook = Decision { hook: Some(Hook::default()), ..decision() };
    assert!(!is_inherited(&[decided(hook.clone())], false, true, Holding::Living), "the program ran");
    assert!(is_inherited(&[decided(hook), request], false, true, Holding::Living));
    let dry = Decision { dry_run: true, ..decision() };
    assert!(!is_inherited(&[decided(dry)], false, true, Holding::Living));
}

#[test]
fn two_do_not_go_on_at_once() {
    let journal = journal(&[decided(decision()), requested("accepted", Some(9_200))]);
    let left = [intent(false), intent(false)];
    let evicted = evictions(&left, &journal, ANY, |_, _, _| Holding::Living);
    assert!(evicted.inherited.is_some());
    let mut reader =
        journal.reader(None, Filter { kinds: vec![EventType::EvictionFailed], ..Filter::default() });
    assert!(matches!(reader.read(), Some(Batch::Records(records)) if records.len() == 1));
}

#[test]
fn a_victim_that_is_dying_goes_on_and_its_kill_is_reported_once() {
    let hard = Decision { hard: true, grace_ms: 0, victim: Some(victim()), ..decision() };
    let killed = serde_json::json!({
        "evictionId": id().to_string(), "namespace": "shop", "name": "web", "uid": "u1", "sent": "SIGKILL", "bootMs": 9_050,
    });
    let killed = Payload::parse(EventType::EvictionSignalled, &killed).unwrap();
    for (reported_before, reported_now, killed_ms) in [
        (vec![decided(hard.clone())], vec![EventType::EvictionSignalled], 9_000),
        (vec![decided(hard.clone()), killed], vec![], 9_050),
    ] {
        let (inherited, reported) = recovered(&reported_before, intent(true), ANY, Holding::Doomed);
        assert_eq!(reported, reported_now);
        let inherited = inherited.expect("it goes on");
        assert_eq!((inherited.signalled_ns, inherited.requested_ns), (Some(killed_ms * MS), None));
        assert_eq!((inherited.predicted_freed_bytes, inherited.current_bytes), (300, Some(400)));
        assert!(inherited.shortage.hard);
    }
    let (inherited, reported) = recovered(&[], intent(true), ANY, Holding::Doomed);
    assert_eq!(reported, [EventType::EvictionDecided, EventType::EvictionSignalled]);
    assert_eq!(inherited.expect("it goes on").signalled_ns, Some(9_000 * MS));
    let may_not = MayGoOn { asked: false, dying: false };
    assert!(recovered(&[decided(hard.clone())], intent(true), may_not, Holding::Doomed).0.is_none());
    assert!(recovered(&[decided(hard), ended()], intent(true), ANY, Holding::Doomed).0.is_none());
    let evicted = evictions(&[intent(true)], &journal(&[]), ANY, |_, _, _| Holding::Doomed);
    assert_eq!(evicted.ended.len(), 1, "its pod stays evicted");
}
