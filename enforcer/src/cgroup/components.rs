//! OOM scores of the node's own components and of pods' sandboxes.
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    sync::{Arc, Mutex},
    time::Instant,
};

use rustix::io::Errno;

use super::{
    CgroupDir, Error, Permit,
    drift::{Contest, ROUNDS, Verdict},
    kubelet::{has_kubelet, is_hosts_kubelet},
    process::{Process, Processes, is_gone},
    recent::Recent,
    score::is_within,
    score_record::ComponentRecord,
};
use crate::{
    model::{CgroupPath, NodeComponent},
    policy::{Plan, oom_score},
};

mod unit;

/// The component that this very process is.
const OURSELVES: &str = "enforcer";

/// Keeps the node's own components at −999 and pods' pause processes at −998.
///
/// A component named as a program is matched by the file that it runs, never by its process name, which any process can
/// choose. Because anyone can also call a file `kubelet`, the process must run as root, in our own PID namespace and
/// outside every pod. A component named as a unit is every process in the unit's own cgroup. A pause process is known by
/// what a container runtime alone can do.
#[derive(Debug)]
pub struct Components {
    processes: Processes,
    executables: BTreeSet<String>,
    units: unit::Units,
    own: u32,
    own_namespace: String,
    recent: Recent,
    /// What was done about each relevant process, by id and start time.
    known: BTreeMap<(u32, u64), Known>,
    /// A kubelet that the last look found, by id and start time.
    kubelet: Option<(u32, u64)>,
}

#[derive(Clone, Debug, Default)]
struct Known {
    /// Whether it ever had the right score.
    was_right: bool,
    /// Whether another process insists on its score.
    contest: Contest,
    /// Why it was left with another score, as reported.
    reported: Option<ScoreFate>,
    /// The component that it belongs to; `None` for a sandbox.
    component: Option<String>,
}

/// A process of one of the node's own components.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Member {
    /// Its id in our own PID namespace.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// The component: a unit, or the file name of a program; `enforcer` for this very process.
    pub name: String,
}

/// The processes of the node's own components, as last looked at.
pub type Members = Arc<Mutex<Vec<Member>>>;

/// One of the node's own processes that had a wrong score.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ComponentScore {
    /// Its id in our own PID namespace.
    pub pid: u32,
    /// The file name of its program. The file's creator chose it: escape it for display.
    pub executable: String,
    /// Its cgroup from /proc; empty without cgroup v2.
    pub cgroup: String,
    /// The score that it had.
    pub found: i16,
    /// The score that it should have.
    pub wanted: i16,
    /// What was done.
    pub fate: ScoreFate,
}

/// What was done about a wrong score.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ScoreFate {
    /// The right score was set for the first time.
    Set,
    /// It had the right score before, and has it again.
    Restored,
    /// It was corrected three times within a minute already, and is corrected later.
    Delayed,
    /// It is only reported: we must not write.
    Audited,
    /// Lowering it needs `CAP_SYS_RESOURCE`.
    Refused,
}

/// What a look found.
#[derive(Debug, Default)]
#[must_use]
pub struct ComponentReport {
    /// The processes with a wrong score; one that keeps it is reported once.
    pub scores: Vec<ComponentScore>,
    /// How many processes we may not look at: `CAP_SYS_PTRACE` is needed for those with more capabilities than ours.
    pub hidden: usize,
    /// What could not be looked at.
    pub errors: Vec<ComponentError>,
    /// The pid of this host's own kubelet, if this look and the one before found it: another may end at once, as one does that
    /// is not set up yet.
    pub kubelet: Option<u32>,
}

