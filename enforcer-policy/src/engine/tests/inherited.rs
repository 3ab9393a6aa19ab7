//! An eviction that an earlier process began: it is the one under way.
use super::{rig::*, soft::both};
use crate::{
    engine::{
        Action, Candidates, Completion, EngineSettings, FailureReason, Inherited, KillReason, Outcome,
        PodKey, Refusal, Shortage, Spared, followed,
    },
    model::CgroupId,
    threshold::{Signal, Threshold, ThresholdValue},
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
        signalled_ns: None,
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

fn failed_for(actions: &[Action]) -> Option<FailureReason> {
    actions.iter().find_map(|action| match action {
        Action::Failed(failure) => Some(failure.reason),
        _ => None,
    })
}

fn asks(actions: &[Action]) -> bool {
    actions.contains(&Action::Ask { number: 1 })
}

/// A process that has looked at the node once, and found out that no earlier one has requested the victim's end.
fn unrequested(available_bytes: u64) -> Rig {
    let mut rig = begin(None, NOW_NS);
    rig.look(available_bytes);
    let now_ns = rig.pass(MS).now_ns;
    let reported = rig.on_outcome(Outcome::Unrequested { number: 1, now_ns });
    assert!(matches!(reported[..], [Action::LookAgainWithin(_)]), "nothing without a look: {reported:?}");
    rig
}

#[test]
fn one_that_was_not_requested_is_let_off_where_nothing_is_short() {
    let mut rig = unrequested(3 * GIB);
    let reported = rig.look(3 * GIB);
    assert_eq!(failed_for(&reported), Some(FailureReason::Relieved));
    assert!(!asks(&reported) && kill_of(&reported).is_none(), "{reported:?}");
    assert_eq!(rig.engine.victim(), None);
}

/// How long the threshold was met before this process began, it cannot know.
#[test]
fn one_that_was_not_requested_is_asked_once_the_shortage_has_lasted() {
    let mut rig = unrequested(1_500 * MIB);
    while rig.now_ns < NOW_NS + MINUTE {
        let reported = rig.look(1_500 * MIB);
        assert!(!asks(&reported) && !evicts(&reported), "{reported:?}");
        assert_eq!((failed_for(&reported), kill_of(&reported)), (None, None));
        rig.pass(100 * MS);
    }
    let reported = rig.look(1_500 * MIB);
    assert!(asks(&reported) && !evicts(&reported), "{reported:?}");
    let now_ns = rig.pass(MS).now_ns;
    rig.on_outcome(Outcome::Requested { number: 1, now_ns });
    assert_eq!(rig.engine.moments().unwrap().requested_ns, Some(now_ns));
}

#[test]
fn one_that_waits_for_the_shortage_to_last_is_let_off_when_it_ends() {
    let mut rig = unrequested(1_500 * MIB);
    assert_eq!(failed_for(&rig.look(1_500 * MIB)), None);
    let reported = rig.pass(30 * SECOND).look(3 * GIB);
    assert_eq!(failed_for(&reported), Some(FailureReason::Relieved));
    assert_eq!(rig.engine.victim(), None);
}

/// Whether an earlier process has requested its end must be found out all the same; later nothing was sent yet.
#[test]
fn one_of_which_no_one_knows_is_withdrawn_only_from_a_request_of_this_process() {
    let mut rig = begin(None, NOW_NS);
    rig.look(3 * GIB);
    assert_eq!(rig.engine.withdrawn(), None, "nothing is sent");
    let mut rig = unrequested(1_500 * MIB);
    rig.look(1_500 * MIB);
    assert!(asks(&rig.pass(MINUTE).look(1_500 * MIB)));
    rig.pass(MS).look(1_500 * MIB);
    assert_eq!(rig.engine.withdrawn(), None, "memory is still short");
    rig.pass(MS).look(3 * GIB);
    assert_eq!(rig.engine.withdrawn(), Some(1));
    let now_ns = rig.now_ns;
    let reported = rig.on_outcome(Outcome::Refused { number: 1, now_ns, reason: Refusal::Withdrawn });
    assert_eq!(failed_for(&reported), Some(FailureReason::Relieved));
}

#[test]
fn one_that_waits_is_killed_at_a_hard_threshold_and_no_other() {
    let mut rig = unrequested(1_500 * MIB);
    assert_eq!(kill_of(&rig.look(1_500 * MIB)), None);
    let reported = rig.pass(SECOND).look(GIB - 1);
    assert_eq!(kill_of(&reported), Some(KillReason::HardThreshold));
    assert!(!evicts(&reported), "{reported:?}");
}

#[test]
fn one_whose_threshold_was_removed_or_that_is_spared_is_let_off() {
    let hard = Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(GIB));
    let without = EngineSettings { thresholds: followed(&[hard]), ..both() };
    let paused = EngineSettings { paused: true, ..both() };
    for (settings, reason) in
        [(without, FailureReason::Relieved), (paused, FailureReason::Spared(Spared::Paused))]
    {
        let mut rig = unrequested(1_500 * MIB);
        rig.engine.configure(&settings);
        let reported = rig.pass(MS).look(1_500 * MIB);
        assert_eq!(failed_for(&reported), Some(reason));
        assert!(!asks(&reported) && kill_of(&reported).is_none(), "{reported:?}");
    }
}

