//! The event stream, natively: a real log and real readers in another process; the benchmark holds itself to its bars.
use std::{ffi::OsString, process::Command};

use anyhow::Context as _;

use crate::{places::Places, steps::Steps};

/// Measures and prints; returns 1 if a bar was missed.
pub(crate) fn measure(places: &Places, args: &[OsString]) -> anyhow::Result<u8> {
    Steps::Out.say("measuring; this takes about two minutes, one of them with readers that stall");
    let status = Command::new(env!("CARGO"))
        .args(["bench", "--quiet", "--package", "enforcer", "--bench", "stream", "--"])
        .args(args)
        .current_dir(&places.root)
        .env("CARGO_TARGET_DIR", &places.target)
        .status()
        .context("cannot run cargo bench")?;
    Ok(u8::from(!status.success()))
}
