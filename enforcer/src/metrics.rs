//! What happened, counted for a monitoring system, and how the daemon itself does; told as `OpenMetrics` text.
//!
//! Events are counted as they are appended to the journal, from their structured data, so that a counter says the same as
//! the stream and outlives the container that it is about. Counting takes no lock that telling holds, and allocates
//! nothing but a namespace's name, once: cells are atomics in tables of fixed size. Everything else is a gauge, read when
//! somebody asks.

mod cells;
mod counts;
mod degraded;
mod durations;
mod expose;
mod gauges;
mod labels;
mod loops;
mod names;
mod page;
mod pending;
mod process;
#[cfg(test)]
mod tests;

pub use self::{
    counts::Counts,
    expose::expose,
    gauges::{Gauges, Headroom, NEXT_VICTIMS, NextVictim, Pressure, Resource, SinkState},
    labels::{Level, Slice},
    loops::{LoopMetrics, turns},
    process::Process,
};

/// What the text is, for a reader.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
