//! The shortage ends while a soft eviction's victim is still to be asked: the disk or the API server takes its time.
use super::{
    rig::*,
    soft::{both, decided, killed_for},
};
use crate::{
    engine::{
        Action, EngineSettings, FailureReason, KillReason, Level, NodeSample, Outcome, Reading, Refusal,
        followed,
    },
    threshold::{Signal, Threshold, ThresholdValue},
};

/// What follows once whoever was to ask has not.
fn not_asked(rig: &mut Rig) -> Option<FailureReason> {
    let (number, now_ns) = (rig.number(), rig.now_ns);
    let reported = rig.on_outcome(Outcome::Refused { number, now_ns, reason: Refusal::Withdrawn });
    reported.iter().find_map(|action| match action {
        Action::Failed(failure) => Some(failure.reason),
        _ => None,
    })
}

#[test]
fn one_that_was_not_asked_yet_is_let_off() {
    let (mut rig, _) = decided();
    rig.pass(MS).look(1_500 * MIB);
    assert_eq!(rig.engine.withdrawn(), None, "memory is still short");
    let reported = rig.pass(MS).look(3 * GIB);
    assert_eq!((killed_for(&reported), evicts(&reported)), (None, false));
    assert_eq!(rig.engine.withdrawn(), Some(rig.number()));
    assert!(rig.engine.victim().is_some(), "until it is known that it was not asked");
    assert_eq!(not_asked(&mut rig), Some(FailureReason::Relieved));
    assert_eq!((rig.engine.victim(), rig.engine.withdrawn()), (None, None));
}

/// Its decision was made for a shortage that is over; another one needs another decision.
#[test]
fn one_that_is_let_off_stays_so_when_memory_runs_short_again() {
    let (mut rig, _) = decided();
    rig.pass(MS).look(3 * GIB);
    assert!(!evicts(&rig.pass(MS).look(1_500 * MIB)));
    assert_eq!(rig.engine.withdrawn(), Some(rig.number()));
    assert_eq!(not_asked(&mut rig), Some(FailureReason::Relieved));
    assert!(!evicts(&rig.pass(MINUTE - 1).look(1_500 * MIB)), "its grace period has begun anew");
    assert!(evicts(&rig.pass(1).look(1_500 * MIB)));
    assert_eq!(rig.engine.withdrawn(), None);
}

/// SIGTERM cannot be undone, and the kubelet ends a pod whose eviction the API server has accepted.
#[test]
fn one_that_was_asked_before_that_was_known_goes_on() {
    for is_requested in [false, true] {
        let (mut rig, _) = decided();
        rig.pass(MS).look(3 * GIB);
        let (number, now_ns) = (rig.number(), rig.now_ns);
        rig.on_outcome(if is_requested {
            Outcome::Requested { number, now_ns }
        } else {
            Outcome::Terminated { number, now_ns }
        });
        assert_eq!(rig.engine.withdrawn(), None);
        rig.pass(SECOND).look(3 * GIB);
        assert_eq!(rig.engine.victim().map(|(number, _)| number), Some(number));
        rig.pass(MS);
        let [Action::Completed(completion)] = rig.progress(false, 0)[..] else { panic!("not completed") };
        assert_eq!(completion.moments.asked_ns(), Some(now_ns));
    }
}

#[test]
fn a_hard_threshold_does_not_wait_for_the_answer() {
    let (mut rig, _) = decided();
    rig.pass(MS).look(3 * GIB);
    let reported = rig.pass(MS).look(GIB - 1);
    assert_eq!((killed_for(&reported), evicts(&reported)), (Some(KillReason::HardThreshold), false));
}

/// A soft decision for memory, with a hard threshold for process ids.
fn decided_with_process_ids() -> Rig {
    let hard = Threshold::hard(Signal::PidAvailable, ThresholdValue::Amount(100));
    let thresholds: Vec<_> = both().thresholds.iter().copied().chain([hard]).collect();
    let mut rig = Rig::upstream(&EngineSettings { thresholds: followed(&thresholds), ..both() });
    rig.look(1_500 * MIB);
    assert!(evicts(&rig.pass(MINUTE).look(1_500 * MIB)));
    rig
}

/// Memory is back, and process ids are short.
fn short_of_process_ids(now_ns: u64) -> NodeSample {
    let pids = Some(Level { available: 50, capacity: 1_000 });
    NodeSample { pids, ..NodeSample::memory(now_ns, 3 * GIB, 16 * GIB) }
}

#[test]
fn one_that_was_chosen_for_memory_is_not_killed_for_process_ids() {
    let mut rig = decided_with_process_ids();
    let now_ns = rig.pass(MS).now_ns;
    assert_eq!(killed_for(&rig.see(short_of_process_ids(now_ns))), None);
    assert_eq!(not_asked(&mut rig), Some(FailureReason::Relieved));
}

/// Nor does it keep what they need waiting, for as long as a disk or an API server takes.
#[test]
fn another_pod_is_evicted_for_process_ids_before_it_is_known_that_the_first_was_not_asked() {
    let mut rig = decided_with_process_ids();
    let first = rig.number();
    for reading in &mut rig.readings {
        let Reading::Usage(usage) = reading else { panic!("{reading:?}") };
        usage.process_count = Some(100);
    }
    let now_ns = rig.pass(MS).now_ns;
    assert!(!evicts(&rig.see(short_of_process_ids(now_ns))));
    assert_eq!(rig.engine.withdrawn(), Some(first), "it will not be asked any more");
    let now_ns = rig.pass(MS).now_ns;
    let reported = rig.see(short_of_process_ids(now_ns));
    let is_let_off = |action: &Action| matches!(action, Action::Failed(failure) if failure.reason == FailureReason::Relieved);
    assert!(reported.iter().any(is_let_off) && evicts(&reported), "{reported:?}");
    let decision = *rig.engine.decision().unwrap();
    assert_eq!((decision.number, decision.shortage.signal), (first + 1, Signal::PidAvailable));
    // The answer about the first comes too late to matter.
    rig.on_outcome(Outcome::Refused { number: first, now_ns, reason: Refusal::Withdrawn });
    assert_eq!(rig.engine.victim().map(|(number, _)| number), Some(first + 1));
}
