use serde_json::json;

use super::*;
use crate::journal::{
    Batch, Cursor, EventType, Filter, Offline, RawEvent, Subject,
    tests::{Streamed, record, strange},
};

fn event(n: u64) -> RawEvent {
    RawEvent {
        kind: EventType::PodAdded,
        subject: Subject::Node,
        data: json!({"n": n, "pad": "x".repeat(400)}),
    }
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
        journal.append_raw(event(n));
    }
    // What finds no room in the tail is shown when it is in a segment.
    let newest = journal.newest();
    while *newest.borrow() < 3_000 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(sequences(&journal, None), (1..=3_000).collect::<Vec<_>>());
    journal.close();
    assert_eq!(*journal.durable().borrow(), 3_000);
    assert_eq!(sequences(&journal, Some(17)), (18..=3_000).collect::<Vec<_>>());
    let (journal, recovered) = open(dir.path());
    assert_eq!((recovered.events, recovered.from_tail), (3_000, 0));
    let cursor = journal.cursor(2_999);
    assert_eq!(journal.append_raw(event(0)), 3_001);
    assert_eq!(sequences(&journal, Some(journal.resume(&cursor).unwrap())), [3_000, 3_001]);
    journal.close();
}

#[test]
fn the_log_is_read_without_its_writer() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    for n in 0..600 {
        journal.append_raw(event(n));
    }
    let cursor = journal.cursor(598);
    journal.close();
    let state = dir.path().join("state");
    let read = |after: Option<&Cursor>| -> Vec<u64> {
        let offline = Offline::open(&state, dir.path(), after, Filter::default()).unwrap().unwrap();
        offline.map(|record| record.sequence).collect()
    };
    assert_eq!(read(None), (1..=600).collect::<Vec<_>>());
    assert_eq!(read(Some(&cursor)), [599, 600]);
    let other = Cursor { epoch: String::from("other"), sequence: 3 };
    assert!(Offline::open(&state, dir.path(), Some(&other), Filter::default()).unwrap().is_err());
}

/// What the next start would go on with, and nothing else of the tail.
#[test]
fn what_a_killed_daemon_had_not_written_is_read_too() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    for n in 1..=3 {
        journal.append_raw(event(n));
    }
    let cursor = journal.cursor(5);
    journal.close();
    drop(journal);
    let run: Arc<dyn Medium> = Arc::new(Folder::open(dir.path()).unwrap());
    let (mut tail, _) = Tail::open(&run, "b1", tail::HALF_BYTES).unwrap();
    for sequence in [4, 5, 7, 10] {
        assert!(tail.push(&record(sequence), 3).unwrap());
    }
    let state = dir.path().join("state");
    let read = |after: Option<&Cursor>| -> Vec<u64> {
        let offline = Offline::open(&state, dir.path(), after, Filter::default()).unwrap().unwrap();
        offline.map(|record| record.sequence).collect()
    };
    assert_eq!(read(None), [1, 2, 3, 4, 5], "no reader has seen what is behind the hole");
    tail.mark(6).unwrap();
    assert_eq!(read(None), [1, 2, 3, 4, 5, 7]);
    assert_eq!(read(Some(&cursor)), [7]);
    let other = Ulid::generate();
    tail.begin(other, 9, &[record(9)]).unwrap();
    assert_eq!(
        read(None),
        [1, 2, 3, 9],
        "the log goes on under another epoch, of which there is no segment yet"
    );
    tail.begin(other, 11, &[record(9), record(10)]).unwrap();
    assert_eq!(read(Some(&Cursor { epoch: other.to_string(), sequence: 9 })), [10]);
    tail.begin(other, 2, &[record(2), record(4)]).unwrap();
    assert_eq!(read(None), [1, 2, 3], "it is another log's");
    // Before the disk took anything at all.
    let empty = dir.path().join("empty");
    drop(Folder::private(&empty, FOLDER).unwrap());
    tail.begin(Ulid::nil(), 1, &[record(1), record(2)]).unwrap();
    for (after, sequences) in
        [(None, vec![1, 2]), (Some(Cursor { epoch: Ulid::nil().to_string(), sequence: 1 }), vec![2])]
    {
        let offline = Offline::open(&empty, dir.path(), after.as_ref(), Filter::default()).unwrap().unwrap();
        assert_eq!(offline.map(|record| record.sequence).collect::<Vec<_>>(), sequences);
    }
}

/// An event that found no room in the tail was only in memory, and no reader saw the events behind it: the log continues
/// at the hole, as if neither had been written.
#[test]
fn what_stands_behind_a_hole_in_the_tail_is_not_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    journal.append_raw(event(1));
    let epoch = journal.cursor(1).epoch;
    journal.close();
    drop(journal);
    let run: Arc<dyn Medium> = Arc::new(Folder::open(dir.path()).unwrap());
    let (mut tail, _) = Tail::open(&run, "b1", tail::HALF_BYTES).unwrap();
    assert!(tail.push(&record(2), 0).unwrap());
    assert!(tail.push(&record(4), 0).unwrap());
    assert!(tail.push(&record(5), 0).unwrap());
    drop(tail);
    let (journal, recovered) = open(dir.path());
    assert_eq!((recovered.from_tail, journal.range().newest), (1, 2));
    assert_eq!(journal.cursor(2).epoch, epoch);
    assert_eq!(journal.append_raw(event(3)), 3);
    assert_eq!(sequences(&journal, None), [1, 2, 3]);
    drop(journal);
    // What was passed over is not there any more beside what took its place.
    let (_, left) = Tail::open(&run, "b1", tail::HALF_BYTES).unwrap();
    let left: Vec<_> = left.unwrap().records.iter().map(|record| record.sequence).collect();
    assert!(left.ends_with(&[2, 3]), "{left:?}");
}

