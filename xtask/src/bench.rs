//! Benchmarks: side by side with others in one guest, or of the rules alone, natively.

pub(crate) mod evict;
pub(crate) mod policy;
