//! One immutable, typed picture of the node and its guarded cgroups.
//!
//! [`Snapshots`] takes them: every file is opened beforehand and read in place, nothing is allocated, and two snapshots
//! alternate, so that the previous one stays available. A failed reading is a typed [`Missing`], never a zero.

mod branch;
mod cgroup;
mod charge;
pub(in crate::sense) mod node;
mod observer;
mod pace;
mod slope;
mod stalls;
mod take;
mod weight;
mod zones;

pub use self::{
    branch::{BUDGET, BranchFiles, Budget, FILES_BELOW, SHARE_BELOW},
    cgroup::{CgroupView, EventCounts, Guarded},
    charge::{Charge, ChargeFiles, Split},
    node::{NodeFiles, NodePaths, NodeView},
    observer::Observer,
    pace::next_look,
    slope::Slope,
    stalls::{Stall, Stalls},
    take::{Snapshot, Snapshots},
    weight::{Weight, WeightFiles},
    zones::{Zone, ZoneKind, Zones},
};

/// Why there is no value.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, thiserror::Error)]
pub enum Missing {
    /// The kernel, or this cgroup, has no such file.
    #[error("the kernel has no such figure")]
    Absent,
    /// The cgroup is gone.
    #[error("the cgroup is gone")]
    Gone,
    /// It was skipped this time.
    #[error("it was not read")]
    Unread,
    /// Reading failed with this error number.
    #[error("cannot read it: {}", std::io::Error::from_raw_os_error(*.0))]
    Failed(i32),
    /// The text does not have the expected format.
    #[error("the kernel's figure is not a number")]
    Malformed,
}

/// A value, or why there is none.
pub type ReadResult<T> = Result<T, Missing>;

impl From<rustix::io::Errno> for Missing {
    fn from(errno: rustix::io::Errno) -> Self {
        match errno {
            rustix::io::Errno::NODEV | rustix::io::Errno::NOENT => Self::Gone,
            rustix::io::Errno::OPNOTSUPP => Self::Absent,
            errno => Self::Failed(errno.raw_os_error()),
        }
    }
}
