use super::*;
use crate::{
    model::{Container, Quantity, Requirements, ResourceList, ResourceName},
    policy::{Settings, threshold::NodeCondition},
    sample,
};

fn pod(name: &str, uid: &str, priority: i32) -> Pod {
    Pod { uid: PodUid::new(uid).unwrap(), priority: Some(priority), ..sample::pod(name, &[]) }
}

/// Gives it the pods of manifest files.
fn apply(roster: &mut Roster, pods: Vec<Pod>) -> Vec<Change> {
    apply_of(roster, AdmittedBy::Roster, pods)
}

fn apply_of(roster: &mut Roster, admitted_by: AdmittedBy, pods: Vec<Pod>) -> Vec<Change> {
    let source = SourceName::STATIC;
    let pods = pods.into_iter().map(|pod| SourcePod { pod: Arc::new(pod), source, admitted_by });
    roster.apply(pods.collect())
}

fn shared(name: &str, uid: &str, priority: i32) -> Arc<Pod> {
    Arc::new(pod(name, uid, priority))
}

fn names(roster: &Roster, is: fn(&State) -> bool) -> Vec<&str> {
    let entries = roster.entries().into_iter().filter(|entry| is(&entry.state));
    entries.map(|entry| entry.pod.name.name.as_str()).collect()
}

fn is_waiting(state: &State) -> bool {
    matches!(state, State::Waiting { .. })
}

fn is_active(state: &State) -> bool {
    matches!(state, State::Active(_))
}

fn is_evicted(state: &State) -> bool {
    *state == State::Evicted
}

fn is_preempted(state: &State) -> bool {
    *state == State::Preempted
}

fn is_leaving(state: &State) -> bool {
    *state == State::Leaving
}

/// A node of four cpus, of which the pods whose cgroup stands take something.
fn admit(roster: &mut Roster, standing: &[&str]) -> Decisions {
    admit_under(roster, standing, &[])
}

fn admit_under(roster: &mut Roster, standing: &[&str], conditions: &[NodeCondition]) -> Decisions {
    let node = sample::node();
    let standing = standing.iter().map(|uid| PodUid::new(uid).unwrap()).collect();
    let (settings, reserved) = (Settings::default(), ResourceList::new());
    roster.admit(&Grounds {
        node: &node,
        settings: &settings,
        reserved: &reserved,
        conditions,
        standing: &standing,
        cpus: None,
    })
}

/// A pod that requests that much cpu.
fn requesting(name: &str, uid: &str, cpu_milli: u64) -> Pod {
    let requests = [(ResourceName::new("cpu"), Quantity::from_milli(cpu_milli))].into();
    let resources = Requirements { requests, limits: ResourceList::new() };
    Pod { containers: vec![Container::app("c", resources)], ..pod(name, uid, 0) }
}

fn critical(pod: Pod) -> Pod {
    Pod { priority: Some(2_000_000_000), ..pod }
}

fn uids(uids: &[&str]) -> Vec<PodUid> {
    uids.iter().map(|uid| PodUid::new(uid).unwrap()).collect()
}

/// The rejected pods, each with the reason.
fn reported(decisions: &Decisions) -> Vec<String> {
    let one = |(pod, rejection): &(Arc<Pod>, Rejection)| format!("{} {}", pod.name.name, rejection.reason());
    decisions.rejected.iter().map(one).collect()
}

#[test]
fn reports_what_is_new_changed_and_gone() {
    let mut roster = Roster::new();
    let changes = apply(&mut roster, vec![pod("b", "2", 0), pod("a", "1", 0)]);
    assert_eq!(changes, [Change::Added(shared("b", "2", 0)), Change::Added(shared("a", "1", 0))]);
    assert_eq!(names(&roster, is_waiting), ["b", "a"], "the order of arrival stays");
    assert_eq!(admit(&mut roster, &[]), Decisions::default());
    assert_eq!(names(&roster, is_active), ["b", "a"]);
    assert_eq!(apply(&mut roster, vec![pod("a", "1", 0), pod("b", "2", 0)]), []);
    let changes = apply(&mut roster, vec![pod("a", "1", 7)]);
    let edited = Change::Changed { old: shared("a", "1", 0), new: shared("a", "1", 7) };
    assert_eq!(changes, [edited, Change::Removed(shared("b", "2", 0))]);
    assert_eq!(names(&roster, is_leaving), ["b"]);
    assert_eq!(apply(&mut roster, vec![pod("a", "1", 7)]), [], "a removal is reported once");
}

