//! One call of the OOM killer is one incident; who dies with a victim, and when memory is back.
use super::*;
use crate::sense::{
    incident::{LONGEST_NS, MemoryBackSource, SharedBy},
    record::{MemoryBack, OomOver, Sharer},
};

const CALLED: u64 = 99 * MS;

/// As [`mark`], of a kernel that reports everything: the call, its end, where it is counted, and the memory.
fn traced(time_ns: u64, pid: u32) -> Mark {
    Mark {
        time_ns,
        tid: pid,
        pid: Some(pid),
        limit: Some(Limited::Cgroup(C1)),
        oom_since_ns: Some(CALLED),
        counted: Some(C1),
        memory_number: Some(u64::from(pid) << 12),
        end_watched: true,
        memory_watched: true,
        ..mark()
    }
}

fn over(time_ns: u64, since_ns: u64) -> Input {
    let trigger_tid = mark().trigger.tid;
    Input::Record(Record::OomOver(OomOver { time_ns, oom_since_ns: since_ns, trigger_tid }))
}

fn back(time_ns: u64, pid: u32) -> Input {
    let back = MemoryBack { time_ns, marked_ns: 100 * MS, memory_number: u64::from(pid) << 12 };
    Input::Record(Record::MemoryBack(back))
}

fn sharer(time_ns: u64, pid: u32, victim: u32) -> Input {
    Input::Record(Record::Sharer(Sharer {
        time_ns,
        marked_ns: 100 * MS,
        victim,
        pid,
        tid: pid,
        start_ns: Some(60_000 * MS),
        comm: "child".into(),
        cgroup: Some(C2),
        oom_score_adj: Some(7),
        container_init: Some(false),
        by_exit: false,
    }))
}

/// A container may be killed before its runtime was asked what it is called.
#[test]
fn it_waits_for_a_name_for_a_while() {
    // Long after all else would have closed it, too.
    for named_ms in [Some(300), Some(3_000), None] {
        let mut machine = Machine::new();
        machine.unnamed.insert(C1);
        machine.count(C1, 1, 1, 0);
        machine.mark(traced(100 * MS, 398));
        machine.emit(102 * MS, over(102 * MS, CALLED));
        machine.exit(105 * MS, 398);
        assert_eq!(machine.emit(111 * MS, back(111 * MS, 398)), []);
        assert_eq!(machine.until(named_ms.unwrap_or(300) * MS), []);
        if let Some(named_ms) = named_ms {
            machine.unnamed.clear();
            assert!(matches!(machine.until((named_ms + 30) * MS)[..], [Output::Incident(_)]));
        } else {
            assert_eq!(machine.until(6_099 * MS), []);
            assert!(matches!(machine.until(6_100 * MS)[..], [Output::Incident(_)]));
        }
    }
}

#[test]
fn it_closes_with_the_last_of_what_is_awaited() {
    let mut machine = Machine::new();
    machine.count(C1, 1, 1, 0);
    machine.mark(traced(100 * MS, 398));
    assert_eq!(machine.emit(102 * MS, over(102 * MS, CALLED)), []);
    assert_eq!(machine.exit(105 * MS, 398), []);
    let reported = machine.emit(111 * MS, back(111 * MS, 398));
    let timeline = &json(incident(&reported))["timelineMs"];
    let expected =
        json!({"firstReclaim": 0, "marked": 3, "exited": 8, "memoryBack": 14, "memoryBackSource": "traced"});
    assert_eq!(*timeline, expected);
    assert!(incident(&reported).reconciled);
}

#[test]
fn memory_that_does_not_come_back_is_not_reported_to_be() {
    let mut machine = Machine::new();
    machine.count(C1, 1, 1, 0);
    machine.mark(traced(100 * MS, 398));
    machine.emit(102 * MS, over(102 * MS, CALLED));
    machine.exit(105 * MS, 398);
    assert_eq!(machine.until(CLOSE_NS + 99 * MS), []);
    let reported = machine.until(CLOSE_NS + 100 * MS);
    assert_eq!(incident(&reported).timeline_ms.memory_back, None);
    assert!(incident(&reported).reconciled, "the counters were read in time");
}

