use super::*;
use crate::journal::{
    medium::Folder,
    tests::{record, strange},
};

fn header() -> Header {
    Header {
        epoch: Ulid::generate(),
        first: 5,
        boot_id: String::from("6c1a4e95-6bb6-11e6-bc26-28d2444e470d"),
        begun_boot_ms: 77,
        begun_ms: -1,
    }
}

fn filled(dir: &Path, records: u64) -> (Segment, Extent) {
    let segment = Segment::create(&Folder::open(dir).unwrap(), header()).unwrap();
    let mut extent = Extent::default();
    for sequence in 5..5 + records {
        segment.append(&mut extent, &[record(sequence)]).unwrap();
    }
    (segment, extent)
}

fn sequences(segment: &Segment, from: u64) -> Vec<u64> {
    segment.read(from, 100).unwrap().iter().map(|record| record.sequence).collect()
}

#[test]
fn what_was_appended_is_read_by_another() {
    let dir = tempfile::tempdir().unwrap();
    let (written, extent) = filled(dir.path(), 4);
    let folder = Folder::open(dir.path()).unwrap();
    let Found::Segment(read) = Segment::open(&folder, 5, Access::Read).unwrap() else { panic!() };
    assert_eq!(read.header, written.header);
    assert_eq!(read.recover(false).unwrap(), extent);
    assert_eq!(sequences(&read, 0), [5, 6, 7, 8]);
    assert_eq!(sequences(&read, 7), [7, 8]);
    assert_eq!(read.read(5, 1).unwrap()[0].line, record(5).line);
    assert!(sequences(&read, 9).is_empty());
}

/// Whatever length a crash leaves either file with, what is whole in the data is there afterwards, and the next event
/// goes right behind.
#[test]
fn any_cut_of_either_file_is_repaired() {
    let line = u64::try_from(record(5).line.len()).unwrap();
    for data_len in (0..=3 * line).step_by(37).chain([line, 2 * line, 3 * line]) {
        for index_len in (HEADER_BYTES..=HEADER_BYTES + 3 * ENTRY_BYTES).step_by(7) {
            let dir = tempfile::tempdir().unwrap();
            let (segment, _) = filled(dir.path(), 3);
            segment.data.set_len(data_len).unwrap();
            segment.index.set_len(index_len).unwrap();
            let mut extent = segment.recover(true).unwrap();
            let whole = data_len / line;
            assert_eq!((extent.records, extent.damaged, extent.cut_bytes), (whole, 0, data_len % line));
            segment.append(&mut extent, &[record(5 + whole)]).unwrap();
            assert_eq!(sequences(&segment, 0), (5..=5 + whole).collect::<Vec<_>>());
        }
    }
}

#[test]
fn damage_in_the_middle_costs_only_what_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let (segment, _) = filled(dir.path(), 4);
    let line = u64::try_from(record(5).line.len()).unwrap();
    segment.data.write_all_at(b"#", line + 9).unwrap();
    segment.index.write_all_at(b"#", HEADER_BYTES + 2 * ENTRY_BYTES).unwrap();
    let extent = segment.recover(true).unwrap();
    assert_eq!((extent.records, extent.damaged, extent.cut_bytes), (4, 2, 0));
    assert_eq!(sequences(&segment, 0), [5, 8]);
}

#[test]
fn zeros_that_a_power_cut_leaves_are_no_events() {
    let dir = tempfile::tempdir().unwrap();
    let (segment, extent) = filled(dir.path(), 2);
    segment.data.set_len(extent.data_bytes + 10_000).unwrap();
    segment.index.set_len(HEADER_BYTES + 50 * ENTRY_BYTES).unwrap();
    let recovered = segment.recover(true).unwrap();
    assert_eq!(
        (recovered.records, recovered.data_bytes, recovered.cut_bytes),
        (2, extent.data_bytes, 10_000)
    );
    assert_eq!(sequences(&segment, 0), [5, 6]);
}

#[test]
fn another_file_is_no_index() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 1);
    let folder = Folder::open(dir.path()).unwrap();
    let (data, index) = names(5);
    for content in [&b""[..], b"enfidx", &[b'x'; 200]] {
        std::fs::write(dir.path().join(&index), content).unwrap();
        assert!(matches!(Segment::open(&folder, 5, Access::Write).unwrap(), Found::NoIndex));
    }
    std::fs::write(dir.path().join(&index), [b"enfidx\0\x02", &[b'x'; 200][..]].concat()).unwrap();
    assert!(matches!(Segment::open(&folder, 5, Access::Write).unwrap(), Found::Newer(2)));
    assert!(dir.path().join(data).exists());
}

