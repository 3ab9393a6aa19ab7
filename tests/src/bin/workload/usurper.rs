//! Memory that is taken while its former holder cannot even die.
use std::{fs, io, path::Path};

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

/// Real-time threads leave ordinary ones 5 % of a processor, unless this says that they need not: by throttling, and
/// since Linux 6.12 by a server for the ordinary ones.
const THROTTLING: &str = "/proc/sys/kernel/sched_rt_runtime_us";
const SERVERS: &str = "/sys/kernel/debug/sched/fair_server";

/// Takes a processor for this thread alone, and for those that it starts. The machine is left like that: it is a guest.
pub(crate) fn seize(cpu: usize) -> anyhow::Result<()> {
    let throttling = fs::read_to_string(THROTTLING).with_context(|| format!("cannot read {THROTTLING}"))?;
    // Once the servers are off, kernels refuse even the value that it has.
    if throttling.trim() != "-1" {
        fs::write(THROTTLING, "-1").with_context(|| format!("cannot write {THROTTLING}"))?;
    }
    let server = Path::new(SERVERS).join(format!("cpu{cpu}/runtime"));
    match fs::write(&server, "0") {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot write {}", server.display()));
        }
        Ok(()) | Err(_) => {}
    }
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
