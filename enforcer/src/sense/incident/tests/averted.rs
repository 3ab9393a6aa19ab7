//! Marks on what is dying already, by an eviction or by itself.

use super::*;

#[test]
fn a_dying_task_is_no_kill() {
    let mut machine = Machine::new();
    let reported = machine.mark(Mark { killed: Some(false), ..mark() });
    let [Output::Averted(averted)] = reported.as_slice() else { panic!("{reported:?}") };
    assert_eq!((averted.cause, averted.incident_id), (AvertedCause::AlreadyDying, None));
    assert_eq!(json(averted)["cause"], "alreadyDying");
    assert_eq!(machine.incidents.open(), 0);
}

#[test]
fn our_own_eviction_is_no_kill() {
    // What has been killed and is still marked was killed by the eviction that is over.
    for (eviction, killed) in
        [(Eviction::Lasts, Some(false)), (Eviction::Lasts, None), (Eviction::Ended, Some(false))]
    {
        let mut machine = Machine::new();
        machine.evicting.insert(C1, eviction);
        let reported = machine.mark(Mark { killed, ..mark() });
        let [Output::Averted(averted)] = reported.as_slice() else { panic!("{reported:?}") };
        assert_eq!(averted.cause, AvertedCause::OwnEviction);
    }
}

#[test]
fn after_our_own_eviction_a_mark_of_which_nothing_more_is_known_is_a_kill() {
    let mut machine = Machine::new();
    machine.evicting.insert(C1, Eviction::Ended);
    let reported = machine.mark(Mark { killed: None, ..mark() });
    assert!(matches!(reported.as_slice(), [Output::Detected(_)]), "{reported:?}");
}

#[test]
fn a_kill_during_a_soft_eviction_is_a_kill() {
    let mut machine = Machine::new();
    machine.evicting.insert(C1, Eviction::Lasts);
    let reported = machine.mark(mark());
    assert!(matches!(reported.as_slice(), [Output::Detected(_)]), "{reported:?}");
}

#[test]
fn another_thread_of_a_victim_is_no_news() {
    let mut machine = Machine::new();
    machine.mark(mark());
    let thread = Mark { time_ns: 101 * MS, tid: 399, killed: Some(false), ..mark() };
    assert_eq!(machine.mark(thread.clone()), []);
    machine.exit(102 * MS, 398);
    assert_eq!(machine.until(5_000 * MS).len(), 1);
    assert_eq!(machine.mark(Mark { time_ns: 6_000 * MS, ..thread }), [], "it may come late");
}

#[test]
fn without_a_watch_on_kills_the_counters_decide() {
    let mut machine = Machine::new();
    machine.mark(Mark { killed: None, ..mark() });
    machine.exit(102 * MS, 398);
    let reported = machine.until(5_000 * MS);
    let [Output::Averted(averted)] = reported.as_slice() else { panic!("{reported:?}") };
    assert_eq!(averted.cause, AvertedCause::AlreadyDying);
    assert!(averted.incident_id.is_some(), "it was reported as detected");

    machine.count(C1, 0, 1, 0);
    machine.mark(Mark { killed: None, time_ns: 20_000 * MS, ..mark() });
    machine.exit(20_001 * MS, 398);
    assert!(incident(&machine.until(30_000 * MS)).reconciled);
}
