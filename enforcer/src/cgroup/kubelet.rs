//! Recognizes a running kubelet by its identity: any process can be called `kubelet`.

use std::{
    collections::BTreeSet,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::io::Errno;

use super::{
    process::{Process, Processes},
    recent::Recent,
};

/// The arguments with which such a program is asked for something else.
const NO_KUBELET: [&str; 5] = ["--version", "--version=true", "--help", "-h", "--disable-agent"];

/// While no kubelet is known, all processes are looked at this often: a script may wait before it becomes one.
const LOOK_AT_ALL: Duration = Duration::from_mins(2);

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

/// Finds the same processes again and again. After the first two searches only those are looked at that were started since,
/// and now and then all.
#[derive(Debug)]
pub struct KubeletSearch {
    proc: PathBuf,
    recent: Recent,
    /// When this began to look at all processes last.
    all_at: Option<Instant>,
    found: BTreeSet<u32>,
}

impl KubeletSearch {
    /// They are to be found below `proc`.
    #[must_use]
    pub fn new(proc: &Path) -> Self {
        Self { proc: proc.to_owned(), recent: Recent::default(), all_at: None, found: BTreeSet::new() }
    }

    /// The one that was started last: while a kubelet is restarted, there may be two. Fails if /proc or process 1 cannot be
    /// read.
    pub fn latest(&mut self, now: Instant) -> rustix::io::Result<Option<KubeletProcess>> {
        let processes = Processes::open(&self.proc)?;
        let init = processes.get(1)?;
        let look = |pid: &u32| kubelet(&processes, &init, *pid, settings).ok().flatten();
        let known: Vec<KubeletProcess> = self.found.iter().filter_map(look).collect();
        let is_due = || self.all_at.is_none_or(|at| now.saturating_duration_since(at) >= LOOK_AT_ALL);
        // Where one has ended, the next one may have been looked at before it was one.
        if known.len() < self.found.len() || known.is_empty() && is_due() {
            (self.recent, self.all_at) = (Recent::default(), Some(now));
        }
        let newest = processes.newest().ok();
        let mut found = known;
        if self.recent.wants_look(newest, now) {
            let since = self.recent.look(newest, now);
            let started = processes.started(since, newest)?.into_iter();
            let others = started.filter(|pid| found.iter().all(|known| known.pid != *pid));
            let may_be_one = others.filter(|pid| processes.may_run(*pid, has_kubelet));
            let new: Vec<KubeletProcess> = may_be_one.filter_map(|pid| look(&pid)).collect();
            found.extend(new);
        }
        self.found = found.iter().map(|process| process.pid).collect();
        Ok(found.into_iter().max_by_key(|process| process.start_ticks))
    }
}

fn settings(pid: u32, process: &Process, program: String) -> rustix::io::Result<KubeletProcess> {
    Ok(KubeletProcess {
        pid,
        start_ticks: process.start_ticks()?,
        program,
        arguments: process.words()?,
        environment: process.environment().unwrap_or_default(),
        root: process.root()?,
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
    let pids = processes.pids()?.into_iter().filter(|pid| processes.may_run(*pid, has_kubelet));
    Ok(pids.filter_map(|pid| kubelet(&processes, &init, pid, &read).ok().flatten()).collect())
}

/// What `read` gives of the process, if it is the host's own kubelet.
fn kubelet<T>(
    processes: &Processes,
    init: &Process,
    pid: u32,
    read: impl Fn(u32, &Process, String) -> rustix::io::Result<T>,
) -> rustix::io::Result<Option<T>> {
    let process = processes.get(pid)?;
    let Some(name) = process.executable()? else { return Ok(None) };
    if !is_hosts_kubelet(&process, &name, init)? {
        return Ok(None);
    }
    Ok::<_, Errno>(Some(read(pid, &process, name)?))
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
