//! What the tests of this room share.

mod arbitrary;
mod survival;

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;

use super::{Journal, Limits, Record, disk, medium, retention};

/// A log on a disk that never takes anything.
pub(crate) fn stuck() -> Journal {
    let fake = medium::fake::Fake::new(1);
    let (state, run): (Arc<dyn medium::Medium>, Arc<dyn medium::Medium>) =
        (Arc::new(fake.clone()), Arc::new(fake));
    let clock = retention::Clock::system();
    disk::open("n1", "b1", &state, &run, Limits::default(), clock, 2_000).unwrap().journal
}

/// A whole event of that sequence.
pub(super) fn record(sequence: u64) -> Record {
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
    Record::from_line(format!("{line}\n").as_bytes()).unwrap()
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
