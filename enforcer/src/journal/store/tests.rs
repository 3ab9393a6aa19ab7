use std::{fs, path::Path};

use super::*;
use crate::journal::{log::read_segments, medium::Folder, retention::Now, tests::record};

const BOOT: &str = "boot-1";

fn try_open(dir: &Path, boot_id: &str, hint: Option<Hint>) -> Result<(Store, Recovered), StoreError> {
    let medium: Arc<dyn Medium> = Arc::new(Folder::open(dir).unwrap());
    Store::open(&medium, boot_id, hint, Limits::default(), Clock::system())
}

fn open(dir: &Path, boot_id: &str) -> (Store, Recovered) {
    try_open(dir, boot_id, None).unwrap()
}

/// As after a kill: the tail of the process before tells of its log.
fn reopen(dir: &Path, epoch: Ulid) -> (Store, Recovered) {
    try_open(dir, BOOT, Some(Hint { epoch, opened: 1 })).unwrap()
}

fn path(dir: &Path, first: u64, index: bool) -> PathBuf {
    let (data_name, index_name) = names(first);
    dir.join(if index { index_name } else { data_name })
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
    let (mut store, recovered) = reopen(dir.path(), epoch);
    assert_eq!((recovered.events, recovered.after_power_cut, store.next()), (3, false, 4));
    assert_eq!(store.epoch(), epoch);
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
    assert!(matches!(try_open(dir.path(), BOOT, None), Err(StoreError::Locked { .. })));
    drop(store);
    open(dir.path(), BOOT);
}

#[test]
fn the_oldest_segments_go_as_files() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path(), BOOT);
    store.set_sizes(1_000, 4_500);
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
    fs::remove_file(path(dir.path(), firsts[0], true)).unwrap();
    fs::write(path(dir.path(), firsts[1], false), "not a log\n").unwrap();
    fs::write(path(dir.path(), firsts[1], true), "nor its index\n").unwrap();
    let (store, recovered) = open(dir.path(), BOOT);
    assert_eq!(recovered.set_aside.len(), 2);
    assert!(recovered.set_aside.iter().all(|(path, why)| path.exists() && why == "no event in it"));
    let expected: Vec<u64> = (1..firsts[1]).chain(firsts[2]..=15).collect();
    assert_eq!(sequences(&store.segments()), expected);
    assert_eq!(store.next(), 16);
}

#[test]
fn a_reader_without_the_lock_sees_what_is_there_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path(), BOOT);
    append(&mut store, 5);
    let segments = Arc::new(RwLock::new(look(&Folder::open(dir.path()).unwrap()).unwrap()));
    assert_eq!(sequences(&segments), [1, 2, 3, 4, 5]);
    append(&mut store, 1);
    assert_eq!(sequences(&segments).last(), Some(&6));
}

/// It cannot be known how far readers had seen, so no sequence that they may have is given another content.
#[test]
fn a_damaged_end_begins_another_epoch_behind_all_that_was_there() {
    for damage in ["data", "index", "newer", "link", "folder", "pipe", "foreign"] {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, _) = open(dir.path(), BOOT);
        store.set_sizes(2_000, u64::MAX);
        append(&mut store, 10);
        let epoch = store.epoch();
        let last = store.segments().read().unwrap().last().unwrap().header.first;
        assert!(last > 1 && last < 10, "{last}");
        drop(store);
        let (data, index) = (path(dir.path(), last, false), path(dir.path(), last, true));
        match damage {
            "data" => {
                let len = fs::metadata(&data).unwrap().len();
                fs::OpenOptions::new().write(true).open(&data).unwrap().set_len(len - 20).unwrap();
            }
            "index" => fs::write(&index, [0; 300]).unwrap(),
            "newer" => fs::write(&index, [b"enfidx\0\x07", &[0; 300][..]].concat()).unwrap(),
            "foreign" => fs::write(&data, "{}\n[1]\n").and_then(|()| fs::remove_file(&index)).unwrap(),
            other => {
                fs::remove_file(&data).unwrap();
                match other {
                    "link" => std::os::unix::fs::symlink("/etc/hostname", &data).unwrap(),
                    "folder" => fs::create_dir(&data).unwrap(),
                    _ => rustix::fs::mknodat(
                        rustix::fs::CWD,
                        &data,
                        rustix::fs::FileType::Fifo,
                        rustix::fs::Mode::RUSR,
                        0,
                    )
                    .unwrap(),
                }
            }
        }
        let (mut store, recovered) = reopen(dir.path(), epoch);
        assert_ne!(store.epoch(), epoch, "{damage}");
        assert!(!recovered.after_power_cut);
        let told =
            recovered.set_aside.len() + usize::try_from(recovered.damaged + recovered.reindexed).unwrap();
        assert!(told > 0 || damage == "index", "{damage}: {recovered:?}");
        if matches!(damage, "data" | "index" | "newer") {
            assert_eq!(store.next(), 11, "{damage}");
        }
        let next = store.next();
        assert!(next > last, "{damage}");
        append(&mut store, 2);
        let read = sequences(&store.segments());
        assert_eq!(read[read.len() - 2..], [next, next + 1], "{damage}");
        assert!((1..last).eq(read[..usize::try_from(last).unwrap() - 1].iter().copied()), "{damage}");
        // And once more, with nothing to tell.
        let epoch = store.epoch();
        drop(store);
        let (store, recovered) = reopen(dir.path(), epoch);
        assert_eq!(
            (store.epoch(), recovered.set_aside.len(), store.next()),
            (epoch, 0, next + 2),
            "{damage}"
        );
    }
}