#[test]
fn an_exit_says_that_memory_is_back_where_nothing_else_does() {
    let mut machine = Machine::new();
    machine.count(C1, 1, 1, 0);
    machine.mark(Mark { memory_watched: false, ..traced(100 * MS, 398) });
    machine.emit(102 * MS, over(102 * MS, CALLED));
    let gone = Exit { memory_let_go: true, ..exit(105 * MS, 398) };
    let reported = machine.emit(105 * MS, Input::Record(Record::Exit(gone)));
    let timeline = incident(&reported).timeline_ms;
    assert_eq!((timeline.memory_back, timeline.memory_back_source), (Some(8), Some(MemoryBackSource::Exit)));
}

#[test]
fn a_call_of_200_that_takes_long_is_one_incident() {
    let mut machine = Machine::new();
    machine.count(C1, 1, 201, 1);
    let mut reported = Vec::new();
    let mut now_ns = 100 * MS;
    for pid in 1_000..1_200 {
        reported.extend(machine.mark(traced(now_ns, pid)));
        // Each is gone long before the next is marked.
        reported.extend(machine.exit(now_ns + 5 * MS, pid));
        reported.extend(machine.emit(now_ns + 6 * MS, back(now_ns + 6 * MS, pid)));
        now_ns += 20 * MS;
    }
    assert!(now_ns - 100 * MS > 3 * CLOSE_NS && now_ns - 100 * MS < LONGEST_NS);
    assert_eq!(reported.len(), 1, "one oom.detected");
    let reported = machine.emit(now_ns, over(now_ns, CALLED));
    let incident = incident(&reported);
    assert_eq!((incident.victims.len(), incident.kills), (200, 200));
    assert_eq!(incident.counters, OomCounts { oom: 1, oom_kill: 201, oom_group_kill: 1 });
    assert_eq!(incident.reconciliation, Reconciliation::Matched);
    assert_eq!(machine.look(now_ns + MS, C1), []);
    assert_eq!(machine.until(now_ns + 60_000 * MS), [], "the one that was counted twice is none more");
}

#[test]
fn two_calls_by_one_thread_are_two_however_close() {
    let mut machine = Machine::new();
    machine.count(C1, 2, 2, 0);
    let mut reported = machine.mark(traced(100 * MS, 398));
    reported.extend(machine.emit(100 * MS, over(100 * MS, CALLED)));
    let second = 100 * MS + 1;
    reported.extend(machine.mark(Mark { oom_since_ns: Some(second), ..traced(second, 399) }));
    reported.extend(machine.emit(101 * MS, over(101 * MS, second)));
    assert_eq!(reported.len(), 2, "{reported:?}");
    let reported: Vec<_> = [398, 399]
        .into_iter()
        .flat_map(|pid| {
            machine.exit(102 * MS, pid);
            machine.emit(103 * MS, back(103 * MS, pid))
        })
        .collect();
    assert_eq!(reported.len(), 2);
    for (at, pid) in [398, 399].into_iter().enumerate() {
        let one = incident(&reported[at..=at]);
        assert_eq!((one.victims[0].pid, one.counters.oom_kill, one.counters.oom), (pid, 1, 1));
    }
}

#[test]
fn without_its_end_a_call_closes_all_the_same() {
    let mut machine = Machine::new();
    machine.count(C1, 1, 1, 0);
    machine.mark(traced(100 * MS, 398));
    machine.exit(105 * MS, 398);
    machine.emit(106 * MS, back(106 * MS, 398));
    let reported = machine.until(100 * MS + CLOSE_NS);
    assert!(incident(&reported).reconciled);
}

#[test]
fn who_shares_the_memory_is_reported_and_not_counted() {
    let mut machine = Machine::new();
    machine.count(C1, 1, 1, 0);
    machine.mark(traced(100 * MS, 398));
    machine.emit(100 * MS, sharer(100 * MS, 401, 398));
    machine.emit(100 * MS, sharer(100 * MS, 401, 398));
    machine.emit(101 * MS, over(101 * MS, CALLED));
    machine.exit(105 * MS, 398);
    assert_eq!(machine.emit(107 * MS, back(107 * MS, 398)), [], "the other is awaited too");
    let reported = machine.exit(108 * MS, 401);
    let incident = incident(&reported);
    assert_eq!((incident.kills, incident.victims.len(), incident.timeline_ms.exited), (1, 2, Some(11)));
    assert!(incident.reconciled);
    let other = &incident.victims[1];
    assert_eq!(
        (other.pid, other.shares_memory_with, other.shared_by),
        (401, Some(398), Some(SharedBy::Kill))
    );
    assert_eq!((other.exit_code, other.signal, other.oom_score_adj), (Some(9), Some(9), Some(7)));
    assert_eq!(other.place.container.as_deref(), Some("c2"));
    assert_eq!(machine.look(200 * MS, C1), []);
    assert_eq!(machine.until(60_000 * MS), []);
}