/// Why something could not be looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ComponentError {
    /// A cgroup could not be read.
    #[error(transparent)]
    Cgroup(#[from] Error),
    /// The list of processes could not be read.
    #[error("cannot list the processes")]
    Processes(#[source] io::Error),
    /// A file of a process could not be accessed.
    #[error("cannot look at process {pid}")]
    Process {
        /// The process.
        pid: u32,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
}

/// The program of one of the node's processes, and the score that it should have.
struct Role {
    wanted: i16,
    executable: String,
    /// The component that it belongs to; `None` for a sandbox.
    component: Option<String>,
}

/// One look in progress.
struct Pass<'a> {
    /// Scores are recorded there.
    root: &'a CgroupDir,
    permit: Option<&'a Permit>,
    now: Instant,
    /// The processes that were looked at, by id and start.
    seen: BTreeSet<(u32, u64)>,
    report: ComponentReport,
}

impl Components {
    /// Looks after these components and this very process, through the process file system mounted at `proc`.
    pub fn new(proc: &Path, components: &[NodeComponent]) -> io::Result<Self> {
        let processes = Processes::open(proc)?;
        let own = std::process::id();
        let own_namespace = processes.get(own)?.pid_namespace()?;
        let (mut executables, mut units) = (BTreeSet::new(), BTreeSet::new());
        for component in components {
            match component {
                NodeComponent::Executable(name) => executables.insert(name.clone()),
                NodeComponent::Unit(name) => units.insert(name.clone()),
            };
        }
        Ok(Self {
            processes,
            executables,
            units: unit::Units::new(units),
            own,
            own_namespace,
            recent: Recent::default(),
            known: BTreeMap::new(),
            kubelet: None,
        })
    }

    /// Whether processes were started since the last look, or it is long ago. Cheap.
    #[must_use]
    pub fn wants_look(&self, now: Instant) -> bool {
        self.recent.wants_look(self.processes.newest().ok(), now)
            || self.kubelet.is_some()
            || self.known.values().any(|known| known.contest.is_overdue(now))
    }

    /// The processes of components that the last look found.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        let member = |(&(pid, start_ticks), known): (&(u32, u64), &Known)| {
            Some(Member { pid, start_ticks, name: known.component.clone()? })
        };
        self.known.iter().filter_map(member).collect()
    }

    /// Looks at the processes started since the look before the last one and at the known ones; now and then at all.
    /// Without a permit nothing is written.
    ///
    /// `plan` says which pods exist: a process in a pod is no component. `made_by_runtimes` are the cgroups directly
    /// below pods' that no plan names; those of sandboxes are among them.
    pub fn look(
        &mut self,
        root: &CgroupDir,
        plan: &Plan,
        made_by_runtimes: &BTreeSet<CgroupPath>,
        permit: Option<&Permit>,
        now: Instant,
    ) -> ComponentReport {
        // The thread that looks was started before this read, and does not count.
        let newest = self.processes.newest().ok();
        let since = self.recent.look(newest, now);
        let mut pass = Pass { root, permit, now, seen: BTreeSet::new(), report: ComponentReport::default() };
        self.look_at_programs(plan, (since, newest), &mut pass);
        for dir in self.units.find(root, &plan.node.path, &mut pass.report.errors) {
            self.look_at_cgroup(&dir, true, &mut pass);
        }
        self.look_at_sandboxes(root, made_by_runtimes, &mut pass);
        let Pass { root: _, permit: _, now: _, seen, report } = pass;
        self.known.retain(|process, _| seen.contains(process));
        report
    }

    fn look_at_programs(
        &mut self,
        plan: &Plan,
        (since, newest): (Option<u32>, Option<u32>),
        pass: &mut Pass<'_>,
    ) {
        let started = match self.processes.started(since, newest) {
            Ok(pids) => pids,
            Err(errno) => return pass.report.errors.push(ComponentError::Processes(errno.into())),
        };
        let init = self.processes.get(1).ok();
        let kubelet = self.kubelet.take();
        let mut found_kubelet = None;
        let known = self.known.keys().copied().chain(kubelet).map(|(pid, _)| pid);
        let is_wanted = |program: &str| has_kubelet(program) || self.executables.contains(program);
        let may_be_one = |pid: &u32| *pid == self.own || self.processes.may_run(*pid, is_wanted);
        let pids: BTreeSet<u32> = started.into_iter().filter(may_be_one).chain(known).collect();
        for pid in pids {
            let found = self.processes.get(pid).and_then(|process| {
                let Some(executable) = process.executable()? else { return Ok(None) };
                let is_kubelet = |init| is_hosts_kubelet(&process, &executable, init).unwrap_or(false);
                if init.as_ref().is_some_and(is_kubelet) {
                    found_kubelet = Some((pid, process.start_ticks()?));
                }
                let is_ours = pid == self.own;
                let is_component = is_ours
                    || self.executables.contains(&executable)
                        && process.is_roots()?
                        && process.pid_namespace()? == self.own_namespace
                        && !is_of_a_pod(&process, plan)?;
                let component = Some(if is_ours { String::from(OURSELVES) } else { executable.clone() });
                let role = Role { wanted: oom_score::NODE_COMPONENT, executable, component };
                Ok(is_component.then_some((process, role)))
            });
            match found {
                Ok(Some((process, role))) => self.keep(pid, &process, role, pass),
                Ok(None) => {}
                Err(errno) => emit(pid, errno, &mut pass.report),
            }
        }
        pass.report.kubelet = found_kubelet.filter(|found| Some(*found) == kubelet).map(|(pid, _)| pid);
        self.kubelet = found_kubelet;
    }

    /// Looks at every process directly in a unit's cgroup, or at the sandbox in one that a runtime made.
    fn look_at_cgroup(&mut self, dir: &CgroupDir, is_units: bool, pass: &mut Pass<'_>) {
        let pids = match dir.processes() {
            Ok(pids) => pids,
            Err(error) if error.is_gone() || error.is_unsupported() => return,
            Err(error) => return pass.report.errors.push(error.into()),
        };
        for pid in pids.into_iter().filter(|pid| *pid != 0) {
            let found = self.processes.get(pid).and_then(|process| {
                let Some(executable) = process.executable()? else { return Ok(None) };
                // Read after it was opened: the process that has the id is in the cgroup.
                let is_there = process.cgroup()?.as_deref() == Some(dir.path().as_str());
                let wanted = if is_units { oom_score::NODE_COMPONENT } else { oom_score::SANDBOX };
                // It stays one when the containers have ended that showed it.
                let was_sandbox = || {
                    let key = process.start_ticks().map(|start_ticks| (pid, start_ticks));
                    key.is_ok_and(|key| self.known.get(&key).is_some_and(|known| known.component.is_none()))
                };
                let is_sandbox =
                    || was_sandbox() || self.processes.is_sandbox(pass.root, dir.path(), (pid, &process));
                let concerns = is_there && (is_units || is_sandbox());
                let component = is_units.then(|| dir.path().names().last().unwrap_or_default().to_owned());
                Ok(concerns.then_some((process, Role { wanted, executable, component })))
            });
            match found {
                Ok(Some((process, role))) => self.keep(pid, &process, role, pass),
                Ok(None) => {}
                Err(errno) => emit(pid, errno, &mut pass.report),
            }
        }
    }

    fn look_at_sandboxes(
        &mut self,
        root: &CgroupDir,
        made_by_runtimes: &BTreeSet<CgroupPath>,
        pass: &mut Pass<'_>,
    ) {
        for path in made_by_runtimes {
            match root.open(path) {
                Ok(dir) => self.look_at_cgroup(&dir, false, pass),
                Err(error) if error.is_gone() => {}
                Err(error) => pass.report.errors.push(error.into()),
            }
        }
    }

    /// Sets the score of a process, or reports that it has another.
    fn keep(&mut self, pid: u32, process: &Process, role: Role, pass: &mut Pass<'_>) {
        match self.try_keep(pid, process, role, pass) {
            Ok(score) => pass.report.scores.extend(score),
            Err(errno) => emit(pid, errno, &mut pass.report),
        }
    }

    fn try_keep(
        &mut self,
        pid: u32,
        process: &Process,
        role: Role,
        pass: &mut Pass<'_>,
    ) -> rustix::io::Result<Option<ComponentScore>> {
        let Role { wanted, executable, component } = role;
        let key = (pid, process.start_ticks()?);
        // A component may be named both by its program and by its unit.
        if !pass.seen.insert(key) {
            return Ok(None);
        }
        let found = process.score()?;
        let known = self.known.entry(key).or_default();
        known.component = component;
        if found == wanted {
            known.was_right = true;
            known.reported = None;
            known.contest.settled();
            return Ok(None);
        }
        let is_to_wait = pass.permit.is_some()
            && known.was_right
            && known.contest.judge(&wanted.to_string(), ROUNDS, pass.now) != Verdict::Restore;
        let fate = match pass.permit {
            None => ScoreFate::Audited,
            Some(_) if is_to_wait => ScoreFate::Delayed,
            Some(_) => {
                record(pass.root, &self.processes, (key, found, wanted));
                match process.set_score(wanted) {
                    Ok(()) if std::mem::replace(&mut known.was_right, true) => ScoreFate::Restored,
                    Ok(()) => ScoreFate::Set,
                    Err(Errno::ACCESS | Errno::PERM) => ScoreFate::Refused,
                    Err(errno) => return Err(errno),
                }
            }
        };
        let is_left = match fate {
            ScoreFate::Set | ScoreFate::Restored => false,
            ScoreFate::Delayed | ScoreFate::Audited | ScoreFate::Refused => true,
        };
        let reported = std::mem::replace(&mut known.reported, is_left.then_some(fate));
        if is_left && reported == Some(fate) {
            return Ok(None);
        }
        let cgroup = process.cgroup()?.unwrap_or_default();
        Ok(Some(ComponentScore { pid, executable, cgroup, found, wanted, fate }))
    }
}

