//! What of the counters is one incident's, and what its neighbour's.
use super::*;

/// The kernel counts a group kill where `memory.oom.group` is set, and the kills where the victims are.
#[test]
fn a_group_kill_that_is_counted_above_is_told_once_whenever_that_is_looked_at() {
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
        let told = machine.until(60_000 * MS);
        let incident = incident(&told);
        assert_eq!(incident.counters, OomCounts { oom: 1, oom_kill: 3, oom_group_kill: 1 });
        assert_eq!((incident.kills, incident.reconciliation), (2, Reconciliation::Matched));
    }
}

/// The second kill is counted before the counters are read for the first.
#[test]
fn counters_of_neighbours_add_up() {
    let mut machine = Machine::new();
    let own = Mark { limit: Some(Limited::Cgroup(C1)), ..mark() };
    machine.mark(own.clone());
    machine.count(C1, 2, 2, 0);
    machine.exit(102 * MS, 398);
    let told = machine.until(160 * MS);
    let first = incident(&told).clone();
    machine.mark(Mark { time_ns: 161 * MS, tid: 401, pid: Some(401), ..own });
    machine.exit(162 * MS, 401);
    let told = machine.until(60_000 * MS);
    let second = incident(&told);
    for one in [&first, second] {
        assert_eq!((one.counters.oom_kill, one.reconciliation), (1, Reconciliation::Matched));
    }
    let kills = |one: &Incident| (one.counters_before.oom_kill, one.counters_after.oom_kill);
    assert_eq!((kills(&first), kills(second)), ((0, 1), (1, 2)));
}
