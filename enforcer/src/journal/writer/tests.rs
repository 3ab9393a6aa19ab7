use std::{collections::BTreeMap, sync::Mutex};

use serde_json::json;

use super::*;
use crate::journal::{
    Batch, EventType, Filter, Journal, RawEvent, Subject,
    disk::{self, Opened},
    medium::fake::Fake,
    retention::{Clock, Now},
    tests::Streamed,
};

struct Rig {
    state: Fake,
    run: Fake,
    journal: Journal,
    writer: Writer,
    syncer: Syncer,
    received: mpsc::Receiver<Unsynced>,
    kmsg: Arc<Mutex<Vec<String>>>,
}

impl Rig {
    fn new() -> Self {
        Self::on(Fake::new(1), Fake::new(2))
    }

    fn on(state: Fake, run: Fake) -> Self {
        Self::restart(state, run).0
    }

    /// The same; and how many events the start says are lost.
    fn restart(state: Fake, run: Fake) -> (Self, u64) {
        let clock = Clock::new(|| Now { wall_ms: 1, boot_ms: 1 });
        let (on, tail): (Arc<dyn Medium>, Arc<dyn Medium>) = (Arc::new(state.clone()), Arc::new(run.clone()));
        let Opened { journal, store, unsynced, recovered } =
            disk::open("n1", "b1", &on, &tail, Limits::default(), clock, 20_000).unwrap();
        let (sender, received) = mpsc::channel();
        let mut syncer = Syncer::new(&journal.shared, store.medium());
        for unsynced in unsynced {
            syncer.take(unsynced);
        }
        let kmsg = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&kmsg);
        let out = Kmsg::new(Box::new(move |line| {
            lines.lock().unwrap().push(line.to_owned());
            Ok(())
        }));
        let writer = Writer::new(&journal.shared, store, sender, out);
        (Self { state, run, journal, writer, syncer, received, kmsg }, recovered.lost)
    }

    fn append(&self, kind: EventType, bytes: usize) -> u64 {
        let data = json!({"pad": "x".repeat(bytes)});
        self.journal.append_raw(RawEvent { kind, subject: Subject::Node, data })
    }

    fn write(&mut self) {
        self.writer.hurry();
        self.writer.pass(Duration::ZERO);
    }

    fn sync(&mut self) -> bool {
        for unsynced in self.received.try_iter() {
            self.syncer.take(unsynced);
        }
        self.syncer.pass()
    }

    /// What is read from the beginning: sequence and kind; a gap as its last sequence and none.
    fn read(&self) -> Vec<(u64, Option<EventType>)> {
        let mut reader = self.journal.reader(None, Filter::default());
        let mut read = Vec::new();
        while let Some(batch) = reader.read() {
            match batch {
                Batch::Records(records) => {
                    read.extend(records.iter().map(|record| (record.sequence, Some(record.kind))));
                }
                Batch::Gap { to, .. } => read.push((to, None)),
            }
        }
        read
    }
}

#[test]
fn a_full_disk_is_reported_and_nothing_is_lost_while_memory_holds_it() {
    let mut rig = Rig::new();
    rig.append(EventType::PodAdded, 0);
    rig.write();
    rig.state.set_full(true);
    let signalled = rig.append(EventType::EvictionSignalled, 0);
    rig.write();
    rig.append(EventType::OomIncident, 0);
    rig.write();
    {
        let lines = rig.kmsg.lock().unwrap();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[0].contains("takes nothing") && lines[0].contains("kept in memory"), "{lines:?}");
    }
    let reported = rig.read();
    assert!(
        reported.contains(&(signalled, Some(EventType::EvictionSignalled))),
        "readers have it: {reported:?}"
    );
    assert!(reported.iter().any(|(_, kind)| *kind == Some(EventType::DegradedEntered)));
    rig.state.set_full(false);
    rig.write();
    rig.write();
    let reported = rig.read();
    assert_eq!(reported.last().unwrap().1, Some(EventType::DegradedLeft));
    assert!(reported.iter().zip(1..).all(|((sequence, kind), place)| *sequence == place && kind.is_some()));
    rig.append(EventType::EvictionSignalled, 0);
    rig.write();
    assert_eq!(rig.kmsg.lock().unwrap().len(), 3, "the disk works again");
    assert!(rig.sync());
    assert_eq!(*rig.journal.durable().borrow(), rig.journal.range().newest);
}

