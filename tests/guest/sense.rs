//! The eBPF programs on real kernels: every one loads and attaches, and OOM kills are attributed.
use enforcer::sense::{EdgeKind, EdgeSource as _, Limited, Mark, MarkProgram, Programs, Readiness};
use enforcer_tests::wait::TIMEOUT;

mod cgroup;
mod edges;
mod free_lists;
mod guard;
mod snapshot;
mod stalls;
mod tracer;

use cgroup::Cgroup;
use tracer::Tracer;

/// A program that takes memory until it is killed.
const EATER: &str = "exec tail /dev/zero";

#[guest_test(kernel)]
fn every_program_loads_and_attaches() {
    let choice = tracer::choice();
    assert_eq!(choice.lost, [], "these kernels have everything");
    assert_eq!(choice.mark, Some(MarkProgram::Task));
    let attached = Programs::load(&choice).unwrap();
    assert!(attached.failed.is_empty(), "{:#?}", attached.failed);
    assert_eq!(attached.attached.len(), 22, "{:?}", attached.attached);
    assert_eq!(attached.mark(), Some(MarkProgram::Task));
}

#[guest_test(kernel)]
fn classic_tracepoint_serves_where_there_is_no_btf() {
    let mut tracer = Tracer::with(&tracer::without_btf());
    let container = Cgroup::root("plain").limited("64M");
    let mut eater = container.run(EATER);
    let (mark, exit) = tracer.victim(TIMEOUT);
    assert_eq!(mark.tid, eater.id());
    assert_eq!(
        (mark.pid, mark.cgroup, mark.limit),
        (None, None, None),
        "this tracepoint does not report them"
    );
    assert_eq!(mark.comm, "tail");
    assert_eq!(mark.killed, Some(true));
    assert_eq!(exit.cgroup, Some(container.id()), "the exit reports what the mark could not");
    eater.wait().unwrap();
}

#[guest_test(kernel)]
fn container_over_its_own_limit() {
    let mut tracer = Tracer::start();
    let container = Cgroup::root("own").limited("64M");
    let mut eater = container.run(EATER);
    let (mark, exit) = tracer.victim(TIMEOUT);
    assert_eq!(mark.pid, Some(eater.id()));
    assert_eq!(mark.cgroup, Some(container.id()));
    assert_eq!(mark.limit, Some(Limited::Cgroup(container.id())));
    assert_eq!(mark.trigger.cgroup, Some(container.id()));
    assert_eq!((mark.killed, mark.container_init), (Some(true), Some(false)));
    assert_eq!((mark.comm.as_str(), mark.uid, mark.oom_score_adj), ("tail", Some(0), Some(0)));
    let anon_mib = mark.memory.unwrap().anon_bytes >> 20;
    assert!((48..=64).contains(&anon_mib), "{anon_mib} MiB of a limit of 64");
    assert!(mark.reclaim_since_ns.is_some_and(|since_ns| since_ns < mark.time_ns));
    assert_eq!((exit.marked_ns, exit.pid, exit.group_dead), (mark.time_ns, eater.id(), true));
    assert_eq!(exit.exit_code.map(|code| code & 0x7f), Some(9));
    assert!(exit.time_ns > mark.time_ns);
    eater.wait().unwrap();
    let reclaim = tracer.counters().reclaim().unwrap();
    assert!(reclaim.memcg.ended > 0 && reclaim.memcg.max_ns > 0, "{reclaim:?}");
    assert_eq!(reclaim.direct.begun, 0, "reclaim against a limit is no shortage of the machine");
    tracer.assert_nothing_lost();
}

#[guest_test(kernel)]
fn process_without_a_main_thread_is_reported_by_its_id() {
    let mut tracer = Tracer::start();
    let container = Cgroup::root("headless").limited("32M");
    let mut eater = container.run("exec workload headless --size 128Mi");
    let (mark, exit) = tracer.victim(TIMEOUT);
    assert_eq!((mark.pid, mark.cgroup, mark.killed), (Some(eater.id()), Some(container.id()), Some(true)));
    assert_eq!((exit.pid, exit.marked_ns), (eater.id(), mark.time_ns));
    assert_eq!(mark.trigger.pid, eater.id());
    assert_ne!(mark.tid, eater.id(), "the kernel marks a thread that lives");
    assert!(mark.memory.unwrap().anon_bytes > 24 << 20, "{mark:?}");
    eater.wait().unwrap();
}

#[guest_test(kernel)]
fn victim_that_was_dying_is_marked_and_not_killed() {
    let mut tracer = Tracer::start();
    let pod = Cgroup::root("dying").limited("64M");
    let (first, second) = (pod.child("c1"), pod.child("c2"));
    let mut victim = first.run("exec workload hold --size 48Mi");
    first.wait_for_bytes(48 << 20, TIMEOUT);
    let usurp = format!("exec workload usurp --victim {} --size 40Mi --cpu 1 --for 10s", victim.id());
    let mut usurper = second.run(&usurp);
    let marks = tracer.marks(1, TIMEOUT);
    let mark = &marks[0];
    assert_eq!((mark.pid, mark.killed), (Some(victim.id()), Some(false)), "{mark:?}");
    assert_eq!((mark.cgroup, mark.trigger.pid), (Some(first.id()), usurper.id()));
    assert_eq!(mark.limit, Some(Limited::Cgroup(pod.id())));
    victim.wait().unwrap();
    assert!(usurper.wait().unwrap().success(), "it fits once the other is gone");
}