/// While the disk took nothing readers saw what the tail had no room for: a kill costs it, and nothing takes its place.
#[test]
fn what_readers_saw_and_a_kill_took_is_reported_as_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    journal.append_raw(event(1));
    let cursor = journal.cursor(4);
    journal.close();
    drop(journal);
    let run: Arc<dyn Medium> = Arc::new(Folder::open(dir.path()).unwrap());
    let (mut tail, _) = Tail::open(&run, "b1", tail::HALF_BYTES).unwrap();
    for sequence in [2, 6] {
        assert!(tail.push(&record(sequence), 0).unwrap());
    }
    tail.mark(8).unwrap();
    drop(tail);
    let (journal, recovered) = open(dir.path());
    assert_eq!((recovered.from_tail, recovered.lost), (2, 5));
    assert_eq!(journal.append_raw(event(3)), 9);
    let mut reader = journal.reader(Some(journal.resume(&cursor).unwrap()), Filter::default());
    let mut read = Vec::new();
    while let Some(batch) = reader.read() {
        match batch {
            Batch::Records(records) => read.extend(records.iter().map(|record| (record.sequence, 0))),
            Batch::Gap { from, to } => read.push((from, to)),
        }
    }
    assert_eq!(read, [(5, 5), (6, 0), (7, 8), (9, 0)]);
    journal.close();
}

/// A process that cannot tell what the one before it showed has another log.
#[test]
fn without_the_tail_a_kill_ends_the_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    journal.append_raw(event(1));
    let mut durable = journal.durable();
    while *durable.borrow_and_update() < 1 {
        std::thread::yield_now();
    }
    let epoch = journal.cursor(1).epoch;
    let state = dir.path().join("state");
    let copy = dir.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    drop(Folder::private(&copy.join("state"), FOLDER).unwrap());
    for entry in std::fs::read_dir(folder(&state)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.join("state/journal").join(entry.file_name())).unwrap();
    }
    let (other, recovered) = open(&copy);
    assert!(!recovered.after_power_cut);
    assert_ne!(other.cursor(2).epoch, epoch);
    assert_eq!(other.cursor(1).epoch, epoch);
    other.close();
    journal.close();
}

/// After a newer version was killed: the events that it wrote are in the tail, and then in a segment. Both keep them.
#[test]
fn an_event_of_a_type_that_is_not_known_stays_and_is_passed_on() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    journal.append_raw(event(1));
    journal.close();
    drop(journal);
    let run: Arc<dyn Medium> = Arc::new(Folder::open(dir.path()).unwrap());
    let (mut tail, _) = Tail::open(&run, "b1", tail::HALF_BYTES).unwrap();
    for kept in [strange(2), strange(3), record(4)] {
        assert!(tail.push(&kept, 0).unwrap());
    }
    drop(tail);
    for _ in 0..2 {
        let (journal, recovered) = open(dir.path());
        assert_eq!((recovered.lost, recovered.cut_bytes, journal.range().newest), (0, 0, 4));
        let streamed = Streamed::read(&mut journal.reader(None, Filter::default()));
        assert_eq!((streamed.sequences(), &streamed.gaps), (vec![1, 2, 3, 4], &vec![]));
        assert_eq!(streamed.lines[1].1, strange(2).line);
        let of_pod = Filter { pod: Some(String::from("default/web")), ..Filter::default() };
        assert_eq!(Streamed::read(&mut journal.reader(None, of_pod)).sequences(), [2, 3, 4]);
        let of_kind = Filter { kinds: vec![EventType::PodAdded], ..Filter::default() };
        assert_eq!(Streamed::read(&mut journal.reader(None, of_kind.clone())).sequences(), [1, 4]);
        assert_eq!(sequences_of(&journal, of_kind), [(1, 1), (4, 4)]);
        assert_eq!(
            sequences_of(&journal, Filter::default()),
            [(1, 1), (2, 3), (4, 4)],
            "a reader of types that are not known gets a gap"
        );
        journal.close();
        drop(journal);
        let state = dir.path().join("state");
        let offline = Offline::open(&state, dir.path(), None, Filter::default()).unwrap().unwrap();
        assert_eq!(offline.map(|record| record.sequence).collect::<Vec<_>>(), [1, 4]);
    }
}

/// What is read: an event as its sequence twice, a gap as its first and last.
fn sequences_of(journal: &Journal, filter: Filter) -> Vec<(u64, u64)> {
    let mut reader = journal.reader(None, filter);
    let mut read = Vec::new();
    while let Some(batch) = reader.read() {
        match batch {
            Batch::Records(records) => {
                read.extend(records.iter().map(|record| (record.sequence, record.sequence)));
            }
            Batch::Gap { from, to } => read.push((from, to)),
        }
    }
    read
}

#[test]
fn a_tail_that_is_no_file_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join(tail::NAME)).unwrap();
    let (journal, _) = open(dir.path());
    assert_eq!(journal.append_raw(event(1)), 1);
    assert_eq!(sequences(&journal, None), [1]);
    assert!(dir.path().join("journal.tail.damaged").is_dir());
    journal.close();
}
