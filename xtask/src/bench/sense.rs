//! How soon, how completely and at what cost the kernel's facts are sensed.
use std::ffi::OsString;

use super::guest;
use crate::{cli::MachineArgs, places::Places};

/// The named parts, or all of them, each against its bar.
pub(crate) fn measure(
    places: &Places,
    machine: &MachineArgs,
    parts: &[OsString],
    args: &[OsString],
) -> anyhow::Result<u8> {
    let guests = guest::prepare(places, machine, "bench-sense")?;
    guest::run(&guests, machine, "bench-sense", &[parts, args].concat(), &[])
}
