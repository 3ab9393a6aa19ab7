//! Records of created and removed cgroups, so that records of a short-lived cgroup still get its name.
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::record::Header;

/// [`Header::kind`] of [`CgroupMade`] and [`LongCgroupMade`], which differ in size.
pub const KIND_CGROUP_MADE: u32 = 13;
/// [`Header::kind`] of [`CgroupGone`].
pub const KIND_CGROUP_GONE: u32 = 14;

/// Room for a name with its terminating zero: names of pods and containers have up to about 90 letters.
pub const NAME_LEN: usize = 96;
/// Room for the longest name that the kernel accepts, with its terminating zero (`NAME_MAX`).
pub const LONG_NAME_LEN: usize = 256;

/// The fixed part of a record of a created cgroup; its name follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Made {
    /// Kind [`KIND_CGROUP_MADE`].
    pub header: Header,
    /// When the cgroup was created.
    pub time_ns: u64,
    /// The cgroup's id.
    pub cgroup_id: u64,
    /// The id of the parent cgroup.
    pub parent_id: u64,
}

/// A cgroup was created; no process is in it yet (`cgroup:cgroup_mkdir`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CgroupMade {
    /// The fixed part of the record.
    pub made: Made,
    /// Its name, zero-padded.
    pub name: [u8; NAME_LEN],
}

/// Like [`CgroupMade`], for a long name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LongCgroupMade {
    /// The fixed part of the record.
    pub made: Made,
    /// Its name, zero-padded.
    pub name: [u8; LONG_NAME_LEN],
}

impl CgroupMade {
    /// Size of the record.
    pub const SIZE_BYTES: u16 = 128;
}

impl LongCgroupMade {
    /// Size of the record.
    pub const SIZE_BYTES: u16 = 288;
}

/// A cgroup was removed (`cgroup:cgroup_rmdir`). Records of its processes may still follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CgroupGone {
    /// Kind [`KIND_CGROUP_GONE`].
    pub header: Header,
    /// When the cgroup was removed.
    pub time_ns: u64,
    /// The cgroup's id.
    pub cgroup_id: u64,
}

impl CgroupGone {
    /// Size of the record.
    pub const SIZE_BYTES: u16 = 24;

    /// A record for this cgroup.
    #[must_use]
    pub const fn new(cgroup_id: u64, time_ns: u64) -> Self {
        Self { header: Header::new(KIND_CGROUP_GONE, Self::SIZE_BYTES), time_ns, cgroup_id }
    }
}

/// Indices into the `LIFE_COUNTS` map. `seen = delivered + dropped`.
pub mod counts {
    /// Cgroups created and removed.
    pub const SEEN: u32 = 0;
    /// Of these, not reported: no room in the ring buffer, or no name.
    pub const DROPPED: u32 = 1;
    /// Number of counters.
    pub const COUNT: u32 = 2;
}

const _: () = assert!(size_of::<Made>() == 32);
const _: () = assert!(size_of::<CgroupMade>() == CgroupMade::SIZE_BYTES as usize);
const _: () = assert!(size_of::<LongCgroupMade>() == LongCgroupMade::SIZE_BYTES as usize);
const _: () = assert!(size_of::<CgroupGone>() == CgroupGone::SIZE_BYTES as usize);
const _: () = assert!(align_of::<LongCgroupMade>() == 8 && align_of::<CgroupGone>() == 8);
