//! What the tests of this room share.

mod arbitrary;
mod survival;

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;

use super::{Journal, Limits, Line, Passed, Reader, Record, disk, medium, record::Kept, retention};

/// A log on a disk that never takes anything.
pub(crate) fn stuck() -> Journal {
    let fake = medium::fake::Fake::new(1);
    let (state, run): (Arc<dyn medium::Medium>, Arc<dyn medium::Medium>) =
        (Arc::new(fake.clone()), Arc::new(fake));
    let clock = retention::Clock::system();
    disk::open("n1", "b1", &state, &run, Limits::default(), clock, 2_000).unwrap().journal
}

/// The log of a process that was killed before it synced anything, as the next one opens it on a disk that takes its time:
/// what `before` appended is read from it, and none of it counts as durable.
pub(crate) fn not_synced_yet(before: impl FnOnce(&Journal)) -> Journal {
    let fake = medium::fake::Fake::new(1);
    let open = || {
        let (state, run): (Arc<dyn medium::Medium>, Arc<dyn medium::Medium>) =
            (Arc::new(fake.clone()), Arc::new(fake.clone()));
        let clock = retention::Clock::system();
        disk::open("n1", "b1", &state, &run, Limits::default(), clock, 100_000).unwrap().journal
    };
    let killed = open();
    before(&killed);
    drop(killed);
    open()
}

/// A whole event of that sequence.
pub(super) fn record(sequence: u64) -> Kept {
    let line = json!({
        "specversion": "1.0",
        "id": "01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "source": "urn:enforcer:n1:b1",
        "type": "dev.enforcer.pod.added",
        "subject": "default/web",
        "time": "2026-01-31T12:00:00.000000Z",
        "sequence": format!("{sequence:020}"),
        "data": {"n": sequence},
    });
    Kept::from_line(format!("{line}\n").as_bytes()).unwrap()
}

/// The same, of a type that only a newer version knows.
pub(super) fn strange(sequence: u64) -> Kept {
    let line = String::from_utf8(record(sequence).line.to_vec()).unwrap();
    let strange = Kept::from_line(line.replace("pod.added", "pod.teleported").as_bytes()).unwrap();
    assert_eq!(strange.kind, None);
    strange
}

/// What a stream gets of all that is there.
#[derive(Debug, Default)]
pub(super) struct Streamed {
    /// The lines by their sequences.
    pub(super) lines: Vec<(u64, Vec<u8>)>,
    /// The first and the last sequence of each gap.
    pub(super) gaps: Vec<(u64, u64)>,
}

impl Streamed {
    /// Reads to the end of the log. Each step must advance the position, so that no reader loops for ever.
    pub(super) fn read(reader: &mut Reader) -> Self {
        let mut streamed = Self::default();
        loop {
            let before = reader.position();
            let mut take = |line: Line<'_>| streamed.lines.push((line.sequence, line.bytes.to_vec()));
            let mut passed = reader.pass(1_000, &mut take);
            if passed == Passed::Disk {
                passed = reader.pass_from_disk(1_000, &mut take);
            }
            match passed {
                Passed::End => return streamed,
                Passed::Gap { from, to } => streamed.gaps.push((from, to)),
                Passed::Some | Passed::Disk => {}
            }
            assert!(reader.position() > before, "it stays behind {before}: {passed:?}");
        }
    }

    pub(super) fn sequences(&self) -> Vec<u64> {
        self.lines.iter().map(|(sequence, _)| *sequence).collect()
    }
}

#[test]
fn a_line_is_read_back_as_what_was_appended() {
    let read = record(7);
    assert_eq!(read.sequence, 7);
    assert_eq!(read.pod.as_ref().map(ToString::to_string).as_deref(), Some("default/web"));
    assert_eq!(read.time_ms, 1_769_860_800_000);
    for wrong in ["", "\n", "{}\n", "\0\0\0\n", "{\"sequence\":\"1\"}\n"] {
        assert!(Record::from_line(wrong.as_bytes()).is_none(), "{wrong:?}");
    }
    let whole = read.line.clone();
    assert!(Record::from_line(&whole[..whole.len() - 1]).is_none(), "a line without its end is torn");
    let _: Bytes = whole;
}
