//! Side by side: the figures of a contender's run, computed from independent witnesses and never from its own output.
//!
//! Two witnesses see a run, on one clock (`CLOCK_MONOTONIC`): the [sampler](crate::sampler) reads available memory and
//! the pods' memory; the kernel's tracepoints, read by [`witness`], have the signalled task, the sender, and when a pod
//! was empty. [`reckon`] makes an [`outcome::Outcome`] of both, [`series`] sums up the runs of one contender at one
//! workload, and [`bars`] and [`table`] judge and print them.

pub mod bars;
pub mod outcome;
pub mod reckon;
pub mod series;
pub mod table;
pub mod witness;
