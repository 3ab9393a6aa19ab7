//! What a converged daemon costs, in units of a processor that is not emulated.
use std::{ffi::OsString, process::Command};

use anyhow::Context as _;

use super::guest;
use crate::{
    build::{self, Programs},
    cli::MachineArgs,
    places::Places,
    run,
    steps::Steps,
};

const BENCH: &str = "bench-idle";

/// Writes and processor time of a converged daemon. The loop that measures the cost of emulation is timed here, by
/// the same programs as in the guest.
pub(crate) fn measure(places: &Places, machine: &MachineArgs, args: &[OsString]) -> anyhow::Result<u8> {
    let guests = guest::prepare(places, machine, BENCH)?;
    let rate = Steps::Out.work("the known loop, here", || native_rate(&guests.programs))?;
    let mut all = vec![OsString::from("--native-rate"), rate.into()];
    all.extend_from_slice(args);
    guest::run(&guests, machine, BENCH, &all, &[])
}

fn native_rate(programs: &Programs) -> anyhow::Result<String> {
    let path = |name| build::program(programs, name);
    let reported =
        run::text(Command::new(path(BENCH)?).arg("--rate-only").arg("--workload").arg(path("workload")?))?;
    let rate: u64 = reported.trim_end().parse().with_context(|| format!("{BENCH} said {reported:?}"))?;
    Ok(rate.to_string())
}