/// Records the score of a process before it is given another.
fn record(
    root: &CgroupDir,
    processes: &Processes,
    ((pid, start_ticks), before, written): ((u32, u64), i16, i16),
) {
    let lives = |kept: &ComponentRecord| {
        let start_ticks = processes.get(kept.pid).and_then(|process| process.start_ticks());
        start_ticks == Ok(kept.start_ticks)
    };
    if let Err(error) = root.note_component(ComponentRecord { pid, start_ticks, before, written }, lives) {
        tracing::debug!("a component's score will not be put back by a cleanup: {}", crate::chain(&error));
    }
}

/// Whether a process belongs to a pod, one of ours or one below another kubepods.
fn is_of_a_pod(process: &Process, plan: &Plan) -> rustix::io::Result<bool> {
    let is_planned = process.cgroup()?.is_some_and(|cgroup| is_within(&cgroup, &plan.node.path));
    Ok(is_planned || process.is_below_kubepods()?)
}

fn emit(pid: u32, errno: Errno, report: &mut ComponentReport) {
    match errno {
        Errno::ACCESS | Errno::PERM => report.hidden += 1,
        errno if is_gone(errno) => {}
        errno => report.errors.push(ComponentError::Process { pid, source: errno.into() }),
    }
}

#[cfg(test)]
pub(super) mod tests;
