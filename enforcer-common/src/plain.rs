//! Offsets of the fields in the record of the classic `oom:mark_victim` tracepoint.
//!
//! Used if the kernel has no BTF: the daemon parses `events/oom/mark_victim/format` and passes the offsets as
//! a read-only global.
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::offsets::ABSENT;

/// Byte offsets into the tracepoint's record; [`ABSENT`] if the kernel has no such field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PlainFormat {
    /// `int pid`, the thread id.
    pub pid: u32,
    /// `uid_t uid`.
    pub uid: u32,
    /// `unsigned long anon_rss`, KiB.
    pub anon_rss: u32,
    /// `unsigned long file_rss`, KiB.
    pub file_rss: u32,
    /// `unsigned long shmem_rss`, KiB.
    pub shmem_rss: u32,
    /// `unsigned long pgtables`, KiB.
    pub pgtables: u32,
    /// `short oom_score_adj`.
    pub oom_score_adj: u32,
    /// `__data_loc char[] comm`: a `u32` whose low half is the string's offset in the record.
    pub comm: u32,
}

impl PlainFormat {
    /// A format without any field.
    pub const NONE: Self = Self {
        pid: ABSENT,
        uid: ABSENT,
        anon_rss: ABSENT,
        file_rss: ABSENT,
        shmem_rss: ABSENT,
        pgtables: ABSENT,
        oom_score_adj: ABSENT,
        comm: ABSENT,
    };
}

/// The offset that a `__data_loc` field points to; its length is in the upper half.
#[must_use]
pub const fn data_loc_offset(data_loc: u32) -> u32 {
    data_loc & 0xffff
}

const _: () = assert!(size_of::<PlainFormat>() == 8 * 4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_location_holds_its_offset_in_the_low_half() {
        assert_eq!(data_loc_offset(0x0009_0044), 0x44);
    }
}
