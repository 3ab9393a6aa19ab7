//! From a foreign write to the planned value again.
use std::ffi::OsString;

use super::guest;
use crate::{cli::MachineArgs, places::Places};

/// From a foreign write to the planned value again, for every kind of file and for scores.
pub(crate) fn measure(places: &Places, machine: &MachineArgs, args: &[OsString]) -> anyhow::Result<u8> {
    let guests = guest::prepare(places, machine, "bench-drift")?;
    guest::run(&guests, machine, "bench-drift", args, &[])
}
