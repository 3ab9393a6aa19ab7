//! The machine by hand-made records.
mod averted;
mod calls;
mod conserved;
mod counted;
mod counters;
mod random;
mod rebuilt;

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use serde_json::{Value, json};
use ulid::Ulid;

use super::{
    ANSWER_NS, About as _, AvertedCause, CLOSE_NS, EARLY_NS, Eviction, FOLD_NS, Incident, Incidents, Input,
    LONGEST_NS, LimitSource, OomCounts, Output, READ_NS, Reconciliation, Scope, Tracing, World,
};
use crate::{
    model::{CgroupId, CgroupPath, ContainerKind, Instance, Owner, OwnerLevel, PodName, PodUid, QosClass},
    sense::record::{Exit, Limited, Mark, Memory, Record, Task},
};

const MS: u64 = 1_000_000;
const ROOT: CgroupId = CgroupId(1);
const KUBEPODS: CgroupId = CgroupId(2);
const BURSTABLE: CgroupId = CgroupId(3);
const POD: CgroupId = CgroupId(10);
const C1: CgroupId = CgroupId(11);
const C2: CgroupId = CgroupId(12);
const SYSTEM: CgroupId = CgroupId(20);
/// From this id on, cgroups are further containers of the pod.
const FIRST_OF_MANY: u64 = 100;

/// A machine with one pod of two containers, and counters that tests move.
#[derive(Default)]
struct Machine {
    incidents: Incidents,
    evicting: HashMap<CgroupId, Eviction>,
    unnamed: HashSet<CgroupId>,
    files: HashMap<CgroupId, OomCounts>,
    ids: u128,
}

struct Known<'a> {
    evicting: &'a HashMap<CgroupId, Eviction>,
    unnamed: &'a HashSet<CgroupId>,
    ids: &'a mut u128,
}

fn path(cgroup: CgroupId) -> Option<CgroupPath> {
    let path = match cgroup {
        ROOT => "/",
        KUBEPODS => "/kubepods",
        BURSTABLE => "/kubepods/burstable",
        POD => "/kubepods/burstable/podp",
        C1 => "/kubepods/burstable/podp/c1",
        C2 => "/kubepods/burstable/podp/c2",
        SYSTEM => "/system.slice/db.service",
        CgroupId(other) if other >= FIRST_OF_MANY => {
            return CgroupPath::parse(&format!("/kubepods/burstable/podp/x{other}")).ok();
        }
        _ => return None,
    };
    CgroupPath::parse(path).ok()
}

impl World for Known<'_> {
    fn owner(&self, cgroup: CgroupId) -> Option<Owner> {
        let pod = PodName { namespace: "default".into(), name: "p".into() };
        let uid = PodUid::new("p").unwrap();
        let level = match cgroup {
            KUBEPODS => OwnerLevel::Node,
            BURSTABLE => OwnerLevel::Qos(QosClass::Burstable),
            POD => OwnerLevel::Pod { pod: pod.into(), uid },
            C1 => OwnerLevel::Container { pod: pod.into(), uid, container: "c1".into() },
            C2 => OwnerLevel::Container { pod: pod.into(), uid, container: "c2".into() },
            CgroupId(other) if other >= FIRST_OF_MANY => {
                OwnerLevel::Container { pod: pod.into(), uid, container: format!("x{other}") }
            }
            _ => return None,
        };
        Some(Owner { path: path(cgroup)?, level })
    }

    fn path(&self, cgroup: CgroupId) -> Option<CgroupPath> {
        path(cgroup)
    }

    fn instance(&self, owner: &CgroupPath) -> Instance {
        let is_first = Some(owner) == path(C1).as_ref();
        if is_first {
            Instance { kind: Some(ContainerKind::Sidecar), attempt: Some(3) }
        } else {
            Instance::default()
        }
    }

    fn parent(&self, cgroup: CgroupId) -> Option<CgroupId> {
        match cgroup {
            KUBEPODS | SYSTEM => Some(ROOT),
            BURSTABLE => Some(KUBEPODS),
            POD => Some(BURSTABLE),
            C1 | C2 => Some(POD),
            CgroupId(other) if other >= FIRST_OF_MANY => Some(POD),
            _ => None,
        }
    }

    fn awaits_name(&self, cgroup: CgroupId) -> bool {
        self.unnamed.contains(&cgroup)
    }

    fn eviction(&self, cgroup: CgroupId, _at_ns: u64) -> Option<Eviction> {
        self.evicting.get(&cgroup).copied()
    }

    fn new_id(&mut self, _first: Option<&Mark>) -> Ulid {
        *self.ids += 1;
        Ulid::from(*self.ids)
    }
}

