//! Who is held back while a victim's memory is awaited, and that it is let go of.

use super::{
    rig::{GIB, MIB, MINUTE, MS, Rig, SECOND, candidate, evicts, using},
    soft::both,
};
use crate::{
    engine::{
        Action, BrakeCause, BrakeRefusal, CandidateFacts, Candidates, Containment, EngineSettings, Mode,
        NodeSample, Outcome, Reading,
    },
    model::CgroupId,
};

/// A victim of 3 GiB, one that is next and grows by 10 MiB a second, and one that is spared as long as possible.
fn pods() -> [(CandidateFacts, Reading); 3] {
    [
        (candidate(1, -1, 0), using(3 * GIB)),
        (candidate(2, 0, 100 * MIB), using(400 * MIB)),
        (candidate(3, 1, 0), using(300 * MIB)),
    ]
}

/// The victim of a soft eviction was asked to end, and has 10 s.
fn asked(pods: &[(CandidateFacts, Reading)]) -> Rig {
    let mut rig = Rig::new(&both(), pods);
    rig.look(1_500 * MIB);
    rig.readings[1] = using(1_000 * MIB);
    assert!(evicts(&rig.pass(MINUTE).look(1_500 * MIB)));
    assert_eq!(rig.engine.decision().unwrap().cgroup, CgroupId(1));
    let (number, now_ns) = (rig.number(), rig.now_ns);
    rig.on_outcome(Outcome::Terminated { number, now_ns });
    rig
}

/// A second later: so much is available, that is filled a second, and the next one uses so much.
fn fills(rig: &mut Rig, available: u64, fill_bytes_per_second: u64, used: u64) -> Vec<Action> {
    rig.pass(SECOND);
    rig.readings[1] = using(used);
    let node = NodeSample { fill_bytes_per_second, ..NodeSample::memory(rig.now_ns, available, 16 * GIB) };
    rig.see(node)
}

fn contains(actions: &[Action]) -> Option<Containment> {
    actions.iter().find_map(|action| match action {
        Action::Contain(containment) => Some(*containment),
        _ => None,
    })
}

fn eases(actions: &[Action]) -> Option<u64> {
    actions.iter().find_map(|action| match action {
        Action::Ease { brake } => Some(*brake),
        _ => None,
    })
}

fn contained() -> (Rig, Containment) {
    let mut rig = asked(&pods());
    let reported = fills(&mut rig, 1_500 * MIB, 100 * MIB, 1_100 * MIB);
    let containment = contains(&reported).expect("the next one is held back");
    let now_ns = rig.now_ns;
    let reported = rig.on_outcome(Outcome::Contained { brake: 1, now_ns });
    assert!(matches!(reported[..], [Action::Contained { .. }]), "{reported:?}");
    (rig, containment)
}

#[test]
fn the_next_one_is_held_at_nine_tenths_while_the_victims_grace_is_too_long() {
    let (_, containment) = contained();
    assert_eq!(
        (containment.cgroup, containment.index.0, containment.cause),
        (CgroupId(2), 1, BrakeCause::Grace)
    );
    assert_eq!((containment.usage_bytes, containment.high_bytes), (1_100 * MIB, 990 * MIB));
    // Above the hard threshold; 9 s of grace, and 3 GiB to come back.
    assert_eq!(containment.headroom_bytes, 476 * MIB);
    assert_eq!(containment.awaited_ns, 9 * SECOND + 800 * MS);
    assert_eq!(containment.fill_bytes_per_second, 100 * MIB);
}

#[test]
fn no_pod_is_throttled_unless_the_pods_themselves_would_fill_the_node_meanwhile() {
    let held = |available, fill, used| contains(&fills(&mut asked(&pods()), available, fill, used)).is_some();
    assert!(held(1_500 * MIB, 100 * MIB, 1_100 * MIB));
    // 49 MiB/s for 9.8 s is more than 476 MiB, and 48 is not.
    assert!(held(1_500 * MIB, 100 * MIB, 1_049 * MIB) && !held(1_500 * MIB, 100 * MIB, 1_048 * MIB));
    assert!(!held(1_500 * MIB, 48 * MIB, 1_100 * MIB), "the node does not fill as fast");
    assert!(!held(1_500 * MIB, 5 * GIB, 1_000 * MIB), "another process fills it");
    assert!(!held(1_500 * MIB, 5 * GIB, 900 * MIB), "it shrinks");
}

