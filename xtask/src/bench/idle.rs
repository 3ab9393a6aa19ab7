//! What a converged daemon costs, in units of a processor that is not emulated.
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;

use super::guest;
use crate::{cli::MachineArgs, places::Places, run, steps::Steps};

const BENCH: &str = "bench-idle";

/// Writes and processor time of a converged daemon. The loop that tells what emulation costs is timed here, by the same
/// programs as in the guest.
pub(crate) fn measure(places: &Places, machine: &MachineArgs, args: &[OsString]) -> anyhow::Result<u8> {
    let guests = guest::prepare(places, machine)?;
    let rate = Steps::Out.work("the known loop, here", || native_rate(&guests.programs))?;
    let mut all = vec![OsString::from("--native-rate"), rate.into()];
    all.extend_from_slice(args);
    guest::run(&guests, machine, BENCH, &all, &[])
}

fn native_rate(programs: &[(String, PathBuf)]) -> anyhow::Result<String> {
    let path = |name: &str| -> anyhow::Result<&Path> {
        let found = programs.iter().find_map(|(of, path)| (of == name).then_some(path.as_path()));
        found.with_context(|| format!("the package enforcer-tests has no program `{name}`"))
    };
    let told =
        run::text(Command::new(path(BENCH)?).arg("--rate-only").arg("--workload").arg(path("workload")?))?;
    let rate: u64 = told.trim_end().parse().with_context(|| format!("{BENCH} said {told:?}"))?;
    Ok(rate.to_string())
}
