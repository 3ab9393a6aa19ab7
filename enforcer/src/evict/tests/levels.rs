//! What else can run short than the node's memory: process ids, and the pods' own share.

use std::{fs, sync::mpsc, time::Duration};

use super::{
    node::{MIB, Node, Pod},
    whole::{config, next, nothing_more},
};
use crate::{
    cgroup::CgroupDir,
    evict::{Blindness, Reflex, ReflexConfig, Report, levels::Levels, stat},
    model::CgroupPath,
    policy::{
        engine::{Engine, EngineSettings, Input, Level, Mode, NodeSample, RankKey, Resource, followed},
        threshold::{Signal, Threshold, ThresholdValue},
    },
    sense::{
        PodsMemory, Sampler, Tasks,
        snapshot::{Charge, Missing, Split},
    },
};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

fn settings(thresholds: &[(Signal, u64)]) -> EngineSettings {
    let hard = |(signal, amount): &(Signal, u64)| Threshold::hard(*signal, ThresholdValue::Amount(*amount));
    EngineSettings {
        mode: Mode::Enforce,
        thresholds: followed(&thresholds.iter().map(hard).collect::<Vec<_>>()),
        pressure_transition_period_ms: 0,
        ..EngineSettings::default()
    }
}

pub(super) fn start(
    node: &Node,
    thresholds: &[(Signal, u64)],
    pods: &[&Pod],
) -> (Reflex, mpsc::Receiver<Report>) {
    let (sender, reports) = mpsc::channel();
    let forward = move |report| {
        if !matches!(report, Report::Conditions(_) | Report::Arming { .. }) {
            drop(sender.send(report));
        }
        true
    };
    let settings = settings(thresholds);
    let armed = settings.thresholds.iter().copied().collect();
    let config = ReflexConfig { settings, armed, ..config(node, Mode::Enforce) };
    let reflex = Reflex::spawn(&config, None, Vec::new(), None, forward).unwrap();
    reflex.set_candidates(pods.iter().map(|pod| node.candidate(pod)).collect());
    std::thread::sleep(Duration::from_millis(200));
    (reflex, reports)
}

#[test]
fn for_process_ids_the_pod_with_the_most_of_them_goes_whatever_memory_it_uses() {
    let node = Node::new(1024 * MIB);
    node.set_tasks(500, 10_000);
    let (bomb, large) = (Pod::new("bomb"), Pod::new("large"));
    node.add(&bomb, 10 * MIB);
    node.add(&large, 600 * MIB);
    node.write("bomb", "pids.current", "8900\n");
    let (_reflex, reports) = start(&node, &[(Signal::PidAvailable, 1_000)], &[&large, &bomb]);
    nothing_more(&reports);
    node.set_tasks(9_400, 10_000);
    let Report::Crossed { shortage, .. } = next(&reports) else { panic!("not crossed") };
    assert_eq!((shortage.observed, shortage.threshold), (600, 1_000));
    let Report::Decided { decision, members, .. } = next(&reports) else { panic!("not decided") };
    assert_eq!(members[decision.index.0].identity().pod.name, "bomb");
    let counts: Vec<_> = decision
        .ranking
        .iter()
        .map(|ranked| match ranked.standing {
            RankKey::Pids(standing) => standing.process_count,
            RankKey::Memory(_) => None,
        })
        .collect();
    assert_eq!(counts, [Some(8_900), Some(1)]);
    assert!(matches!(next(&reports), Report::Signalled { .. }));
    assert!(node.killed("bomb") && !node.killed("large"));

    // While its tasks exit no other pod is chosen.
    node.write("bomb", "cgroup.events", "populated 0\n");
    node.write("bomb", "pids.current", "4000\n");
    nothing_more(&reports);
    node.set_tasks(500, 10_000);
    node.write("bomb", "memory.current", "0\n");
    node.write("bomb", "pids.current", "0\n");
    assert!(matches!(next(&reports), Report::Completed { .. }));
    let reported = next(&reports);
    assert!(matches!(reported, Report::Cleared { .. }), "{reported:?}");
    assert!(!node.killed("large"));
}

