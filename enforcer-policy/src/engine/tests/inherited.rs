//! A soft eviction that an earlier process began: it is the one under way.
use super::{rig::*, soft::both};
use crate::{
    engine::{
        Action, Candidates, Completion, FailureReason, Inherited, KillReason, Outcome, PodKey, Refusal,
        Shortage,
    },
    model::CgroupId,
    threshold::Signal,
};

/// When this process begins; the victim had been chosen, and its end requested, 5 s before.
const NOW_NS: u64 = 100 * SECOND;
const BEFORE_NS: u64 = NOW_NS - 5 * SECOND;

/// The grace period of 10 s and 10 s more, from the request on.
const END_NS: u64 = BEFORE_NS + 20 * SECOND;

fn inherited(requested_ns: Option<u64>) -> Inherited {
    Inherited {
        cgroup: CgroupId(5),
        pod: PodKey { hash: 5 },
        shortage: Shortage {
            signal: Signal::MemoryAvailable,
            hard: false,
            threshold: 2 * GIB,
            observed: 1_500 * MIB,
        },
        crossed_ns: BEFORE_NS - MINUTE,
        decided_ns: BEFORE_NS,
        requested_ns,
        grace_ns: 10 * SECOND,
        predicted_freed_bytes: 100 * MIB,
        current_bytes: Some(100 * MIB),
        process_count: None,
    }
}

/// A process that begins at `now_ns`. The soft threshold has been met for long once a minute has passed.
fn begin(requested_ns: Option<u64>, now_ns: u64) -> Rig {
    let mut rig = Rig::upstream(&both());
    rig.now_ns = now_ns;
    rig.engine.inherit(&inherited(requested_ns), now_ns);
    rig
}

fn kill_of(actions: &[Action]) -> Option<KillReason> {
    actions.iter().find_map(|action| match action {
        Action::Kill { number: 1, reason } => Some(*reason),
        _ => None,
    })
}

fn completed(actions: &[Action]) -> Option<Completion> {
    actions.iter().find_map(|action| match action {
        Action::Completed(completion) => Some(*completion),
        _ => None,
    })
}

#[test]
fn it_is_killed_ten_seconds_after_its_grace_and_no_other_before() {
    let mut rig = begin(Some(BEFORE_NS), NOW_NS);
    while rig.now_ns < END_NS {
        let reported = rig.look(1_500 * MIB);
        assert!(kill_of(&reported).is_none() && !evicts(&reported), "{} ns early", END_NS - rig.now_ns);
        rig.pass(100 * MS);
    }
    assert_eq!(kill_of(&rig.look(1_500 * MIB)), Some(KillReason::GracePassed));
    let completion = rig.dies();
    assert_eq!(completion.moments.requested_ns, Some(BEFORE_NS));
    assert_eq!((completion.number, completion.freed_bytes), (1, Some(100 * MIB)));
    // Then it goes on, under numbers of its own.
    let reported = rig.pass(MINUTE).look(1_500 * MIB);
    assert!(evicts(&reported), "{reported:?}");
    assert_eq!(rig.number(), 2);
}

#[test]
fn a_grace_that_ended_without_a_daemon_is_over() {
    let mut rig = begin(Some(BEFORE_NS), END_NS + SECOND);
    let reported = rig.look(1_500 * MIB);
    assert_eq!(kill_of(&reported), Some(KillReason::GracePassed));
    assert!(!evicts(&reported));
}

#[test]
fn a_hard_threshold_kills_it_and_no_second_pod() {
    for requested_ns in [Some(BEFORE_NS), None] {
        let mut rig = begin(requested_ns, NOW_NS);
        let reported = rig.look(GIB - 1);
        assert_eq!(kill_of(&reported), Some(KillReason::HardThreshold));
        // Not yet known, so that nothing could be signalled.
        for _ in 0..50 {
            let reported = rig.pass(100 * MS).look(GIB - 1);
            assert!(kill_of(&reported).is_none() && !evicts(&reported), "{reported:?}");
        }
        rig.signalled();
        assert!(completed(&rig.pass(MS).progress(false, 0)).is_some());
    }
}

#[test]
fn one_that_has_ended_meanwhile_is_completed() {
    let mut rig = begin(Some(BEFORE_NS), NOW_NS);
    drop(rig.engine.replace(Candidates::new(&[])));
    let now_ns = rig.now_ns;
    let reported = rig.on_outcome(Outcome::Progress {
        number: 1,
        now_ns,
        populated: false,
        current_bytes: None,
        process_count: None,
    });
    let completion = completed(&reported).unwrap();
    assert_eq!((completion.moments.signalled_ns, completion.freed_bytes), (None, None));
}

#[test]
fn one_that_stays_unknown_is_given_up() {
    let mut rig = begin(None, NOW_NS);
    assert_eq!(kill_of(&rig.look(GIB - 1)), Some(KillReason::HardThreshold));
    let now_ns = rig.pass(10 * SECOND).now_ns;
    let reported = rig.on_outcome(Outcome::Refused { number: 1, now_ns, reason: Refusal::Unknown });
    let failed = reported.iter().any(|action| {
        matches!(action, Action::Failed(failure) if failure.reason == FailureReason::Refused(Refusal::Unknown))
    });
    assert!(failed, "{reported:?}");
    assert!(evicts(&rig.pass(MS).look(GIB - 1)), "another pod");
}

#[test]
fn one_of_which_no_one_knows_whether_it_was_asked_is_asked() {
    let mut rig = begin(None, NOW_NS);
    assert!(!evicts(&rig.look(1_500 * MIB)));
    let now_ns = rig.pass(SECOND).now_ns;
    rig.on_outcome(Outcome::Requested { number: 1, now_ns });
    assert_eq!(rig.engine.moments().unwrap().requested_ns, Some(now_ns));
    while rig.now_ns < now_ns + 20 * SECOND {
        assert_eq!(kill_of(&rig.look(1_500 * MIB)), None);
        rig.pass(100 * MS);
    }
    assert_eq!(kill_of(&rig.look(1_500 * MIB)), Some(KillReason::GracePassed));
}
