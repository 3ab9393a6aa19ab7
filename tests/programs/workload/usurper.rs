//! Memory that is taken while its former holder cannot even die.
use anyhow::{Context as _, anyhow};
use rustix::{
    process::{Pid, Signal, kill_process},
    thread::{CpuSet, sched_setaffinity},
};
use thread_priority::{
    RealtimeThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id,
};

use crate::{memory, report::Clock};

/// Above everybody of the ordinary class, and below what the kernel itself runs there.
const PRIORITY: u8 = 40;

/// Takes a processor for this thread alone, and for those that it starts.
pub(crate) fn seize(cpu: usize) -> anyhow::Result<()> {
    pin(None, cpu)?;
    let priority = ThreadPriority::try_from(PRIORITY).map_err(|error| anyhow!("{error}"))?;
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    set_thread_priority_and_policy(thread_native_id(), priority, policy)
        .map_err(|error| anyhow!("cannot take the processor: {error:?}"))
}

fn pin(pid: Option<Pid>, cpu: usize) -> anyhow::Result<()> {
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(pid, &one).with_context(|| format!("cannot pin {pid:?} to processor {cpu}"))
}

/// Pins this process and one other to a processor, takes that for itself, kills the other, which cannot run to its end
/// then, and takes memory at once.
pub(crate) fn usurp(clock: &Clock, victim: i32, cpu: usize, bytes: u64) -> anyhow::Result<()> {
    let victim = Pid::from_raw(victim).context("no process has that id")?;
    pin(Some(victim), cpu)?;
    seize(cpu)?;
    kill_process(victim, Signal::KILL).context("cannot kill the other")?;
    memory::spike(clock, bytes)
}
