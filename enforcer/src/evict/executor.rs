//! The steps of one kill, on handles that are open already.

use rustix::io::Errno;

use super::{
    candidate::{Candidate, Target},
    stat,
};
use crate::policy::engine::Refusal;

/// How much of `cgroup.events` is read; it has two lines.
const EVENTS_BYTES: usize = 256;

/// What the signal took.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Signalled {
    /// How many files that slow a dying process down could not be raised.
    pub(super) brakes_failed: usize,
}

/// How far a victim has died.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Progress {
    pub(super) populated: bool,
    pub(super) current_bytes: Option<u64>,
}

/// Sends SIGKILL to every process of the candidate, after making sure that it is still the one that was decided on.
///
/// The brakes go first: a task that `cpu.max` throttles dies at that rate, and one that `memory.high` throttles sleeps
/// before it sees the signal. Raising either reclaims nothing, and so does not block.
pub(super) fn signal(candidate: &Candidate) -> Result<Signalled, Refusal> {
    check_identity(candidate)?;
    let mut populated = false;
    for target in &candidate.targets {
        populated |= is_populated(target).map_err(refusal)?;
    }
    if !populated {
        return Err(Refusal::Empty);
    }
    let failed = |brake: &&std::os::fd::OwnedFd| rustix::io::pwrite(brake, b"max", 0).is_err();
    let brakes_failed = candidate.brakes.iter().filter(failed).count();
    let mut signalled = false;
    let mut refused = Refusal::Empty;
    for target in &candidate.targets {
        match rustix::io::retry_on_intr(|| rustix::io::pwrite(&target.kill, b"1", 0)) {
            Ok(_) => signalled = true,
            Err(errno) => refused = refusal(errno),
        }
    }
    if signalled { Ok(Signalled { brakes_failed }) } else { Err(refused) }
}

/// Whether it still holds processes, and what it is still charged for.
pub(super) fn progress(candidate: &Candidate, buffer: &mut [u8]) -> Progress {
    let mut populated = false;
    for target in &candidate.targets {
        // One that is gone is not populated; one that cannot be read is not known to be dead.
        populated |= is_populated(target).unwrap_or(true);
    }
    let current_bytes = match stat::read_into(&candidate.current, buffer).map(stat::number) {
        Ok(Some(bytes)) => Some(bytes),
        Err(Errno::NODEV | Errno::NOENT) => None,
        Ok(None) | Err(_) => {
            populated = true;
            None
        }
    };
    Progress { populated, current_bytes }
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
