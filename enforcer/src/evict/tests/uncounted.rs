//! Pods whose cgroups lack a controller: what they use of its resource is unknown, and no pod is evicted for that.
use std::{fs, sync::Arc, thread, time::Duration};

use super::{
    levels::start,
    node::{MIB, Node, Pod},
    whole::{next, nothing_more},
};
use crate::{
    evict::{ManualEviction, Operator, Report},
    policy::{
        engine::{Exclusion, Reading, Resource, Suppression},
        threshold::Signal,
    },
};

/// Takes away the files that the memory controller would make.
fn forget_memory(node: &Node, pod: &str) {
    for file in ["memory.current", "memory.stat", "memory.high", "app/memory.high"] {
        fs::remove_file(node.dir(pod).join(file)).unwrap();
    }
}

fn uncounted(node: &Node, pod: &Pod, tasks: u64) {
    node.add(pod, 0);
    node.write(pod.name, "pids.current", &format!("{tasks}\n"));
    forget_memory(node, pod.name);
}

#[test]
fn what_is_not_counted_is_unknown_and_not_nothing() {
    let (node, pod) = (Node::new(0), Pod::new("a"));
    uncounted(&node, &pod, 7);
    let candidate = node.open(&pod).unwrap();
    let counted = Reading::Uncounted { process_count: Some(7) };
    assert_eq!((candidate.usage(), candidate.usage_apart()), (counted, counted));
    let mut buffer = [0; crate::evict::stat::BUFFER_BYTES];
    let of_memory = candidate.read_usage(Resource::Memory, &mut buffer);
    assert_eq!(of_memory, Reading::Uncounted { process_count: None });
    assert_eq!(candidate.current_bytes(&mut buffer), Ok(None));
    let accounted = candidate.accounted();
    assert!(!accounted.memory && accounted.pids);
    // Without tasks it is empty, whatever is counted.
    node.write("a", "cgroup.events", "populated 0\n");
    assert!(candidate.usage().is_empty() && candidate.usage_apart().is_empty());
    fs::remove_file(node.dir("a").join("pids.current")).unwrap();
    assert!(!node.open(&pod).unwrap().accounted().pids);
}

/// A cgroup that is removed loses all of its files at once.
#[test]
fn a_cgroup_that_goes_while_it_is_opened_is_gone_and_not_uncounted() {
    let (node, pod) = (Node::new(0), Pod::new("a"));
    uncounted(&node, &pod, 7);
    let candidate = node.open(&pod).unwrap();
    fs::remove_dir_all(node.dir("a")).unwrap();
    assert_eq!(
        candidate.usage_apart(),
        Reading::Usage(crate::policy::engine::Usage { process_count: Some(0), ..Default::default() })
    );
    let error = node.open(&pod).unwrap_err();
    assert!(matches!(&error, crate::evict::OpenError::Cgroup(error) if error.is_gone()), "{error}");
}

#[test]
fn process_ids_cost_the_pod_that_has_most_and_memory_none() {
    let node = Node::new(4096 * MIB);
    node.set_tasks(500, 10_000);
    let (bomb, other) = (Pod::new("bomb"), Pod::new("other"));
    uncounted(&node, &bomb, 8_900);
    uncounted(&node, &other, 3);
    let thresholds = [(Signal::MemoryAvailable, 200 * MIB), (Signal::PidAvailable, 1_000)];
    let (_reflex, reports) = start(&node, &thresholds, &[&other, &bomb]);
    nothing_more(&reports);
    node.set_available(MIB);
    assert!(matches!(next(&reports), Report::Crossed { .. }));
    let suppressed = next(&reports);
    assert!(
        matches!(suppressed, Report::Suppressed { reason: Suppression::NoCandidate, .. }),
        "{suppressed:?}"
    );
    nothing_more(&reports);
    node.set_available(4096 * MIB);
    assert!(matches!(next(&reports), Report::Cleared { .. }));
    assert!(!node.killed("bomb") && !node.killed("other"));
    node.set_tasks(9_400, 10_000);
    assert!(matches!(next(&reports), Report::Crossed { .. }));
    let Report::Decided { decision, members, .. } = next(&reports) else { panic!("not decided") };
    assert_eq!(members[decision.index.0].identity().pod.name, "bomb");
    assert!(matches!(next(&reports), Report::Signalled { .. }));
    assert!(node.killed("bomb") && !node.killed("other"));
    // It has died, and its tasks are still counted: no other pod is chosen for them.
    node.write("bomb", "cgroup.events", "populated 0\n");
    nothing_more(&reports);
    node.write("bomb", "pids.current", "0\n");
    node.set_tasks(500, 10_000);
    let Report::Completed { completion, .. } = next(&reports) else { panic!("not completed") };
    assert_eq!(completion.freed_bytes, None);
}

