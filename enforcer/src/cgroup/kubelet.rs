//! Recognizes a running kubelet by its identity: any process can be called `kubelet`.

use std::{collections::BTreeSet, os::fd::OwnedFd, path::Path};

use rustix::io::Errno;

use super::process::{Process, Processes};

/// The arguments with which such a program is asked for something else.
const NO_KUBELET: [&str; 5] = ["--version", "--version=true", "--help", "-h", "--disable-agent"];

/// A process of this host's own kubelet, with what it says about its settings.
#[derive(Debug)]
pub struct KubeletProcess {
    /// Its id.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// The file name of its program.
    pub program: String,
    /// The words after its program's name; `None` if it shows a title instead.
    pub arguments: Option<Vec<String>>,
    /// The variables that it was started with, each as `NAME=value`; none if it does not show them.
    pub environment: Vec<String>,
    /// Its root folder, below which are the files that it names.
    pub root: OwnedFd,
}

/// The processes of this host's own kubelet below `proc`, by id and start in clock ticks since boot.
///
/// A process that cannot be identified is none: a kubelet in a container of its own is known by its kubepods. Fails if
/// /proc or process 1 cannot be read.
pub fn kubelets(proc: &Path) -> rustix::io::Result<BTreeSet<(u32, u64)>> {
    let found = find(proc, |pid, process, _program| Ok((pid, process.start_ticks()?)))?;
    Ok(found.into_iter().collect())
}

/// The same processes, with what they say about their settings.
pub fn kubelet_processes(proc: &Path) -> rustix::io::Result<Vec<KubeletProcess>> {
    find(proc, |pid, process, program| {
        Ok(KubeletProcess {
            pid,
            start_ticks: process.start_ticks()?,
            program,
            arguments: process.words()?,
            environment: process.environment().unwrap_or_default(),
            root: process.root()?,
        })
    })
}

/// The root folder of process 1.
pub fn hosts_root(proc: &Path) -> rustix::io::Result<OwnedFd> {
    Processes::open(proc)?.get(1)?.root()
}

fn find<T>(
    proc: &Path,
    read: impl Fn(u32, &Process, String) -> rustix::io::Result<T>,
) -> rustix::io::Result<Vec<T>> {
    let processes = Processes::open(proc)?;
    let init = processes.get(1)?;
    let kubelet = |pid: u32| {
        let process = processes.get(pid)?;
        let Some(name) = process.executable()? else { return Ok(None) };
        if !is_hosts_kubelet(&process, &name, &init)? {
            return Ok(None);
        }
        Ok::<_, Errno>(Some(read(pid, &process, name)?))
    };
    let pids = processes.pids()?.into_iter().filter(|pid| processes.may_run(*pid, has_kubelet));
    Ok(pids.filter_map(|pid| kubelet(pid).ok().flatten()).collect())
}

/// Whether a program of that name may be or start a kubelet.
pub(super) fn has_kubelet(program: &str) -> bool {
    matches!(program, "kubelet" | "kubelite" | "k3s")
}

/// Whether a process, whose program has that file name, is the host's own kubelet or has one in it. `init` is process 1.
pub(super) fn is_hosts_kubelet(
    process: &Process,
    executable: &str,
    init: &Process,
) -> rustix::io::Result<bool> {
    let is_asked = |word: &String| NO_KUBELET.contains(&word.as_str());
    let may_be = match executable {
        // k0s and rke2 start a kubelet as a process of its own.
        "kubelet" | "kubelite" => !process.arguments()?.iter().any(is_asked),
        // The same program is also kubectl, crictl and ctr.
        "k3s" => {
            let arguments = process.arguments()?;
            matches!(arguments.first().map(String::as_str), Some("server" | "agent"))
                && !arguments.iter().any(is_asked)
        }
        _ => false,
    };
    Ok(may_be && !process.is_below_kubepods()? && process.is_host_process(init, false)?)
}