#[test]
fn one_of_the_group_that_shares_memory_is_a_victim_like_the_others() {
    let mut machine = Machine::new();
    // The first counts twice; the other is killed for sharing, and then by itself.
    machine.count(C1, 1, 3, 1);
    machine.mark(traced(100 * MS, 398));
    machine.emit(100 * MS, sharer(100 * MS, 401, 398));
    let shared = Some(398_u64 << 12);
    machine.mark(Mark { memory_number: shared, ..traced(101 * MS, 401) });
    machine.emit(102 * MS, over(102 * MS, CALLED));
    machine.exit(103 * MS, 398);
    machine.exit(104 * MS, 401);
    let reported = machine.emit(105 * MS, back(105 * MS, 398));
    let incident = incident(&reported);
    assert_eq!((incident.kills, incident.victims.len()), (2, 2));
    assert!(incident.victims.iter().all(|victim| victim.shares_memory_with.is_none()));
    assert!(incident.reconciled);
}

#[test]
fn a_sharer_without_an_incident_is_none() {
    let mut machine = Machine::new();
    assert_eq!(machine.emit(100 * MS, sharer(100 * MS, 401, 398)), []);
    assert_eq!(machine.incidents.open(), 0);
}

#[test]
fn a_zombie_leader_is_reported_by_its_process() {
    let mut machine = Machine::new();
    machine.count(C1, 1, 1, 0);
    machine.mark(Mark { tid: 123, ..traced(100 * MS, 122) });
    machine.emit(101 * MS, over(101 * MS, CALLED));
    let thread = Exit { tid: 123, pid: 122, ..exit(105 * MS, 122) };
    machine.emit(105 * MS, Input::Record(Record::Exit(thread)));
    let reported = machine.emit(106 * MS, back(106 * MS, 122));
    let victim = &incident(&reported).victims[0];
    assert_eq!((victim.pid, victim.exit_code), (122, Some(9)));
}

#[test]
fn a_dying_process_is_averted_once_however_many_threads_ask() {
    let mut machine = Machine::new();
    let reported: Vec<_> = (0..50)
        .flat_map(|thread| machine.mark(Mark { tid: 400 + thread, killed: Some(false), ..mark() }))
        .collect();
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(matches!(&reported[0], Output::Averted(averted) if averted.cause == AvertedCause::AlreadyDying));
    // The limit was hit thousands of times, and no process was killed.
    machine.count(C1, 19_500, 0, 0);
    assert_eq!(machine.look(1_000 * MS, C1), []);
    assert_eq!(machine.until(60_000 * MS), []);
}

#[test]
fn an_old_kernel_joins_a_victim_to_its_cgroup_at_its_exit() {
    let mut machine = Machine::new();
    machine.count(C1, 1, 1, 0);
    // Nothing but a thread id, and whose limit it was.
    let old = Mark {
        pid: None,
        cgroup: None,
        start_ns: None,
        uid: None,
        oom_score_adj: None,
        memory: None,
        container_init: None,
        limit: Some(Limited::Cgroup(C1)),
        ..mark()
    };
    let reported = machine.mark(old);
    let [Output::Detected(detected)] = reported.as_slice() else { panic!("{reported:?}") };
    let victim = detected.victim.as_ref().unwrap();
    assert_eq!((victim.pid, victim.place.container.as_deref()), (398, None), "not known yet");
    // Meanwhile the counters are seen: the kill is expected, though not yet where.
    assert_eq!(machine.look(101 * MS, C1), []);
    machine.exit(106 * MS, 398);
    let reported = machine.until(60_000 * MS);
    let incident = incident(&reported);
    assert_eq!(incident.victims[0].place.container.as_deref(), Some("c1"));
    assert!(incident.reconciled);
}

#[test]
fn a_kill_of_which_no_cgroup_is_known_is_found_in_one_that_counted_it() {
    let mut machine = Machine::new();
    machine.count(C1, 1, 1, 0);
    machine.mark(Mark { pid: None, cgroup: None, limit: None, ..mark() });
    machine.look(101 * MS, C1);
    // Its exit was lost.
    let reported = machine.until(60_000 * MS);
    assert_eq!(incident(&reported).reconciliation, Reconciliation::Unreadable, "reported once: {reported:?}");
}