/// More than memory holds: the oldest go, as a gap with their number, whether the disk comes back or the daemon is killed.
#[test]
fn what_is_too_much_for_memory_is_a_gap_and_never_another_event() {
    for is_killed in [false, true] {
        let mut rig = Rig::new();
        rig.append(EventType::PodAdded, 0);
        rig.write();
        rig.state.set_full(true);
        for _ in 0..40 {
            rig.append(EventType::PodChanged, 100_000);
            rig.write();
        }
        let seen = rig.read();
        let newest = rig.journal.range().newest;
        let cursor = rig.journal.cursor(newest);
        let middle = rig.journal.cursor(5);
        assert_eq!(seen.last().unwrap().0, newest);
        rig.state.set_full(false);
        if is_killed {
            let Rig { state, run, .. } = rig;
            state.kill();
            state.revive();
            rig = Rig::on(state, run);
            assert_eq!(rig.append(EventType::PodRemoved, 0), newest + 1, "its sequence is its own");
        }
        rig.write();
        rig.write();
        let reported = rig.read();
        assert_eq!(rig.journal.resume(&cursor), Ok(newest), "a reader at the end misses nothing");
        assert_eq!(rig.journal.resume(&middle), Ok(5));
        assert!(reported.iter().any(|(_, kind)| kind.is_none()), "{reported:?}");
        for (sequence, kind) in
            reported.iter().filter(|(sequence, kind)| *sequence <= newest && kind.is_some())
        {
            let before = seen.iter().find(|(seen, _)| seen == sequence);
            assert!(before.is_none_or(|(_, before)| before == kind), "{sequence}");
        }
        if !is_killed {
            let mut reader = rig
                .journal
                .reader(Some(newest), Filter { kinds: vec![EventType::DegradedLeft], ..Filter::default() });
            let Some(Batch::Records(left)) = reader.read() else { panic!() };
            let event: serde_json::Value = serde_json::from_slice(&left[0].line).unwrap();
            let gaps: Vec<_> = reported.windows(2).filter(|pair| pair[1].1.is_none()).collect();
            let missing: u64 = gaps.iter().map(|pair| pair[1].0 - pair[0].0).sum();
            assert_eq!(event["data"]["lostEvents"], missing);
        }
    }
}

/// Some were too large for the tail, so that it has holes. They are missing; everything else is there once, in its place,
/// while the disk is full, when it takes something again, and after one more start.
#[test]
fn a_restart_on_a_disk_that_is_still_full_loses_only_what_found_no_room() {
    for seed in 1..40 {
        let mut rig = Rig::on(Fake::new(seed), Fake::new(2));
        rig.append(EventType::PodAdded, 0);
        rig.write();
        rig.state.set_full(true);
        rig.append(EventType::PodChanged, 0);
        rig.write();
        for bytes in [30_000, 0, 30_000, 30_000, 0, 10, 30_000] {
            rig.append(EventType::PodChanged, bytes);
        }
        rig.write();
        // The third is the log's own event.
        let kept = [1, 2, 3, 5, 8, 9];
        let seen = stream(&rig, 0);
        assert_eq!(seen.sequences(), (1..=10).collect::<Vec<_>>());
        let seen: BTreeMap<_, _> = seen.lines.into_iter().collect();
        let (rig, lost) = restarted(rig);
        assert!(lost <= 4, "{lost}");
        let reported = stream(&rig, 0);
        hold_against(&rig, &reported, &seen, &kept);
        assert_eq!(stream(&rig, 10).lines, [], "a follower waits at the end");
        assert_eq!(rig.append(EventType::PodRemoved, 0), 11);
        assert_eq!(stream(&rig, 10).sequences(), [11]);
        let behind = stream(&rig, 9);
        assert_eq!((behind.sequences(), behind.gaps), (vec![11], vec![(10, 10)]), "{seed}");
        // And once more.
        let (mut rig, _) = restarted(rig);
        hold_against(&rig, &stream(&rig, 0), &seen, &kept);
        rig.write();
        rig.state.set_full(false);
        for _ in 0..10 {
            rig.write();
        }
        assert_eq!(rig.journal.load().unwritten_records, 0);
        let all = stream(&rig, 0);
        hold_against(&rig, &all, &seen, &kept);
        let left: serde_json::Value = serde_json::from_slice(&all.lines.last().unwrap().1).unwrap();
        assert_eq!(left["type"], "dev.enforcer.degraded.left");
        assert_eq!(left["data"]["lostEvents"], 0, "the lost events are already reported");
        assert!(rig.sync());
        let (rig, lost) = restarted(rig);
        assert_eq!(lost, 0);
        assert_eq!(stream(&rig, 0).lines, all.lines, "all is on the disk as it was");
    }
}

