//! Ends a pod outside of any eviction: SIGTERM, and SIGKILL after the grace period of its manifest.

use std::{
    collections::BTreeSet,
    ops::Deref,
    os::fd::OwnedFd,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal},
};

use super::{
    candidate::{Candidate, Target},
    executor,
};
use crate::{
    cgroup::{self, Forbidden, guard::each_process},
    clock,
    policy::engine::{Outcome, Refusal, Resource, Spared},
};

/// The interval of checks whether the pod has ended.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// How long a killed pod may take to be gone.
const DEATH: Duration = Duration::from_secs(10);
/// The buffer for the kernel's counters.
const BUFFER_BYTES: usize = 4096;

/// Sends SIGTERM to each process of a soft eviction's victim, unless the decision is withdrawn or not recorded.
pub(super) fn ask(number: u64, victim: &Candidate, is_recorded: bool, is_withdrawn: bool) -> Outcome {
    let asked = match (is_withdrawn, is_recorded) {
        (true, _) => Err(Refusal::Withdrawn),
        (false, false) => Err(Refusal::Unrecorded),
        (false, true) => try_ask(victim),
    };
    let now_ns = clock::boottime_ns();
    match asked {
        Ok(()) => Outcome::Terminated { number, now_ns },
        Err(reason) => Outcome::Refused { number, now_ns, reason },
    }
}

fn try_ask(victim: &Candidate) -> Result<(), Refusal> {
    let refused = |error: EndError| match error {
        EndError::Refused(refusal) => refusal,
        EndError::Cgroup(error) if error.is_gone() => Refusal::Gone,
        error @ (EndError::Forbidden(_)
        | EndError::Cgroup(_)
        | EndError::Spared(_)
        | EndError::StillAlive) => {
            tracing::warn!(pod = %victim.identity.pod, error = &error as &dyn std::error::Error, "no SIGTERM sent");
            executor::FORBIDDEN
        }
    };
    check(victim).map_err(refused)?;
    executor::check(victim)?;
    for target in &victim.targets {
        terminate(target).map_err(refused)?;
    }
    Ok(())
}

/// A signal that was sent to a pod.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sent {
    /// SIGTERM, to each of its processes.
    Term,
    /// SIGKILL, after its grace period.
    Kill,
}

/// How a pod ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ending {
    /// Its processes ended within the grace period, or there were none.
    OnTerm,
    /// They were killed after the grace period.
    OnKill,
}

/// Why a pod has not ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndError {
    /// It holds processes that must never be killed.
    #[error("it must never be ended: {0}")]
    Forbidden(Forbidden),
    /// Its processes cannot be listed.
    #[error(transparent)]
    Cgroup(#[from] cgroup::Error),
    /// The kernel refused the kill.
    #[error("cannot kill it: {0:?}")]
    Refused(Refusal),
    /// It got SIGTERM, has not ended, and must not be killed any more.
    #[error("it got SIGTERM and has not ended, and must not be killed any more: {}", .0.as_str())]
    Spared(Spared),
    /// Some of its processes do not die.
    #[error("some of its processes are still alive {} s after SIGKILL", DEATH.as_secs())]
    StillAlive,
}

/// Ends a pod: SIGTERM to each of its processes, and SIGKILL to those that are left after `grace`.
///
/// It blocks until the end, so it needs its own thread. It signals nothing in a cgroup that must not be evicted, and
/// checks that before either signal. Calls `sent` after each signal. A pod that is `spared` at the end of its grace is
/// not killed.
pub fn end(
    candidate: &Candidate,
    grace: Duration,
    spared: impl Fn() -> Option<Spared>,
    mut sent: impl FnMut(Sent),
) -> Result<Ending, EndError> {
    let mut course = GracefulEnd::begin(candidate, grace, &mut sent)?;
    loop {
        if let Some(ended) = course.step(Instant::now(), &spared, &mut sent) {
            return ended;
        }
        thread::sleep(LOOK);
    }
}

/// A pod that is being ended.
#[derive(Debug)]
pub(super) struct GracefulEnd<C> {
    candidate: C,
    grace: Duration,
    stage: Stage,
    /// When that stage began.
    since: Instant,
    buffer: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// It was empty before SIGTERM.
    Empty,
    /// It got SIGTERM.
    Asked,
    /// It got SIGKILL.
    Killed,
}

