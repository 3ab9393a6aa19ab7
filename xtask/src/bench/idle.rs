//! What a converged daemon costs, in units of a processor that is not emulated.
use std::{ffi::OsString, process::Command};

use super::guest;
use crate::{
    build::{self, Programs},
    cli::MachineArgs,
    guest::Guests,
    places::Places,
    run,
    steps::Steps,
};

/// The least memory of the guest: a node of hundreds of pods has as much, and with less headroom the daemon looks more often
/// how much is left.
const LEAST_MIB: u32 = 8_192;

/// Writes and processor time of a converged daemon, in a guest whose clock follows its instructions: how many the daemon
/// executes does not depend on the emulator. What one takes is measured by loops that are timed here as well, by the same
/// programs.
pub(crate) fn measure(places: &Places, machine: MachineArgs, args: &[OsString]) -> anyhow::Result<u8> {
    let machine = MachineArgs { memory: machine.memory.max(LEAST_MIB), ..machine };
    let guests = guest::prepare(places, &machine, Steps::Out)?;
    guest::run_counted(&guests, &machine, "idle", &with_native(&guests, &[], args)?)
}

/// Processor time while others do something without end.
pub(crate) fn floods(places: &Places, machine: &MachineArgs, args: &[OsString]) -> anyhow::Result<u8> {
    let guests = guest::prepare(places, machine, Steps::Out)?;
    guest::run(&guests, machine, "idle", &with_native(&guests, &["--floods"], args)?)
}

/// The arguments, with what the known loops take here.
fn with_native(guests: &Guests, first: &[&str], args: &[OsString]) -> anyhow::Result<Vec<OsString>> {
    let [rate, wake_ns, list_ns] = Steps::Out.work("the known loops, here", || native(&guests.programs))?;
    let natives = ["--native-rate", &rate, "--native-wake-ns", &wake_ns, "--native-list-ns", &list_ns];
    let all = first.iter().chain(&natives).map(OsString::from);
    Ok(all.chain(args.iter().cloned()).collect())
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
