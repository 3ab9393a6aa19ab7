//! Which process is a pod's sandbox, the one that holds the namespaces of its containers.

use super::{
    CgroupDir,
    process::{Process, Processes, is_gone},
};
use crate::{model::CgroupPath, policy::name::Leaf};

/// The file name of the program that holds a pod's namespaces, in every runtime.
const PAUSE: &str = "pause";

impl Processes {
    /// Whether a process is the sandbox of the pod right below whose cgroup `path` is. False if that is not certain: a
    /// container must not get the sandbox's score, and any program can be called `pause`.
    ///
    /// A container runtime names the sandbox's cgroup by an id, starts one process there before it starts any container's,
    /// and has the containers share its IPC namespace. No tenant can bring that about: to make such a namespace or to join
    /// another's takes `CAP_SYS_ADMIN` in its user namespace, which here is the host's.
    pub(super) fn is_sandbox(
        &self,
        root: &CgroupDir,
        path: &CgroupPath,
        (pid, process): (u32, &Process),
    ) -> bool {
        self.find_out(root, path, pid, process).unwrap_or(false)
    }

    /// The same; `None` if it cannot be found out.
    fn find_out(&self, root: &CgroupDir, path: &CgroupPath, pid: u32, process: &Process) -> Option<bool> {
        let own = path.names().last()?;
        if !matches!(Leaf::parse(own), Leaf::Container(_))
            || process.executable().ok()?.as_deref() != Some(PAUSE)
            || root.open(path).and_then(|dir| dir.processes()).ok()? != [pid]
            // Read after it was opened: the process that has the id is in the cgroup.
            || process.cgroup().ok()?.as_deref() != Some(path.as_str())
        {
            return Some(false);
        }
        let init = self.get(1).ok()?;
        let ipc = process.ipc_namespace().ok()?;
        if process.user_namespace().ok()? != init.user_namespace().ok()?
            || ipc == init.ipc_namespace().ok()?
        {
            return Some(false);
        }
        let started = process.start_ticks().ok()?;
        let pod = root.open(&path.parent()?).ok()?;
        let mut is_shared = false;
        for name in pod.children().ok()?.iter().filter(|name| *name != own) {
            let others = match pod.open_below(name).and_then(|dir| dir.processes()) {
                Ok(others) => others,
                Err(error) if error.is_gone() => continue,
                Err(_) => return None,
            };
            for other in others {
                // It is outside of our PID namespace.
                if other == 0 {
                    return None;
                }
                match self.get(other).and_then(|other| Ok((other.start_ticks()?, other.ipc_namespace()?))) {
                    Ok((other_started, _)) if other_started <= started => return Some(false),
                    Ok((_, other_ipc)) => is_shared |= other_ipc == ipc,
                    Err(errno) if is_gone(errno) => {}
                    Err(_) => return None,
                }
            }
        }
        Some(is_shared)
    }
}

#[cfg(test)]
pub(super) mod tests;
