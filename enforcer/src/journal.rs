//! The ordered log of everything that the daemon tells, and the only source of what is told.
//!
//! Producers append and never wait for a reader. A reader is a position in the log: one that is slow costs
//! nothing, and one that falls behind what is kept learns how much it missed.

mod event;
mod log;
mod record;

pub use self::{
    event::{Event, EventType, Subject},
    log::{Batch, Journal, Range, Reader},
    record::{Cursor, Filter, Record},
};
