//! Kills the containers of an evicted pod once more, which the kubelet has started again.

use super::{
    candidate::Candidate,
    doomed, executor,
    graceful::{self, EndError},
};
use crate::model::CgroupId;

impl Candidate {
    /// The containers that would be killed and hold a process that is not dying, by name, with the id of their cgroup. One
    /// without a name waits for it, as the report has it; in a shortage it is killed without. Right after a kill
    /// `killed_ms` says when that was, on `CLOCK_BOOTTIME`: then only processes count that were started since.
    ///
    /// After SIGKILL to all of them only a container that was started since holds one; right after it a process may show
    /// neither the signal, which it has taken, nor that it exits. It is read through files opened for this call, so that a
    /// reader that stalls does not hold the reflex up.
    #[must_use]
    pub fn living_containers(&self, killed_ms: Option<u64>) -> Vec<(String, CgroupId)> {
        let name = |path| self.containers.iter().find(|(_, of)| of == path).map(|(name, _)| name.clone());
        let living = self.targets.iter().filter(|target| doomed::holds_living(&target.dir, killed_ms));
        living.filter_map(|target| Some((name(target.dir.path())?, target.dir.id()))).collect()
    }
}

/// Fails unless the pod may be signalled: the same checks as before any other signal.
pub fn check_again(candidate: &Candidate) -> Result<(), EndError> {
    graceful::check(candidate)?;
    executor::check(candidate).map_err(EndError::Refused)
}

/// Sends SIGKILL to all processes of its containers.
pub fn kill_again(candidate: &Candidate) -> Result<(), EndError> {
    check_again(candidate)?;
    executor::signal(candidate).map(|_| ()).map_err(EndError::Refused)
}
