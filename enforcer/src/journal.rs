//! The ordered log of everything that the daemon tells, and the only source of what is told.
//!
//! Producers append and never wait for a reader or a disk. A reader is a position in the log: one that is slow costs
//! nothing, and one that falls behind what is kept learns how much it missed.
//!
//! An event is first copied to the tail on tmpfs, so that killing this process loses nothing that a reader saw, then
//! written to a segment by a thread of its own, many at a time, and synced. Segments are NDJSON that anything can read,
//! each beside an index that says which lines are whole; the oldest are removed as files.

mod disk;
mod event;
mod intent;
mod kmsg;
mod log;
mod medium;
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

pub use self::{
    disk::folder,
    event::{Event, EventType, Observer, Subject},
    intent::{Intent, IntentError, Intents, MOST_TARGETS, Slot, Slots},
    log::{Batch, Journal, Line, Load, Passed, Range, Reader, Stale},
    offline::Offline,
    pending_records::PendingRecords,
    record::{Cursor, Filter, Record},
    retention::Limits,
    store::{Recovered, StoreError},
};