#[test]
fn who_keeps_to_its_request_or_is_spared_is_never_held_back() {
    let mut modest = pods();
    modest[1].0.request_bytes = 1_100 * MIB;
    // It is next all the same: the other one is within its request too, and of higher priority.
    modest[2].0.request_bytes = GIB;
    let held = |pods: &[_]| contains(&fills(&mut asked(pods), 1_500 * MIB, GIB, 1_100 * MIB));
    assert_eq!(held(&modest), None);
    for spare in [
        |facts: &mut CandidateFacts| facts.critical = true,
        |facts: &mut CandidateFacts| facts.protected = true,
    ] {
        let mut spared = pods();
        spare(&mut spared[1].0);
        assert_eq!(held(&spared), None, "the one behind it does not grow");
    }
}

#[test]
fn memory_that_comes_back_too_late_holds_the_next_one_back() {
    let mut rig = Rig::new(&both(), &pods());
    rig.look(1_500 * MIB);
    rig.readings[1] = using(GIB);
    assert!(evicts(&rig.pass(SECOND).look(900 * MIB)));
    rig.signalled();
    // 3 GiB take 0.8 s; 624 MiB in that second.
    assert_eq!(contains(&rig.clone().pass(MS).look(400 * MIB)), None, "the node does not fill any more");
    rig.pass(MS);
    let fill = |rig: &Rig, available| NodeSample {
        fill_bytes_per_second: GIB,
        ..NodeSample::memory(rig.now_ns, available, 16 * GIB)
    };
    let node = fill(&rig, 600 * MIB);
    assert_eq!(contains(&rig.clone().see(node)), None, "it suffices");
    let node = fill(&rig, 400 * MIB);
    let containment = contains(&rig.see(node)).expect("held back");
    assert_eq!((containment.cause, containment.headroom_bytes), (BrakeCause::Release, 400 * MIB));
    assert_eq!(containment.awaited_ns, 800 * MS);
}

#[test]
fn it_is_let_go_of_when_the_victim_is_gone_and_reported() {
    let (mut rig, containment) = contained();
    assert_eq!(rig.engine.brake(), Some((1, CgroupId(2))));
    assert_eq!(eases(&fills(&mut rig, 1_500 * MIB, 100 * MIB, 1_000 * MIB)), None);
    let reported = rig.pass(SECOND).progress(false, 0);
    assert!(matches!(reported[..], [Action::Completed(_), Action::Ease { brake: 1 }]), "{reported:?}");
    assert_eq!(eases(&rig.pass(MS).look(1_500 * MIB)), None, "asked for once");
    let now_ns = rig.now_ns;
    let reported = rig.on_outcome(Outcome::Eased { brake: 1, now_ns, given_back: true });
    let since_ns = containment.decided_ns;
    assert_eq!(reported, [Action::Eased { now_ns, containment, since_ns, given_back: true }]);
    assert_eq!(rig.engine.brake(), None);
}

#[test]
fn who_is_held_back_and_becomes_the_victim_is_let_go_of_before() {
    let (mut rig, _) = contained();
    let reported = rig.pass(MS).look(MIB);
    assert!(reported.iter().any(|action| matches!(action, Action::Kill { .. })), "{reported:?}");
    rig.signalled();
    // It is dead, and some of what it held is still to come back, and would not suffice.
    assert_eq!(eases(&rig.pass(MS).progress(false, 600 * MIB)), None);
    rig.readings[0] = using(0);
    let reported = rig.pass(MS).look(0);
    assert_eq!(rig.engine.decision().unwrap().cgroup, CgroupId(2));
    let place = |is: fn(&Action) -> bool| reported.iter().position(is).expect("it is asked for");
    let eased = place(|action| matches!(action, Action::Ease { brake: 1 }));
    assert!(eased < place(|action| *action == Action::Evict), "{reported:?}");
}