#[test]
fn what_a_newer_version_wrote_is_set_aside_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path(), BOOT);
    append(&mut store, 3);
    drop(store);
    let index = path(dir.path(), 1, true);
    let mut bytes = fs::read(&index).unwrap();
    bytes[7] = 2;
    fs::write(&index, &bytes).unwrap();
    let data = fs::read(path(dir.path(), 1, false)).unwrap();
    let (store, recovered) = open(dir.path(), BOOT);
    assert_eq!(store.next(), 4);
    assert_eq!(recovered.set_aside.len(), 2);
    assert!(recovered.set_aside[0].1.contains("newer version (format 2)"), "{recovered:?}");
    assert_eq!(fs::read(&recovered.set_aside[0].0).unwrap(), data);
    assert_eq!(fs::read(&recovered.set_aside[1].0).unwrap(), bytes);
}

#[test]
fn the_power_cut_while_a_segment_was_begun_is_no_damage() {
    for (data, index) in
        [(Some(&b""[..]), None), (Some(&[0; 4_096]), Some(&b""[..])), (None, Some(&[0; 96][..]))]
    {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, _) = open(dir.path(), BOOT);
        append(&mut store, 3);
        drop(store);
        for (bytes, is_index) in [(data, false), (index, true)] {
            if let Some(bytes) = bytes {
                fs::write(path(dir.path(), 4, is_index), bytes).unwrap();
            }
        }
        let (mut store, recovered) = open(dir.path(), "boot-2");
        assert_eq!((recovered.events, recovered.set_aside.len(), store.next()), (3, 0, 4));
        append(&mut store, 1);
        assert_eq!(sequences(&store.segments()), [1, 2, 3, 4]);
    }
}

#[test]
fn a_lock_that_is_no_file_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/etc/passwd", dir.path().join(LOCK)).unwrap();
    fs::create_dir(dir.path().join(CLEAN)).unwrap();
    let (mut store, _) = open(dir.path(), BOOT);
    store.forget_clean().unwrap();
    append(&mut store, 1);
    store.close().unwrap();
    assert!(dir.path().join(CLEAN).is_file() && dir.path().join(LOCK).is_file());
}

/// The clock of the test, and of the store.
fn clock() -> (Arc<std::sync::Mutex<Now>>, Clock) {
    let now = Arc::new(std::sync::Mutex::new(Now { wall_ms: 1_000_000_000_000, boot_ms: 5_000 }));
    let read = Arc::clone(&now);
    (now, Clock::new(move || *read.lock().unwrap()))
}

const HOUR_MS: u64 = 3_600_000;

#[test]
fn what_is_too_old_goes_and_a_clock_that_jumps_takes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (now, clock) = clock();
    let medium: Arc<dyn Medium> = Arc::new(Folder::open(dir.path()).unwrap());
    let limits = Limits { max_age_ms: 80 * HOUR_MS, ..Limits::default() };
    let (mut store, _) = Store::open(&medium, BOOT, None, limits, clock).unwrap();
    let segments = store.segments();
    append(&mut store, 1);
    // The clock is set for the first time, and back, and far ahead.
    for wall_ms in [1_700_000_000_000, -1, 9_000_000_000_000] {
        now.lock().unwrap().wall_ms = wall_ms;
        append(&mut store, 1);
        store.retain();
        assert_eq!(sequences(&segments).first(), Some(&1));
    }
    assert_eq!(segments.read().unwrap().len(), 1);
    // An event every four hours: a segment holds those of ten, and goes when its last is older than eighty.
    for hours in 1..=40 {
        now.lock().unwrap().boot_ms = 5_000 + 4 * HOUR_MS * hours;
        append(&mut store, 1);
        let kept = sequences(&segments);
        let old = usize::try_from((4 * hours).min(80 + 20)).unwrap() / 4;
        assert!(kept.len() >= old.min(20), "{hours}: {kept:?}");
    }
    let kept = sequences(&segments);
    assert!(kept.len() <= 25 && kept.last() == Some(&44), "{kept:?}");
    // Nothing comes any more: all but the newest go.
    now.lock().unwrap().boot_ms += 1_000 * HOUR_MS;
    store.retain();
    assert_eq!(segments.read().unwrap().len(), 1);
    assert_eq!(sequences(&segments).last(), Some(&44));
}

#[test]
fn the_log_takes_no_more_than_it_may() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path(), BOOT);
    store.set_sizes(2_000, 20_000);
    for _ in 0..200 {
        append(&mut store, 1);
        let held: u64 =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
        assert!(held <= 20_000, "{held}");
    }
    // Less from now on.
    store.set_limits(Limits { max_bytes: 5_000, ..Limits::default() });
    store.retain();
    let held: u64 =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(held <= 5_000, "{held}");
    assert_eq!(sequences(&store.segments()).last(), Some(&200));
}