impl<C: Deref<Target = Candidate>> GracefulEnd<C> {
    /// Sends SIGTERM to each of its processes.
    pub(super) fn begin(
        candidate: C,
        grace: Duration,
        sent: &mut impl FnMut(Sent),
    ) -> Result<Self, EndError> {
        check(&candidate)?;
        let stage = match executor::check(&candidate) {
            Ok(()) => {
                for target in &candidate.targets {
                    terminate(target)?;
                }
                sent(Sent::Term);
                Stage::Asked
            }
            Err(Refusal::Empty | Refusal::Gone) => Stage::Empty,
            Err(refusal) => return Err(EndError::Refused(refusal)),
        };
        Ok(Self { candidate, grace, stage, since: Instant::now(), buffer: vec![0; BUFFER_BYTES] })
    }

    /// Takes the next step, if it is due; returns the result, or `None` while it is not over.
    pub(super) fn step(
        &mut self,
        now: Instant,
        spared: &impl Fn() -> Option<Spared>,
        sent: &mut impl FnMut(Sent),
    ) -> Option<Result<Ending, EndError>> {
        let has_lasted = now.saturating_duration_since(self.since);
        let stage = self.stage;
        match stage {
            Stage::Empty => Some(Ok(Ending::OnTerm)),
            Stage::Asked if self.is_empty() => Some(Ok(Ending::OnTerm)),
            Stage::Asked if has_lasted < self.grace => None,
            Stage::Asked => self.kill(spared, sent).transpose(),
            Stage::Killed if self.is_empty() => Some(Ok(Ending::OnKill)),
            Stage::Killed => (has_lasted >= DEATH).then_some(Err(EndError::StillAlive)),
        }
    }

    fn kill(
        &mut self,
        spared: &impl Fn() -> Option<Spared>,
        sent: &mut impl FnMut(Sent),
    ) -> Result<Option<Ending>, EndError> {
        check(&self.candidate)?;
        if let Some(spared) = spared() {
            return Err(EndError::Spared(spared));
        }
        match executor::signal(&self.candidate) {
            Ok(_) => sent(Sent::Kill),
            Err(Refusal::Empty | Refusal::Gone) => return Ok(Some(Ending::OnTerm)),
            Err(refusal) => return Err(EndError::Refused(refusal)),
        }
        (self.stage, self.since) = (Stage::Killed, Instant::now());
        Ok(None)
    }

    fn is_empty(&mut self) -> bool {
        !executor::progress(&self.candidate, Resource::Memory, &mut self.buffer).populated
    }
}

/// Fails if one of its cgroups holds what must never be killed.
pub(super) fn check(candidate: &Candidate) -> Result<(), EndError> {
    for target in &candidate.targets {
        match candidate.guard.forbidden(&target.dir, target.origin) {
            Ok(None) => {}
            Ok(Some(reason)) => return Err(EndError::Forbidden(reason)),
            // The pod ended by itself.
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Sends SIGTERM to every process of the cgroup, and to no other.
///
/// A process may end between the list and the signal, and its pid may be reused. So this opens pidfds first and reads
/// the list again: a pid that is still listed and whose pidfd is still alive is the same process.
fn terminate(target: &Target) -> Result<(), EndError> {
    let mut held: Vec<(u32, OwnedFd)> = Vec::new();
    list(target, &mut |number| {
        let pid = i32::try_from(number).ok().and_then(Pid::from_raw);
        if let Some(Ok(pidfd)) = pid.map(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty())) {
            held.push((number, pidfd));
        }
    })?;
    let mut still = BTreeSet::new();
    list(target, &mut |number| {
        still.insert(number);
    })?;
    for (number, pidfd) in held.iter().filter(|(number, _)| still.contains(number)) {
        match rustix::process::pidfd_send_signal(pidfd, Signal::TERM) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => tracing::debug!(pid = number, %error, "cannot send SIGTERM"),
        }
    }
    Ok(())
}

fn list(target: &Target, visit: &mut dyn FnMut(u32)) -> Result<(), EndError> {
    match each_process(&target.dir, visit) {
        Err(error) if !error.is_gone() => Err(error.into()),
        Ok(_) | Err(_) => Ok(()),
    }
}