impl Machine {
    /// With the counters of all cgroups known to be zero.
    fn new() -> Self {
        Self::with(Tracing::On)
    }

    fn with(tracing: Tracing) -> Self {
        let mut machine = Self { incidents: Incidents::new(tracing), ..Self::default() };
        for cgroup in [KUBEPODS, BURSTABLE, POD, C1, C2, SYSTEM] {
            machine.files.insert(cgroup, OomCounts::default());
            machine.give(0, Input::Known { cgroup, counts: Some(OomCounts::default()) });
        }
        machine
    }

    fn give(&mut self, now_ns: u64, input: Input) -> Vec<Output> {
        let mut world = Known { evicting: &self.evicting, unnamed: &self.unnamed, ids: &mut self.ids };
        self.incidents.step(now_ns, input, &mut world)
    }

    /// Gives an input and answers every request for counters at once; returns what is to be reported.
    fn emit(&mut self, now_ns: u64, input: Input) -> Vec<Output> {
        let mut reported = Vec::new();
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for output in self.give(now_ns, input) {
                match output {
                    Output::ReadCounters { incident, cgroups } => {
                        let read = |cgroup: CgroupId| (cgroup, self.files.get(&cgroup).copied());
                        let readings = cgroups.into_iter().map(read).collect();
                        inputs.push(Input::Counters { incident, readings });
                    }
                    other => reported.push(other),
                }
            }
        }
        reported
    }

    /// Looks at the counters of a cgroup.
    fn look(&mut self, now_ns: u64, cgroup: CgroupId) -> Vec<Output> {
        let counts = self.files.get(&cgroup).copied();
        counts.map(|counts| self.emit(now_ns, Input::Looked { cgroup, counts })).unwrap_or_default()
    }

    fn mark(&mut self, mark: Mark) -> Vec<Output> {
        self.emit(mark.time_ns, Input::Record(Record::Mark(mark)))
    }

    fn exit(&mut self, time_ns: u64, pid: u32) -> Vec<Output> {
        self.emit(time_ns, Input::Record(Record::Exit(exit(time_ns, pid))))
    }

    fn count(&mut self, cgroup: CgroupId, oom: u64, oom_kill: u64, oom_group_kill: u64) {
        let counts = self.files.entry(cgroup).or_default();
        *counts = counts.plus(OomCounts { oom, oom_kill, oom_group_kill });
    }

    /// Lets time pass by the machine's own deadlines.
    fn until(&mut self, end_ns: u64) -> Vec<Output> {
        let mut reported = Vec::new();
        let mut now_ns = 0;
        while let Some(due_ns) = self.incidents.deadline_ns().filter(|due_ns| *due_ns <= end_ns) {
            now_ns = due_ns.max(now_ns);
            reported.extend(self.emit(now_ns, Input::Tick));
        }
        reported
    }
}

/// A kill at 100 ms of pid 398 in c1, by pid 412 in c2, for the pod's limit.
fn mark() -> Mark {
    Mark {
        time_ns: 100 * MS,
        tid: 398,
        pid: Some(398),
        start_ns: Some(51_234 * MS),
        comm: "workload".into(),
        cgroup: Some(C1),
        uid: Some(0),
        oom_score_adj: Some(992),
        memory: Some(Memory { anon_bytes: 47_185_920, ..Memory::default() }),
        container_init: Some(true),
        killed: Some(true),
        trigger: Task { tid: 412, pid: 412, comm: "workload".into(), cgroup: Some(C2) },
        limit: Some(Limited::Cgroup(POD)),
        reclaim_since_ns: Some(97 * MS),
        oom_since_ns: None,
        counted: None,
        counts: None,
        memory_number: None,
        end_watched: false,
        memory_watched: false,
    }
}

fn exit(time_ns: u64, pid: u32) -> Exit {
    Exit {
        time_ns,
        marked_ns: 0,
        pid,
        tid: pid,
        cgroup: Some(C1),
        exit_code: Some(9),
        group_dead: true,
        memory_let_go: false,
    }
}

