use std::{fs, path::Path, sync::Mutex};

use super::*;
use crate::journal::{
    log::read_segments,
    medium::{Folder, fake::Fake},
    retention::Now,
    tests::record,
};

const BOOT: &str = "boot-1";

fn open_on(
    medium: &Arc<dyn Medium>,
    boot_id: &str,
    hint: Option<Hint<'_>>,
    limits: Limits,
    clock: Clock,
) -> Result<(Store, Recovered), StoreError> {
    Store::open(medium, Lock::take(&**medium)?, boot_id, hint, limits, clock)
}

fn try_open(dir: &Path, boot_id: &str, hint: Option<Hint<'_>>) -> Result<(Store, Recovered), StoreError> {
    let medium: Arc<dyn Medium> = Arc::new(Folder::open(dir).unwrap());
    open_on(&medium, boot_id, hint, Limits::default(), Clock::system())
}

fn open(dir: &Path, boot_id: &str) -> (Store, Recovered) {
    try_open(dir, boot_id, None).unwrap()
}

/// Opens as after a kill: the tail of the previous process names its log.
fn reopen(dir: &Path, epoch: Ulid) -> (Store, Recovered) {
    try_open(dir, BOOT, Some(Hint { epoch, opened: 1, records: &[] })).unwrap()
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

/// As of a start that could not go on with the log as it was, and was killed before it wrote anything.
#[test]
fn a_segment_of_another_epoch_that_holds_nothing_does_not_end_this_one() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path(), BOOT);
    let epoch = store.epoch();
    append(&mut store, 3);
    drop(store);
    begin_empty(dir.path(), 4);
    let (mut store, recovered) = reopen(dir.path(), epoch);
    assert!(store.takes_tail() && !recovered.after_power_cut);
    assert_eq!((store.epoch(), store.next()), (epoch, 4));
    append(&mut store, 1);
    assert_eq!(sequences(&store.segments()), [1, 2, 3, 4]);
    assert_eq!(store.listed().len(), 2, "in its place is one of this epoch");
}

/// As of a start in another epoch that had written some of what the tail holds when it was killed.
#[test]
fn a_tail_that_was_being_taken_over_is_taken_over_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path(), BOOT);
    append(&mut store, 3);
    let epoch = store.epoch();
    drop(store);
    let tail = |sequences: &[u64]| sequences.iter().map(|sequence| record(*sequence)).collect::<Vec<_>>();
    let other = Ulid::generate();
    for (records, is_taken) in [
        (tail(&[2, 3, 4]), true),
        (tail(&[1, 2]), false),
        (vec![Kept { line: "{}\n".into(), ..record(3) }], false),
    ] {
        let hint = Hint { epoch: other, opened: 1, records: &records };
        let (store, _) = try_open(dir.path(), BOOT, Some(hint)).unwrap();
        assert_eq!((store.takes_tail(), store.next()), (is_taken, 4), "{records:?}");
        assert!(store.epoch() != other && store.epoch() != epoch, "what was shown of both is not known");
    }
}

/// A segment that was begun, and holds nothing.
fn begin_empty(dir: &Path, first: u64) {
    let epoch = Ulid::generate();
    let header = Header { epoch, first, boot_id: BOOT.into(), begun_boot_ms: 0, begun_ms: 0 };
    Segment::create(&Folder::open(dir).unwrap(), header).unwrap();
}

/// After a power cut the index of one is lost, and the disk has no room for another: what can be read in the data stays
/// what it is, and no other event gets its sequence.
#[test]
fn an_index_that_cannot_be_made_yet_is_made_later() {
    let fake = Fake::new(1);
    let medium: Arc<dyn Medium> = Arc::new(fake.clone());
    let start = || open_on(&medium, BOOT, None, Limits::default(), Clock::system()).unwrap();
    let (mut store, _) = start();
    append(&mut store, 5);
    drop(store);
    fake.remove(&names(1).1).unwrap();
    fake.set_full(true);
    let (mut store, recovered) = start();
    assert_eq!((store.next(), recovered.set_aside.len()), (6, 1));
    assert!(recovered.set_aside[0].1.contains("left where it is"), "{recovered:?}");
    fake.set_full(false);
    append(&mut store, 1);
    drop(store);
    let (store, recovered) = start();
    assert_eq!((store.next(), recovered.set_aside.len()), (7, 0));
    assert_eq!(sequences(&store.segments()), [1, 2, 3, 4, 5, 6]);
}

