//! How often the kernel and the ranking agree on the victim.
use std::ffi::OsString;

use super::guest;
use crate::{cli::MachineArgs, places::Places};

/// The share of random pod sets in which the kernel's OOM killer picks the ranking's first, for both score policies.
pub(crate) fn measure(places: &Places, machine: &MachineArgs, args: &[OsString]) -> anyhow::Result<u8> {
    let guests = guest::prepare(places, machine, "bench-agreement")?;
    guest::run(&guests, machine, "bench-agreement", args, &[])
}