#[test]
fn an_evicted_pod_stays_so_until_its_manifest_changes() {
    let mut roster = Roster::new();
    apply(&mut roster, vec![pod("a", "1", 0)]);
    let uid = PodUid::new("1").unwrap();
    assert!(!roster.evict(&uid), "it does not run yet");
    admit(&mut roster, &[]);
    assert!(roster.evict(&uid));
    assert!(!roster.evict(&uid), "it is evicted already");
    apply(&mut roster, vec![pod("a", "1", 0)]);
    admit(&mut roster, &[]);
    assert_eq!(names(&roster, is_evicted), ["a"]);
    apply(&mut roster, vec![pod("a", "1", 5)]);
    admit(&mut roster, &[]);
    assert_eq!(names(&roster, is_active), ["a"]);
}

#[test]
fn an_evicted_pod_that_went_and_came_back_may_run_again() {
    let mut roster = Roster::new();
    apply(&mut roster, vec![pod("a", "1", 0)]);
    let uid = PodUid::new("1").unwrap();
    admit(&mut roster, &[]);
    roster.evict(&uid);
    assert_eq!(apply(&mut roster, Vec::new()), [Change::Removed(shared("a", "1", 0))]);
    assert!(!roster.evict(&uid), "a leaving pod is not evicted");
    assert_eq!(apply(&mut roster, vec![pod("a", "1", 0)]), [Change::Added(shared("a", "1", 0))]);
    admit(&mut roster, &[]);
    assert!(roster.get(&uid).unwrap().may_start());
}

#[test]
fn only_a_leaving_pod_is_forgotten() {
    let mut roster = Roster::new();
    apply(&mut roster, vec![pod("a", "1", 0)]);
    let uid = PodUid::new("1").unwrap();
    assert_eq!(roster.forget(&uid), None);
    apply(&mut roster, Vec::new());
    assert_eq!(roster.forget(&uid), Some(shared("a", "1", 0)));
    assert_eq!(roster.get(&uid), None);
}

#[test]
fn a_name_finds_the_pod_that_stays() {
    let mut roster = Roster::new();
    apply(&mut roster, vec![pod("a", "1", 0)]);
    apply(&mut roster, vec![pod("a", "2", 0)]);
    let name = PodName { namespace: "default".into(), name: "a".into() };
    assert_eq!(roster.named(&name).unwrap().pod.uid.as_str(), "2");
}

#[test]
fn of_two_pods_with_one_uid_the_first_counts() {
    let mut roster = Roster::new();
    assert_eq!(
        apply(&mut roster, vec![pod("a", "1", 0), pod("b", "1", 0)]),
        [Change::Added(shared("a", "1", 0))]
    );
}

#[test]
fn who_does_not_fit_waits_until_there_is_room() {
    let mut roster = Roster::new();
    let (a, b, c) = (requesting("a", "1", 3_000), requesting("b", "2", 3_000), requesting("c", "3", 1_000));
    apply(&mut roster, vec![a.clone(), b.clone(), c.clone()]);
    assert_eq!(reported(&admit(&mut roster, &[])), ["b OutOfcpu"]);
    assert_eq!((names(&roster, is_active), names(&roster, is_waiting)), (vec!["a", "c"], vec!["b"]));
    assert_eq!(admit(&mut roster, &["1", "3"]), Decisions::default(), "a reason is reported once");
    // The first one's manifest goes, but not yet its processes.
    apply(&mut roster, vec![b.clone(), c.clone()]);
    assert_eq!(admit(&mut roster, &["1", "3"]), Decisions::default());
    assert_eq!(names(&roster, is_active), ["c"]);
    admit(&mut roster, &["3"]);
    assert_eq!(names(&roster, is_active), ["b", "c"]);
    // Who came later stays before one that is back.
    apply(&mut roster, vec![a, b, c]);
    assert_eq!(reported(&admit(&mut roster, &["2", "3"])), ["a OutOfcpu"]);
}