/// The last entry is lost, and the disk is read-only at the start and writable later: its files were opened for reading
/// alone then.
#[test]
fn an_index_that_a_read_only_disk_kept_from_being_whole_is_made_whole_later() {
    let fake = Fake::new(1);
    let medium: Arc<dyn Medium> = Arc::new(fake.clone());
    let start = || open_on(&medium, BOOT, None, Limits::default(), Clock::system()).unwrap();
    let (mut store, _) = start();
    append(&mut store, 4);
    let short = fake.get(&names(1).1).unwrap();
    append(&mut store, 1);
    drop(store);
    let index = fake.get(&names(1).1).unwrap();
    fake.put(&names(1).1, &short);
    fake.set_read_only(true);
    let (mut store, recovered) = start();
    assert_eq!((recovered.reindexed, store.unreadable()), (1, 5..6));
    assert!(store.append(&[record(6)]).is_err());
    assert_eq!(fake.get(&names(1).1).unwrap(), short);
    fake.set_read_only(false);
    append(&mut store, 1);
    let segments = store.segments();
    assert_eq!(sequences(&segments), [1, 2, 3, 4, 5, 6], "also by the files that were opened then");
    assert_eq!(fake.get(&names(1).1).unwrap(), index);
    drop(store);
    let (store, _) = start();
    assert_eq!(sequences(&store.segments()), [1, 2, 3, 4, 5, 6]);
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
        let reported =
            recovered.set_aside.len() + usize::try_from(recovered.damaged + recovered.reindexed).unwrap();
        assert!(reported > 0 || damage == "index", "{damage}: {recovered:?}");
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

#[test]
fn a_hole_in_a_batch_begins_another_segment() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path(), BOOT);
    store.skip_to(5);
    store.set_reported_lost(vec![3..5, 6..7, 20..22]);
    let records = [5, 8, 9].map(record);
    let written = store.append(&records).unwrap().unwrap();
    assert_eq!((written.newest, store.next()), (5, 6), "what is behind the hole is for another call");
    store.append(&records[1..]).unwrap();
    assert_eq!(sequences(&store.segments()), [5, 8, 9]);
    let firsts: Vec<_> = store.listed().iter().map(|segment| segment.header.first).collect();
    assert_eq!(firsts, [5, 8]);
    assert_eq!(store.take_lost(), 1, "one of two missing events is already reported as lost");
    store.append(&[record(21)]).unwrap();
    assert_eq!(store.take_lost(), 10, "one of eleven is already reported as lost");
    drop(store);
    let (store, recovered) = open(dir.path(), BOOT);
    assert_eq!((recovered.damaged, recovered.cut_bytes, store.next()), (0, 0, 22));
}

/// Looks whether the list of segments is locked when the disk is given something to do.
#[derive(Debug)]
struct Watched {
    folder: Folder,
    segments: Mutex<Option<Segments>>,
    removed: Mutex<Vec<String>>,
}

impl Watched {
    fn look(&self) {
        let segments = self.segments.lock().unwrap();
        let is_free = segments.as_ref().is_none_or(|segments| segments.try_write().is_ok());
        assert!(is_free, "the list is locked while the disk works");
    }
}

