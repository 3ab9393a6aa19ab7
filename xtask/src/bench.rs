//! Benchmarks: the daemon in a guest, beside other programs if there are any, or the rules alone, natively.

pub(crate) mod evict;
pub(crate) mod guest;
pub(crate) mod idle;
pub(crate) mod policy;
pub(crate) mod stream;
