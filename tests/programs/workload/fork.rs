//! Many processes.
use std::{
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use serde::Serialize;

use crate::report::{Clock, EverySecond, State};

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Progress {
    wanted: u32,
    started: usize,
    /// How many of them still run.
    alive: usize,
    /// Why there are not more.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

/// Starts processes until there are enough, or the kernel refuses; ends them at the end.
pub(crate) fn fork(clock: &Clock, count: u32) -> anyhow::Result<()> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let mut children: Vec<Child> = Vec::new();
    let mut progress = Progress { wanted: count, ..Progress::default() };
    for _ in 0..count {
        if clock.is_over() {
            break;
        }
        let mut command = Command::new(&own);
        command.arg("wait").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Ok(child) => children.push(child),
            Err(error) => {
                progress.refused = Some(error.to_string());
                break;
            }
        }
    }
    progress.started = children.len();
    progress.alive = count_alive(&mut children)?;
    clock.report("fork", State::Ready, &progress)?;
    let mut second = EverySecond::after(clock.elapsed());
    while clock.wait_until(second.next()) {
        second = EverySecond::after(clock.elapsed());
        progress.alive = count_alive(&mut children)?;
        clock.report("fork", State::Running, &progress)?;
    }
    progress.alive = count_alive(&mut children)?;
    clock.report("fork", State::Done, &progress)?;
    for child in &mut children {
        child.kill().context("cannot end a process")?;
    }
    for child in &mut children {
        child.wait().context("cannot wait for a process")?;
    }
    Ok(())
}

fn count_alive(children: &mut [Child]) -> anyhow::Result<usize> {
    let mut alive = 0;
    for child in children {
        if child.try_wait().context("cannot look after a process")?.is_none() {
            alive += 1;
        }
    }
    Ok(alive)
}

/// Waits for a signal that ends this process, or for the parent's end.
pub(crate) fn wait() -> anyhow::Result<()> {
    let parent = getppid();
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot follow the parent")?;
    // It may have died before that.
    while getppid() == parent {
        thread::sleep(Duration::MAX);
    }
    Ok(())
}