#[test]
fn without_the_pids_controller_memory_costs_a_pod_and_process_ids_none() {
    let node = Node::new(4096 * MIB);
    node.set_tasks(500, 10_000);
    let hog = Pod::new("hog");
    node.add(&hog, 600 * MIB);
    fs::remove_file(node.dir("hog").join("pids.current")).unwrap();
    let thresholds = [(Signal::MemoryAvailable, 200 * MIB), (Signal::PidAvailable, 1_000)];
    let (_reflex, reports) = start(&node, &thresholds, &[&hog]);
    node.set_tasks(9_400, 10_000);
    assert!(matches!(next(&reports), Report::Crossed { .. }));
    let suppressed = next(&reports);
    assert!(
        matches!(
            suppressed,
            Report::Suppressed { signal: Signal::PidAvailable, reason: Suppression::NoCandidate, .. }
        ),
        "{suppressed:?}"
    );
    nothing_more(&reports);
    assert!(!node.killed("hog"));
    node.set_available(MIB);
    assert!(matches!(next(&reports), Report::Crossed { .. }));
    let Report::Decided { decision, .. } = next(&reports) else { panic!("not decided") };
    assert_eq!((decision.shortage.signal, decision.excluded_count), (Signal::MemoryAvailable, 0));
    assert!(matches!(next(&reports), Report::Signalled { .. }));
    assert!(node.killed("hog"));
}

#[test]
fn a_candidate_beside_a_counted_one_is_left_out_by_name() {
    let node = Node::new(4096 * MIB);
    let (hidden, known) = (Pod::new("hidden"), Pod::new("known"));
    uncounted(&node, &hidden, 9);
    node.add(&known, 600 * MIB);
    let (_reflex, reports) = start(&node, &[(Signal::MemoryAvailable, 200 * MIB)], &[&hidden, &known]);
    node.set_available(MIB);
    assert!(matches!(next(&reports), Report::Crossed { .. }));
    let Report::Decided { decision, members, .. } = next(&reports) else { panic!("not decided") };
    assert_eq!(members[decision.index.0].identity().pod.name, "known");
    let excluded: Vec<_> = decision.excluded.iter().map(|one| one.reason).collect();
    assert_eq!(excluded, [Exclusion::UsageUnknown]);
    assert!(matches!(next(&reports), Report::Signalled { .. }));
    assert!(!node.killed("hidden"));
}

#[test]
fn an_order_evicts_it_and_reports_no_amount_of_memory() {
    let (node, pod) = (Node::new(0), Pod::new("a"));
    uncounted(&node, &pod, 7);
    let operator = Operator { uid: 7, pid: 8, reason: String::from("it hangs") };
    let candidate = Arc::new(node.open(&pod).unwrap());
    let by_hand = ManualEviction::new(candidate, operator, Duration::from_millis(50));
    let decided = by_hand.decided(false, "hash").data();
    let victim = &decided["victim"];
    assert_eq!((&victim["statsMissing"], &victim["processCount"]), (&true.into(), &7.into()));
    for key in ["usageBytes", "currentBytes", "anonBytes", "fileBytes", "shmemBytes"] {
        assert!(victim.get(key).is_none(), "{key}");
    }
    let mut events = Vec::new();
    thread::scope(|scope| {
        let ending = scope.spawn(|| by_hand.carry_out(|| None, |event| events.push(event)));
        while !node.killed("a") {
            thread::sleep(Duration::from_millis(5));
        }
        node.write("a", "cgroup.events", "populated 0\nfrozen 0\n");
        ending.join().unwrap().unwrap();
    });
    let last = events.last().unwrap();
    assert_eq!(last.kind().short(), "eviction.completed");
    assert!(last.data().get("freedBytes").is_none());
}
