//! Counts events and the daemon's own work for monitoring, exposed as `OpenMetrics` text.
//!
//! Events are counted as they are appended to the journal, from their structured data. So a counter agrees with the
//! stream and outlives the container that it is about. Counting takes no lock that exposing holds, and allocates only a
//! namespace's name, once: cells are atomics in tables of fixed size. Everything else is a gauge, read on request.

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
    loops::{LoopMetrics, loops},
    process::Process,
};

/// The content type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
