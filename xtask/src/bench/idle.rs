//! What a converged daemon costs, in units of a processor that is not emulated.
use std::{ffi::OsString, process::Command};

use super::guest;
use crate::{
    build::{self, Programs},
    cli::MachineArgs,
    places::Places,
    run,
    steps::Steps,
};

/// Writes and processor time of a converged daemon. The loops that measure the cost of emulation are timed here, by
/// the same programs as in the guest.
pub(crate) fn measure(places: &Places, machine: &MachineArgs, args: &[OsString]) -> anyhow::Result<u8> {
    let guests = guest::prepare(places, machine, Steps::Out)?;
    let [rate, wake_ns, list_ns] = Steps::Out.work("the known loops, here", || native(&guests.programs))?;
    let mut all: Vec<OsString> =
        ["--native-rate", &rate, "--native-wake-ns", &wake_ns, "--native-list-ns", &list_ns]
            .map(OsString::from)
            .into();
    all.extend_from_slice(args);
    guest::run(&guests, machine, "idle", &all)
}

/// The units of work in a second, and the nanoseconds of a wake and of a list.
fn native(programs: &Programs) -> anyhow::Result<[String; 3]> {
    let path = |name| build::program(programs, name);
    let mut bench = Command::new(path(guest::PROGRAM)?);
    let reported = run::text(bench.args(["idle", "--rate-only", "--workload"]).arg(path("workload")?))?;
    let numbers: Option<Vec<u64>> = reported.split_whitespace().map(|word| word.parse().ok()).collect();
    match numbers.as_deref() {
        Some(&[rate, wake_ns, list_ns]) => Ok([rate, wake_ns, list_ns].map(|number| number.to_string())),
        _ => anyhow::bail!("the benchmark said {reported:?}"),
    }
}
