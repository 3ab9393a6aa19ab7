//! Kills that counters show and no record reports.
use super::*;
use crate::sense::incident::{GRACE_NS, SETTLE_NS};

fn rebuilt(reported: &[Output]) -> &Incident {
    let [Output::Detected(detected), Output::Incident(incident)] = reported else { panic!("{reported:#?}") };
    assert_eq!(detected.incident_id, incident.incident_id);
    assert!(detected.reconstructed && incident.reconstructed);
    assert_eq!((&detected.victim, &detected.trigger, &incident.trigger), (&None, &None, &None));
    assert_eq!(detected.place, incident.place);
    assert_eq!(incident.victims, []);
    incident
}

#[test]
fn a_lost_record_is_made_up_for_from_counters() {
    let mut machine = Machine::new();
    machine.count(C1, 0, 1, 0);
    machine.count(POD, 1, 0, 0);
    assert_eq!(machine.look(100 * MS, C1), []);
    assert_eq!(machine.until(99 * MS + GRACE_NS), [], "its record may be late");
    let reported = machine.until(100 * MS + GRACE_NS);
    let value = json(rebuilt(&reported));
    assert_eq!(value["scope"], "pod");
    assert_eq!(value["limitOwner"], "/kubepods/burstable/podp");
    assert_eq!(value["limitSource"], "counters");
    assert_eq!(
        (&value["namespace"], &value["pod"], &value["container"]),
        (&json!("default"), &json!("p"), &json!("c1"))
    );
    assert_eq!(value["cgroup"], "/kubepods/burstable/podp/c1");
    assert_eq!(value["kills"], 1);
    assert_eq!(value["counters"], json!({"oom": 1, "oomKill": 1, "oomGroupKill": 0}));
    assert_eq!((&value["victims"], &value["timelineMs"]), (&json!([]), &json!({})));
    assert_eq!((&value["reconciled"], &value["reconstructed"]), (&json!(true), &json!(true)));
    let Output::Incident(incident) = &reported[1] else { panic!() };
    assert!(matches!(incident.subject(), crate::journal::Subject::Pod(pod) if pod.name == "p"));
    machine.look(10_000 * MS, C1);
    assert_eq!(machine.until(60_000 * MS), [], "once");
}

#[test]
fn without_tracing_it_is_reported_after_a_moment() {
    let mut machine = Machine::with(Tracing::Off);
    machine.count(C1, 1, 1, 0);
    machine.look(100 * MS, C1);
    // The rest of a group kill.
    machine.count(C1, 0, 5, 1);
    let reported = machine.until(100 * MS + SETTLE_NS);
    let incident = rebuilt(&reported);
    assert_eq!(incident.counters, OomCounts { oom: 1, oom_kill: 6, oom_group_kill: 1 });
    assert_eq!(
        (incident.scope, incident.limit_owner.as_deref()),
        (Some(Scope::Container), Some("/kubepods/burstable/podp/c1"))
    );
    // Another one is another incident.
    machine.count(C1, 1, 1, 0);
    machine.look(1_000 * MS, C1);
    assert_eq!(rebuilt(&machine.until(2_000 * MS)).kills, 1);
}

#[test]
fn a_kill_without_a_limit_is_the_machines() {
    let mut machine = Machine::with(Tracing::Off);
    machine.count(C1, 0, 1, 0);
    machine.look(100 * MS, C1);
    let reported = machine.until(1_000 * MS);
    assert_eq!(
        (rebuilt(&reported).scope, rebuilt(&reported).limit_owner.as_deref()),
        (Some(Scope::Node), Some("/"))
    );
}

#[test]
fn a_limit_that_is_hit_is_no_kill_and_not_the_next_ones_limit() {
    let mut machine = Machine::with(Tracing::Off);
    machine.count(POD, 19_500, 0, 0);
    assert_eq!(machine.look(100 * MS, POD), []);
    assert_eq!(machine.until(10_000 * MS), []);
    machine.count(C1, 1, 1, 0);
    machine.look(20_000 * MS, C1);
    let reported = machine.until(30_000 * MS);
    assert_eq!(rebuilt(&reported).scope, Some(Scope::Container));
}

