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

/// Writes and processor time of a converged daemon. The loop that measures the cost of emulation is timed here, by
/// the same programs as in the guest.
pub(crate) fn measure(places: &Places, machine: &MachineArgs, args: &[OsString]) -> anyhow::Result<u8> {
    let guests = guest::prepare(places, machine, Steps::Out)?;
    let rate = Steps::Out.work("the known loop, here", || native_rate(&guests.programs))?;
    let mut all = vec![OsString::from("--native-rate"), rate.into()];
    all.extend_from_slice(args);
    guest::run(&guests, machine, "idle", &all)
}

fn native_rate(programs: &Programs) -> anyhow::Result<String> {
    let path = |name| build::program(programs, name);
    let mut bench = Command::new(path(guest::PROGRAM)?);
    let reported = run::text(bench.args(["idle", "--rate-only", "--workload"]).arg(path("workload")?))?;
    let rate: u64 =
        reported.trim_end().parse().with_context(|| format!("the benchmark said {reported:?}"))?;
    Ok(rate.to_string())
}
