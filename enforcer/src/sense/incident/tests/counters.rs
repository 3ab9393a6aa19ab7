//! What of the counters is one incident's, and what its neighbour's.
use super::*;

/// The kernel counts a group kill where `memory.oom.group` is set, and the kills where the victims are.
#[test]
fn a_group_kill_that_is_counted_above_is_reported_once_whenever_that_is_looked_at() {
    for looked_first in [true, false] {
        let mut machine = Machine::new();
        let nested = CgroupId(FIRST_OF_MANY);
        machine.files.insert(nested, OomCounts::default());
        machine.give(0, Input::Known { cgroup: nested, counts: None });
        machine.count(nested, 0, 3, 0);
        machine.count(POD, 1, 0, 1);
        if looked_first {
            assert_eq!(machine.look(99 * MS, POD), []);
        }
        for pid in [398, 399] {
            machine.mark(Mark { tid: pid, pid: Some(pid), cgroup: Some(nested), ..mark() });
        }
        machine.look(101 * MS, POD);
        machine.look(101 * MS, nested);
        machine.exit(102 * MS, 398);
        machine.exit(102 * MS, 399);
        let reported = machine.until(60_000 * MS);
        let incident = incident(&reported);
        assert_eq!(incident.counters, OomCounts { oom: 1, oom_kill: 3, oom_group_kill: 1 });
        assert_eq!((incident.kills, incident.reconciliation), (2, Reconciliation::Matched));
    }
}

/// systemd removes the cgroup of a container as soon as it is empty, before its counters can be read.
#[test]
fn what_a_removed_cgroup_had_counted_at_the_mark_reconciles() {
    let kill = |counts| {
        let mut machine = Machine::new();
        machine.files.remove(&C1);
        machine.mark(Mark { limit: Some(Limited::Cgroup(C1)), counted: Some(C1), counts, ..mark() });
        machine.exit(102 * MS, 398);
        let reported = machine.until(60_000 * MS);
        let incident = incident(&reported);
        (incident.counters, incident.reconciliation)
    };
    let counts = OomCounts { oom: 1, oom_kill: 1, oom_group_kill: 0 };
    assert_eq!(kill(Some(counts)), (counts, Reconciliation::Matched));
    assert_eq!(kill(None), (OomCounts::default(), Reconciliation::Unreadable));
}

/// Two incidents of one removed cgroup. The one with the later mark closes first.
#[test]
fn neighbours_in_a_removed_cgroup_are_both_reconciled_whichever_closes_first() {
    let mut machine = Machine::new();
    machine.files.remove(&C1);
    let own = |pid: u32, oom_kill| Mark {
        time_ns: u64::from(pid - 300) * MS,
        tid: pid,
        pid: Some(pid),
        counted: Some(C1),
        counts: Some(OomCounts { oom: oom_kill, oom_kill, oom_group_kill: 0 }),
        limit: Some(Limited::Cgroup(C1)),
        trigger: Task { tid: pid, ..mark().trigger },
        ..mark()
    };
    let mut reported = machine.mark(own(400, 1));
    reported.extend(machine.mark(own(402, 2)));
    reported.extend(machine.exit(103 * MS, 402));
    reported.extend(machine.until(400 * MS));
    reported.extend(machine.exit(401 * MS, 400));
    reported.extend(machine.until(60_000 * MS));
    let closed: Vec<_> = reported
        .iter()
        .filter_map(|output| match output {
            Output::Incident(incident) => Some((incident.victims[0].pid, incident.reconciliation)),
            _ => None,
        })
        .collect();
    assert_eq!(closed, [(402, Reconciliation::Matched), (400, Reconciliation::Matched)]);
}

/// A later reading shows more than the one at the mark.
#[test]
fn a_reading_after_the_mark_takes_precedence() {
    let mut machine = Machine::new();
    machine.count(C1, 1, 1, 1);
    let counts = Some(OomCounts { oom: 1, oom_kill: 1, oom_group_kill: 0 });
    machine.mark(Mark { limit: Some(Limited::Cgroup(C1)), counted: Some(C1), counts, ..mark() });
    machine.exit(102 * MS, 398);
    let reported = machine.until(60_000 * MS);
    assert_eq!(incident(&reported).counters, OomCounts { oom: 1, oom_kill: 1, oom_group_kill: 1 });
}

