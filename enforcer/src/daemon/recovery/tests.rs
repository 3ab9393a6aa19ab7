use enforcer_events::eviction::{EvictionSignalled, Timeline};

use super::*;

mod soft;

/// In `mode: enforce` beside a kubelet.
const ANY: MayGoOn = MayGoOn { asked: true, dying: true };

#[test]
fn an_eviction_is_reported_once_and_its_pod_stays_evicted() {
    let journal = Journal::new("n", "b");
    let id = Ulid::generate();
    let left = [Intent::Eviction {
        id: id.into(),
        pod: "default/hog".into(),
        uid: "hog".into(),
        path: "/no/such/cgroup".into(),
        cgroup: CgroupId(1),
        whole: true,
        targets: Vec::new().into(),
        signal: "pid.available".into(),
        hard: true,
        threshold: 10,
        observed: 9,
        decided_ns: 0,
    }];
    for _ in 0..2 {
        let ended = evictions(&left, &journal, ANY, held_in_the_end).ended;
        assert_eq!(ended, [EndedPod { uid: String::from("hog"), fingerprint: None, why: Why::Evicted }]);
    }
    let mut reader = journal.reader(None, Filter::default());
    let Some(Batch::Records(records)) = reader.read() else { panic!() };
    let kinds: Vec<_> = records.iter().map(|record| record.kind).collect();
    assert_eq!(
        kinds,
        [EventType::EvictionDecided, EventType::EvictionCompleted],
        "the second start reports nothing"
    );
    let payload = Event::parse(&records[0].line).unwrap().payload;
    let Payload::EvictionDecided(EvictionDecided::Reconstructed(decided)) = payload else {
        panic!("{payload:?}")
    };
    let shortage = decided.shortage.unwrap();
    assert_eq!(
        (&*shortage.signal, shortage.threshold_count, shortage.observed_count, shortage.hard),
        ("pid.available", Some(10), Some(9), true)
    );
    assert_eq!(records[0].pod.as_ref().map(ToString::to_string).as_deref(), Some("default/hog"));
}

#[test]
fn one_whose_signal_was_reported_counts_once_and_one_whose_was_not_is_made_up_for() {
    let id = |number: u128| Ulid::from(number);
    // After SIGTERM the pod may have ended by itself, or by a SIGKILL that was not reported.
    for (sent, times) in [(None, vec![5]), (Some("SIGTERM"), vec![4, 5]), (Some("SIGKILL"), vec![4])] {
        let journal = Journal::new("n", "b");
        if let Some(sent) = sent {
            let data = EvictionSignalled {
                eviction_id: id(7).to_string(),
                namespace: "default".into(),
                name: "hog".into(),
                uid: "hog".into(),
                signal: None,
                controller: None,
                spec: None,
                terminating: false,
                sent: sent.into(),
                grace_ms: None,
                killed_because: None,
                brakes_failed: None,
                boot_ms: Some(4),
                timeline: Timeline::default(),
                decided_to_terminated_ms: None,
                decided_to_signalled_ms: None,
                hook: None,
                operator: None,
            };
            journal.emit(subject("default/hog"), Payload::EvictionSignalled(data));
        }
        let left = [Intent::Eviction {
            id: id(7).into(),
            pod: "default/hog".into(),
            uid: "hog".into(),
            path: "/no/such/cgroup".into(),
            cgroup: CgroupId(1),
            whole: true,
            targets: Vec::new().into(),
            signal: "pid.available".into(),
            hard: true,
            threshold: 10,
            observed: 9,
            decided_ns: 5_000_000,
        }];
        let evicted = evictions(&left, &journal, ANY, held_in_the_end);
        assert!(evicted.inherited.is_none());
        let mut reader = journal.reader(None, Filter::default());
        let Some(Batch::Records(records)) = reader.read() else { panic!() };
        let reported: Vec<u64> = records
            .iter()
            .filter_map(|record| match Event::parse(&record.line).unwrap().payload {
                Payload::EvictionSignalled(data) => data.boot_ms,
                Payload::EvictionCompleted(data) => data.boot_ms,
                _ => None,
            })
            .collect();
        assert_eq!(reported, times, "{sent:?}");
    }
}

/// A live process that was not killed.
#[test]
fn what_lives_elsewhere_is_not_dead() {
    assert_eq!(held(Some(("/no/such", CgroupId(1))), &[]), Holding::NoProcess);
    // Nowhere near a cgroup: that it is gone is known where ids can be looked up at all.
    assert_ne!(held(Some(("/no/such", CgroupId(1))), &[CgroupId(u64::MAX)]), Holding::Doomed);
}
