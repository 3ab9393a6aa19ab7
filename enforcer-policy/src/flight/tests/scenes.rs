//! What an operator reads of one eviction, and of what another configuration would have done.

use super::random::{encoded, file};
use crate::{
    engine::{
        Action, CandidateFacts, Candidates, Engine, EngineSettings, Input, Level, Mode, NodeSample, Outcome,
        Past, PodKey, Reading, Usage, Waiting, followed,
    },
    flight::{Happening, NoVictim, RecordRef, Recording, StepRef, replay, under},
    model::CgroupId,
    threshold::{Signal, Threshold, ThresholdValue},
};

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;

fn enforcing(thresholds: &[Threshold]) -> EngineSettings {
    EngineSettings {
        mode: Mode::Enforce,
        thresholds: followed(thresholds),
        max_pod_grace_period_ns: 10_000 * MS,
        ..EngineSettings::default()
    }
}

fn hard(mib: u64) -> Threshold {
    Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(mib * MIB))
}

/// Of the pods' limit.
fn hard_limit(mib: u64) -> Threshold {
    Threshold::hard(Signal::AllocatableMemoryAvailable, ThresholdValue::Amount(mib * MIB))
}

/// A hog fills the node by 50 MiB every 100 ms, is killed at 200 MiB, and gives back what it had.
struct Scene {
    engine: Engine,
    kept: Vec<Vec<u8>>,
    readings: Vec<Reading>,
    now_ns: u64,
    /// What is left of the pods' limit, in MiB: before 2,000 ms, and from then on.
    limit: Option<[u64; 2]>,
}

impl Scene {
    fn step(&mut self, input: &Input<'_>) -> Vec<Action> {
        let actions = self.engine.step(*input);
        self.kept.push(encoded(&RecordRef::Step(StepRef::new(input, &actions, self.engine.decision()))));
        actions.iter().copied().collect()
    }

    fn node(&self, mib: u64) -> NodeSample {
        NodeSample {
            now_ns: self.now_ns,
            suspended_ns: 0,
            memory: Level { available: mib * MIB, capacity: 4_096 * MIB },
            allocatable: self.limit.map(|[before, after]| {
                let mib = if self.now_ns < 2_000 * MS { before } else { after };
                Level { available: mib * MIB, capacity: 4_096 * MIB }
            }),
            pids: None,
            fill_bytes_per_second: 500 * MIB,
            free_lists_bytes: 0,
            unmapped_shmem_bytes: 0,
            shmem_bytes: 0,
        }
    }

    fn look(&mut self, mib: u64, hog_mib: u64) {
        self.now_ns += 100 * MS;
        let node = self.node(mib);
        let wants = self.step(&Input::Node(node));
        if wants.iter().any(|action| matches!(action, Action::ReadUsages(_))) {
            self.readings[1] = using(hog_mib);
            let readings = self.readings.clone();
            let wants = self.step(&Input::Usages { node, readings: &readings });
            if wants.contains(&Action::Evict) {
                let number = self.engine.decision().unwrap().number;
                self.kept.push(encoded(&RecordRef::Called { number, id: 77 }));
                self.step(&Input::Outcome(Outcome::Signalled { number, now_ns: self.now_ns + MS }));
                self.now_ns += 20 * MS;
                let now_ns = self.now_ns;
                self.step(&Input::Outcome(Outcome::Progress {
                    number,
                    now_ns,
                    populated: false,
                    current_bytes: Some(0),
                    process_count: None,
                }));
            }
        }
    }
}

fn using(mib: u64) -> Reading {
    let bytes = mib * MIB;
    Reading::Usage(Usage {
        current_bytes: bytes,
        working_set_bytes: bytes,
        anon_bytes: bytes,
        ..Usage::default()
    })
}

fn scene() -> Vec<u8> {
    scene_of(Engine::new(&enforcing(&[hard(200)])))
}

fn scene_of(engine: Engine) -> Vec<u8> {
    scene_with(engine, None)
}

/// The same with so much left of the pods' limit. The hog is outside of kubepods then.
fn outside(limit: [u64; 2]) -> Vec<u8> {
    scene_with(Engine::new(&enforcing(&[hard(200)])), Some(limit))
}

fn scene_with(engine: Engine, limit: Option<[u64; 2]>) -> Vec<u8> {
    let mut scene =
        Scene { engine, kept: Vec::new(), readings: vec![using(300), using(0)], now_ns: 1_000 * MS, limit };
    scene.kept.push(encoded(&RecordRef::Key(&scene.engine)));
    let facts = [1, 2].map(|cgroup| CandidateFacts {
        cgroup: CgroupId(cgroup),
        pod: PodKey { hash: cgroup },
        priority: 0,
        request_bytes: 400 * MIB,
        critical: false,
        protected: false,
        grace_period_ns: 30_000 * MS,
        terminating: false,
        torn_down: false,
        in_kubepods: limit.is_none() || cgroup == 1,
    });
    let candidates = Candidates::new(&facts);
    scene.kept.push(encoded(&RecordRef::Candidates(&candidates)));
    drop(scene.engine.replace(candidates));
    for step in 0..14 {
        // 800 MiB down to 150, with the hog at 150 to 800.
        scene.look(800 - 50 * step, 150 + 50 * step);
        if scene.engine.decision().is_some() {
            break;
        }
    }
    for _ in 0..15 {
        scene.look(1_000, 0);
    }
    file(&scene.kept)
}

