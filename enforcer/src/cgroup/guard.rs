use std::{
    fs,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
};

use super::{CgroupDir, Error};
use crate::model::CgroupPath;

/// Deeper than this nobody nests cgroups below a pod.
const MAX_DEPTH: u32 = 16;

/// A process with this score is not to be killed for memory by anybody.
const OOM_SCORE_ADJ_MIN: i32 = -1000;

/// The executables of the kubelet and of container runtimes' daemons. Their shims are not among them: those may stand
/// in a pod's cgroup.
const COMPONENTS: &[&str] = &["kubelet", "containerd", "crio", "dockerd"];

/// Why a cgroup can neither be adopted nor evicted.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Forbidden {
    /// It is the root of the hierarchy.
    #[error("it is the root of the hierarchy")]
    Root,
    /// It holds this daemon, itself or further down.
    #[error("it holds this daemon")]
    HoldsDaemon,
    /// It holds process 1.
    #[error("it holds process 1")]
    HoldsInit,
    /// It holds the kubelet or a container runtime.
    #[error("it holds process {pid}, which is {name}")]
    HoldsComponent {
        /// The process.
        pid: u32,
        /// Its executable.
        name: &'static str,
    },
    /// It holds a process that no shortage of memory may kill.
    #[error("it holds process {pid} with an oom_score_adj of -1000")]
    HoldsUnkillable {
        /// The process.
        pid: u32,
    },
}

/// Whether the cgroup must never be adopted or evicted, by its place and by every process at or below it.
///
/// It is looked at once, when a candidate is opened: a pod's processes do not get into the daemon's ancestors, and
/// a score of -1000 takes a capability that pods do not have by default. One that is raised later is seen when the
/// candidate is next opened.
pub(crate) fn forbidden(dir: &CgroupDir) -> Result<Option<Forbidden>, Error> {
    if dir.path().is_root() {
        return Ok(Some(Forbidden::Root));
    }
    let own = std::process::id();
    let mut found = None;
    each_process(dir, 0, &mut |pid| {
        let reason = match pid {
            1 => Some(Forbidden::HoldsInit),
            pid if pid == own => Some(Forbidden::HoldsDaemon),
            pid if oom_score_adj(pid) == Some(OOM_SCORE_ADJ_MIN) => Some(Forbidden::HoldsUnkillable { pid }),
            pid => component(pid).map(|name| Forbidden::HoldsComponent { pid, name }),
        };
        if found.is_none() {
            found = reason;
        }
    })?;
    Ok(found)
}

/// Calls `visit` for every process at or below the cgroup that this daemon's pid namespace knows.
pub(crate) fn each_process(dir: &CgroupDir, depth: u32, visit: &mut dyn FnMut(u32)) -> Result<(), Error> {
    match dir.open_read("cgroup.procs") {
        Ok(procs) => each_number(&procs, visit),
        Err(error) if error.is_gone() => {}
        Err(error) => return Err(error),
    }
    if depth >= MAX_DEPTH {
        return Ok(());
    }
    for name in dir.children()? {
        // What the kernel shows is a name; one that goes meanwhile holds nothing.
        let Ok(path) = CgroupPath::root().child(&name) else { continue };
        match dir.open(&path) {
            Ok(child) => each_process(&child, depth + 1, visit)?,
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads numbers line by line, however many there are. A read error ends it: a threaded cgroup has no list
/// (`EOPNOTSUPP`), and its threaded domain, further up, lists the processes.
fn each_number(fd: &OwnedFd, visit: &mut dyn FnMut(u32)) {
    let mut chunk = [0_u8; 4096];
    let mut number: Option<u32> = None;
    loop {
        let count = match rustix::io::retry_on_intr(|| rustix::io::read(fd, &mut chunk)) {
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        for byte in chunk.iter().take(count) {
            if byte.is_ascii_digit() {
                let digit = u32::from(byte - b'0');
                number = Some(number.unwrap_or(0).saturating_mul(10).saturating_add(digit));
            } else if let Some(number) = number.take()
                // 0 stands for a process of another pid namespace.
                && number != 0
            {
                visit(number);
            }
        }
    }
    if let Some(number) = number.filter(|number| *number != 0) {
        visit(number);
    }
}

/// The component of the node that a process is, by its executable: anybody can give a process another's name.
fn component(pid: u32) -> Option<&'static str> {
    let name = host_executable(pid)?;
    COMPONENTS.iter().copied().find(|component| *component == name)
}

/// The name of a process's executable, if only the host's root can have made it: in the mount namespace of process 1,
/// owned by root, and written by nobody else. What a container names so is not believed.
pub(super) fn host_executable(pid: u32) -> Option<String> {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let exe = format!("/proc/{pid}/exe");
    let path = fs::read_link(&exe).ok()?;
    let name = path.file_name()?.to_str()?.to_owned();
    let is_roots =
        fs::metadata(&exe).is_ok_and(|metadata| metadata.uid() == 0 && metadata.mode() & 0o022 == 0);
    (is_roots && namespace("1")? == namespace(&pid.to_string())?).then_some(name)
}

fn oom_score_adj(pid: u32) -> Option<i32> {
    fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).ok()?.trim_ascii().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(procs: &str) -> Option<Forbidden> {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir_all(temp.path().join("pod/container")).unwrap();
        fs::write(temp.path().join("pod/container/cgroup.procs"), procs).unwrap();
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        forbidden(&root.open(&CgroupPath::parse("pod").unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn what_holds_init_or_the_daemon_further_down_is_spared() {
        assert_eq!(check(""), None);
        assert_eq!(check("0\n4194304\n"), None);
        assert_eq!(check("4194304\n1\n"), Some(Forbidden::HoldsInit));
        assert_eq!(check(&format!("{}\n", std::process::id())), Some(Forbidden::HoldsDaemon));
    }

    #[test]
    fn the_root_is_spared() {
        let temp = tempfile::tempdir().unwrap();
        assert_eq!(forbidden(&CgroupDir::unchecked(temp.path()).unwrap()).unwrap(), Some(Forbidden::Root));
    }

    #[test]
    fn a_list_longer_than_one_read_is_read_whole() {
        let temp = tempfile::tempdir().unwrap();
        let list: Vec<_> = (4_194_305..4_204_305).map(|pid: u32| pid.to_string()).collect();
        fs::write(temp.path().join("cgroup.procs"), list.join("\n")).unwrap();
        let mut seen = Vec::new();
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        each_process(&root, 0, &mut |pid| seen.push(pid)).unwrap();
        assert_eq!(seen, (4_194_305..4_204_305).collect::<Vec<_>>());
    }
}
