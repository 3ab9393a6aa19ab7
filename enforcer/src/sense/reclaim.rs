//! Stalls in reclaim: totals by cgroup, and records of long or frequent stalls.
//!
//! [`Stalls`] reads the totals in few system calls; [`StallRing`] takes the records, and [`Pressures`] turns them into
//! events: a pod or cgroup begins to stall, or has stopped.
mod pressure;
mod ring;
mod stalls;

pub use self::{
    pressure::{ByKind, PressureEvent, Pressures, StallWorld},
    ring::{MuchStall, StallRing},
    stalls::{Stall, StallKind, Stalls, StallsError},
};