#[test]
fn it_is_let_go_of_when_the_shortage_is_over_though_the_victim_lives() {
    let (mut rig, _) = contained();
    assert_eq!(eases(&rig.pass(MS).look(8 * GIB)), None, "it may come back at once");
    assert_eq!(eases(&rig.pass(SECOND).look(8 * GIB)), Some(1));
}

#[test]
fn another_mode_lets_go_of_it() {
    let (mut rig, _) = contained();
    rig.engine.configure(&EngineSettings { mode: Mode::DryRun, ..both() });
    assert_eq!(eases(&rig.pass(MS).look(1_500 * MIB)), Some(1));
}

#[test]
fn no_pod_is_throttled_in_another_mode_though_an_eviction_is_under_way() {
    let mut rig = asked(&pods());
    rig.engine.configure(&EngineSettings { mode: Mode::DryRun, ..both() });
    assert_eq!(contains(&fills(&mut rig, 1_500 * MIB, 100 * MIB, 1_100 * MIB)), None);
}

#[test]
fn who_is_spared_meanwhile_is_let_go_of() {
    let spare: [fn(CandidateFacts) -> CandidateFacts; 2] = [
        |facts| CandidateFacts { protected: true, ..facts },
        |facts| CandidateFacts { critical: true, ..facts },
    ];
    for spare in spare {
        let (mut rig, containment) = contained();
        assert_eq!(eases(&rig.pass(MS).look(1_500 * MIB)), None, "still needed");
        let facts = pods().map(|(facts, _)| if facts.cgroup == CgroupId(2) { spare(facts) } else { facts });
        drop(rig.engine.replace(Candidates::new(&facts)));
        assert_eq!(eases(&rig.pass(MS).look(1_500 * MIB)), Some(containment.brake));
    }
}

#[test]
fn who_cannot_be_held_back_is_reported_and_not_tried_again_in_that_eviction() {
    let mut rig = asked(&pods());
    assert!(contains(&fills(&mut rig, 1_500 * MIB, 100 * MIB, 1_100 * MIB)).is_some());
    let now_ns = rig.now_ns;
    let reported = rig.on_outcome(Outcome::Uncontained { brake: 1, now_ns, reason: BrakeRefusal::Lower });
    assert!(
        matches!(reported[..], [Action::Uncontained { reason: BrakeRefusal::Lower, .. }]),
        "{reported:?}"
    );
    assert_eq!(rig.engine.brake(), None);
    assert_eq!(contains(&fills(&mut rig, 1_200 * MIB, GIB, 2_000 * MIB)), None);
}

#[test]
fn what_is_not_needed_any_more_before_it_is_done_is_undone_after() {
    let mut rig = asked(&pods());
    assert!(contains(&fills(&mut rig, 1_500 * MIB, 100 * MIB, 1_100 * MIB)).is_some());
    assert_eq!(eases(&rig.pass(MS).progress(false, 0)), Some(1));
    let now_ns = rig.now_ns;
    let reported = rig.on_outcome(Outcome::Contained { brake: 1, now_ns });
    assert!(matches!(reported[..], [Action::Contained { .. }]), "{reported:?}");
    let reported = rig.on_outcome(Outcome::Eased { brake: 1, now_ns, given_back: false });
    assert!(matches!(reported[..], [Action::Eased { given_back: false, .. }]), "{reported:?}");
}

/// Found by the property test: it had been asked to be let go of before it was known that it was never held back.
#[test]
fn one_that_could_not_be_held_back_while_it_was_to_be_let_go_of_is_no_brake_any_more() {
    let mut rig = asked(&pods());
    assert!(contains(&fills(&mut rig, 1_500 * MIB, 100 * MIB, 1_100 * MIB)).is_some());
    let reported = rig.progress(false, 0);
    assert_eq!(eases(&reported), Some(1), "{reported:?}");
    let now_ns = rig.now_ns;
    rig.on_outcome(Outcome::Uncontained { brake: 1, now_ns, reason: BrakeRefusal::Unwritten });
    assert_eq!(rig.engine.brake(), None);
    let reported = rig.on_outcome(Outcome::Eased { brake: 1, now_ns, given_back: true });
    assert!(reported.is_empty() && rig.engine.brake().is_none(), "{reported:?}");
}