fn incident(outputs: &[Output]) -> &Incident {
    match outputs {
        [Output::Incident(incident)] => incident,
        other => panic!("{other:#?}"),
    }
}

fn json(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}

#[test]
fn a_pod_limit_hit_by_a_sibling_is_reported_as_in_the_contract() {
    let mut machine = Machine::new();
    machine.count(POD, 1, 0, 0);
    machine.count(C1, 0, 1, 0);
    let detected = machine.mark(mark());
    let [Output::Detected(detected)] = detected.as_slice() else { panic!("{detected:?}") };
    assert_eq!(
        (detected.scope, detected.limit_owner.as_deref()),
        (Some(Scope::Pod), Some("/kubepods/burstable/podp"))
    );
    assert_eq!(detected.victim.as_ref().unwrap().place.container.as_deref(), Some("c1"));
    assert_eq!(machine.exit(106 * MS, 398), []);
    let reported = machine.until(10_000 * MS);
    let value = json(incident(&reported));
    assert_eq!(value["incidentId"], json(&detected.incident_id));
    assert_eq!(value["scope"], "pod");
    assert_eq!(value["limitOwner"], "/kubepods/burstable/podp");
    let trigger = json!({"pid": 412, "tid": 412, "comm": "workload", "namespace": "default", "pod": "p",
        "uid": "p", "container": "c2", "cgroup": "/kubepods/burstable/podp/c2"});
    assert_eq!(value["trigger"], trigger);
    let victim = &value["victims"][0];
    for (key, expected) in [
        ("pid", json!(398)),
        ("startTimeMs", json!(51_234)),
        ("comm", json!("workload")),
        ("namespace", json!("default")),
        ("pod", json!("p")),
        ("container", json!("c1")),
        ("containerKind", json!("sidecar")),
        ("attempt", json!(3)),
        ("anonBytes", json!(47_185_920)),
        ("fileBytes", json!(0)),
        ("shmemBytes", json!(0)),
        ("oomScoreAdj", json!(992)),
        ("containerInit", json!(true)),
    ] {
        assert_eq!(victim[key], expected, "{key}");
    }
    assert_eq!(value["timelineMs"], json!({"firstReclaim": 0, "marked": 3, "exited": 9}));
    assert_eq!(value["counters"], json!({"oom": 1, "oomKill": 1, "oomGroupKill": 0}));
    assert_eq!((&value["reconciled"], &value["reconstructed"]), (&json!(true), &json!(false)));
}

#[test]
fn it_closes_when_no_other_victim_can_come() {
    let mut machine = Machine::new();
    machine.count(C1, 0, 1, 0);
    machine.mark(mark());
    assert_eq!(machine.exit(103 * MS, 398), []);
    assert_eq!(machine.emit(100 * MS + FOLD_NS, Input::Tick), []);
    assert_eq!(machine.emit(100 * MS + FOLD_NS + 1, Input::Tick).len(), 1);
    assert_eq!(machine.incidents.open(), 0);
}

/// The kernel may tell an exit before the mark: the victim runs on another CPU than its killer.
#[test]
fn an_exit_that_comes_before_its_mark_is_its_victims() {
    let mut machine = Machine::new();
    machine.count(C1, 0, 1, 0);
    assert_eq!(machine.exit(99 * MS, 398), []);
    machine.mark(mark());
    let reported = machine.until(1_000 * MS);
    let incident = incident(&reported);
    assert_eq!(incident.victims[0].exit_code, Some(9));
    assert_eq!(incident.timeline_ms.exited, Some(3), "not before the mark");
}

#[test]
fn an_old_exit_of_the_same_process_id_is_not() {
    let mut machine = Machine::new();
    machine.exit(100 * MS, 398);
    let late = 100 * MS + EARLY_NS + 1;
    machine.mark(Mark { time_ns: late, reclaim_since_ns: None, ..mark() });
    let reported = machine.until(late + 2_000 * MS);
    assert_eq!(incident(&reported).victims[0].exit_code, None);
}

