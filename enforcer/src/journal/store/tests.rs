use super::*;
use crate::journal::{log::read_segments, tests::record};

const BOOT: &str = "boot-1";

fn open(dir: &Path, boot_id: &str) -> (Store, Recovered) {
    Store::open(dir, boot_id).unwrap()
}

fn append(store: &mut Store, count: u64) {
    for _ in 0..count {
        store.append(&[record(store.next())]).unwrap();
    }
}

fn sequences(segments: &Segments) -> Vec<u64> {
    let mut read = Vec::new();
    loop {
        let from = read.last().map_or(0, |last| last + 1);
        let records = read_segments(segments, from, u64::MAX, 7);
        if records.is_empty() {
            return read;
        }
        read.extend(records.iter().map(|record| record.sequence));
    }
}

#[test]
fn a_restart_goes_on_where_the_last_one_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, recovered) = open(dir.path(), BOOT);
    assert_eq!(recovered, Recovered::default());
    let epoch = store.epoch();
    append(&mut store, 3);
    // Killed: nothing was closed.
    drop(store);
    let (mut store, recovered) = open(dir.path(), BOOT);
    assert_eq!((recovered.events, recovered.after_power_cut, store.next()), (3, false, 4));
    append(&mut store, 2);
    store.close().unwrap();
    let (store, recovered) = open(dir.path(), "boot-2");
    assert_eq!((recovered.events, recovered.after_power_cut, store.epoch()), (5, false, epoch));
    assert_eq!(sequences(&store.segments()), [1, 2, 3, 4, 5]);
}

/// What readers saw and the disk did not: a cursor behind it must not be taken for one of what came after.
#[test]
fn after_a_power_cut_the_log_has_another_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path(), BOOT);
    let epoch = store.epoch();
    append(&mut store, 3);
    drop(store);
    let (mut store, recovered) = open(dir.path(), "boot-2");
    assert!(recovered.after_power_cut);
    assert_ne!(store.epoch(), epoch);
    assert_eq!(store.next(), 4);
    append(&mut store, 1);
    assert_eq!(sequences(&store.segments()), [1, 2, 3, 4]);
}

#[test]
fn one_writer_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), BOOT);
    assert!(matches!(Store::open(dir.path(), BOOT), Err(StoreError::Locked { .. })));
    drop(store);
    open(dir.path(), BOOT);
}

#[test]
fn the_oldest_segments_go_as_files() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path(), BOOT);
    store.set_sizes(1_000, 3_000);
    let segments = store.segments();
    append(&mut store, 100);
    let kept = sequences(&segments);
    assert_eq!(kept.last(), Some(&100));
    assert!(kept[0] > 60, "{kept:?}");
    assert!(kept.windows(2).all(|pair| pair[1] == pair[0] + 1));
    let files = fs::read_dir(dir.path()).unwrap().count();
    assert!(files <= 2 * 6 + 1, "{files} files");
}

#[test]
fn a_lost_index_is_made_again_and_what_is_no_log_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path(), BOOT);
    store.set_sizes(1_000, u64::MAX);
    append(&mut store, 15);
    let firsts: Vec<u64> =
        store.segments().read().unwrap().iter().map(|segment| segment.header.first).collect();
    assert!(firsts.len() >= 3, "{firsts:?}");
    drop(store);
    fs::remove_file(Segment::paths(dir.path(), firsts[0]).1).unwrap();
    fs::write(Segment::paths(dir.path(), firsts[1]).0, "not a log\n").unwrap();
    fs::write(Segment::paths(dir.path(), firsts[1]).1, "nor its index\n").unwrap();
    let (store, recovered) = open(dir.path(), BOOT);
    assert_eq!(recovered.set_aside.len(), 2);
    assert!(recovered.set_aside.iter().all(|path| path.exists()));
    let expected: Vec<u64> = (1..firsts[1]).chain(firsts[2]..=15).collect();
    assert_eq!(sequences(&store.segments()), expected);
    assert_eq!(store.next(), 16);
}

#[test]
fn a_reader_without_the_lock_sees_what_is_there_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path(), BOOT);
    append(&mut store, 5);
    let segments = Arc::new(RwLock::new(look(dir.path()).unwrap()));
    assert_eq!(sequences(&segments), [1, 2, 3, 4, 5]);
    append(&mut store, 1);
    assert_eq!(sequences(&segments).last(), Some(&6));
}