#[test]
fn a_full_share_of_the_pods_costs_a_pod_though_the_node_has_memory() {
    let node = Node::new(4096 * MIB);
    node.set_pods(900 * MIB, "1073741824\n");
    let hog = Pod::new("hog");
    node.add(&hog, 800 * MIB);
    let (reflex, reports) = start(&node, &[(Signal::AllocatableMemoryAvailable, 200 * MIB)], &[&hog]);
    nothing_more(&reports);
    let dir = || CgroupDir::unchecked(&node.kubepods()).unwrap();
    reflex.set_kubepods(PodsMemory::open(&dir()).unwrap());
    let Report::Crossed { shortage, .. } = next(&reports) else { panic!("not crossed") };
    assert_eq!((shortage.signal, shortage.observed), (Signal::AllocatableMemoryAvailable, 124 * MIB));
    assert!(matches!(next(&reports), Report::Decided { .. }));
    assert!(matches!(next(&reports), Report::Signalled { .. }));
    assert!(node.killed("hog"));
    // Another kubepods in its place: the former one's files are closed, and this one has no limit.
    node.set_pods(900 * MIB, "max\n");
    node.write("hog", "memory.current", "0\n");
    node.write("hog", "cgroup.events", "populated 0\n");
    reflex.set_kubepods(PodsMemory::open(&dir()).unwrap());
    assert!(matches!(next(&reports), Report::Completed { .. }));
    nothing_more(&reports);
}

#[test]
fn a_count_that_cannot_be_read_is_reported_once_and_evicts_no_pod() {
    let node = Node::new(1024 * MIB);
    let hog = Pod::new("hog");
    node.add(&hog, 600 * MIB);
    let (_reflex, reports) = start(&node, &[(Signal::PidAvailable, 1_000)], &[&hog]);
    let reported = next(&reports);
    assert!(
        matches!(reported, Report::Blind(Signal::PidAvailable, Blindness::Level(Missing::Absent))),
        "{reported:?}"
    );
    nothing_more(&reports);
    assert!(!node.killed("hog"));
}

fn buffer() -> [u8; stat::BUFFER_BYTES] {
    [0; stat::BUFFER_BYTES]
}

fn nothing_charged(_: &CgroupPath, _: &mut [u8]) -> Charge {
    Charge::default()
}

/// A kubepods that may take 1 GiB, of which 100 MiB are to be left.
struct Share {
    node: Node,
    levels: Levels,
    engine: Engine,
    asked: u32,
}

impl Share {
    fn new(min_reclaim_mib: u64) -> Self {
        let node = Node::new(0);
        let mut levels = Levels::new(Err(Missing::Absent), None);
        set_kubepods(&node, 0, 0, 0);
        let dir = CgroupDir::unchecked(&node.kubepods()).unwrap();
        assert!(levels.replace_pods(Box::new(PodsMemory::open(&dir).unwrap())).is_none());
        let amount = ThresholdValue::Amount(100 * MIB);
        let threshold = Threshold {
            min_reclaim: Some(ThresholdValue::Amount(min_reclaim_mib * MIB)),
            ..Threshold::hard(Signal::AllocatableMemoryAvailable, amount)
        };
        let mut engine = Engine::new(&EngineSettings { thresholds: followed(&[threshold]), ..settings(&[]) });
        // It learns the amounts from the first look.
        let capacity = 1024 * MIB;
        engine.step(Input::Node(NodeSample {
            allocatable: Some(Level { available: capacity, capacity }),
            ..NodeSample::memory(0, capacity, capacity)
        }));
        Self { node, levels, engine, asked: 0 }
    }

    /// What is left, in MiB; the pods are charged for so much, and so much of it is idle page cache.
    fn read(&mut self, now_ns: u64, fresh: bool, pods: impl FnOnce(&Node) -> (u64, u64)) -> Option<u64> {
        let Self { node, levels, engine, asked } = self;
        let members = |_: &CgroupPath, _: &mut [u8]| {
            *asked += 1;
            let (current_mib, idle_mib) = pods(node);
            let split = Split {
                anon_bytes: (current_mib - idle_mib) * MIB,
                file_bytes: idle_mib * MIB,
                inactive_file_bytes: idle_mib * MIB,
                shmem_bytes: 0,
                file_mapped_bytes: 0,
            };
            Charge { current_bytes: current_mib * MIB, split, parts_bytes: current_mib * MIB }
        };
        let level = levels.pods(now_ns, 0, engine, fresh, &mut buffer(), members);
        level.map(|level| level.available / MIB)
    }
}

