//! The steps of one kill, on handles that are already open.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::{
    candidate::{Candidate, Target},
    stat,
};
use crate::{
    clock,
    policy::engine::{Refusal, Resource},
};

/// The buffer for `cgroup.events`, which has two lines.
const EVENTS_BYTES: usize = 256;

/// The buffer for `cpu.max` or `memory.high`.
const BRAKE_BYTES: usize = 64;

/// Why a cgroup is not signalled that holds what must never be killed.
pub(super) const FORBIDDEN: Refusal = Refusal::Kernel(Errno::PERM.raw_os_error());

/// The largest `cpu.weight` (`CGROUP_WEIGHT_MAX`, include/linux/cgroup.h).
const MOST_WEIGHT: &[u8] = b"10000";

/// The result of a SIGKILL.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Signalled {
    /// When the write to `cgroup.kill` returned, in nanoseconds of `CLOCK_BOOTTIME`.
    pub(super) at_ns: u64,
    /// How many limits that slow dying processes down could not be raised, of cgroups that are removed with the victim.
    pub(super) brakes_failed: usize,
}

/// Whether it holds no process for certain; its cgroups may be gone.
pub(super) fn is_empty(candidate: &Candidate) -> bool {
    candidate.targets.iter().all(|target| is_populated(target) == Ok(false))
}

/// What is left of a victim.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Progress {
    pub(super) populated: bool,
    pub(super) current_bytes: Option<u64>,
    /// Its task count; `None` if it was not requested.
    pub(super) process_count: Option<u64>,
}

/// Checks that the candidate is still the one that was decided on, then sends SIGKILL to all its processes.
///
/// Raises the limits right after: a task that `cpu.max` throttles dies at that rate. Writing them first would take
/// milliseconds (`cpu.max` locks out CPU hotplug and patches code) in which other pods grow on. A task throttled by
/// `memory.high` sleeps killably, and the signal wakes it. The highest `cpu.weight` gives the victim most of the CPU
/// time of its class, where it competes with the pods that grow on.
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
        // Catches processes that were moved meanwhile, from a target not yet signalled into one already signalled. A
        // second kill of dead processes does nothing.
        for target in &candidate.targets {
            let _again = rustix::io::pwrite(&target.kill, b"1", 0);
        }
    }
    if !signalled {
        // It is still alive, so its limits stay.
        return Err(refused);
    }
    let at_ns = clock::boottime_ns();
    if let Some(weight) = &candidate.weight {
        // Fails for a cgroup with `cpu.idle`, which has no weight; then the victim dies at idle priority.
        let _weighty = rustix::io::pwrite(weight, MOST_WEIGHT, 0);
    }
    // Limits of cgroups that outlive it are raised elsewhere, and restored.
    let own = candidate.brakes.iter().filter(|brake| brake.owner.is_none());
    let brakes_failed = own.filter(|brake| !is_released(&brake.fd)).count();
    Ok(Signalled { at_ns, brakes_failed })
}

/// Raises a limit to `max` unless it already is; returns whether it is `max` now. Reading one takes only microseconds.
fn is_released(brake: &OwnedFd) -> bool {
    let mut buffer = [0_u8; BRAKE_BYTES];
    match stat::read_into(brake, &mut buffer) {
        Ok(text) if text.starts_with(b"max") => true,
        Ok(_) | Err(_) => rustix::io::pwrite(brake, b"max", 0).is_ok(),
    }
}

/// Fails unless it may be signalled: it is the one that was decided on, and holds processes, none of which must never be
/// killed. That is looked up elsewhere, every 2 s while a threshold may be crossed soon: this thread looks nothing up.
pub(super) fn check(candidate: &Candidate) -> Result<(), Refusal> {
    check_identity(candidate)?;
    if candidate.is_forbidden() {
        return Err(FORBIDDEN);
    }
    let mut populated = false;
    for target in &candidate.targets {
        populated |= is_populated(target).map_err(refusal)?;
    }
    if populated { Ok(()) } else { Err(Refusal::Empty) }
}

/// Whether it still holds processes, and its remaining charge; also its task count if process ids are short.
pub(super) fn progress(candidate: &Candidate, short: Resource, buffer: &mut [u8]) -> Progress {
    let mut populated = false;
    for target in &candidate.targets {
        // A cgroup that is gone is not populated; one that cannot be read may be.
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

/// A handle's id never changes, and a new cgroup under the same name has another handle, so this catches mixed-up
/// candidates, not kernel races.
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
    has_processes(&target.events)
}

/// Whether a cgroup holds processes, by its `cgroup.events`.
pub(super) fn has_processes(events: &OwnedFd) -> rustix::io::Result<bool> {
    let mut buffer = [0_u8; EVENTS_BYTES];
    match stat::read_into(events, &mut buffer) {
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