/// The second kill is counted before the counters are read for the first.
#[test]
fn counters_of_neighbours_add_up() {
    let mut machine = Machine::new();
    let own = Mark { limit: Some(Limited::Cgroup(C1)), ..mark() };
    machine.mark(own.clone());
    machine.count(C1, 2, 2, 0);
    machine.exit(102 * MS, 398);
    let reported = machine.until(160 * MS);
    let first = incident(&reported).clone();
    machine.mark(Mark { time_ns: 161 * MS, tid: 401, pid: Some(401), ..own });
    machine.exit(162 * MS, 401);
    let reported = machine.until(60_000 * MS);
    let second = incident(&reported);
    for one in [&first, second] {
        assert_eq!((one.counters.oom_kill, one.reconciliation), (1, Reconciliation::Matched));
    }
    let kills = |one: &Incident| (one.counters_before.oom_kill, one.counters_after.oom_kill);
    assert_eq!((kills(&first), kills(second)), ((0, 1), (1, 2)));
}

/// Marks that come once their incident has closed open another. The kill that is counted twice is in the first.
#[test]
fn late_marks_do_not_claim_the_group_kill_of_a_neighbour() {
    let mut machine = Machine::new();
    machine.count(C2, 0, 4, 0);
    machine.count(C1, 0, 2, 0);
    machine.count(POD, 2, 0, 2);
    let reported = [(100, 400), (151, 401), (152, 402)].into_iter().flat_map(|(at_ms, pid)| {
        let own = Mark { tid: pid, pid: Some(pid), cgroup: Some(C2), counted: Some(C2), ..mark() };
        let mut reported = machine.until(at_ms * MS);
        reported.extend(machine.emit(at_ms * MS, Input::Record(Record::Mark(own))));
        reported.extend(machine.emit(at_ms * MS, Input::Record(Record::Exit(exit(at_ms * MS, pid)))));
        if pid == 400 {
            let trigger = Task { tid: 500, ..mark().trigger };
            let other = Mark { tid: 403, pid: Some(403), counted: Some(C1), trigger, ..mark() };
            reported.extend(machine.emit(at_ms * MS, Input::Record(Record::Mark(other))));
        }
        reported
    });
    let mut reported: Vec<Output> = reported.collect();
    reported.extend(machine.until(500 * MS));
    for cgroup in [C1, C2, POD] {
        reported.extend(machine.look(500 * MS, cgroup));
    }
    reported.extend(machine.until(60_000 * MS));
    assert_eq!(kills(&reported), [(1, false), (1, false), (1, false), (1, false)]);
}

/// The reading of the one that is killed as a group is of before its neighbours' kills, and a mark of it is lost.
#[test]
fn neighbours_in_the_same_cgroup_do_not_hide_a_kill_whose_mark_is_lost() {
    let mut machine = Machine::new();
    let own = |pid: u32| Mark {
        time_ns: u64::from(pid - 300) * MS,
        tid: pid,
        pid: Some(pid),
        counted: Some(C1),
        limit: Some(Limited::Cgroup(C1)),
        trigger: Task { tid: pid, ..mark().trigger },
        ..mark()
    };
    machine.count(C1, 1, 3, 1);
    let mut reported = machine.mark(own(400));
    reported.extend(machine.exit(101 * MS, 400));
    machine.count(C1, 2, 2, 0);
    for pid in [402, 403] {
        reported.extend(machine.mark(own(pid)));
    }
    for pid in [402, 403] {
        reported.extend(machine.exit(104 * MS, pid));
    }
    reported.extend(machine.until(500 * MS));
    reported.extend(machine.look(500 * MS, C1));
    reported.extend(machine.until(60_000 * MS));
    assert_eq!(kills(&reported), [(1, false), (1, false), (1, false), (1, true)]);
}

/// The kills of each incident, and whether it is of counters alone.
fn kills(reported: &[Output]) -> Vec<(u64, bool)> {
    let incidents = reported.iter().filter_map(|output| match output {
        Output::Incident(incident) => Some((incident.kills, incident.reconstructed)),
        Output::Detected(_) | Output::Averted(_) | Output::ReadCounters { .. } => None,
    });
    incidents.collect()
}
