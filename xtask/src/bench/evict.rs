//! From crossing a threshold to the first signal, side by side with another daemon in one guest.
use std::ffi::OsString;

use super::guest;
use crate::{cli::MachineArgs, places::Places, setup, steps::Steps};

/// From crossing a threshold to the first signal, beside earlyoom.
pub(crate) fn measure(places: &Places, machine: &MachineArgs, args: &[OsString]) -> anyhow::Result<u8> {
    let contenders = setup::contenders(places, Steps::Out)?;
    let guests = guest::prepare(places, machine)?;
    guest::run(&guests, machine, "bench-evict", args, &contenders)
}