fn set_kubepods(node: &Node, current_mib: u64, anon_mib: u64, idle_mib: u64) {
    let idle_bytes = idle_mib * MIB;
    let stat = format!("anon {}\nfile {idle_bytes}\nshmem 0\ninactive_file {idle_bytes}\n", anon_mib * MIB);
    fs::create_dir_all(node.kubepods()).unwrap();
    fs::write(node.kubepods().join("memory.max"), format!("{}\n", 1024 * MIB)).unwrap();
    fs::write(node.kubepods().join("memory.current"), format!("{}\n", current_mib * MIB)).unwrap();
    fs::write(node.kubepods().join("memory.stat"), stat).unwrap();
}

#[test]
fn a_shortage_of_the_pods_share_is_made_of_what_they_are_charged_for_themselves() {
    let mut share = Share::new(0);
    set_kubepods(&share.node, 1_000, 100, 0);
    // Page cache that kubepods has not counted as such yet.
    assert_eq!(share.read(SECOND, true, |_| (1_000, 900)), Some(924));
    assert_eq!(share.read(SECOND, true, |_| (1_000, 0)), Some(24), "it is short");
    // What counts as idle cache there may be gone, and memory that is used in its place.
    set_kubepods(&share.node, 1_000, 100, 900);
    assert_eq!(share.read(SECOND, true, |_| (1_000, 0)), Some(24));
    assert_eq!(share.asked, 3);
    set_kubepods(&share.node, 900, 100, 0);
    assert_eq!(share.read(SECOND, true, |_| (900, 0)), Some(124));
    assert_eq!(share.asked, 3, "it would not be short even without idle cache");
}

#[test]
fn a_shortage_that_was_acted_on_is_made_of_the_pods_until_the_minimum_reclaim_is_there() {
    let mut share = Share::new(500);
    set_kubepods(&share.node, 700, 700, 0);
    assert_eq!(share.read(SECOND, true, |_| (700, 400)), Some(724), "no second pod for what is idle");
}

#[test]
fn what_pods_give_up_and_take_while_they_are_read_makes_no_shortage() {
    let mut share = Share::new(0);
    set_kubepods(&share.node, 1_000, 1_000, 0);
    let given_up = |node: &Node| {
        set_kubepods(node, 600, 1_000, 0);
        (600, 500)
    };
    assert_eq!(share.read(SECOND, true, given_up), Some(924));
    set_kubepods(&share.node, 950, 950, 0);
    let taken = |node: &Node| {
        set_kubepods(node, 1_000, 950, 0);
        (1_000, 900)
    };
    assert_eq!(share.read(SECOND, true, taken), Some(924));
}

#[test]
fn the_pods_are_not_looked_at_all_the_time_for_a_shortage_that_lasts() {
    let mut share = Share::new(0);
    set_kubepods(&share.node, 1_000, 1_000, 0);
    let short = |_: &Node| (1_000, 0);
    assert_eq!(share.read(SECOND, true, short), Some(24));
    assert_eq!((share.read(SECOND + 99 * MS, false, short), share.asked), (Some(24), 1));
    assert_eq!((share.read(SECOND + 100 * MS, false, short), share.asked), (Some(24), 2));
    // Close to one it is looked at more often, and after something was done at once.
    let close = |_: &Node| (1_000, 100);
    assert_eq!(share.read(2 * SECOND, false, close), Some(124));
    assert_eq!((share.read(2 * SECOND + 24 * MS, false, short), share.asked), (Some(124), 3));
    assert_eq!((share.read(2 * SECOND + 25 * MS, false, short), share.asked), (Some(24), 4));
    share.levels.renew();
    assert_eq!((share.read(2 * SECOND + 26 * MS, false, close), share.asked), (Some(124), 5));
}