#[test]
fn a_record_in_time_explains_its_count() {
    let mut machine = Machine::new();
    machine.count(C1, 0, 1, 0);
    machine.look(99 * MS, C1);
    assert_eq!(machine.mark(mark()).len(), 1);
    machine.exit(106 * MS, 398);
    assert!(incident(&machine.until(60_000 * MS)).reconciled);
}

#[test]
fn a_record_that_comes_after_all_is_not_reported_again() {
    let mut machine = Machine::new();
    machine.count(C1, 0, 1, 0);
    machine.look(101 * MS, C1);
    assert_eq!(machine.until(500 * MS + GRACE_NS).len(), 2);
    let late = machine.emit(1_000 * MS + GRACE_NS, Input::Record(Record::Mark(mark())));
    assert_eq!(late, []);
    // The next kill is reported again.
    machine.count(C1, 0, 1, 0);
    let reported = machine.mark(Mark { time_ns: 5_000 * MS, ..mark() });
    assert_eq!(reported.len(), 1);
    machine.exit(5_001 * MS, 398);
    assert_eq!(machine.until(60_000 * MS).len(), 1);
}

#[test]
fn what_a_cgroup_counted_before_it_was_known_is_not_reported() {
    let mut machine = Machine::new();
    let counts = OomCounts { oom: 9, oom_kill: 7, oom_group_kill: 0 };
    machine.files.insert(CgroupId(100), counts);
    machine.give(50 * MS, Input::Known { cgroup: CgroupId(100), counts: Some(counts) });
    assert_eq!(machine.look(100 * MS, CgroupId(100)), []);
    assert_eq!(machine.until(10_000 * MS), []);
}

#[test]
fn what_a_cgroup_counted_since_it_was_made_is() {
    let mut machine = Machine::new();
    machine.count(CgroupId(100), 1, 2, 0);
    machine.give(50 * MS, Input::Known { cgroup: CgroupId(100), counts: None });
    machine.look(100 * MS, CgroupId(100));
    assert_eq!(rebuilt(&machine.until(10_000 * MS)).kills, 2);
}

#[test]
fn a_cgroup_of_the_same_name_is_another() {
    let mut machine = Machine::new();
    machine.count(CgroupId(100), 1, 1, 0);
    machine.give(50 * MS, Input::Known { cgroup: CgroupId(100), counts: None });
    machine.look(100 * MS, CgroupId(100));
    machine.files.remove(&CgroupId(100));
    machine.give(110 * MS, Input::Gone(CgroupId(100)));
    machine.give(120 * MS, Input::Known { cgroup: CgroupId(101), counts: None });
    machine.count(CgroupId(101), 1, 1, 0);
    machine.look(130 * MS, CgroupId(101));
    let reported = machine.until(10_000 * MS);
    let cgroups: Vec<_> = reported
        .iter()
        .filter_map(|output| match output {
            Output::Incident(incident) => incident.place.as_ref()?.container.clone(),
            _ => None,
        })
        .collect();
    assert_eq!(cgroups, ["x100", "x101"], "also of one that is gone since");
}

#[test]
fn part_of_a_group_may_be_lost() {
    let mut machine = Machine::new();
    let own = Mark { limit: Some(Limited::Cgroup(C1)), ..mark() };
    machine.count(C1, 1, 6, 1);
    machine.mark(own.clone());
    machine.mark(Mark { tid: 399, pid: Some(399), ..own });
    machine.exit(102 * MS, 398);
    machine.exit(102 * MS, 399);
    let reported = machine.until(200 * MS);
    assert_eq!(incident(&reported).counters, OomCounts { oom: 1, oom_kill: 3, oom_group_kill: 1 });
    let reported = machine.until(10_000 * MS);
    assert_eq!(rebuilt(&reported).kills, 3);
}

