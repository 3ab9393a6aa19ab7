//! The log: whatever its files hold, reading them gives events in order, and a start that repairs them loses none that could
//! be read before, but for those that it reports as damaged.

use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
    path::Path,
};

use enforcer::journal::{EventType, Filter, Journal, Limits, Offline, PendingRecords};

use super::scratch::Scratch;

/// What the files are called, by the number that an input has for them.
const FILES: [&str; 6] = [
    "state/journal/00000000000000000001.ndjson",
    "state/journal/00000000000000000001.index",
    "state/journal/00000000000000000005.ndjson",
    "state/journal/00000000000000000005.index",
    "run/journal.tail",
    "run/pending-records",
];

/// That of the seeds: the tail of another boot is not taken up.
const BOOT_ID: &str = "56102cb2-1686-45a8-b1eb-515846685c7e";

const TAIL_BYTES: u64 = 524_336;

/// Nothing goes for its age: the seeds are old.
const LIMITS: Limits = Limits { max_bytes: 64 << 20, max_age_ms: u64::MAX / 4 };

/// The files one after the other: number, length in two bytes, content.
pub fn check(mut bytes: &[u8]) {
    let scratch = Scratch::new("journal");
    let (state, run) = (scratch.path().join("state"), scratch.path().join("run"));
    scratch.write("run/.keep", b"");
    scratch.write("state/journal/.keep", b"");
    while let Some(([which, low, high], rest)) = bytes.split_first_chunk::<3>() {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (content, rest) = rest.split_at(length);
        scratch.write(FILES[usize::from(*which) % FILES.len()], content);
        bytes = rest;
    }
    // The tail's two halves are preallocated.
    if let Ok(tail) = OpenOptions::new().write(true).open(run.join("journal.tail")) {
        let extended = tail.set_len(TAIL_BYTES);
        assert!(extended.is_ok(), "{extended:?}");
    }
    let before = read(&state, &run);
    assert_eq!(before, read(&state, &run), "reading changes what is read");
    if let Ok((_unreported, records)) = PendingRecords::open(&run, BOOT_ID) {
        let again = PendingRecords::open(&run, BOOT_ID).map(|(_unreported, records)| records);
        assert!(again.is_ok_and(|again| again == records), "records that are kept are read once only");
    }
    let Ok((journal, recovered)) = Journal::open_with("fuzz", BOOT_ID, &state, &run, LIMITS) else { return };
    journal.close();
    let after = read(&state, &run);
    // By sequence: the checksums are in the index, and if that is damaged too, a line that was changed is read as it is,
    // though the tail may have the true one. Also if its type was changed to one that this version does not know.
    let mut kept: BTreeSet<u64> = after.iter().map(|(sequence, _)| *sequence).collect();
    for name in FILES.iter().filter(|name| name.ends_with(".ndjson")) {
        let text = fs::read(scratch.path().join(name)).unwrap_or_default();
        kept.extend(text.split_inclusive(|byte| *byte == b'\n').filter_map(sequence_of_unknown));
    }
    let missing: Vec<_> = before.iter().filter(|(sequence, _)| !kept.contains(sequence)).collect();
    assert!(
        u64::try_from(missing.len()).is_ok_and(|missing| missing <= recovered.damaged),
        "a start loses {missing:?} and reports {} events as damaged",
        recovered.damaged
    );
}

/// The sequence of an event whose type only another version knows.
fn sequence_of_unknown(line: &[u8]) -> Option<u64> {
    let event: serde_json::Value = serde_json::from_slice(line).ok()?;
    let kind = event.get("type")?.as_str()?;
    if EventType::parse(kind).is_some() {
        return None;
    }
    event.get("sequence")?.as_str()?.parse().ok()
}

/// Sequence and line of each event.
fn read(state: &Path, run: &Path) -> Vec<(u64, Vec<u8>)> {
    let Ok(Ok(offline)) = Offline::open(state, run, None, Filter::default()) else { return Vec::new() };
    let events: Vec<_> = offline.map(|record| (record.sequence, record.line.to_vec())).collect();
    for pair in events.windows(2) {
        if let [(one, _), (next, _)] = pair {
            assert!(one < next, "{next} comes behind {one}");
        }
    }
    events
}
