//! Side by side: what a run of a contender showed, reckoned from independent witnesses and from nothing that it says.
//!
//! Two witnesses see a run, on one clock (`CLOCK_MONOTONIC`): the [sampler](crate::sampler) reads what is available and
//! what the pods hold, and the kernel's tracepoints, by way of [`witness`], tell who was signalled, by whom, and when
//! nothing of a pod was left. [`reckon`] makes an [`outcome::Outcome`] of both, [`series`] sums up the runs of one
//! contender at one workload, and [`bars`] and [`table`] say what came of it.

pub mod bars;
pub mod outcome;
pub mod reckon;
pub mod series;
pub mod table;
pub mod witness;
