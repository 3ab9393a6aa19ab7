//! What no good kernel, clock or pod gives.

use super::rig::{GIB, MIB, MS, Rig, SECOND, candidate, enforcing, evicts, using};
use crate::{
    engine::{Action, Candidates, FailureReason, Outcome, Reading, Refusal, SHOWN_EXCLUDED, SHOWN_RANKING},
    model::CgroupId,
    rank::DecidedBy,
};

fn chosen(rig: &Rig) -> CgroupId {
    rig.engine.decision().unwrap().cgroup
}

#[test]
fn a_reading_that_fails_in_the_very_tick_puts_no_pod_first() {
    let settings = enforcing(GIB, 0);
    let mut rig = Rig::upstream(&settings);
    // Close to the threshold all are read.
    rig.look(GIB + MIB);
    rig.readings[1] = Reading::Missing;
    assert!(evicts(&rig.pass(SECOND).look(GIB - 1)));
    assert_eq!(chosen(&rig), CgroupId(5), "by what it used a second ago, that pod is within its request");
    // If nothing was ever known of it, it is as in the kubelet: one without stats goes first.
    let mut rig = Rig::upstream(&settings);
    rig.readings[1] = Reading::Missing;
    assert!(evicts(&rig.look(GIB - 1)));
    assert_eq!(chosen(&rig), CgroupId(2));
}

#[test]
fn if_no_reading_succeeds_the_last_ones_decide() {
    let mut rig = Rig::upstream(&enforcing(GIB, 0));
    rig.look(GIB + MIB);
    rig.readings = Vec::new();
    assert!(evicts(&rig.pass(SECOND).look(GIB - 1)));
    assert_eq!(chosen(&rig), CgroupId(5));
}

#[test]
fn a_cgroup_that_is_another_one_by_now_is_not_signalled_and_the_next_one_is() {
    let mut rig = Rig::upstream(&enforcing(GIB, 0));
    assert!(evicts(&rig.look(MIB)));
    let (number, now_ns) = (rig.number(), rig.now_ns);
    let reported = rig.on_outcome(Outcome::Refused { number, now_ns, reason: Refusal::Replaced });
    assert!(
        matches!(reported[..], [Action::Failed(failure), Action::Evict, ..] if failure.reason == FailureReason::Refused(Refusal::Replaced)),
        "{reported:?}"
    );
    assert_ne!(chosen(&rig), CgroupId(5));
}

/// The same pod in a new cgroup has nothing of what was learnt of the old one, and what the old one is still giving back
/// is not forgotten.
#[test]
fn a_pod_that_comes_back_at_once_is_somebody_else() {
    let mut rig =
        Rig::new(&enforcing(GIB, 0), &[(candidate(1, 0, 0), using(GIB)), (candidate(2, 1, 0), using(MIB))]);
    assert!(evicts(&rig.look(900 * MIB)));
    assert_eq!(chosen(&rig), CgroupId(1));
    rig.signalled();
    drop(rig.engine.replace(Candidates::new(&[candidate(2, 1, 0), candidate(9, 0, 0)])));
    rig.readings = vec![using(MIB), using(2 * GIB)];
    assert!(!evicts(&rig.pass(MS).look(900 * MIB)), "the old one lives");
    assert!(rig.pass(MS).progress(false, GIB).is_empty(), "it gives back all it held");
    assert!(!evicts(&rig.pass(MS).look(900 * MIB)), "which will suffice");
    rig.pass(MS).progress(false, 0);
    // It was not enough: the one that came back is judged by what it uses now.
    assert!(evicts(&rig.pass(MS).look(900 * MIB)));
    assert_eq!(chosen(&rig), CgroupId(9));
    assert_eq!(rig.engine.decision().unwrap().growth_bytes_per_second, 0, "nothing is known of its growth");
}

#[test]
fn a_clock_that_jumps_neither_hurries_nor_forgets_a_victim() {
    let mut rig = Rig::upstream(&enforcing(GIB, 0));
    rig.pass(100 * SECOND);
    assert!(evicts(&rig.look(MIB)));
    rig.signalled();
    let lives =
        |reported: &[Action]| reported.iter().all(|action| matches!(action, Action::LookAgainWithin(_)));
    // Far ahead, and back to before it was chosen.
    assert!(lives(&rig.pass(3_600 * SECOND).progress(true, 100 * MIB)));
    rig.now_ns = SECOND;
    assert!(lives(&rig.progress(true, 100 * MIB)));
    assert!(!evicts(&rig.look(MIB)), "no other victim meanwhile");
    let reported = rig.progress(false, 0);
    assert!(matches!(reported[..], [Action::Completed(_)]), "{reported:?}");
    assert!(evicts(&rig.pass(3_700 * SECOND).look(MIB)), "the next one");
}

#[test]
fn among_a_thousand_the_right_one_is_found_and_the_first_are_shown() {
    let pods: Vec<_> = (1..=1_000)
        .map(|number| {
            let mut facts = candidate(number, 0, 0);
            facts.critical = number % 10 == 0;
            // The largest is in the middle, and is spared; the next is right behind it.
            (facts, using(GIB - number.abs_diff(500) * MIB / 2))
        })
        .collect();
    let mut rig = Rig::new(&enforcing(GIB, 0), &pods);
    assert!(evicts(&rig.look(MIB)));
    let decision = *rig.engine.decision().unwrap();
    assert_eq!((decision.cgroup, decision.decided_by), (CgroupId(499), Some(DecidedBy::Order)));
    assert_eq!((decision.ranked_count, decision.excluded_count), (900, 100));
    assert_eq!((decision.ranking.len(), decision.excluded.len()), (SHOWN_RANKING, SHOWN_EXCLUDED));
    // All refuse, one after the other, and that comes to an end.
    let mut reported = Vec::new();
    for _ in 0..900 {
        let (number, now_ns) = (rig.number(), rig.now_ns);
        reported = rig.on_outcome(Outcome::Refused { number, now_ns, reason: Refusal::Kernel(95) });
    }
    assert!(reported.iter().any(|action| matches!(action, Action::Suppressed { .. })), "{reported:?}");
    assert_eq!(rig.engine.victim(), None);
}
