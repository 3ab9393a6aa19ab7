use super::*;
use crate::journal::{Batch, Filter};

fn event(n: u64) -> Event {
    Event { kind: EventType::PodAdded, subject: Subject::Node, data: json!({"n": n, "pad": "x".repeat(400)}) }
}

fn open(dir: &Path) -> (Journal, Recovered) {
    Journal::open("n1", "b1", &dir.join("state"), dir).unwrap()
}

fn sequences(journal: &Journal, after: Option<u64>) -> Vec<u64> {
    let mut reader = journal.reader(after, Filter::default());
    let mut read = Vec::new();
    while let Some(batch) = reader.read() {
        match batch {
            Batch::Records(records) => read.extend(records.iter().map(|record| record.sequence)),
            Batch::Gap { from, to } => panic!("a gap from {from} to {to}"),
        }
    }
    read
}

#[test]
fn what_memory_does_not_hold_is_read_from_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    for n in 0..3_000 {
        journal.append(event(n));
    }
    assert_eq!(sequences(&journal, None), (1..=3_000).collect::<Vec<_>>());
    journal.close();
    assert_eq!(*journal.durable().borrow(), 3_000);
    assert_eq!(sequences(&journal, Some(17)), (18..=3_000).collect::<Vec<_>>());
    let (journal, recovered) = open(dir.path());
    assert_eq!((recovered.events, recovered.from_tail), (3_000, 0));
    let cursor = journal.cursor(2_999);
    assert_eq!(journal.append(event(0)), 3_001);
    assert_eq!(sequences(&journal, Some(journal.resume(&cursor).unwrap())), [3_000, 3_001]);
    journal.close();
}

/// A disk that takes nothing: the folder is gone from under the writer's feet, so that no further segment can be made.
#[test]
fn while_the_disk_refuses_events_stay_readable_and_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(&folder(&dir.path().join("state")), "b1").unwrap();
    // Every event needs a segment of its own, and there is no folder for one.
    store.set_sizes(0, 0);
    std::fs::remove_dir_all(dir.path().join("state")).unwrap();
    let disk = Disk { segments: store.segments(), writer: Mutex::new(None) };
    let journal = Journal::on_disk("n1", "b1", store.epoch(), store.next(), None, disk);
    let shared = Arc::clone(&journal.shared);
    let writer = std::thread::spawn(move || write(&shared, store));
    journal.append(event(1));
    journal.append(event(2));
    let mut newest =
        journal.reader(None, Filter { kinds: vec![EventType::DegradedEntered], ..Filter::default() });
    let told = loop {
        match newest.read() {
            Some(Batch::Records(records)) if !records.is_empty() => break records,
            _ => std::thread::yield_now(),
        }
    };
    assert!(String::from_utf8_lossy(&told[0].line).contains("the journal cannot be written"));
    assert_eq!(sequences(&journal, None)[..2], [1, 2]);
    journal.close();
    writer.join().unwrap();
}

#[test]
fn the_log_is_read_without_its_writer() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    for n in 0..600 {
        journal.append(event(n));
    }
    let cursor = journal.cursor(598);
    journal.close();
    let state = dir.path().join("state");
    let read = |after: Option<&crate::journal::Cursor>| -> Vec<u64> {
        let offline = crate::journal::Offline::open(&state, after, Filter::default()).unwrap().unwrap();
        offline.map(|record| record.sequence).collect()
    };
    assert_eq!(read(None), (1..=600).collect::<Vec<_>>());
    assert_eq!(read(Some(&cursor)), [599, 600]);
    let other = crate::journal::Cursor { epoch: String::from("other"), sequence: 3 };
    assert!(crate::journal::Offline::open(&state, Some(&other), Filter::default()).unwrap().is_err());
}

/// What found no room in the tail was in memory alone, and what came behind it was shown to nobody: the log goes on at
/// the hole, as if neither had been.
#[test]
fn what_stands_behind_a_hole_in_the_tail_is_not_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    let epoch = journal.cursor(0).epoch.parse::<Ulid>().unwrap();
    journal.append(event(1));
    journal.close();
    drop(journal);
    let (mut tail, _) = Tail::open(&dir.path().join(TAIL), epoch).unwrap();
    for sequence in [2, 4, 5] {
        assert!(tail.push(&crate::journal::tests::record(sequence), 0).unwrap());
    }
    drop(tail);
    let (journal, recovered) = open(dir.path());
    assert_eq!((recovered.from_tail, journal.range().newest), (1, 2));
    assert_eq!(journal.append(event(3)), 3);
    assert_eq!(sequences(&journal, None), [1, 2, 3]);
    journal.close();
}
