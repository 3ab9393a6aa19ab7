//! Lines of the event stream: what is read is written again as the same.

use enforcer_events::{Event, Payload};

/// The bytes are a line.
pub fn check(bytes: &[u8]) {
    let Ok(Event { payload, .. }) = Event::parse(bytes) else { return };
    let Ok(data) = payload.to_value() else { panic!("{payload:?} cannot be written") };
    let again = Payload::parse(payload.kind(), &data);
    assert_eq!(again.as_ref().ok(), Some(&payload), "written as {data}");
}
