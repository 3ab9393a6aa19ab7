//! Reads kernel text without allocation.

pub(super) use crate::sense::text::{keyed, number, read_into};

/// `memory.stat` has about 3 KiB on current kernels; the fields read are in its first half.
pub(super) const BUFFER_BYTES: usize = 8192;