impl Medium for Watched {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path(name)
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Box<dyn MediumFile>> {
        self.look();
        self.folder.open(name, access)
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn MediumFile>> {
        self.folder.lock(name)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.folder.names()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.folder.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.look();
        self.removed.lock().unwrap().push(name.to_owned());
        self.folder.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.folder.sync()
    }
}

/// Who asks how far the log goes back must not wait for a disk. And whoever reads a segment that goes reads on.
#[test]
fn the_list_of_segments_is_locked_for_no_disk() {
    let dir = tempfile::tempdir().unwrap();
    begin_empty(dir.path(), 1);
    let watched = Arc::new(Watched {
        folder: Folder::open(dir.path()).unwrap(),
        segments: Mutex::default(),
        removed: Mutex::default(),
    });
    let medium: Arc<dyn Medium> = watched.clone();
    let (mut store, _) = open_on(&medium, BOOT, None, Limits::default(), Clock::system()).unwrap();
    store.set_sizes(1_000, 4_500);
    *watched.segments.lock().unwrap() = Some(store.segments());
    append(&mut store, 1);
    assert_eq!(*watched.removed.lock().unwrap(), [names(1).0, names(1).1], "it is begun anew");
    let before = store.listed();
    append(&mut store, 100);
    assert!(watched.removed.lock().unwrap().len() > 20, "many went");
    assert_eq!(before[0].read(1, 1).unwrap()[0].line, record(1).line);
    assert!(sequences(&store.segments())[0] > 60);
}

/// The clock of the test, and of the store.
fn clock() -> (Arc<Mutex<Now>>, Clock) {
    let now = Arc::new(Mutex::new(Now { wall_ms: 1_000_000_000_000, boot_ms: 5_000 }));
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
    let (mut store, _) = open_on(&medium, BOOT, None, limits, clock).unwrap();
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

/// The text of the last two events is changed, and still reads as events; their index is whole.
fn change_the_last_two(dir: &Path) {
    let data = path(dir, 1, false);
    let text = fs::read_to_string(&data).unwrap();
    let changed: Vec<_> = text
        .lines()
        .enumerate()
        .map(|(place, line)| if place < 3 { line.to_owned() } else { line.replacen("dev.", "DEV.", 1) })
        .collect();
    assert_ne!(text, changed.join("\n") + "\n");
    fs::write(&data, changed.join("\n") + "\n").unwrap();
}

#[test]
fn a_changed_event_at_the_end_is_damaged_however_well_it_reads() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path(), BOOT);
    append(&mut store, 5);
    let epoch = store.epoch();
    drop(store);
    change_the_last_two(dir.path());
    let (store, recovered) = reopen(dir.path(), epoch);
    assert_eq!((recovered.damaged, recovered.reindexed, recovered.from_tail), (2, 0, 0));
    assert_eq!(sequences(&store.segments()), [1, 2, 3]);
    assert_eq!(store.next(), 6);
    assert_ne!(store.epoch(), epoch, "another log: readers have seen other events under these sequences");
}

#[test]
fn damaged_events_at_the_end_come_back_from_the_tail() {
    for (kept, restored) in [(1..=5, 2), (4..=4, 1), (5..=5, 0), (1..=3, 0)] {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, _) = open(dir.path(), BOOT);
        append(&mut store, 5);
        let epoch = store.epoch();
        drop(store);
        change_the_last_two(dir.path());
        let records: Vec<_> = kept.clone().map(record).collect();
        let hint = Hint { epoch, opened: 1, records: &records };
        let (mut store, recovered) = try_open(dir.path(), BOOT, Some(hint)).unwrap();
        assert_eq!((recovered.damaged, recovered.from_tail), (2 - restored, restored), "{kept:?}");
        assert_eq!(store.next(), 6, "{kept:?}");
        let read = sequences(&store.segments());
        assert_eq!(read, (1..=3 + restored).collect::<Vec<_>>(), "{kept:?}");
        assert_eq!(store.epoch() == epoch, restored == 2, "{kept:?}");
        append(&mut store, 1);
        assert_eq!(sequences(&store.segments()).last(), Some(&6), "{kept:?}");
    }
}
