//! From the tap to the file on the disk, and back.

use std::{
    fs,
    sync::{Arc, atomic::AtomicUsize},
};

use super::*;
use crate::{
    model::CgroupId,
    policy::{
        engine::{
            CandidateFacts, Candidates, Engine, EngineSettings, Input, Mode, NodeSample, PodKey, Reading,
            Usage,
        },
        flight::{Happening, Processes, Recording, replay},
    },
};

const MS: u64 = 1_000_000;

fn member(cgroup: u64) -> Member {
    Member {
        cgroup: CgroupId(cgroup),
        namespace: "default".into(),
        name: format!("pod{cgroup}"),
        uid: format!("u{cgroup}"),
        qos_class: "Burstable".into(),
    }
}

/// An engine that is tapped as the reflex taps its own.
struct Tapped {
    engine: Engine,
    tap: Tap,
    now_ns: u64,
}

impl Tapped {
    fn new(mut tap: Tap) -> Self {
        let engine = Engine::new(&EngineSettings { mode: Mode::Enforce, ..EngineSettings::default() });
        tap.begin(&engine, 5 << 70 | 9);
        Self { engine, tap, now_ns: 0 }
    }

    fn candidates(&mut self, count: u64) {
        let facts = |cgroup| CandidateFacts {
            cgroup: CgroupId(cgroup),
            pod: PodKey { hash: cgroup },
            priority: 0,
            request_bytes: 1 << 30,
            critical: false,
            protected: false,
            grace_period_ns: 0,
            terminating: false,
            torn_down: false,
            in_kubepods: true,
        };
        let candidates = Candidates::new(&(1..=count).map(facts).collect::<Vec<_>>());
        self.tap.candidates(&candidates);
        drop(self.engine.replace(candidates));
    }

    fn step(&mut self, input: Input<'_>) {
        let actions = self.engine.step(input);
        self.tap.step(&input, &actions, &self.engine);
    }

    fn look(&mut self, available: u64) {
        self.now_ns += 100 * MS;
        self.step(Input::Node(NodeSample::memory(self.now_ns, available, 1 << 40)));
        self.tap.rest(&self.engine);
    }

    fn usages(&mut self, available: u64, count: usize) {
        let used = 1 << 30;
        let usage =
            Usage { current_bytes: used, working_set_bytes: used, anon_bytes: used, ..Usage::default() };
        let readings = vec![Reading::Usage(usage); count];
        let node = NodeSample::memory(self.now_ns, available, 1 << 40);
        self.step(Input::Usages { node, readings: &readings });
    }
}

fn start(state_dir: &Path) -> (Recorder, Tapped) {
    let provenance = Provenance { node: "n".into(), boot_id: "b".into(), config_hash: "c".into() };
    let (recorder, tap) = Recorder::start(state_dir, provenance, |message| panic!("{message}")).unwrap();
    (recorder, Tapped::new(tap))
}

#[test]
fn a_decision_is_on_the_disk_with_what_led_to_it_and_what_came_of_it() {
    let temp = tempfile::tempdir().unwrap();
    let (recorder, mut tapped) = start(temp.path());
    recorder.name((1..=3).map(member));
    tapped.candidates(3);
    tapped.look(1 << 35);
    tapped.look(1 << 20);
    tapped.usages(1 << 20, 3);
    let number = tapped.engine.decision().unwrap().number;
    let id = Ulid::from_parts(7, 7);
    tapped.tap.called(number, id.0);
    recorder.asker().decided(id, true);
    tapped.look(1 << 35);
    // It is written down once more as it ends.
    drop(recorder);
    let file = fs::read(path(temp.path(), id)).unwrap();
    let recording = Recording::read(&file).unwrap();
    assert!(recording.whole);
    let origin = recording.origin.as_ref().unwrap();
    assert_eq!((origin.node.as_str(), origin.config_hash.as_str(), origin.seed), ("n", "c", 5 << 70 | 9));
    assert_eq!(recording.names.keys().copied().collect::<Vec<_>>(), [1, 2, 3].map(CgroupId));
    let account = replay(&recording);
    assert_eq!((account.difference.as_ref(), account.unverified), (None, 0));
    let decisions: Vec<_> = account.decisions().map(|(decision, id)| (decision.cgroup, id)).collect();
    assert_eq!(decisions, [(CgroupId(1), Some(id.0))]);
    assert!(account.equal >= 4, "{account:?}");
}

