//! The ordered log of everything that the daemon tells. What is read elsewhere is read from here.

mod event;

pub use self::event::{Event, EventType, Subject};