#[test]
fn an_evicted_pod_takes_its_part_until_it_is_gone_and_none_after() {
    let mut roster = Roster::new();
    apply(&mut roster, vec![requesting("a", "1", 3_000), requesting("b", "2", 3_000)]);
    admit(&mut roster, &[]);
    roster.evict(&PodUid::new("1").unwrap());
    admit(&mut roster, &["1"]);
    assert_eq!(names(&roster, is_active), Vec::<&str>::new());
    admit(&mut roster, &[]);
    assert_eq!((names(&roster, is_active), names(&roster, is_evicted)), (vec!["b"], vec!["a"]));
}

#[test]
fn a_changed_manifest_that_does_not_fit_is_not_in_force() {
    let mut roster = Roster::new();
    let in_force = |roster: &Roster| {
        let entry = roster.get(&PodUid::new("1").unwrap()).unwrap();
        (entry.may_start(), entry.pod.containers[0].resources.requests["cpu"].milli())
    };
    let (small, large) = (requesting("a", "1", 1_000), requesting("a", "1", 3_000));
    let other = |cpu| requesting("b", "2", cpu);
    apply(&mut roster, vec![small.clone(), other(2_000)]);
    admit(&mut roster, &[]);
    assert_eq!(apply(&mut roster, vec![large.clone(), other(2_000)]).len(), 1);
    assert_eq!(reported(&admit(&mut roster, &["1", "2"])), ["a OutOfcpu"]);
    assert_eq!(in_force(&roster), (true, 1_000));
    assert_eq!(apply(&mut roster, vec![large.clone(), other(2_000)]), [], "it is known already");
    assert_eq!(admit(&mut roster, &["1", "2"]), Decisions::default());
    // In place of its old self it needs 2 cpus more: room for them comes with the other's change.
    apply(&mut roster, vec![large.clone(), other(1_000)]);
    admit(&mut roster, &["1", "2"]);
    admit(&mut roster, &["1", "2"]);
    assert_eq!(in_force(&roster), (true, 3_000));
    // Back to what is in force.
    apply(&mut roster, vec![requesting("a", "1", 4_000), other(1_000)]);
    assert_eq!(reported(&admit(&mut roster, &["1", "2"])), ["a OutOfcpu"]);
    let back = apply(&mut roster, vec![large, other(1_000)]);
    assert!(matches!(&back[..], [Change::Changed { .. }]));
    assert!(roster.get(&PodUid::new("1").unwrap()).unwrap().held_back().is_none());
}

#[test]
fn memory_pressure_keeps_new_best_effort_pods_out_and_no_other() {
    const PRESSURE: &[NodeCondition] = &[NodeCondition::MemoryPressure];
    let mut roster = Roster::new();
    let (runs, new, burstable) = (pod("runs", "1", 0), pod("new", "2", 0), requesting("burstable", "3", 1));
    apply(&mut roster, vec![runs.clone()]);
    admit(&mut roster, &[]);
    apply(&mut roster, vec![new.clone(), runs.clone(), burstable.clone()]);
    assert_eq!(reported(&admit_under(&mut roster, &["1"], PRESSURE)), ["new Evicted"]);
    assert_eq!(names(&roster, is_active), ["runs", "burstable"]);
    admit(&mut roster, &["1", "3"]);
    assert_eq!(names(&roster, is_active), ["runs", "new", "burstable"]);
}

#[test]
fn any_other_condition_keeps_all_new_pods_out_but_critical_ones() {
    for conditions in [
        &[NodeCondition::PidPressure][..],
        &[NodeCondition::DiskPressure],
        &[NodeCondition::MemoryPressure, NodeCondition::PidPressure],
    ] {
        let mut roster = Roster::new();
        apply(&mut roster, vec![pod("runs", "1", 0)]);
        admit(&mut roster, &[]);
        let (burstable, dns) = (requesting("burstable", "2", 1), critical(requesting("dns", "3", 1)));
        apply(&mut roster, vec![pod("runs", "1", 0), burstable, dns]);
        assert_eq!(reported(&admit_under(&mut roster, &["1"], conditions)), ["burstable Evicted"]);
        assert_eq!(names(&roster, is_active), ["runs", "dns"]);
    }
}

