//! Counts events and the daemon's own work for monitoring, exposed as text, as `OpenMetrics` or in the classic
//! format of Prometheus.
//!
//! Events are counted as they are appended to the journal, from their structured data. So a counter agrees with the
//! stream and outlives the container that it is about. Counting takes no lock that exposing holds, and allocates only a
//! namespace's name, once: cells are atomics in tables of fixed size. Everything else is a gauge, read on request.

mod cells;
mod classic;
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
    gauges::{
        Gauges, Headroom, KernelMemory, NEXT_VICTIMS, NextVictim, Pressure, ReservedPart, Resource,
        SinkState, SystemPart,
    },
    labels::{Level, Slice},
    loops::{LoopMetrics, loops},
    process::Process,
};

/// A format of the page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Format {
    /// `OpenMetrics` 1.0.0.
    OpenMetrics,
    /// The classic text format of Prometheus, 0.0.4.
    Classic,
}

impl Format {
    /// The content type.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}
