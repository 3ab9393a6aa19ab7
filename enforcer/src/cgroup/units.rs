//! What is asked of systemd under `cgroupDriver: systemd`.
//!
//! systemd owns the hierarchy of a host that it has booted, and writes the values that it knows again whenever units
//! are loaded anew (`systemctl daemon-reload`). So slices are asked of it rather than made, and every value that it has
//! a property for is told to it before it is written. The rest is written as everywhere: `hugetlb.*`,
//! `memory.oom.group`, and what hands controllers on.

mod bus;
mod driver;
mod error;
#[cfg(test)]
mod fake;
mod name;
mod property;

pub use self::{
    bus::{Absent, Blocking, Systemd, is_there},
    driver::{Driver, SystemdDriver},
    error::UnitError,
    name::{UnitKind, UnitName},
    property::Property,
};

/// What the daemon asks of systemd. Every call waits for the answer: call it where blocking is allowed.
pub trait Units {
    /// Starts a slice; one that runs already is left as it is. Its cgroup may come a moment later.
    fn start_slice(&self, slice: &UnitName) -> Result<(), UnitError>;

    /// Sets properties until the next boot. The files may follow a moment later.
    fn set(&self, unit: &UnitName, properties: &[Property]) -> Result<(), UnitError>;

    /// Waits until systemd has written everything that it was told before.
    fn settle(&self) -> Result<(), UnitError>;

    /// Stops a slice, and with it every unit in it. One that does not run is no error.
    fn stop_slice(&self, slice: &UnitName) -> Result<(), UnitError>;
}
