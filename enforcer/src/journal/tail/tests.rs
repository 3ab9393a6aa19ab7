use std::path::Path;

use super::*;
use crate::journal::{medium::Folder, tests::record};

const EPOCH: Ulid = Ulid::nil();

/// Opens it as the next process does; one that finds nothing of ours begins it.
fn open(dir: &Path, half_bytes: u64) -> (Tail, Vec<Kept>) {
    let medium: Arc<dyn Medium> = Arc::new(Folder::open(dir).unwrap());
    let (mut tail, left) = Tail::open(&medium, "boot", half_bytes).unwrap();
    if left.is_none() {
        tail.begin(EPOCH, 1, &[]).unwrap();
    }
    (tail, left.map(|left| left.records).unwrap_or_default())
}

fn sequences(records: &[Kept]) -> Vec<u64> {
    records.iter().map(|record| record.sequence).collect()
}

#[test]
fn what_was_pushed_is_there_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tail, left) = open(dir.path(), 2_000);
    assert!(left.is_empty());
    for sequence in 1..=3 {
        assert!(tail.push(&record(sequence), 0).unwrap());
    }
    drop(tail);
    let (_, left) = open(dir.path(), 2_000);
    assert_eq!(sequences(&left), [1, 2, 3]);
    assert_eq!(left[2].line, record(3).line);
}

#[test]
fn nothing_that_the_disk_lacks_is_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tail, _) = open(dir.path(), 1_000);
    let pushed = (1..100).take_while(|&sequence| tail.push(&record(sequence), 0).unwrap()).count();
    let pushed = u64::try_from(pushed).unwrap();
    assert_eq!(sequences(&open(dir.path(), 1_000).1), (1..=pushed).collect::<Vec<_>>());
    // The disk has the first half: that one is used again, and what it held is not read any more.
    assert!(tail.push(&record(pushed + 1), pushed / 2).unwrap());
    let left = sequences(&open(dir.path(), 1_000).1);
    assert_eq!(left, (pushed / 2 + 1..=pushed + 1).collect::<Vec<_>>());
}

#[test]
fn what_another_log_left_is_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tail, _) = open(dir.path(), 2_000);
    tail.push(&record(1), 0).unwrap();
    tail.begin(Ulid::generate(), 1, &[]).unwrap();
    drop(tail);
    assert!(open(dir.path(), 2_000).1.is_empty());
    let medium: Arc<dyn Medium> = Arc::new(Folder::open(dir.path()).unwrap());
    assert!(Tail::open(&medium, "another boot", 2_000).unwrap().1.is_none());
}

/// A kill right behind it costs nothing, and no other event gets the sequence of one that was shown.
#[test]
fn what_the_disk_has_not_taken_goes_along_into_another_log() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tail, _) = open(dir.path(), 700);
    let mut large = record(6);
    large.line = vec![b' '; 900].into();
    tail.begin(Ulid::generate(), 9, &[record(4), record(5), large, record(8)]).unwrap();
    drop(tail);
    let medium: Arc<dyn Medium> = Arc::new(Folder::open(dir.path()).unwrap());
    let left = Tail::open(&medium, "boot", 700).unwrap().1.unwrap();
    assert_eq!((left.opened, left.mark, sequences(&left.records)), (4, 8, vec![4, 5, 8]));
}

#[test]
fn an_event_without_room_is_refused_and_the_next_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tail, _) = open(dir.path(), 500);
    let mut large = record(1);
    large.line = vec![b' '; 600].into();
    assert!(!tail.push(&large, 0).unwrap());
    assert!(tail.push(&record(2), 0).unwrap());
}

#[test]
fn what_is_torn_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tail, _) = open(dir.path(), 2_000);
    for sequence in 1..=3 {
        tail.push(&record(sequence), 0).unwrap();
    }
    let second = u64::try_from(FRAME_BYTES + record(1).line.len() + FRAME_BYTES + 5).unwrap();
    tail.file.write_all_at(b"x", HEAD_BYTES + second).unwrap();
    assert_eq!(sequences(&open(dir.path(), 2_000).1), [1]);
}

#[test]
fn the_next_process_goes_on_where_the_last_one_was() {
    let dir = tempfile::tempdir().unwrap();
    for sequence in 1..=20 {
        let (mut tail, left) = open(dir.path(), 2_000);
        let expected = left.last().map_or(1, |last| last.sequence + 1);
        assert_eq!(sequence, expected, "what was pushed before is there");
        let written = sequence.saturating_sub(3);
        assert!(tail.push(&record(sequence), written).unwrap());
        tail.mark(sequence).unwrap();
    }
    let medium: Arc<dyn Medium> = Arc::new(Folder::open(dir.path()).unwrap());
    let (_, left) = Tail::open(&medium, "boot", 2_000).unwrap();
    let left = left.unwrap();
    assert_eq!((left.mark, left.epoch, left.opened), (20, EPOCH, 1));
    assert!(sequences(&left.records).ends_with(&[17, 18, 19, 20]));
}

#[test]
fn what_is_forgotten_leaves_room_for_another_of_its_sequence() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tail, _) = open(dir.path(), 2_000);
    for sequence in [1, 2, 4, 5] {
        tail.push(&record(sequence), 0).unwrap();
    }
    tail.forget_after(2).unwrap();
    assert_eq!(sequences(&open(dir.path(), 2_000).1), [1, 2]);
    tail.push(&record(3), 0).unwrap();
    assert_eq!(sequences(&open(dir.path(), 2_000).1), [1, 2, 3]);
}