/// What the first version wrote is read by this one and by every later one.
#[test]
fn the_first_format_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let (data_name, index_name) = names(5);
    std::fs::write(dir.path().join(&data_name), include_bytes!("fixtures/format-1.ndjson")).unwrap();
    std::fs::write(dir.path().join(&index_name), include_bytes!("fixtures/format-1.index")).unwrap();
    let folder = Folder::open(dir.path()).unwrap();
    let Found::Segment(segment) = Segment::open(&folder, 5, Access::Write).unwrap() else { panic!() };
    assert_eq!(segment.header.epoch, "01KAN6Z8T5QJ6Q0S6V4V2M7B3C".parse().unwrap());
    assert_eq!(segment.header.boot_id, "6c1a4e95-6bb6-11e6-bc26-28d2444e470d");
    assert_eq!(
        (segment.header.begun_boot_ms, segment.header.begun_ms),
        (0, 0),
        "format 1 did not record them"
    );
    let extent = segment.recover(true).unwrap();
    assert_eq!((extent.records, extent.damaged, extent.cut_bytes, extent.gone), (3, 0, 0, 0));
    assert_eq!(sequences(&segment, 0), [5, 6, 7]);
}

#[test]
fn events_that_the_index_knew_and_the_data_lacks_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let (segment, _) = filled(dir.path(), 4);
    let line = u64::try_from(record(5).line.len()).unwrap();
    segment.data.set_len(2 * line).unwrap();
    let extent = segment.recover(true).unwrap();
    assert_eq!((extent.records, extent.gone), (2, 2));
}

/// Without its entry the line's checksum is not known, and a parser would pass over the bytes of the payload.
#[test]
fn a_line_that_is_no_text_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let (segment, extent) = filled(dir.path(), 2);
    let last = extent.data_bytes - u64::try_from(record(6).line.len()).unwrap();
    let line = segment.read(6, 1).unwrap()[0].line.clone();
    let payload = line.windows(8).position(|part| part == b"\"data\":{").unwrap() + 9;
    segment.data.write_all_at(b"\xff", last + u64::try_from(payload).unwrap()).unwrap();
    segment.index.write_all_at(&[0xff; 32], HEADER_BYTES + ENTRY_BYTES).unwrap();
    let extent = segment.recover(true).unwrap();
    assert_eq!((extent.records, extent.reindexed, extent.gone), (1, 0, 1));
}

/// Who goes back to an older version and takes up the newer one again has lost nothing by it.
#[test]
fn events_that_only_a_newer_version_knows_are_not_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let (segment, mut extent) = filled(dir.path(), 2);
    segment.append(&mut extent, &[strange(7), strange(8)]).unwrap();
    let data = || std::fs::read(dir.path().join(names(5).0)).unwrap();
    let before = data();
    assert_eq!(segment.recover(true).unwrap(), extent);
    segment.index.set_len(HEADER_BYTES + 2 * ENTRY_BYTES).unwrap();
    let again = segment.recover(true).unwrap();
    assert_eq!((again.records, again.reindexed, again.cut_bytes, again.gone), (4, 2, 0, 0));
    assert_eq!(data(), before);
    assert_eq!(sequences(&segment, 0), [5, 6, 7, 8]);
    assert_eq!(segment.read(7, 1).unwrap()[0].line, strange(7).line);
    // Even one that says nothing but its place, while it has an entry.
    let bare = Kept { line: b"{\"sequence\":\"9\"}\n".as_slice().into(), ..strange(9) };
    segment.append(&mut extent, &[bare]).unwrap();
    assert_eq!(segment.recover(true).unwrap(), extent);
    assert_eq!(sequences(&segment, 8), [8]);
}

/// After a sync that failed the bytes are written once more, and are the same.
#[test]
fn writing_again_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (segment, extent) = filled(dir.path(), 3);
    let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
    let (data, index) = names(5);
    let before = (read(&data), read(&index));
    segment.write_again(&extent).unwrap();
    assert_eq!((read(&data), read(&index)), before);
}