/// The answer may come after a kill, or after the next decision.
#[test]
fn an_answer_that_comes_too_late_changes_nothing() {
    let mut rig = begin(None, NOW_NS);
    assert_eq!(kill_of(&rig.look(GIB - 1)), Some(KillReason::HardThreshold));
    let now_ns = rig.pass(MS).now_ns;
    assert_eq!(rig.on_outcome(Outcome::Unrequested { number: 1, now_ns }), []);
    rig.signalled();
    assert!(completed(&rig.pass(MS).progress(false, 0)).is_some());
}

/// A process that begins while the victim of a hard eviction, which another killed, is dying.
fn dying() -> Rig {
    let mut rig = Rig::upstream(&both());
    rig.now_ns = NOW_NS;
    let shortage = Shortage { hard: true, threshold: GIB, observed: GIB - 1, ..inherited(None).shortage };
    let killed = Inherited { shortage, signalled_ns: Some(BEFORE_NS), grace_ns: 0, ..inherited(None) };
    rig.engine.inherit(&killed, NOW_NS);
    rig
}

#[test]
fn no_other_is_killed_while_one_that_was_killed_before_is_dying_and_gives_back() {
    let mut rig = dying();
    for _ in 0..19 {
        let reported = rig.look(GIB - 1);
        assert!(kill_of(&reported).is_none() && !evicts(&reported), "{reported:?}");
        rig.pass(100 * MS);
        assert_eq!(failed_for(&rig.progress(true, 60 * MIB)), None);
    }
    // It is dead; 60 of its 100 MiB are still to come.
    assert!(completed(&rig.progress(false, 60 * MIB)).is_none());
    let reported = rig.pass(MS).look(GIB - 50 * MIB);
    assert!(!evicts(&reported), "{reported:?}");
    let completion = completed(&rig.pass(MS).progress(false, 0)).unwrap();
    assert_eq!(completion.moments.signalled_ns, Some(BEFORE_NS));
    assert_eq!((completion.number, completion.freed_bytes), (1, Some(100 * MIB)));
    assert!(evicts(&rig.pass(MS).look(GIB - 1)), "it was not enough");
}

/// It is awaited no longer than if it were killed now.
#[test]
fn one_that_was_killed_before_and_does_not_die_is_given_up() {
    let mut rig = dying();
    let mut reported = Vec::new();
    for _ in 0..30 {
        reported.extend(rig.pass(100 * MS).progress(true, 100 * MIB));
    }
    assert_eq!(failed_for(&reported), Some(FailureReason::StillPopulated));
    assert!(evicts(&rig.pass(MS).look(GIB - 1)));
    assert_ne!(rig.engine.decision().unwrap().cgroup, CgroupId(5), "it is passed over");
}