#[test]
fn the_engine_is_known_as_it_is_by_now() {
    let temp = tempfile::tempdir().unwrap();
    let (recorder, mut tapped) = start(temp.path());
    recorder.name((1..=3).map(member));
    assert!(recorder.asker().engine().is_none(), "it has not looked at the node yet");
    tapped.candidates(3);
    tapped.look(1 << 35);
    tapped.look(1 << 20);
    tapped.usages(1 << 20, 3);
    let engine = recorder.asker().engine().unwrap();
    assert_eq!(engine.decision(), tapped.engine.decision());
    assert!(engine.victim().is_some());
    assert_eq!(engine.candidates().known().count(), 3);
}

#[test]
fn what_finds_no_room_is_reported_and_the_rest_can_be_run_again() {
    let temp = tempfile::tempdir().unwrap();
    let (sender, reported) = std::sync::mpsc::channel();
    let failed = move |message: &str| sender.send(message.to_owned()).unwrap();
    let (recorder, tap) = Recorder::start(temp.path(), Provenance::default(), failed).unwrap();
    let mut tapped = Tapped::new(tap);
    tapped.candidates(1_000);
    // The ring is not read: its thread waits for this lock.
    let held = lock(&recorder.shared.store);
    for _ in 0..40 {
        tapped.look(1 << 35);
        tapped.usages(1 << 35, 1_000);
    }
    drop(held);
    let lost = recorder.asker().stats().lost;
    assert!(lost > 10, "{lost}");
    // The next time that there is time, the whole state is put down.
    tapped.look(1 << 35);
    tapped.look(1 << 35);
    let file = recorder.asker().snapshot();
    let recording = Recording::read(&file).unwrap();
    assert!(recording.whole, "the file itself is not damaged");
    let account = replay(&recording);
    assert_eq!(account.difference, None);
    let gaps: Vec<_> = account
        .moments
        .iter()
        .filter_map(|moment| match moment.what {
            Happening::Gap { lost } => Some(lost),
            _ => None,
        })
        .collect();
    let stats = recorder.asker().stats();
    assert_eq!(gaps.iter().sum::<u64>(), stats.lost, "{gaps:?}");
    assert!(account.equal > 2);
    // A whole state comes right behind a loss.
    assert_eq!(account.unverified, 0);
    drop(recorder);
    let reported: Vec<_> = reported.iter().collect();
    assert!(reported.len() == 1 && reported[0].contains("gaps"), "{reported:?}");
}

#[test]
fn memory_is_bounded_and_begins_with_a_whole_state() {
    let temp = tempfile::tempdir().unwrap();
    let (recorder, mut tapped) = start(temp.path());
    tapped.candidates(500);
    for _ in 0..300 {
        tapped.look(1 << 35);
        tapped.usages(1 << 35, 500);
        let stats = recorder.asker().stats();
        assert!(stats.held_bytes < 5 << 18, "{stats:?}");
    }
    assert_eq!(recorder.asker().stats().lost, 0);
    let file = recorder.asker().snapshot();
    let account = replay(&Recording::read(&file).unwrap());
    assert_eq!((account.difference.as_ref(), account.unverified), (None, 0));
    assert!(account.equal < 600, "the oldest are forgotten");
    assert!(account.equal > 60);
}

#[test]
fn what_is_old_is_forgotten_and_at_rest_hardly_anything_is_kept() {
    let temp = tempfile::tempdir().unwrap();
    let (recorder, mut tapped) = start(temp.path());
    tapped.candidates(250);
    // An hour at rest: as if it looked each second.
    for _ in 0..3_600 {
        tapped.now_ns += 900 * MS;
        tapped.look(1 << 35);
    }
    let stats = recorder.asker().stats();
    println!("an hour at rest: {} records, {} bytes, {} held", stats.records, stats.bytes, stats.held_bytes);
    let file = recorder.asker().snapshot();
    let account = replay(&Recording::read(&file).unwrap());
    let (from_ns, to_ns) = account.span_ns.unwrap();
    let minutes = (to_ns - from_ns) / (60_000 * MS);
    assert!((10..=20).contains(&minutes), "{minutes} minutes are kept");
    assert_eq!(account.difference, None);
}