#[test]
fn at_rest_the_pods_share_is_read_seldom_and_close_to_its_threshold_always() {
    let node = Node::new(0);
    node.set_pods(100 * MIB, "1073741824\n");
    let mut levels = Levels::new(Err(Missing::Absent), None);
    let dir = CgroupDir::unchecked(&node.kubepods()).unwrap();
    assert!(levels.replace_pods(Box::new(PodsMemory::open(&dir).unwrap())).is_none());
    let mut engine = Engine::new(&settings(&[(Signal::AllocatableMemoryAvailable, 100 * MIB)]));
    // It learns the amount from the first look.
    let capacity = 1024 * MIB;
    let level = |available| Level { available, capacity };
    engine.step(Input::Node(NodeSample {
        allocatable: Some(level(capacity)),
        ..NodeSample::memory(0, capacity, capacity)
    }));
    let mut read = |now_ns, node_bytes, fresh| {
        levels
            .pods(now_ns, node_bytes, &engine, fresh, &mut buffer(), nothing_charged)
            .map(|level| level.available / MIB)
    };
    assert_eq!(read(SECOND, 4096 * MIB, false), Some(924));
    node.set_pods(500 * MIB, "1073741824\n");
    assert_eq!(read(2 * SECOND, 4090 * MIB, false), Some(924), "nothing has become of the node's memory");
    assert_eq!(read(2 * SECOND, 4090 * MIB, true), Some(524), "a decision is made of fresh ones");
    node.set_pods(700 * MIB, "1073741824\n");
    assert_eq!(read(3 * SECOND, 3900 * MIB, false), Some(324), "a fourth of what was left");
    node.set_pods(600 * MIB, "1073741824\n");
    assert_eq!(read(12 * SECOND, 3900 * MIB, false), Some(324));
    assert_eq!(read(13 * SECOND, 3900 * MIB, false), Some(424), "once in ten seconds in any case");
    node.set_pods(900 * MIB, "1073741824\n");
    assert_eq!(read(23 * SECOND, 3900 * MIB, false), Some(124));
    node.set_pods(800 * MIB, "1073741824\n");
    assert_eq!(read(23 * SECOND + 10 * MS, 3900 * MIB, false), Some(224), "close to the threshold");
    fs::write(node.kubepods().join("memory.max"), "lots\n").unwrap();
    assert_eq!(read(40 * SECOND, 3900 * MIB, false), None);
    assert_eq!(
        levels.news().iter().copied().collect::<Vec<_>>(),
        [(Signal::AllocatableMemoryAvailable, Some(Missing::Malformed))]
    );
    assert!(levels.news().is_empty(), "reported once");
    node.set_pods(950 * MIB, "1073741824\n");
    let mut read = |now_ns| {
        levels
            .pods(now_ns, 3900 * MIB, &engine, false, &mut buffer(), nothing_charged)
            .map(|level| level.available / MIB)
    };
    assert_eq!(read(40 * SECOND + 99 * MS), None, "not a thousand times a second");
    assert_eq!(
        read(40 * SECOND + 100 * MS),
        Some(74),
        "a failed read is repeated soon, as a shortage may go on"
    );
}

#[test]
fn what_no_threshold_asks_for_is_not_read() {
    let node = Node::new(0);
    node.set_tasks(10, 100);
    node.set_pods(100 * MIB, "1073741824\n");
    let mut levels = Levels::new(Tasks::open(&node.proc()), None);
    let dir = CgroupDir::unchecked(&node.kubepods()).unwrap();
    assert!(levels.replace_pods(Box::new(PodsMemory::open(&dir).unwrap())).is_none());
    let engine = Engine::new(&settings(&[(Signal::MemoryAvailable, 1)]));
    assert_eq!(levels.pods(0, 0, &engine, true, &mut buffer(), nothing_charged), None);
    assert_eq!(levels.tasks(&engine), None);
    assert_eq!(levels.next_look_ns(&engine, &Sampler::new(2), 2), u64::MAX);
}

#[test]
fn the_next_look_comes_before_a_fork_bomb_is_there() {
    let node = Node::new(0);
    node.set_tasks(2_000, 32_000);
    let mut levels = Levels::new(Tasks::open(&node.proc()), None);
    let mut engine = Engine::new(&settings(&[(Signal::PidAvailable, 2_000)]));
    let pids = levels.tasks(&engine);
    assert_eq!(pids, Some(Level { available: 30_000, capacity: 32_000 }));
    engine.step(Input::Node(NodeSample { pids, ..NodeSample::memory(0, 1, 1) }));
    // 28,000 more, at 20,000 a second and cpu.
    assert_eq!(levels.next_look_ns(&engine, &Sampler::new(2), 2), 700 * MS);
    assert_eq!(levels.next_look_ns(&engine, &Sampler::new(2), 1), 1_400 * MS);
    node.set_tasks(29_999, 32_000);
    levels.tasks(&engine);
    assert_eq!(levels.next_look_ns(&engine, &Sampler::new(2), 2), 5 * MS);
    assert_eq!(Resource::of(Signal::PidAvailable), Some(Resource::Pids));
}