#[test]
fn a_group_kill_is_one_incident() {
    let mut machine = Machine::new();
    let container = Mark { limit: Some(Limited::Cgroup(C1)), ..mark() };
    machine.count(C1, 1, 6, 1);
    let mut reported = Vec::new();
    for i in 0..5 {
        let pid = 398 + i;
        let time_ns = (100 + u64::from(i) * 40) * MS;
        reported.extend(machine.mark(Mark { time_ns, tid: pid, pid: Some(pid), ..container.clone() }));
        reported.extend(machine.exit(time_ns + MS, pid));
    }
    assert_eq!(reported.len(), 1, "one oom.detected");
    let reported = machine.until(10_000 * MS);
    let incident = incident(&reported);
    assert_eq!(incident.victims.len(), 5);
    assert_eq!(incident.scope, Some(Scope::Container));
    assert_eq!((incident.counters.oom_kill, incident.counters.oom_group_kill), (6, 1));
    assert_eq!(incident.reconciliation, Reconciliation::Matched, "the first victim is counted twice");
}

#[test]
fn another_trigger_or_a_later_mark_is_another_incident() {
    let mut machine = Machine::new();
    machine.mark(mark());
    let other = Task { tid: 500, ..mark().trigger };
    assert_eq!(machine.mark(Mark { tid: 401, pid: Some(401), trigger: other, ..mark() }).len(), 1);
    let later = 100 * MS + FOLD_NS + 1;
    assert_eq!(machine.mark(Mark { time_ns: later, tid: 402, pid: Some(402), ..mark() }).len(), 1);
    assert_eq!(machine.incidents.open(), 3);
}

#[test]
fn two_incidents_of_one_cgroup_share_its_counters() {
    let mut machine = Machine::new();
    let own = Mark { limit: Some(Limited::Cgroup(C1)), ..mark() };
    machine.count(C1, 2, 2, 0);
    machine.mark(own.clone());
    let other = Task { tid: 500, ..own.trigger.clone() };
    machine.mark(Mark { time_ns: 101 * MS, tid: 401, pid: Some(401), trigger: other, ..own });
    machine.exit(102 * MS, 398);
    machine.exit(103 * MS, 401);
    let reported = machine.until(10_000 * MS);
    assert_eq!(reported.len(), 2);
    for one in &reported {
        let incident = incident(std::slice::from_ref(one));
        assert_eq!(incident.counters, OomCounts { oom: 1, oom_kill: 1, oom_group_kill: 0 });
        assert!(incident.reconciled);
    }
}

#[test]
fn counters_reported_once_are_not_reported_again() {
    let mut machine = Machine::new();
    for round in 1..=3_u64 {
        let time_ns = round * 10_000 * MS;
        machine.count(C1, 0, 1, 0);
        machine.count(POD, 1, 0, 0);
        machine.mark(Mark { time_ns, ..mark() });
        machine.exit(time_ns + MS, 398);
        let reported = machine.until(time_ns + 5_000 * MS);
        let incident = incident(&reported);
        assert_eq!(incident.counters, OomCounts { oom: 1, oom_kill: 1, oom_group_kill: 0 });
        assert_eq!(incident.counters_before.oom_kill, round - 1);
        assert_eq!(incident.counters_after.oom_kill, round);
    }
}

#[test]
fn the_machine_itself() {
    let mut machine = Machine::new();
    machine.count(C1, 0, 1, 0);
    machine.mark(Mark { limit: Some(Limited::Machine), ..mark() });
    machine.exit(106 * MS, 398);
    let reported = machine.until(10_000 * MS);
    let incident = incident(&reported);
    assert_eq!((incident.scope, incident.limit_owner.as_deref()), (Some(Scope::Node), Some("/")));
    assert!(incident.reconciled);
}

#[test]
fn scopes_follow_the_limits_owner() {
    for (limit, scope, owner) in [
        (KUBEPODS, Some(Scope::Node), Some("/kubepods")),
        (BURSTABLE, Some(Scope::Qos), Some("/kubepods/burstable")),
        (POD, Some(Scope::Pod), Some("/kubepods/burstable/podp")),
        (C1, Some(Scope::Container), Some("/kubepods/burstable/podp/c1")),
        (SYSTEM, Some(Scope::System), Some("/system.slice/db.service")),
        (CgroupId(99), None, None),
    ] {
        let mut machine = Machine::new();
        let reported = machine.mark(Mark { limit: Some(Limited::Cgroup(limit)), ..mark() });
        let [Output::Detected(detected)] = reported.as_slice() else { panic!("{reported:?}") };
        assert_eq!((detected.scope, detected.limit_owner.as_deref()), (scope, owner));
    }
}

