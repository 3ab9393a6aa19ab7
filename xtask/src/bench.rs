//! Benchmarks: the daemon in a guest, beside other programs if there are any, or the rules alone, natively.

pub(crate) mod agreement;
pub(crate) mod drift;
pub(crate) mod evict;
mod guest;
pub(crate) mod idle;
pub(crate) mod policy;
pub(crate) mod sense;
pub(crate) mod stream;
