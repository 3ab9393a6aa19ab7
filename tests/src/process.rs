//! A process of a scenario.

use std::{
    fmt::Write as _,
    fs,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// What a command prints. It is an error, with all that it printed, if it does not succeed.
pub fn said(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))?;
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    ensure!(output.status.success(), "{command:?} ({}):\n{out}\n{err}", output.status);
    Ok(out)
}

/// A child process that is killed when this is dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Takes the child over.
    #[must_use]
    pub fn new(child: Child) -> Self {
        Self(child)
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Whether it has not ended.
    pub fn lives(&mut self) -> anyhow::Result<bool> {
        Ok(self.0.try_wait()?.is_none())
    }

    /// Sends it a signal. It is a child that only this waits for, so its id is not reused.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.id()).ok().and_then(Pid::from_raw).context("no pid")?;
        kill_process(pid, signal).with_context(|| format!("cannot send {signal:?} to process {pid}"))
    }

    /// Waits until it is stopped.
    pub fn wait_until_stopped(&mut self, patience: Duration) -> anyhow::Result<()> {
        let start = Instant::now();
        let path = format!("/proc/{}/stat", self.id());
        loop {
            ensure!(self.lives()?, "process {} ended before it was stopped", self.id());
            let fields = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
            // The state follows the name, which may hold anything.
            if fields.rsplit(')').next().is_some_and(|after| after.trim_start().starts_with('T')) {
                return Ok(());
            }
            ensure!(start.elapsed() < patience, "process {} is not stopped after {patience:?}", self.id());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until it has ended.
    pub fn wait_for_end(&mut self, patience: Duration) -> anyhow::Result<ExitStatus> {
        wait_for_end(&mut self.0, patience)
    }
}

/// Waits until a child has ended. If it does not, the error says what its threads do.
pub fn wait_for_end(child: &mut Child, patience: Duration) -> anyhow::Result<ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let pid = child.id();
        ensure!(start.elapsed() < patience, "process {pid} lives after {patience:?}:\n{}", threads(pid));
        thread::sleep(Duration::from_millis(20));
    }
}

/// What each thread of a process waits for, as far as the kernel reports it.
fn threads(pid: u32) -> String {
    let mut reported = String::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let (name, call) = (read("comm"), read("syscall"));
        // A string takes whatever is written.
        let _written =
            writeln!(reported, "{} in system call {}\n{}", name.trim(), call.trim(), read("stack"));
    }
    reported
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already, which is what is wanted.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::wait::TIMEOUT;

    #[test]
    fn one_that_does_not_end_is_reported_with_what_it_waits_for() {
        let mut process = Process::new(Command::new("sleep").arg("60").spawn().unwrap());
        let error = process.wait_for_end(Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.contains("lives after 50ms") && error.contains("sleep in system call"), "{error}");
    }

    #[test]
    fn one_that_stops_itself_goes_on_when_it_is_let() {
        let script = "kill -STOP $$ && exit 7";
        let mut process = Process::new(Command::new("sh").args(["-c", script]).spawn().unwrap());
        process.wait_until_stopped(TIMEOUT).unwrap();
        process.signal(Signal::CONT).unwrap();
        assert_eq!(process.wait_for_end(TIMEOUT).unwrap().code(), Some(7));
        assert!(process.wait_until_stopped(TIMEOUT).is_err(), "it has ended");
    }
}
