//! What must never be killed: the root, process 1, the daemon, and what the node needs to run pods.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::io::Errno;

use super::{
    CgroupDir, Error,
    dir::each_number,
    process::{Processes, is_gone},
};
use crate::model::NodeComponent;

/// Cgroups deeper than this below a pod are not looked at.
const MAX_DEPTH: u32 = 16;

/// How many cgroups below a pod are looked at. Whoever may make cgroups there can make as many as the kernel has room for, and
/// evictions wait for this.
const MAX_CGROUPS: u32 = 4_096;

/// The kernel never OOM-kills a process with this score (`OOM_SCORE_ADJ_MIN`, `include/uapi/linux/oom.h`).
const OOM_SCORE_ADJ_MIN: i16 = -1000;

/// The executables of kubelets and of container runtimes' daemons, whatever `nodeComponents` says. Their shims are not
/// among them: those may be in a pod's cgroup.
pub const COMPONENTS: [&str; 9] =
    ["kubelet", "kubelite", "k3s", "k0s", "rke2", "containerd", "crio", "cri-dockerd", "dockerd"];

/// The executables that start containers one by one. They may be in a pod's cgroup and end with it; an adopted cgroup
/// must hold none.
const SUPERVISORS: [&str; 2] = ["podman", "conmon"];

/// Why a cgroup can neither be adopted nor evicted.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Forbidden {
    /// It is the root of the hierarchy.
    #[error("it is the root of the hierarchy")]
    Root,
    /// It holds this daemon, directly or further down.
    #[error("it holds this daemon")]
    HoldsDaemon,
    /// It holds process 1.
    #[error("it holds process 1")]
    HoldsInit,
    /// It holds the kubelet, a container runtime or another component of the node.
    #[error("it holds process {pid}, which is {name}")]
    HoldsComponent {
        /// The process.
        pid: u32,
        /// The file name of its executable.
        name: String,
    },
    /// It holds the unit of a component of the node, or is within it.
    #[error("it is, holds or is within the unit {name}")]
    HoldsUnit {
        /// The unit.
        name: String,
    },
    /// It holds a process that must not be killed for memory.
    #[error("it holds process {pid} with an oom_score_adj of -1000")]
    HoldsUnkillable {
        /// The process.
        pid: u32,
    },
    /// It holds a process that cannot be identified.
    #[error("it holds process {pid}, which cannot be identified: {errno}")]
    HoldsUnknown {
        /// The process.
        pid: u32,
        /// The error.
        errno: Errno,
    },
    /// Some of what it holds cannot be seen.
    #[error("cannot see everything that it holds: {0}")]
    Unseen(Unseen),
}

/// Why not all processes of a cgroup can be seen.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Unseen {
    /// The kernel shows it as process 0.
    #[error("a process is outside this daemon's PID namespace")]
    Outside,
    /// Some cgroups below it are too deep to be looked at.
    #[error("cgroups are nested more than {MAX_DEPTH} deep")]
    TooDeep,
    /// There are too many cgroups below it to be looked at.
    #[error("more than {MAX_CGROUPS} cgroups are below it")]
    TooMany,
    /// It is threaded: its processes are listed further up.
    #[error("it is a threaded cgroup, which lists no processes")]
    Threaded,
    /// The list could not be read.
    #[error("cannot read cgroup.procs: {0}")]
    Unread(Errno),
}

/// How a cgroup became a pod's, which decides how much must be known about it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Origin {
    /// It was made for the pod: everything in it came with the pod. What cannot be identified does not spare it, or
    /// else each pod could make itself immune.
    Made,
    /// Something else made it, and a pod names it: what cannot be identified may be anything, so it is spared.
    Adopted,
}

impl Origin {
    /// The origin of a cgroup by its plan.
    #[must_use]
    pub fn of(is_adopted: bool) -> Self {
        if is_adopted { Self::Adopted } else { Self::Made }
    }
}

/// Judges which cgroups must never be adopted or evicted.
#[derive(Clone, Debug)]
pub struct Guard {
    proc: PathBuf,
    /// What must not be killed, in whatever cgroup it is.
    executables: BTreeSet<String>,
    units: BTreeSet<String>,
}

impl Guard {
    /// Spares these node components, besides those that are always spared. `proc` is the mount point of the process
    /// file system.
    #[must_use]
    pub fn new(proc: &Path, components: &[NodeComponent]) -> Self {
        let mut executables = BTreeSet::from(COMPONENTS.map(str::to_owned));
        let mut units = BTreeSet::new();
        for component in components {
            match component {
                NodeComponent::Executable(name) => executables.insert(name.clone()),
                NodeComponent::Unit(name) => units.insert(name.clone()),
            };
        }
        Self { proc: proc.to_owned(), executables, units }
    }

