//! Cgroups that are made and removed, so that a record of one that was there for a moment still gets its name.
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::record::Header;

/// [`Header::kind`] of [`CgroupMade`] and [`LongCgroupMade`], which differ in size.
pub const KIND_CGROUP_MADE: u32 = 13;
/// [`Header::kind`] of [`CgroupGone`].
pub const KIND_CGROUP_GONE: u32 = 14;

/// Room for a name with its terminating zero: those of pods and containers have up to some 90 letters.
pub const NAME_LEN: usize = 96;
/// Room for the longest name that the kernel takes, with its terminating zero (`NAME_MAX`).
pub const LONG_NAME_LEN: usize = 256;

/// What is told of a cgroup that was made, before its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Made {
    /// Kind [`KIND_CGROUP_MADE`].
    pub header: Header,
    /// When.
    pub time_ns: u64,
    /// Its id.
    pub cgroup_id: u64,
    /// The id of the cgroup that it is in.
    pub parent_id: u64,
}

/// A cgroup was made; nothing runs in it yet (`cgroup:cgroup_mkdir`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CgroupMade {
    /// What is known of it.
    pub made: Made,
    /// Its name, zero-padded.
    pub name: [u8; NAME_LEN],
}

/// As [`CgroupMade`], of a long name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LongCgroupMade {
    /// What is known of it.
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

/// A cgroup was removed (`cgroup:cgroup_rmdir`). Records of what was in it may come later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CgroupGone {
    /// Kind [`KIND_CGROUP_GONE`].
    pub header: Header,
    /// When.
    pub time_ns: u64,
    /// Its id.
    pub cgroup_id: u64,
}

impl CgroupGone {
    /// Size of the record.
    pub const SIZE_BYTES: u16 = 24;

    /// A record of this cgroup.
    #[must_use]
    pub const fn new(cgroup_id: u64, time_ns: u64) -> Self {
        Self { header: Header::new(KIND_CGROUP_GONE, Self::SIZE_BYTES), time_ns, cgroup_id }
    }
}

/// Indices into the `LIFE_COUNTS` map. `seen = delivered + dropped`.
pub mod counts {
    /// Cgroups made and removed.
    pub const SEEN: u32 = 0;
    /// Of these, not told: no room in the ring buffer, or no name.
    pub const DROPPED: u32 = 1;
    /// How many there are.
    pub const COUNT: u32 = 2;
}

const _: () = assert!(size_of::<Made>() == 32);
const _: () = assert!(size_of::<CgroupMade>() == CgroupMade::SIZE_BYTES as usize);
const _: () = assert!(size_of::<LongCgroupMade>() == LongCgroupMade::SIZE_BYTES as usize);
const _: () = assert!(size_of::<CgroupGone>() == CgroupGone::SIZE_BYTES as usize);
const _: () = assert!(align_of::<LongCgroupMade>() == 8 && align_of::<CgroupGone>() == 8);
