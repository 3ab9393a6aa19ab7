//! The steps of one kill, on handles that are open already.

use std::os::fd::OwnedFd;

use rustix::{io::Errno, time::ClockId};

use super::{
    candidate::{Candidate, Target},
    eviction_loop::now_ns,
    stat,
};
use crate::policy::engine::{Refusal, Resource};

/// How much of `cgroup.events` is read; it has two lines.
const EVENTS_BYTES: usize = 256;

/// How much of `cpu.max` or `memory.high` is read.
const BRAKE_BYTES: usize = 64;

/// The largest `cpu.weight` (`CGROUP_WEIGHT_MAX`, include/linux/cgroup.h).
const MOST_WEIGHT: &[u8] = b"10000";

/// What the signal took.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Signalled {
    /// When the kernel had taken it: nanoseconds of `CLOCK_BOOTTIME`.
    pub(super) at_ns: u64,
    /// How many files that slow a dying process down could not be raised, of those that go with it.
    pub(super) brakes_failed: usize,
}

/// Whether it is known to hold no process; its cgroups may be gone.
pub(super) fn is_empty(candidate: &Candidate) -> bool {
    candidate.targets.iter().all(|target| is_populated(target) == Ok(false))
}

/// How far a victim has died.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Progress {
    pub(super) populated: bool,
    pub(super) current_bytes: Option<u64>,
    /// How many tasks it has; none if it was not asked for that.
    pub(super) process_count: Option<u64>,
}

/// Sends SIGKILL to every process of the candidate, after making sure that it is still the one that was decided on.
///
/// The brakes are let go of right after: a task that `cpu.max` throttles dies at that rate, and so must be let run. To
/// write them takes milliseconds (`cpu.max` locks out CPU hotplug and patches code), in which the others would grow on.
/// One that `memory.high` throttles sleeps killably, and the signal itself wakes it. Among the pods of its class it is given
/// most of the CPUs: those who grow on are its rivals for them.
pub(super) fn signal(candidate: &Candidate) -> Result<Signalled, Refusal> {
    check(candidate)?;
    let mut signalled = false;
    let mut refused = Refusal::Empty;
    for target in &candidate.targets {
        match rustix::io::retry_on_intr(|| rustix::io::pwrite(&target.kill, b"1", 0)) {
            Ok(_) => signalled = true,
            Err(errno) => refused = refusal(errno),
        }
    }
    if candidate.is_moving {
        // Whatever was moved in between, from one that was still to come into one that was done already. Who is dead already
        // takes no harm.
        for target in &candidate.targets {
            let _again = rustix::io::pwrite(&target.kill, b"1", 0);
        }
    }
    if !signalled {
        // It lives on, and under its own limits.
        return Err(refused);
    }
    let at_ns = now_ns(ClockId::Boottime);
    if let Some(weight) = &candidate.weight {
        // Where it is idle by its own wish (`cpu.idle`) it has no weight, and dies as it lived.
        let _weighty = rustix::io::pwrite(weight, MOST_WEIGHT, 0);
    }
    // What outlives it is lent.
    let own = candidate.brakes.iter().filter(|brake| brake.owner.is_none());
    let brakes_failed = own.filter(|brake| !is_released(&brake.fd)).count();
    Ok(Signalled { at_ns, brakes_failed })
}

/// Lets go of a brake, unless it holds nothing back: to read one costs microseconds. Whether it is let go of.
fn is_released(brake: &OwnedFd) -> bool {
    let mut buffer = [0_u8; BRAKE_BYTES];
    match stat::read_into(brake, &mut buffer) {
        Ok(text) if text.starts_with(b"max") => true,
        Ok(_) | Err(_) => rustix::io::pwrite(brake, b"max", 0).is_ok(),
    }
}

/// Whether it may be signalled: it is the one that was decided on, and holds processes.
pub(super) fn check(candidate: &Candidate) -> Result<(), Refusal> {
    check_identity(candidate)?;
    let mut populated = false;
    for target in &candidate.targets {
        populated |= is_populated(target).map_err(refusal)?;
    }
    if populated { Ok(()) } else { Err(Refusal::Empty) }
}

/// Whether it still holds processes, and what it is still charged for; where process ids are short, how many of them it
/// has.
pub(super) fn progress(candidate: &Candidate, short: Resource, buffer: &mut [u8]) -> Progress {
    let mut populated = false;
    for target in &candidate.targets {
        // One that is gone is not populated; one that cannot be read is not known to be dead.
        populated |= is_populated(target).unwrap_or(true);
    }
    let process_count = match short {
        Resource::Memory => None,
        Resource::Pids => candidate.process_count(buffer),
    };
    match candidate.current_bytes(buffer) {
        Ok(current_bytes) => Progress { populated, current_bytes, process_count },
        Err(_) => Progress { populated: true, current_bytes: None, process_count },
    }
}

/// The handle's own id never changes, and a cgroup made anew under the same name has another handle: this catches
/// candidates that were mixed up, not the kernel.
fn check_identity(candidate: &Candidate) -> Result<(), Refusal> {
    let stat = rustix::fs::fstat(&candidate.dir).map_err(refusal)?;
    if stat.st_ino != candidate.facts.cgroup.0 {
        return Err(Refusal::Replaced);
    }
    for target in &candidate.targets {
        let stat = rustix::fs::fstat(&target.dir).map_err(refusal)?;
        if stat.st_ino != target.dir.id().0 {
            return Err(Refusal::Replaced);
        }
    }
    Ok(())
}

fn is_populated(target: &Target) -> rustix::io::Result<bool> {
    let mut buffer = [0_u8; EVENTS_BYTES];
    match stat::read_into(&target.events, &mut buffer) {
        Ok(text) => Ok(stat::keyed(text, b"populated") == Some(1)),
        Err(Errno::NODEV | Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn refusal(errno: Errno) -> Refusal {
    match errno {
        Errno::NODEV | Errno::NOENT => Refusal::Gone,
        errno => Refusal::Kernel(errno.raw_os_error()),
    }
}