#[test]
fn an_eviction_is_reported_from_the_crossing_to_the_end() {
    let file = scene();
    let account = replay(&Recording::read(&file).unwrap());
    assert_eq!((account.difference.as_ref(), account.unverified), (None, 0));
    let reported: Vec<_> = account.moments.iter().map(|moment| (moment.at_ns / MS, &moment.what)).collect();
    match reported[..] {
        [
            (at, Happening::Crossed(_)),
            (decided, Happening::Decided { decision, id: Some(77) }),
            (signalled, Happening::Signalled { number: 1 }),
            (dead, Happening::Completed(completion)),
            (_, Happening::Cleared(_)),
        ] => {
            assert_eq!((at, decided, signalled, dead), (2_400, 2_400, 2_401, 2_420));
            assert_eq!((decision.cgroup, decision.shortage.observed), (CgroupId(2), 150 * MIB));
            assert_eq!(completion.freed_bytes, Some(800 * MIB));
        }
        _ => panic!("{reported:?}"),
    }
}

/// What a restart took over is where the recording begins: so is what comes of it the same.
#[test]
fn what_earlier_processes_evicted_is_in_the_recording() {
    let mut engine = Engine::new(&enforcing(&[hard(200)]));
    let past: Vec<_> = (100..120).map(|pod| Past { pod: PodKey { hash: pod }, at_ns: pod * MS }).collect();
    engine.remember(&past);
    let file = scene_of(engine);
    let account = replay(&Recording::read(&file).unwrap());
    assert_eq!((account.difference.as_ref(), account.unverified), (None, 0));
    let (decision, _) = account.decisions().next().unwrap();
    assert!(decision.dry_run, "the breaker is open");
}

#[test]
fn a_lower_threshold_would_have_evicted_no_pod_then() {
    let file = scene();
    let other = under(&Recording::read(&file).unwrap(), &enforcing(&[hard(100)]));
    assert_eq!(other.no_victims, [NoVictim { at_ns: 2_400 * MS, number: 1, why: Waiting::NotShort }]);
    // What the recorded kill gave back is taken away again, and that is below this threshold too: 1000 - 800 = 200 MiB.
    assert_eq!(other.decisions, []);
    assert_eq!(other.parted_ns, Some(2_400 * MS));
}

#[test]
fn a_higher_threshold_would_have_evicted_earlier_and_only_once() {
    let file = scene();
    let other = under(&Recording::read(&file).unwrap(), &enforcing(&[hard(500)]));
    let [only] = &other.decisions[..] else { panic!("{:?}", other.decisions) };
    assert_eq!(only.decision.decided_ns, 1_800 * MS);
    assert_eq!((only.decision.cgroup, only.modelled), (CgroupId(2), false));
    // Its usage had not been read by then: the first reading, at 350 MiB available, stands in.
    assert_eq!(only.read_ns, Some(2_000 * MS));
    assert_eq!(other.parted_ns, Some(1_800 * MS));
    let [no_victims] = &other.no_victims[..] else { panic!("{:?}", other.no_victims) };
    assert_eq!((no_victims.number, no_victims.why), (1, Waiting::NotShort));
}

/// What the recorded kill gave back is taken away again, but not from the pods' limit.
#[test]
fn what_is_spared_outside_of_kubepods_takes_none_of_the_pods_limit() {
    let file = outside([600, 600]);
    let other = under(&Recording::read(&file).unwrap(), &enforcing(&[hard(100), hard_limit(200)]));
    assert_eq!(other.no_victims, [NoVictim { at_ns: 2_400 * MS, number: 1, why: Waiting::NotShort }]);
    assert_eq!(other.decisions, []);
}

/// The pods' limit is short from 2,000 ms on. What came back from the hog before is the node's.
#[test]
fn what_is_killed_outside_of_kubepods_gives_back_none_of_the_pods_limit() {
    let file = outside([600, 150]);
    let other = under(&Recording::read(&file).unwrap(), &enforcing(&[hard(500), hard_limit(200)]));
    let decided = other.decisions.iter().map(|one| (one.decision.decided_ns / MS, one.decision.cgroup.0));
    assert_eq!(decided.collect::<Vec<_>>(), [(1_800, 2), (2_000, 1)]);
}

#[test]
fn a_soft_threshold_would_have_given_it_time() {
    let file = scene();
    let soft = Threshold { grace_period_ms: 300, ..hard(500) };
    let other = under(&Recording::read(&file).unwrap(), &enforcing(&[soft]));
    let [only] = &other.decisions[..] else { panic!("{:?}", other.decisions) };
    // Crossed at 1,800 ms.
    assert_eq!((only.decision.decided_ns, only.decision.grace_ns), (2_100 * MS, 10_000 * MS));
}

#[test]
fn observe_mode_evicts_no_pod() {
    let file = scene();
    let observing = EngineSettings { mode: Mode::Observe, ..enforcing(&[hard(200)]) };
    let other = under(&Recording::read(&file).unwrap(), &observing);
    assert_eq!(other.decisions, []);
    assert_eq!(other.no_victims.first().map(|no_victims| no_victims.why), Some(Waiting::Observes));
}
