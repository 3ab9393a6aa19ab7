//! The ordered log of all events that the daemon emits, and their only source.
//!
//! Producers append and never wait for a reader or a disk. A reader is a position in the log: a slow one costs nothing,
//! and one that falls behind the oldest kept event learns how many it missed.
//!
//! An event is first copied to the tail on tmpfs, so that killing this process loses nothing that a reader saw. Then
//! a separate thread writes it to a segment, in batches, and syncs it. Segments are plain NDJSON, each with an index
//! that says which lines are whole. Retention removes the oldest segments as whole files.

mod cursor_file;
mod disk;
mod event;
mod intent;
mod kmsg;
mod log;
mod medium;
mod moment;
mod offline;
mod pending_records;
mod record;
mod retention;
mod segment;
mod store;
mod tail;
#[cfg(test)]
pub(crate) mod tests;
mod trouble;
mod writer;

pub use enforcer_events::EventType;

pub(crate) use self::cursor_file::{CursorFile, before_all, resume};
pub use self::{
    disk::folder,
    event::{Event, Observer, RawEvent, Subject, named_type},
    intent::{Intent, IntentError, Intents, MOST_TARGETS, Slot, Slots},
    log::{Batch, Journal, Line, Load, Passed, Range, Reader, Stale},
    moment::moment,
    offline::Offline,
    pending_records::PendingRecords,
    record::{Cursor, Filter, Record},
    retention::Limits,
    store::{Recovered, StoreError},
};