#[test]
fn a_lost_one_beside_a_traced_one_keeps_its_limit() {
    let mut machine = Machine::new();
    let own = Mark { limit: Some(Limited::Cgroup(C1)), ..mark() };
    // All of them are in the first reading.
    machine.count(C1, 4, 3, 0);
    machine.mark(own);
    machine.exit(102 * MS, 398);
    let reported = machine.until(200 * MS);
    assert_eq!(incident(&reported).counters, OomCounts { oom: 1, oom_kill: 1, oom_group_kill: 0 });
    let reported = machine.until(10_000 * MS);
    let rest = rebuilt(&reported);
    assert_eq!((rest.kills, rest.limit_owner.as_deref()), (2, Some("/kubepods/burstable/podp/c1")));
    assert_eq!(rest.counters.oom, 3);
}

#[test]
fn a_limit_that_others_took_is_not_the_machines() {
    let mut machine = Machine::new();
    machine.count(C1, 0, 2, 0);
    machine.count(POD, 1, 0, 0);
    machine.mark(Mark { limit: Some(Limited::Cgroup(POD)), ..mark() });
    machine.exit(102 * MS, 398);
    assert_eq!(incident(&machine.until(200 * MS)).scope, Some(Scope::Pod));
    let reported = machine.until(10_000 * MS);
    let rest = rebuilt(&reported);
    assert_eq!((rest.kills, rest.scope, rest.limit_owner.as_deref()), (1, None, None));
}

#[test]
fn a_suspicion_does_not_take_what_an_open_incident_will_claim() {
    let mut machine = Machine::new();
    machine.count(C1, 0, 1, 0);
    machine.look(50 * MS, C1);
    // The lost one above; here another, whose victim takes its time to die.
    machine.count(C1, 0, 1, 0);
    machine.mark(Mark { time_ns: 400 * MS, ..mark() });
    let reported = machine.until(60_000 * MS);
    let kills: u64 = reported
        .iter()
        .map(|output| match output {
            Output::Incident(incident) => incident.kills,
            _ => 0,
        })
        .sum();
    assert_eq!(kills, 2, "{reported:#?}");
    assert_eq!(reported.iter().filter(|output| matches!(output, Output::Incident(_))).count(), 2);
}

#[test]
fn no_answer_about_counters_holds_it_up_for_a_second_at_most() {
    let mut machine = Machine::new();
    machine.count(C1, 1, 1, 0);
    machine.look(100 * MS, C1);
    let asked = machine.give(100 * MS + GRACE_NS, Input::Tick);
    assert!(matches!(asked.as_slice(), [Output::ReadCounters { .. }]), "{asked:?}");
    let reported = machine.give(100 * MS + GRACE_NS + CLOSE_NS, Input::Tick);
    assert_eq!(rebuilt(&reported).kills, 1);
}

#[test]
fn a_reading_between_the_hit_and_the_kill_keeps_the_limit() {
    for tracing in [Tracing::On, Tracing::Off] {
        let mut machine = Machine::with(tracing);
        machine.count(C1, 1, 0, 0);
        assert_eq!(machine.look(100 * MS, C1), []);
        machine.count(C1, 0, 2, 1);
        machine.look(110 * MS, C1);
        let reported = machine.until(10_000 * MS);
        let incident = rebuilt(&reported);
        assert_eq!(incident.counters, OomCounts { oom: 1, oom_kill: 2, oom_group_kill: 1 });
        assert_eq!(incident.scope, Some(Scope::Container));
    }
}

#[test]
fn a_cgroup_that_is_gone_cannot_be_compared_with_what_was_read_before_the_kill() {
    for (looked_ns, reconciliation) in
        [(50 * MS, Reconciliation::Unreadable), (101 * MS, Reconciliation::Matched)]
    {
        let mut machine = Machine::new();
        machine.look(50 * MS, C1);
        machine.mark(mark());
        machine.count(C1, 0, 1, 0);
        if looked_ns > 100 * MS {
            machine.look(looked_ns, C1);
        }
        machine.files.remove(&C1);
        machine.exit(106 * MS, 398);
        assert_eq!(incident(&machine.until(10_000 * MS)).reconciliation, reconciliation);
    }
}
