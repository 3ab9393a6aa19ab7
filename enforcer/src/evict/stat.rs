//! Reads kernel text without allocation.

pub(super) use crate::sense::text::{keyed, number, read_into};

/// `memory.stat` has some 3 KiB on current kernels, and what is read of it stands in its first half.
pub(super) const BUFFER_BYTES: usize = 8192;