#[test]
fn a_critical_pod_waits_for_those_that_make_way() {
    let mut roster = Roster::new();
    let (small, large) = (requesting("small", "1", 1_000), requesting("large", "2", 3_000));
    let dns = critical(requesting("dns", "3", 2_000));
    apply(&mut roster, vec![small.clone(), large.clone()]);
    admit(&mut roster, &[]);
    apply(&mut roster, vec![small.clone(), large.clone(), dns.clone()]);
    let decisions = admit(&mut roster, &["1", "2"]);
    assert_eq!((reported(&decisions), decisions.preempted), (vec!["large Preempting".into()], uids(&["2"])));
    assert_eq!(names(&roster, is_preempted), ["large"]);
    let may_start = |roster: &Roster| roster.get(&PodUid::new("3").unwrap()).unwrap().may_start();
    assert!(!may_start(&roster));
    // Another one takes what the dying leaves over, and preempts no other pod.
    let late = critical(requesting("late", "4", 1_000));
    let plain = requesting("plain", "5", 1);
    let all = vec![small, large, dns, late, plain];
    apply(&mut roster, all.clone());
    let decisions = admit(&mut roster, &["1", "2"]);
    assert_eq!((reported(&decisions), decisions.preempted), (vec!["plain OutOfcpu".into()], Vec::new()));
    assert_eq!(names(&roster, is_active), ["small", "dns", "late"]);
    assert!(!may_start(&roster));
    let awaits_other_than =
        |standing: &[&str]| roster.awaits_other_than(&uids(standing).into_iter().collect());
    assert!(!awaits_other_than(&["1", "2"]) && awaits_other_than(&["1"]));
    admit(&mut roster, &["1"]);
    assert!(may_start(&roster));
    // Who made way does not come back by itself, even when there is room.
    apply(&mut roster, all.into_iter().filter(|pod| pod.name.name == "large").collect());
    admit(&mut roster, &[]);
    assert_eq!(names(&roster, is_preempted), ["large"]);
    apply(&mut roster, vec![requesting("large", "2", 2_999)]);
    admit(&mut roster, &[]);
    assert_eq!(names(&roster, is_active), ["large"]);
}

#[test]
fn who_makes_way_has_had_its_changed_manifest() {
    let mut roster = Roster::new();
    apply(&mut roster, vec![requesting("a", "1", 3_000)]);
    admit(&mut roster, &[]);
    let held_back = requesting("a", "1", 5_000);
    apply(&mut roster, vec![held_back.clone()]);
    assert_eq!(reported(&admit(&mut roster, &["1"])), ["a OutOfcpu"]);
    let all = vec![held_back, critical(requesting("dns", "2", 4_000))];
    apply(&mut roster, all.clone());
    admit(&mut roster, &["1"]);
    assert_eq!(apply(&mut roster, all), []);
    assert_eq!(names(&roster, is_preempted), ["a"]);
}

#[test]
fn a_changed_manifest_that_fits_only_later_is_reported_when_it_comes_into_force() {
    let mut roster = Roster::new();
    let (old, new) = (requesting("a", "1", 1_000), requesting("a", "1", 2_000));
    apply(&mut roster, vec![old.clone(), requesting("b", "2", 3_000)]);
    admit(&mut roster, &[]);
    apply(&mut roster, vec![new.clone(), requesting("b", "2", 3_000)]);
    let decisions = admit(&mut roster, &[]);
    assert_eq!((reported(&decisions), decisions.in_force.len()), (vec![String::from("a OutOfcpu")], 0));
    apply(&mut roster, vec![new.clone()]);
    let decisions = admit(&mut roster, &[]);
    assert_eq!(decisions.in_force, [Change::Changed { old: Arc::new(old), new: Arc::new(new) }]);
    // A pod that fits at once was reported when it came.
    apply(&mut roster, vec![requesting("a", "1", 500)]);
    assert_eq!(admit(&mut roster, &[]).in_force, []);
}

#[test]
fn what_a_waiting_pod_still_takes_is_its_own() {
    let mut roster = Roster::new();
    let pods = vec![requesting("a", "1", 3_000), requesting("b", "2", 3_000)];
    apply(&mut roster, pods.clone());
    admit(&mut roster, &[]);
    apply(&mut roster, Vec::new());
    admit(&mut roster, &["1"]);
    // It comes back while its processes still run.
    apply(&mut roster, pods);
    assert_eq!(reported(&admit(&mut roster, &["1"])), ["b OutOfcpu"]);
    assert_eq!(names(&roster, is_active), ["a"]);
}

