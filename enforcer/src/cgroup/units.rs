//! Requests to systemd under `cgroupDriver: systemd`.
//!
//! systemd owns the hierarchy of a host that it has booted, and rewrites the values that it knows whenever units are
//! reloaded (`systemctl daemon-reload`). So it is asked for slices, and every value that it has a property for is set
//! there before it is written. The rest is written as everywhere: `hugetlb.*`, `memory.oom.group`, and
//! `cgroup.subtree_control`.

mod bus;
mod driver;
mod error;
#[cfg(test)]
pub(super) mod fake;
mod name;
mod property;

pub use self::{
    bus::{Absent, Blocking, Systemd, is_there},
    driver::{Driver, SystemdDriver},
    error::UnitError,
    name::{UnitKind, UnitName},
    property::Property,
};

/// The requests to systemd. Every call waits for the reply: call it where blocking is allowed.
pub trait Units {
    /// Starts a slice; a running one is left alone. Its cgroup may appear a moment later.
    fn start_slice(&self, slice: &UnitName) -> Result<(), UnitError>;

    /// Sets properties until the next boot. The files may follow a moment later.
    fn set(&self, unit: &UnitName, properties: &[Property]) -> Result<(), UnitError>;

    /// Waits until systemd has written everything that was set before.
    fn settle(&self) -> Result<(), UnitError>;

    /// Stops a slice and every unit in it. One that does not run is no error.
    fn stop_slice(&self, slice: &UnitName) -> Result<(), UnitError>;
}
