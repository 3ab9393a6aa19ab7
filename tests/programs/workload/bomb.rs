//! Small processes that go on making more of their kind.
use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::Context as _;
use serde::Serialize;

use crate::{
    memory::Held,
    report::{Clock, State},
};

/// What one process of a bomb has still to do.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Fuse {
    /// How many processes go on at a time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    chains: u32,
    /// What each takes before it makes the next one
    #[arg(long, value_parser = crate::units::parse_size)]
    size: u64,
    /// How long each waits before it makes the next one
    #[arg(long, default_value = "10ms", value_parser = crate::units::parse_duration)]
    pace: Duration,
    /// How many each chain makes at the most
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(..=8_000))]
    most: u32,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Progress {
    chains: usize,
}

/// Starts the chains and waits: whoever ends this process alone has ended nothing.
pub(crate) fn bomb(clock: &Clock, fuse: Fuse) -> anyhow::Result<()> {
    let chains = (0..fuse.chains).map(|_| next(fuse)).collect::<anyhow::Result<Vec<_>>>()?;
    let progress = Progress { chains: chains.len() };
    clock.report("bomb", State::Ready, progress)?;
    while clock.wait_until(Duration::MAX) {}
    clock.report("bomb", State::Done, progress)
}

/// One process of a chain: takes its memory, makes the next one, and stays.
pub(crate) fn link(clock: &Clock, fuse: Fuse) -> anyhow::Result<()> {
    let mut held = Held::default();
    held.grow_to(fuse.size, clock)?;
    let _child = if fuse.most > 0 && clock.wait_until(clock.elapsed() + fuse.pace) {
        // None where the kernel refuses: the chain has come to its end.
        next(Fuse { most: fuse.most - 1, ..fuse }).ok()
    } else {
        None
    };
    while clock.wait_until(Duration::MAX) {}
    drop(held);
    Ok(())
}

fn next(fuse: Fuse) -> anyhow::Result<Child> {
    let Fuse { chains: _, size, pace, most } = fuse;
    let own = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(own);
    command.args(["link", "--size", &size.to_string(), "--most", &most.to_string()]);
    command.args(["--pace", &format!("{}us", pace.as_micros())]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("cannot start a process")
}