#[test]
fn the_limit_owner_is_found_by_counters_where_it_was_not_traced() {
    let mut machine = Machine::new();
    machine.count(C1, 0, 1, 0);
    machine.count(POD, 1, 0, 0);
    machine.mark(Mark { limit: None, ..mark() });
    machine.exit(106 * MS, 398);
    let reported = machine.until(10_000 * MS);
    let by_counters = incident(&reported);
    assert_eq!((by_counters.scope, by_counters.limit_source), (Some(Scope::Pod), LimitSource::Counters));

    let time_ns = 20_000 * MS;
    machine.count(C1, 0, 1, 0);
    machine.mark(Mark { limit: None, time_ns, ..mark() });
    machine.exit(time_ns + MS, 398);
    let reported = machine.until(time_ns + 5_000 * MS);
    let none_moved = incident(&reported);
    assert_eq!((none_moved.scope, none_moved.limit_source), (Some(Scope::Node), LimitSource::Counters));
}

#[test]
fn unknown_counters_avert_nothing() {
    let mut machine = Machine::default();
    machine.mark(Mark { killed: None, ..mark() });
    machine.exit(102 * MS, 398);
    let reported = machine.until(5_000 * MS);
    assert_eq!(incident(&reported).reconciliation, Reconciliation::Unreadable);

    let mut machine = Machine::default();
    machine.count(C1, 0, 1, 0);
    machine.mark(mark());
    machine.exit(102 * MS, 398);
    let reported = machine.until(5_000 * MS);
    assert_eq!(incident(&reported).reconciliation, Reconciliation::NoBaseline);
}

#[test]
fn a_kill_that_the_kernel_did_not_count_is_reported_as_such() {
    let mut machine = Machine::new();
    machine.mark(mark());
    machine.exit(102 * MS, 398);
    let reported = machine.until(5_000 * MS);
    assert_eq!(incident(&reported).reconciliation, Reconciliation::Differs);
    assert!(!incident(&reported).reconciled);
}

#[test]
fn a_victim_that_does_not_die_closes_within_a_second() {
    let mut machine = Machine::new();
    machine.count(C1, 0, 1, 0);
    machine.mark(mark());
    let first = machine.incidents.deadline_ns();
    assert_eq!(first, Some(100 * MS + READ_NS));
    let reported = machine.until(100 * MS + CLOSE_NS);
    let incident = incident(&reported);
    assert_eq!(incident.timeline_ms.exited, None);
    assert!(incident.reconciled, "the counters are read before");
}

#[test]
fn an_answer_about_counters_is_awaited_but_not_for_ever() {
    let mut machine = Machine::new();
    machine.give(100 * MS, Input::Record(Record::Mark(mark())));
    let asked = machine.give(106 * MS, Input::Record(Record::Exit(exit(106 * MS, 398))));
    assert!(matches!(asked.as_slice(), [Output::ReadCounters { .. }]), "{asked:?}");
    assert_eq!(machine.give(200 * MS, Input::Tick), [], "asked once");
    assert_eq!(machine.give(100 * MS + CLOSE_NS, Input::Tick), [], "the daemon is behind");
    let reported = machine.give(100 * MS + CLOSE_NS + ANSWER_NS, Input::Tick);
    assert_eq!(incident(&reported).reconciliation, Reconciliation::Unreadable);
}

#[test]
fn counters_are_read_also_by_a_daemon_that_comes_back_after_the_time_to_close() {
    let mut machine = Machine::new();
    machine.give(100 * MS, Input::Record(Record::Mark(mark())));
    let late_ns = 5_000 * MS + CLOSE_NS;
    let asked = machine.give(late_ns, Input::Record(Record::Exit(exit(106 * MS, 398))));
    let [Output::ReadCounters { incident: id, cgroups }] = asked.as_slice() else { panic!("{asked:?}") };
    assert_eq!(machine.give(late_ns + ANSWER_NS - 1, Input::Tick), [], "asked once, and waited for");
    let kills = |cgroup: CgroupId| OomCounts { oom_kill: u64::from(cgroup == C1), ..OomCounts::default() };
    let readings = cgroups.iter().map(|cgroup| (*cgroup, Some(kills(*cgroup)))).collect();
    let reported = machine.give(late_ns + ANSWER_NS - 1, Input::Counters { incident: *id, readings });
    assert_eq!(incident(&reported).reconciliation, Reconciliation::Matched);
}

