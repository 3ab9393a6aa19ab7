//! Stalls in reclaim: what the programs add up by cgroup, and what they tell of it when it is much.
//!
//! [`Stalls`] reads what has come together, in few system calls; [`StallRing`] takes the records, and [`Pressures`] makes
//! of them what is worth telling: who began to stall, and whose stalls are over.
mod pressure;
mod ring;
mod stalls;

pub use self::{
    pressure::{ByKind, Cleared, LimitSource, PressureEvent, Pressures, Rising, StallWorld},
    ring::{MuchStall, StallRing},
    stalls::{Stall, StallKind, Stalls, StallsError},
};
