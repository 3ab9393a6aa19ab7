//! The workload program, started by a scenario.
use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::cgroup::Cgroup;

/// A running load, in a cgroup; killed when this is dropped.
#[derive(Debug)]
pub struct Load {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Load {
    /// Starts `workload` with these arguments, in a cgroup from its first instruction on.
    pub fn start(cgroup: &Cgroup, arguments: &[&str]) -> anyhow::Result<Self> {
        Self::start_in(cgroup.path(), arguments)
    }

    /// The same in a cgroup of another, by its folder.
    pub fn start_in(cgroup: &Path, arguments: &[&str]) -> anyhow::Result<Self> {
        // The shell joins the cgroup before it becomes the program.
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", r#"echo 0 > "$0/cgroup.procs" && exec workload "$@""#])
            .arg(cgroup)
            .args(arguments);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start sh")?;
        let lines = BufReader::new(child.stdout.take().context("the load has no output")?);
        Ok(Self { child, lines })
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended.
    pub fn lives(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Waits for its next line; fails if it ended.
    pub fn next_line(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        if self.lines.read_line(&mut line).context("cannot read from the load")? == 0 {
            bail!("the load ended: {}", self.child.wait()?);
        }
        serde_json::from_str(&line).with_context(|| format!("the load said {line:?}"))
    }

    /// Waits until it is in a state: `ready`, `running` or `done`.
    pub fn wait_for(&mut self, state: &str) -> anyhow::Result<Value> {
        loop {
            let line = self.next_line()?;
            if line.get("state").and_then(Value::as_str) == Some(state) {
                return Ok(line);
            }
        }
    }

    /// Asks it to end, and returns its last line.
    pub fn end(&mut self) -> anyhow::Result<Value> {
        let pid =
            i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("the load has no pid")?;
        kill_process(pid, Signal::TERM).context("cannot signal the load")?;
        let line = self.wait_for("done")?;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("the load failed: {status}");
        }
        Ok(line)
    }

    /// Waits for its end, whatever the cause.
    pub fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        self.child.wait().context("cannot wait for the load")
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // It may have ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A copy of the workload program in a folder, with the file name of another.
pub fn workload_as(folder: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").context("PATH is not set")?;
    let workload =
        std::env::split_paths(&path).map(|folder| folder.join("workload")).find(|path| path.exists());
    let copy = folder.join(name);
    fs::create_dir_all(folder)?;
    fs::copy(workload.context("no workload on the PATH")?, &copy)?;
    Ok(copy)
}