/// What a stream gets behind that event.
fn stream(rig: &Rig, after: u64) -> Streamed {
    Streamed::read(&mut rig.journal.reader(Some(after), Filter::default()))
}

/// After a kill; and how many events the start says are lost.
fn restarted(rig: Rig) -> (Rig, u64) {
    let Rig { state, run, .. } = rig;
    state.kill();
    run.kill();
    state.revive();
    run.revive();
    Rig::restart(state, run)
}

/// Asserts that no event changed, that those of `kept` are there, and that gaps report the others.
fn hold_against(rig: &Rig, reported: &Streamed, seen: &BTreeMap<u64, Vec<u8>>, kept: &[u64]) {
    let sequences = reported.sequences();
    let gaps: Vec<u64> = reported.gaps.iter().flat_map(|(from, to)| *from..=*to).collect();
    assert!(kept.iter().all(|sequence| sequences.contains(sequence)), "{sequences:?}, without {gaps:?}");
    let mut every = [sequences, gaps].concat();
    every.sort_unstable();
    assert_eq!(every, (1..=rig.journal.range().newest).collect::<Vec<_>>());
    for (sequence, line) in &reported.lines {
        assert!(seen.get(sequence).is_none_or(|before| before == line), "{sequence} is another");
    }
    let read: Vec<_> =
        rig.read().iter().filter(|(_, kind)| kind.is_some()).map(|(place, _)| *place).collect();
    assert_eq!(read, reported.sequences(), "both ways to read give the same");
}

#[test]
fn many_events_are_one_sync_and_a_failed_one_is_done_again() {
    let mut rig = Rig::new();
    for _ in 0..300 {
        rig.append(EventType::PodAdded, 0);
        rig.write();
    }
    let before = rig.state.calls();
    assert!(rig.sync());
    assert!(rig.state.calls() - before <= 3, "two files and the folder");
    assert_eq!(*rig.journal.durable().borrow(), 300);
    rig.append(EventType::PodAdded, 0);
    rig.write();
    rig.state.set_sync_fails(100);
    assert!(!rig.sync());
    assert!(!rig.sync());
    assert_eq!(*rig.journal.durable().borrow(), 300);
    assert_eq!(rig.read().last().unwrap().1, Some(EventType::DegradedEntered));
    rig.state.set_sync_fails(0);
    assert!(rig.sync());
    assert_eq!(rig.read().last().unwrap().1, Some(EventType::DegradedLeft));
    rig.state.cut();
    rig.run.wipe();
    rig.state.kill();
    rig.state.revive();
    let rig = Rig::on(rig.state, rig.run);
    assert!(rig.read().len() >= 301, "what was durable is there");
}

/// As a start on a disk that was full, or mounted for reading, before.
#[test]
fn a_start_on_a_full_disk_goes_on_by_itself() {
    let state = Fake::new(1);
    let mut rig = Rig::on(state.clone(), Fake::new(2));
    rig.append(EventType::PodAdded, 0);
    rig.write();
    rig.state.kill();
    rig.state.revive();
    state.set_full(true);
    let mut rig = Rig::on(state, Fake::new(3));
    rig.append(EventType::PodRemoved, 0);
    rig.write();
    let kinds = [EventType::PodAdded, EventType::PodRemoved, EventType::DegradedEntered];
    assert_eq!(rig.read(), (1..).zip(kinds.map(Some)).collect::<Vec<_>>());
    rig.state.set_full(false);
    rig.write();
    rig.write();
    assert_eq!(rig.read().last(), Some(&(4, Some(EventType::DegradedLeft))));
    assert!(rig.sync());
}

#[test]
fn an_event_that_is_too_long_is_reported_without_its_payload() {
    let mut rig = Rig::new();
    let sequence = rig.append(EventType::PodAdded, 5 << 20);
    rig.write();
    let mut reader = rig.journal.reader(None, Filter::default());
    let Some(Batch::Records(records)) = reader.read() else { panic!() };
    assert_eq!((records[0].sequence, records.len()), (sequence, 1));
    let text = String::from_utf8_lossy(&records[0].line);
    assert!(text.contains("\"leftOutBytes\":5242") && text.len() < 1_000, "{text}");
}
