//! Metrics as they are scraped: of the real daemon, by hand and by a real Prometheus.
#![expect(clippy::panic, clippy::unwrap_used, reason = "a test's helpers may panic like the test itself")]
#![expect(clippy::float_cmp, reason = "what is counted here is whole")]

mod daemon;
mod page;
mod prometheus;
mod scraped;
mod secured;