#[test]
fn who_was_ended_stays_so_over_a_restart_until_the_manifest_changes() {
    let mut before = Roster::new();
    apply(&mut before, vec![pod("a", "a", 0), pod("b", "b", 0), pod("c", "c", 0), pod("gone", "gone", 0)]);
    admit(&mut before, &[]);
    for uid in ["a", "b", "gone"] {
        assert!(before.evict(&PodUid::new(uid).unwrap()));
    }
    let kept = before.ended();
    assert_eq!(kept.iter().map(|pod| pod.uid.as_str()).collect::<Vec<_>>(), ["a", "b", "gone"]);

    let mut after = Roster::new();
    after.remember(kept.clone());
    assert_eq!(after.ended(), kept, "kept while no source has been read");
    apply(&mut after, vec![pod("a", "a", 0), pod("b", "b", 1), pod("c", "c", 0)]);
    after.forget_the_unnamed();
    admit(&mut after, &[]);
    assert_eq!(names(&after, is_evicted), ["a"]);
    assert_eq!(names(&after, is_active), ["b", "c"], "another manifest, and never evicted");
    assert_eq!(after.ended().len(), 1);

    // Of an eviction that was interrupted only the uid is known.
    let mut after = Roster::new();
    after.remember([EndedPod { uid: String::from("c"), fingerprint: None, why: Why::Preempted }]);
    after.remember([EndedPod { uid: String::from("not/a uid"), fingerprint: None, why: Why::Evicted }]);
    apply(&mut after, vec![pod("c", "c", 9)]);
    assert_eq!(names(&after, is_preempted), ["c"]);
}

#[test]
fn a_pod_that_another_admitted_is_never_rejected_and_takes_its_room() {
    let mut roster = Roster::new();
    let foreign = |cpu_milli| vec![requesting("foreign", "1", cpu_milli)];
    let others = |roster: &mut Roster, cpu_milli| apply_of(roster, AdmittedBy::Other, foreign(cpu_milli));
    others(&mut roster, 9_000);
    assert_eq!(admit_under(&mut roster, &["1"], &[NodeCondition::MemoryPressure]), Decisions::default());
    assert_eq!(names(&roster, is_active), ["foreign"], "more than the node has, and under pressure");
    // Its changes are in force at once, even those that do not fit.
    assert_eq!(others(&mut roster, 8_000).len(), 1);
    assert_eq!(admit(&mut roster, &["1"]), Decisions::default());
    assert!(roster.get(&uids(&["1"])[0]).unwrap().held_back().is_none());

    let own = |roster: &mut Roster, own: Pod| {
        let foreign = SourcePod {
            pod: Arc::new(requesting("foreign", "1", 3_500)),
            source: SourceName::STATIC,
            admitted_by: AdmittedBy::Other,
        };
        let own = SourcePod { pod: Arc::new(own), admitted_by: AdmittedBy::Roster, ..foreign.clone() };
        roster.apply(vec![foreign, own])
    };
    own(&mut roster, critical(requesting("own", "2", 1_000)));
    let decisions = admit(&mut roster, &["1"]);
    assert_eq!(decisions.preempted, [], "not even for a critical pod");
    assert_eq!(reported(&decisions), ["own UnexpectedAdmissionError"]);
    own(&mut roster, requesting("own", "2", 400));
    assert_eq!(reported(&admit(&mut roster, &["1"])), Vec::<String>::new());
    assert_eq!(names(&roster, is_active), ["foreign", "own"]);

    assert!(!roster.evict(&uids(&["1"])[0]), "who admitted it ends it");
    assert!(roster.evict(&uids(&["2"])[0]));
    assert_eq!(names(&roster, is_active), ["foreign"]);
}

#[test]
fn a_pod_that_another_admits_later_is_active_from_then_on() {
    let mut roster = Roster::new();
    apply(&mut roster, vec![requesting("large", "1", 9_000)]);
    assert_eq!(reported(&admit(&mut roster, &[])), ["large OutOfcpu"]);
    let large = || vec![requesting("large", "1", 9_000)];
    assert_eq!(apply_of(&mut roster, AdmittedBy::Other, large()), [], "the pod itself is the same");
    assert_eq!(names(&roster, is_active), ["large"]);
    assert_eq!(admit(&mut roster, &[]), Decisions::default());

    let mut after = Roster::new();
    after.remember([EndedPod { uid: String::from("1"), fingerprint: None, why: Why::Evicted }]);
    apply_of(&mut after, AdmittedBy::Other, large());
    assert_eq!(names(&after, is_active), ["large"], "it was started again by who admitted it");
}
