//! Recordings: a file of any bytes is refused, or read with its damage reported, and what is read can be run again,
//! whatever state and inputs it claims, without a panic and with the same verdict each time.

use enforcer::policy::{
    engine::{EngineSettings, Mode},
    flight::{Damage, Item, Origin, Recording, Writer, alternatives, replay, under},
};

/// The most records of one input.
const MOST_RECORDS: usize = 500;

/// The most decisions of an input whose alternatives are computed.
const MOST_DECISIONS: usize = 4;

const HEADER_BYTES: usize = 52;

/// The first byte says what the others are: a file, or records, each with its length in two bytes before it.
pub fn check(bytes: &[u8]) {
    match bytes.split_first() {
        Some((0, file)) => {
            read(file);
            read(&renewed(file));
        }
        Some((_, records)) => frame(records),
        None => {}
    }
}

/// The same behind the header of today: a seed's own is of the day when it was kept.
fn renewed(file: &[u8]) -> Vec<u8> {
    let today = Writer::new("fuzz", &Origin::default());
    let header = today.written().get(..HEADER_BYTES).unwrap_or_default();
    [header, file.get(HEADER_BYTES..).unwrap_or_default()].concat()
}

/// Records in a sound file: a checksum would keep nearly all of them from the reader.
fn frame(mut bytes: &[u8]) {
    let mut writer = Writer::new("fuzz", &Origin::default());
    let mut count = 0;
    while let Some((length, rest)) = bytes.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (record, rest) = rest.split_at(length);
        if count == MOST_RECORDS {
            break;
        }
        writer.record(record);
        count += 1;
        bytes = rest;
    }
    let file = writer.finish();
    let Ok(recording) = Recording::read(&file) else { panic!("a header that was written") };
    let records = recording.items.iter().filter(|item| matches!(item, Item::Record { .. })).count();
    assert_eq!(recording.whole, records == count, "{records} of {count}");
    read(&file);
}

fn read(file: &[u8]) {
    let Ok(recording) = Recording::read(file) else { return };
    for Damage { at, bytes, what } in recording.damages() {
        assert!(at + bytes <= file.len(), "{what}: {bytes} bytes at {at} of {}", file.len());
    }
    assert_eq!(recording.whole, recording.damages().next().is_none());
    let account = replay(&recording);
    // A difference holds what cannot be compared, should a float be none.
    assert_eq!(format!("{account:?}"), format!("{:?}", replay(&recording)));
    // Each shortage is played in hundreds of ways.
    if account.decisions().count() <= MOST_DECISIONS {
        let others = alternatives(&recording);
        assert!(others.episodes.len() <= account.decisions().count());
        assert_eq!(others, alternatives(&recording));
    }
    for mode in [Mode::Observe, Mode::DryRun, Mode::Enforce] {
        let other = under(&recording, &EngineSettings { mode, ..EngineSettings::default() });
        assert!(mode != Mode::Observe || other.decisions.is_empty());
    }
    // What was read, written again, is whole, and says the same.
    let mut writer = Writer::new("fuzz", recording.origin.as_ref().unwrap_or(&Origin::default()));
    writer.processes(&recording.processes);
    let mut written = 0;
    for item in &recording.items {
        if let Item::Record { at: _, bytes } = item {
            writer.record(bytes);
            written += 1;
        }
    }
    let again = writer.finish();
    let Ok(again) = Recording::read(&again) else { panic!("a header that was written") };
    assert!(again.whole && again.items.len() == written && again.processes == recording.processes);
}