    /// Whether the cgroup must never be adopted or evicted, by its path and by every process in or below it.
    ///
    /// A candidate is checked when it is opened, and again every 2 s while a threshold may be crossed soon: the path stays, but
    /// processes come.
    pub(crate) fn forbidden(&self, dir: &CgroupDir, origin: Origin) -> Result<Option<Forbidden>, Error> {
        if dir.path().is_root() {
            return Ok(Some(Forbidden::Root));
        }
        let mut found = dir.path().names().find_map(|name| self.unit(name, origin));
        let processes = Processes::open(&self.proc);
        let mut visit = |visited: Visited<'_>| {
            if found.is_some() {
                return;
            }
            found = match visited {
                // No unit has a name that is no text.
                Visited::Cgroup(name) => name.to_str().and_then(|name| self.unit(name, origin)),
                Visited::Process(pid) => match &processes {
                    Ok(processes) => self.process(processes, pid, origin),
                    Err(errno) => unknown(pid, *errno, origin),
                },
            };
        };
        let unseen = walk(dir, 0, &mut { MAX_CGROUPS }, &mut visit)?;
        Ok(found.or_else(|| match origin {
            Origin::Made => None,
            Origin::Adopted => unseen.map(Forbidden::Unseen),
        }))
    }

    /// A cgroup within a pod may have any name.
    fn unit(&self, name: &str, origin: Origin) -> Option<Forbidden> {
        let is_unit = origin == Origin::Adopted && self.units.contains(name);
        is_unit.then(|| Forbidden::HoldsUnit { name: name.to_owned() })
    }

    fn process(&self, processes: &Processes, pid: u32, origin: Origin) -> Option<Forbidden> {
        if pid == 1 {
            return Some(Forbidden::HoldsInit);
        }
        if pid == std::process::id() {
            return Some(Forbidden::HoldsDaemon);
        }
        match self.look(processes, pid, origin) {
            Ok(found) => found,
            Err(errno) if is_gone(errno) => None,
            Err(errno) => unknown(pid, errno, origin),
        }
    }

    /// Identifies a process by its executable and its user, as it chooses its name and its score itself.
    fn look(&self, processes: &Processes, pid: u32, origin: Origin) -> rustix::io::Result<Option<Forbidden>> {
        let process = processes.get(pid)?;
        // The contract of adoption names the score itself.
        if origin == Origin::Adopted && process.score()? == OOM_SCORE_ADJ_MIN {
            return Ok(Some(Forbidden::HoldsUnkillable { pid }));
        }
        let Some(name) = process.executable()? else { return Ok(None) };
        let is_supervisor = origin == Origin::Adopted && SUPERVISORS.contains(&name.as_str());
        if !is_supervisor && !self.executables.contains(&name) {
            return Ok(None);
        }
        let is_component = process.is_host_process(&processes.get(1)?, origin == Origin::Adopted)?;
        Ok(is_component.then_some(Forbidden::HoldsComponent { pid, name }))
    }
}

fn unknown(pid: u32, errno: Errno, origin: Origin) -> Option<Forbidden> {
    match origin {
        Origin::Made => None,
        Origin::Adopted => Some(Forbidden::HoldsUnknown { pid, errno }),
    }
}

/// Calls `visit` for every process in or below the cgroup that is in this daemon's PID namespace. Returns why there may
/// be others.
pub(crate) fn each_process(dir: &CgroupDir, visit: &mut dyn FnMut(u32)) -> Result<Option<Unseen>, Error> {
    walk(dir, 0, &mut { MAX_CGROUPS }, &mut |visited| match visited {
        Visited::Process(pid) => visit(pid),
        Visited::Cgroup(_) => {}
    })
}

/// Something found while walking a cgroup and those below it.
enum Visited<'a> {
    Process(u32),
    /// A cgroup below, by its name.
    Cgroup(&'a OsStr),
}

/// Walks no more than `left` cgroups below it, which it counts down.
fn walk(
    dir: &CgroupDir,
    depth: u32,
    left: &mut u32,
    visit: &mut dyn FnMut(Visited<'_>),
) -> Result<Option<Unseen>, Error> {
    let mut unseen = match dir.open_read("cgroup.procs") {
        Ok(procs) => list(&procs, depth, visit),
        Err(error) if error.is_gone() => None,
        Err(error) => return Err(error),
    };
    for name in dir.children()? {
        if depth >= MAX_DEPTH {
            unseen.get_or_insert(Unseen::TooDeep);
            break;
        }
        let Some(fewer) = left.checked_sub(1) else {
            unseen.get_or_insert(Unseen::TooMany);
            break;
        };
        *left = fewer;
        match dir.open_below(&name) {
            Ok(child) => {
                visit(Visited::Cgroup(&name));
                unseen = walk(&child, depth + 1, left, visit)?.or(unseen);
            }
            // A cgroup that is removed meanwhile holds nothing.
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(unseen)
}

/// Visits the processes directly in a cgroup, from its open list.
fn list(procs: &OwnedFd, depth: u32, visit: &mut dyn FnMut(Visited<'_>)) -> Option<Unseen> {
    let mut outside = None;
    let read = each_number(procs, &mut |pid| match pid {
        0 => outside = Some(Unseen::Outside),
        pid => visit(Visited::Process(pid)),
    });
    match read {
        Ok(()) | Err(Errno::NODEV) => outside,
        // A threaded cgroup has no list. Its domain has, and the walk covers that unless it began here
        // (`cgroup_procs_start`).
        Err(Errno::OPNOTSUPP) if depth > 0 => outside,
        Err(Errno::OPNOTSUPP) => Some(Unseen::Threaded),
        Err(errno) => Some(Unseen::Unread(errno)),
    }
}

#[cfg(test)]
mod tests;
