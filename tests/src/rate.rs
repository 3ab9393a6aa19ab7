//! How fast this machine is, by a loop that is the same everywhere.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};
use serde_json::Value;

/// The units of work that `workload spin --threads 1` does in a second: the maximum of five runs, as a machine may be
/// shared.
///
/// `workload` is the program, by name or path.
pub fn measure(workload: &str) -> anyhow::Result<u64> {
    let mut command = Command::new(workload);
    let command = command.args(["spin", "--threads", "1", "--for", "5s"]);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {workload}"))?;
    let lines = BufReader::new(child.stdout.take().context("no output to read")?).lines();
    let (mut most, mut before_ms) = (0, 0);
    for line in lines {
        let line = line.context("cannot read from the workload")?;
        let report: Value = serde_json::from_str(&line).with_context(|| format!("it said {line:?}"))?;
        let number = |key: &str| report[key].as_u64().with_context(|| format!("{line:?} has no {key}"));
        if report["state"] == "running" {
            let now_ms = number("elapsedMs")?;
            // A report may come late.
            most = most.max(number("recentWork")? * 1_000 / now_ms.saturating_sub(before_ms).max(1));
            before_ms = now_ms;
        }
    }
    let status = child.wait()?;
    ensure!(status.success() && most > 0, "{workload} ended with {status} after {most} units a second");
    Ok(most)
}