#[test]
fn a_victim_after_the_late_reading_does_not_put_off_the_end_again() {
    let mut machine = Machine::new();
    machine.give(100 * MS, Input::Record(Record::Mark(mark())));
    let late_ns = 100 * MS + LONGEST_NS;
    let asked = machine.give(late_ns, Input::Tick);
    assert!(matches!(asked.as_slice(), [Output::ReadCounters { .. }]), "{asked:?}");
    let other = Mark { pid: Some(399), tid: 399, time_ns: 120 * MS, ..mark() };
    let reported = machine.give(late_ns + MS, Input::Record(Record::Mark(other)));
    let Some(Output::Incident(incident)) = reported.last() else { panic!("{reported:?}") };
    assert_eq!(incident.kills, 2);
}

#[test]
fn counters_that_are_read_late_close_the_incident_at_once() {
    let mut machine = Machine::new();
    machine.give(100 * MS, Input::Record(Record::Mark(mark())));
    let asked = machine.give(106 * MS, Input::Record(Record::Exit(exit(106 * MS, 398))));
    let [Output::ReadCounters { incident: id, cgroups }] = asked.as_slice() else { panic!("{asked:?}") };
    let readings = cgroups
        .iter()
        .map(|cgroup| {
            (*cgroup, Some(OomCounts { oom_kill: u64::from(*cgroup == C1), ..OomCounts::default() }))
        })
        .collect();
    let reported = machine.give(300 * MS + CLOSE_NS, Input::Counters { incident: *id, readings });
    assert_eq!(incident(&reported).reconciliation, Reconciliation::Matched);
}

#[test]
fn all_that_can_emit_of_it_is_read() {
    let mut machine = Machine::new();
    machine.give(100 * MS, Input::Record(Record::Mark(mark())));
    let asked = machine.give(106 * MS, Input::Record(Record::Exit(exit(106 * MS, 398))));
    let [Output::ReadCounters { cgroups, .. }] = asked.as_slice() else { panic!("{asked:?}") };
    assert_eq!(*cgroups, [POD, C1]);

    let mut machine = Machine::new();
    machine.give(100 * MS, Input::Record(Record::Mark(Mark { limit: None, ..mark() })));
    let asked = machine.give(106 * MS, Input::Record(Record::Exit(exit(106 * MS, 398))));
    let [Output::ReadCounters { cgroups, .. }] = asked.as_slice() else { panic!("{asked:?}") };
    assert_eq!(*cgroups, [ROOT, KUBEPODS, BURSTABLE, POD, C1]);
}

#[test]
fn a_victim_without_cgroup_gets_it_from_its_exit() {
    let mut machine = Machine::new();
    machine.count(C1, 0, 1, 0);
    let old = Mark { pid: None, cgroup: None, limit: Some(Limited::Cgroup(POD)), ..mark() };
    machine.mark(old);
    machine.exit(106 * MS, 398);
    let reported = machine.until(10_000 * MS);
    assert_eq!(incident(&reported).victims[0].place.container.as_deref(), Some("c1"));
    assert!(incident(&reported).reconciled);
}

#[test]
fn a_foreign_victim_is_reported_with_its_path_only() {
    let mut machine = Machine::new();
    let reported =
        machine.mark(Mark { cgroup: Some(SYSTEM), limit: Some(Limited::Cgroup(SYSTEM)), ..mark() });
    let [Output::Detected(detected)] = reported.as_slice() else { panic!("{reported:?}") };
    let victim = json(&detected.victim);
    assert_eq!(victim["cgroup"], "/system.slice/db.service");
    assert_eq!(victim.get("pod"), None);
    assert_eq!(detected.subject(), crate::journal::Subject::Node);
}

#[test]
fn four_thousand_at_once_stay_apart() {
    let mut machine = Machine::new();
    for i in 0..4_000_u32 {
        let trigger = Task { tid: 10_000 + i, ..mark().trigger };
        let reported = machine.mark(Mark { tid: 10_000 + i, pid: Some(10_000 + i), trigger, ..mark() });
        assert_eq!(reported.len(), 1);
    }
    assert_eq!(machine.incidents.open(), 4_000);
    let reported = machine.until(10_000 * MS);
    let pids: HashSet<u32> =
        reported.iter().map(|output| incident(std::slice::from_ref(output)).victims[0].pid).collect();
    assert_eq!((reported.len(), pids.len()), (4_000, 4_000));
}