#[test]
fn a_disk_that_takes_nothing_is_reported_once() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(folder(temp.path()), "in the way").unwrap();
    let reported = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&reported);
    let failed = move |message: &str| {
        assert!(message.contains("recordings"), "{message}");
        count.fetch_add(1, Ordering::Relaxed);
    };
    let (recorder, _tap) = Recorder::start(temp.path(), Provenance::default(), failed).unwrap();
    for ms in 0..3 {
        recorder.asker().decided(Ulid::from_parts(ms, 1), false);
    }
    drop(recorder);
    assert_eq!(reported.load(Ordering::Relaxed), 1);
}

#[test]
fn who_is_gone_keeps_its_name_as_long_as_its_records() {
    let (_producer, consumer) = ring(64);
    let mut store = Store::new(consumer, Arc::default());
    let named = |store: &Store| {
        let all = store.copy(Extent::All);
        all.names().map(|member| member.cgroup.0).collect::<Vec<_>>()
    };
    let minute = 60_000 * MS;
    store.name([member(1), member(2)].into_iter(), 0);
    // It was a candidate until now.
    store.name([member(2)].into_iter(), 60 * minute);
    assert_eq!(named(&store), [1, 2]);
    store.name([member(3)].into_iter(), 79 * minute);
    assert_eq!(named(&store), [1, 2, 3]);
    store.name([member(3)].into_iter(), 81 * minute);
    assert_eq!(named(&store), [2, 3]);
    // However many come and go.
    for round in 0..100 {
        store.name((round * 100..round * 100 + 100).map(member), 82 * minute + round);
    }
    assert!(named(&store).len() <= 4_196);
}

#[test]
fn processes_are_recorded_when_memory_may_run_short() {
    let temp = tempfile::tempdir().unwrap();
    let (recorder, mut tapped) = start(temp.path());
    tapped.candidates(1);
    tapped.look(1 << 35);
    let asker = recorder.asker();
    let id = Ulid::from_parts(7, 7);
    asker.near();
    // In dry-run, which asks for them too.
    asker.decided(id, false);
    drop(recorder);
    let file = fs::read(path(temp.path(), id)).unwrap();
    let recording = Recording::read(&file).unwrap();
    assert!(recording.whole);
    let first = recording.processes.first().unwrap();
    assert!(first.seen > 0 && first.began_ns <= first.read_ns, "{first:?}");
    assert!(first.worst.len() <= 64);
}

#[test]
fn processes_are_not_read_again_for_a_while() {
    let mut never = FlushQueue::default();
    assert!(never.read_processes() && never.reads);
    let past = Instant::now().checked_sub(BETWEEN_READINGS);
    let mut again = FlushQueue { requested: Some(past.unwrap()), ..FlushQueue::default() };
    assert!(again.read_processes() && again.reads);
    // A moment that is still to come stands for one just past, however long this test is kept waiting.
    let mut soon = FlushQueue { requested: Some(Instant::now() + BETWEEN_READINGS), ..FlushQueue::default() };
    assert!(!soon.read_processes() && !soon.reads);
}

#[test]
fn an_eviction_that_is_carried_out_reads_no_processes() {
    let temp = tempfile::tempdir().unwrap();
    let (recorder, mut tapped) = start(temp.path());
    tapped.candidates(1);
    tapped.look(1 << 35);
    let id = Ulid::from_parts(7, 7);
    recorder.asker().decided(id, true);
    drop(recorder);
    let file = fs::read(path(temp.path(), id)).unwrap();
    assert_eq!(Recording::read(&file).unwrap().processes, []);
}

#[test]
fn readings_of_processes_are_few_and_not_old() {
    let (_producer, consumer) = ring(64);
    let mut store = Store::new(consumer, Arc::default());
    let read = |read_ns| Processes {
        began_ns: read_ns,
        read_ns,
        page_bytes: 4_096,
        total_pages: 1,
        swap_free_bytes: 0,
        seen: 1,
        worst: Vec::new(),
    };
    let kept = |store: &Store| {
        let mut file = Vec::new();
        store.copy(Extent::All).write(&Origin::default(), &mut file).unwrap();
        let recording = Recording::read(&file).unwrap();
        recording.processes.iter().map(|read| read.read_ns / (1_000 * MS)).collect::<Vec<_>>()
    };
    for second in 0..30 {
        store.take_processes(read(second * 1_000 * MS));
    }
    assert_eq!(kept(&store), (18..30).collect::<Vec<_>>());
    store.take_processes(read(625 * 1_000 * MS));
    assert_eq!(kept(&store), [25, 26, 27, 28, 29, 625]);
}
