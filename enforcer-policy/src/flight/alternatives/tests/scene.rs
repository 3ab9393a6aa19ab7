//! A node whose memory and pods change in straight lines, under the real engine.

use crate::{
    engine::{
        Action, CandidateFacts, Candidates, Engine, EngineSettings, Input, Level, Mode, NodeSample, Outcome,
        PodKey, Reading, Usage, followed,
    },
    flight::{
        Alternatives, Episode, Origin, Process, Processes, RecordRef, Recording, StepRef, Writer,
        alternatives, encode,
    },
    model::CgroupId,
    threshold::{Signal, Threshold, ThresholdValue},
};

pub(super) const MIB: u64 = 1 << 20;
pub(super) const MS: u64 = 1_000_000;
/// When a scene begins, in nanoseconds of `CLOCK_BOOTTIME`.
pub(super) const BEGIN_NS: u64 = 100_000 * MS;

/// A pod: what it requests and holds at first, in MiB, and by how much it grows in a second.
#[derive(Clone, Copy)]
pub(super) struct Pod {
    pub(super) request: u64,
    pub(super) held: u64,
    pub(super) grows: u64,
}

impl Pod {
    pub(super) fn still(request: u64, held: u64) -> Self {
        Self { request, held, grows: 0 }
    }

    fn held_after(&self, ms: u64) -> u64 {
        self.held * MIB + self.grows * MIB * ms / 1_000
    }
}

/// What happens on a node of 4 GiB.
pub(super) struct Scene {
    pub(super) mode: Mode,
    pub(super) thresholds: Vec<Threshold>,
    /// Numbered from 1, as cgroups.
    pub(super) pods: Vec<Pod>,
    /// Those of them that are outside of kubepods.
    pub(super) outside: Vec<u64>,
    /// What is available at first, and by how much that falls in a second, in MiB.
    pub(super) available: u64,
    pub(super) falls: u64,
    /// What is left of the pods' limit at first, in MiB; it falls as the pods in kubepods grow.
    pub(super) limit: u64,
    /// The time between two samples.
    pub(super) every_ms: u64,
    /// The samples have a fill rate.
    pub(super) has_rate: bool,
    /// Readings of processes, with their times after the beginning.
    pub(super) processes: Vec<(u64, Vec<Process>)>,
    /// What a pod is given at most of its grace period of 30 s, by a soft threshold.
    pub(super) max_pod_grace_ms: u64,
    /// For how long it is recorded after the first decision.
    pub(super) goes_on_ms: u64,
}

pub(super) fn hard(mib: u64) -> Threshold {
    Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(mib * MIB))
}

pub(super) fn process(pid: u32, pod: Option<u64>, mib: u64, oom_score_adj: i16) -> Process {
    Process {
        pid,
        start_ticks: u64::from(pid),
        comm: format!("p{pid}"),
        resident_bytes: mib * MIB,
        unbacked_bytes: mib * MIB,
        swap_bytes: 0,
        page_table_bytes: 0,
        oom_score_adj,
        pod: pod.map(CgroupId),
        group: None,
    }
}

impl Scene {
    /// Memory falls with the first pod.
    pub(super) fn new(threshold: u64, available: u64, pods: &[Pod]) -> Self {
        Self {
            mode: Mode::Enforce,
            thresholds: vec![hard(threshold)],
            pods: pods.to_vec(),
            outside: Vec::new(),
            available,
            falls: pods.iter().map(|pod| pod.grows).sum(),
            limit: available,
            every_ms: 100,
            has_rate: true,
            processes: Vec::new(),
            max_pod_grace_ms: 0,
            goes_on_ms: 0,
        }
    }

    fn node(&self, ms: u64) -> NodeSample {
        let fallen = self.falls * MIB * ms / 1_000;
        let available = (self.available * MIB).saturating_sub(fallen);
        let inside = (1..).zip(&self.pods).filter(|(cgroup, _)| !self.outside.contains(cgroup));
        let grown: u64 = inside.map(|(_, pod)| pod.held_after(ms) - pod.held_after(0)).sum();
        let left = (self.limit * MIB).saturating_sub(grown);
        NodeSample {
            now_ns: BEGIN_NS + ms * MS,
            suspended_ns: 0,
            memory: Level { available, capacity: 4_096 * MIB },
            allocatable: self
                .thresholds
                .iter()
                .any(|threshold| threshold.signal == Signal::AllocatableMemoryAvailable)
                .then_some(Level { available: left, capacity: 4_096 * MIB }),
            pids: Some(Level { available: 10, capacity: 1_000 }),
            fill_bytes_per_second: if self.has_rate { self.falls * MIB } else { 0 },
            free_lists_bytes: 0,
            unmapped_shmem_bytes: 0,
            shmem_bytes: 0,
        }
    }