#[guest_test(kernel)]
fn sibling_allocates_and_the_other_dies() {
    let mut tracer = Tracer::start();
    let pod = Cgroup::root("pod").limited("64M");
    let (first, second) = (pod.child("c1"), pod.child("c2"));
    // The first fills most of the limit and then only waits, with the higher score.
    let mut victim = first.run(
        "echo 1000 > /proc/self/oom_score_adj; head -c 40000000 /dev/zero | tail -c 40000000 | sleep 600",
    );
    first.wait_for_bytes(38 << 20, TIMEOUT);
    let mut trigger = second.run(EATER);
    // The allocator goes on and dies next, perhaps before the first victim's exit is reported.
    let marks = tracer.marks(1, TIMEOUT);
    let mark = &marks[0];
    assert_eq!(mark.cgroup, Some(first.id()), "the victim is in c1");
    assert_eq!(mark.trigger.cgroup, Some(second.id()), "the allocator is in c2");
    assert_eq!(mark.limit, Some(Limited::Cgroup(pod.id())), "the limit is the pod's");
    assert_eq!(mark.trigger.pid, trigger.id());
    assert_eq!(mark.oom_score_adj, Some(1000));
    first.kill();
    second.kill();
    victim.wait().unwrap();
    trigger.wait().unwrap();
}

#[guest_test(kernel)]
fn group_kill_reports_every_process_once() {
    let mut tracer = Tracer::start();
    let container = Cgroup::root("group").limited("64M");
    container.write("memory.oom.group", "1");
    let mut eater = container.run("for i in 1 2 3 4; do sleep 600 & done; exec tail /dev/zero");
    let marks = tracer.marks(5, TIMEOUT);
    assert!(marks.iter().all(|mark| mark.killed == Some(true)), "{marks:#?}");
    assert!(marks.iter().all(|mark| mark.trigger.pid == eater.id()));
    let mut pids: Vec<_> = marks.iter().map(|mark| mark.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 5);
    eater.wait().unwrap();
}

#[guest_test(kernel)]
fn init_of_a_pid_namespace_is_reported() {
    let mut tracer = Tracer::start();
    let container = Cgroup::root("init").limited("64M");
    let mut eater = container.run("exec unshare -p -f tail /dev/zero");
    let (mark, _) = tracer.victim(TIMEOUT);
    assert_eq!(mark.container_init, Some(true));
    assert_ne!(mark.pid, Some(1), "the pid is the machine's, not the namespace's");
    eater.wait().unwrap();
}

#[guest_test(kernel)]
fn victim_that_is_long_gone_is_still_attributed() {
    // Nothing is read before the victim was reaped and its cgroup removed.
    let mut tracer = Tracer::start();
    let container = Cgroup::root("gone").limited("16M");
    let id = container.id();
    let mut eater = container.run(EATER);
    let pid = eater.id();
    eater.wait().unwrap();
    drop(container);
    let (mark, _) = tracer.victim(TIMEOUT);
    assert_eq!((mark.pid, mark.cgroup), (Some(pid), Some(id)));
}

#[guest_test(kernel)]
fn forty_at_once_are_all_attributed() {
    let mut tracer = Tracer::start();
    let containers: Vec<_> = (0..40).map(|i| Cgroup::root(&format!("burst{i}")).limited("4M")).collect();
    let mut eaters: Vec<_> = containers.iter().map(|container| container.run(EATER)).collect();
    let marks = tracer.marks(40, TIMEOUT);
    for (container, eater) in containers.iter().zip(&mut eaters) {
        let own: Vec<&Mark> = marks.iter().filter(|mark| mark.pid == Some(eater.id())).collect();
        assert_eq!(own.len(), 1, "{own:?}");
        assert_eq!(own.first().and_then(|mark| mark.cgroup), Some(container.id()));
        assert_eq!(own.first().and_then(|mark| mark.limit), Some(Limited::Cgroup(container.id())));
        eater.wait().unwrap();
    }
    tracer.assert_nothing_lost();
}

#[guest_test(kernel)]
fn node_that_runs_out_has_the_machine_as_limit_and_edges_before() {
    let mut tracer = Tracer::start();
    let container = Cgroup::root("node");
    let mut eater = container.run("echo 1000 > /proc/self/oom_score_adj; exec workload spike --size 64Gi");
    let (mark, exit) = tracer.victim(TIMEOUT * 2);
    assert_eq!(mark.limit, Some(Limited::Machine));
    assert_eq!(mark.cgroup, Some(container.id()));
    assert_eq!(exit.pid, eater.id());
    eater.wait().unwrap();
    let mut kinds = std::collections::BTreeSet::new();
    tracer.edges().drain(Readiness::Ready, &mut |edge| {
        assert!(edge.onset_ns.is_some());
        kinds.insert(edge.kind);
    });
    // kswapd may have been awake from before.
    assert!(kinds.contains(&EdgeKind::DirectReclaim), "{kinds:?}");
    let reclaim = tracer.counters().reclaim().unwrap();
    assert!(reclaim.direct.begun > 0, "{reclaim:?}");
}