    fn reading(pod: &Pod, ms: u64) -> Reading {
        let bytes = pod.held_after(ms);
        Reading::Usage(Usage {
            current_bytes: bytes,
            working_set_bytes: bytes,
            anon_bytes: bytes,
            process_count: Some(100),
            ..Usage::default()
        })
    }

    /// Its records, until the first decision is carried out, or for so long after it.
    pub(super) fn records(&self) -> Vec<Vec<u8>> {
        let settings = EngineSettings {
            mode: self.mode,
            thresholds: followed(&self.thresholds),
            max_pod_grace_period_ns: self.max_pod_grace_ms * MS,
            ..EngineSettings::default()
        };
        let mut engine = Engine::new(&settings);
        let mut kept = vec![encoded(&RecordRef::Key(&engine))];
        let known = |(cgroup, pod)| facts(cgroup, pod, !self.outside.contains(&cgroup));
        let facts: Vec<_> = (1..).zip(&self.pods).map(known).collect();
        let candidates = Candidates::new(&facts);
        kept.push(encoded(&RecordRef::Candidates(&candidates)));
        drop(engine.replace(candidates));
        let (mut ms, mut decided_ms) = (0, None);
        let mut step = |engine: &mut Engine, input: &Input<'_>| {
            let actions = engine.step(*input);
            kept.push(encoded(&RecordRef::Step(StepRef::new(input, &actions, engine.decision()))));
            actions.iter().copied().collect::<Vec<_>>()
        };
        while decided_ms.is_none_or(|decided_ms| ms <= decided_ms + self.goes_on_ms) {
            assert!(ms < 600_000, "nothing is decided");
            let node = self.node(ms);
            let wants = step(&mut engine, &Input::Node(node));
            if wants.iter().any(|action| matches!(action, Action::ReadUsages(_))) {
                let readings: Vec<_> = self.pods.iter().map(|pod| Self::reading(pod, ms)).collect();
                let wants = step(&mut engine, &Input::Usages { node, readings: &readings });
                if wants.contains(&Action::Evict) {
                    decided_ms.get_or_insert(ms);
                    let decision = *engine.decision().unwrap();
                    if !decision.dry_run {
                        let now_ns = node.now_ns + MS;
                        step(
                            &mut engine,
                            &Input::Outcome(Outcome::Signalled { number: decision.number, now_ns }),
                        );
                    }
                }
            }
            ms += self.every_ms;
        }
        kept
    }

    pub(super) fn file(&self, records: &[Vec<u8>]) -> Vec<u8> {
        let mut writer = Writer::new("1.2.3", &Origin::default());
        let processes: Vec<_> = self.processes.iter().map(|(ms, worst)| read(*ms, worst)).collect();
        writer.processes(&processes);
        for record in records {
            writer.record(record);
        }
        writer.finish()
    }

    /// What others would have done in it.
    pub(super) fn play(&self) -> Episode {
        only(&self.file(&self.records()))
    }
}

/// The only shortage of a file.
pub(super) fn only(file: &[u8]) -> Episode {
    let recording = Recording::read(file).unwrap();
    let Alternatives { mut episodes } = alternatives(&recording);
    assert_eq!(episodes.len(), 1, "{episodes:?}");
    episodes.remove(0)
}

pub(super) fn encoded(record: &RecordRef<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(record, &mut bytes);
    bytes
}

fn facts(cgroup: u64, pod: &Pod, in_kubepods: bool) -> CandidateFacts {
    CandidateFacts {
        cgroup: CgroupId(cgroup),
        pod: PodKey { hash: cgroup },
        priority: 0,
        request_bytes: pod.request * MIB,
        critical: false,
        protected: false,
        grace_period_ns: 30_000 * MS,
        terminating: false,
        torn_down: false,
        in_kubepods,
    }
}

/// As many pages of 4 KiB as a node of 4 GiB without swap has.
fn read(ms: u64, worst: &[Process]) -> Processes {
    Processes {
        began_ns: BEGIN_NS + ms * MS - 1,
        read_ns: BEGIN_NS + ms * MS,
        page_bytes: 4_096,
        total_pages: 1 << 20,
        swap_free_bytes: 0,
        seen: 100,
        worst: worst.to_vec(),
    }
}
