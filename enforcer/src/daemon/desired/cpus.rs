//! The CPUs that containers have of their own: what the machine has, who has which, and what is on the disk.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use super::Desired;
use crate::{
    cgroup::Problem,
    daemon::{
        cpu_state::{self, CpuStore, WHAT},
        emit,
        specifying::RunningKubelet,
    },
    model::{Node, PodUid, ResourceName},
    policy::{
        CpuManagerPolicy, Settings,
        admission::{CpuMachine, Cpus},
        allocatable,
        cpus::{Assignments, CpuSet, Problem as CpuProblem, Topology, reserve},
    },
    sense,
    source::CpuGrounds,
};

/// The time between two looks at which CPUs are online.
const LOOK: Duration = Duration::from_secs(5);

/// Who has which CPUs.
#[derive(Debug)]
pub(super) enum PinnedCpus {
    /// This daemon decides.
    Own(Box<OwnCpus>),
    /// The kubelet does, and this is what it has decided; `None` if that cannot be read.
    Kubelets(Option<Assignments>),
}

/// What this daemon decides about CPUs.
#[derive(Debug)]
pub(super) struct OwnCpus {
    cpus: Cpus,
    assignments: Assignments,
    /// Keeps them on the disk; `None` where nothing is written.
    store: Option<CpuStore>,
    /// The pods that got CPUs, by the number under which that is written.
    unwritten: BTreeMap<PodUid, u64>,
    /// Whether the pods that have cgroups are known.
    has_stood: bool,
}

impl OwnCpus {
    pub(super) fn new(cpus: Cpus, assignments: Assignments, store: Option<CpuStore>) -> Self {
        Self { cpus, assignments, store, unwritten: BTreeMap::new(), has_stood: false }
    }

    /// Takes who has which CPUs from now on.
    fn take(&mut self, assignments: Assignments) {
        if self.assignments == assignments {
            return;
        }
        if let Some(store) = &mut self.store {
            let number = store.keep(assignments.clone());
            let (before, now) = (&self.assignments.entries, &assignments.entries);
            let new = now.iter().filter(|(uid, containers)| before.get(*uid) != Some(containers));
            self.unwritten.extend(new.map(|(uid, _)| (uid.clone(), number)));
        }
        self.assignments = assignments;
    }

    /// Notes which CPUs are online; returns whether that differs.
    fn look(&mut self, root: &Path) -> bool {
        let Ok(machine) = &mut self.cpus else { return false };
        // Unreadable is not offline.
        let Ok(online) = sense::online_cpus(root) else { return false };
        let grown =
            || sense::cpu_topology(root).ok().filter(|grown| machine.topology.cpus().is_subset(grown.cpus()));
        if !online.is_subset(machine.topology.cpus())
            && let Some(grown) = grown()
        {
            *machine = CpuMachine { topology: grown, offline: CpuSet::new(), ..machine.clone() };
            return true;
        }
        let offline = machine.topology.cpus().difference(&online);
        std::mem::replace(&mut machine.offline, offline) != machine.offline
    }

    /// What is wrong; `name` is a pod's for a person.
    fn problems(&self, name: impl Fn(&PodUid) -> String) -> Vec<Problem> {
        let problem = |place: String, message: String| Problem { what: WHAT, place, message };
        let machine = match &self.cpus {
            Ok(machine) => machine,
            Err(why) => {
                let message = format!("no container gets CPUs of its own: {why}");
                return vec![problem(String::from("machine"), message)];
            }
        };
        let CpuMachine { topology, reserved, offline, .. } = machine;
        let name_of = |owner: &crate::policy::cpus::Owner| {
            format!("container {} of pod {}", owner.container, name(&owner.pod))
        };
        let of_cpu = |cpu: u16| {
            let owner = self.assignments.owners().find(|(_, cpus)| cpus.contains(cpu));
            let whose = match owner {
                Some((owner, cpus)) => format!("{} has CPUs {cpus} of its own", name_of(&owner)),
                None => String::from("it is one of those that containers share"),
            };
            let message = format!(
                "CPU {cpu} is offline: {whose}; nothing is changed, and no other container gets it: `echo 1 > \
                 /sys/devices/system/cpu/cpu{cpu}/online` brings it back"
            );
            problem(format!("cpu{cpu}"), message)
        };
        let mut problems: Vec<Problem> = offline.iter().map(of_cpu).collect();
        for found in self.assignments.valid_for(topology, reserved) {
            let place = match &found {
                CpuProblem::Offline { owner, .. }
                | CpuProblem::Reserved { owner, .. }
                | CpuProblem::Shared { owner, .. }
                | CpuProblem::Resized { owner, .. }
                | CpuProblem::TwoOwners { second: owner, .. } => name_of(owner),
                // They follow from each decision, or from the above.
                CpuProblem::SharedPoolOffline { .. }
                | CpuProblem::ReservedNotShared { .. }
                | CpuProblem::Unassigned { .. } => continue,
                CpuProblem::Policy { .. } | CpuProblem::SharedPoolEmpty => String::from("shared"),
            };
            let message = format!(
                "{found}: nothing is changed while the pod is there; what is recorded is in cpu_manager_state in the state directory"
            );
            problems.push(problem(place, message));
        }
        problems
    }
}

impl PinnedCpus {
    /// What admission depends on; `None` if another decides.
    pub(super) fn grounds(&self, is_loaded: bool) -> Option<CpuGrounds<'_>> {
        match self {
            Self::Own(own) => Some(CpuGrounds {
                cpus: &own.cpus,
                assignments: &own.assignments,
                keeps_unknown: !(is_loaded && own.has_stood),
            }),
            Self::Kubelets(_) => None,
        }
    }

    /// Takes what was decided. Returns the pods that must not start yet: what they got is not on the disk.
    pub(super) fn take(&mut self, decided: Option<Assignments>) -> BTreeSet<PodUid> {
        let Self::Own(own) = self else { return BTreeSet::new() };
        if let Some(assignments) = decided {
            own.take(assignments);
        }
        let written = own.store.as_ref().map_or(u64::MAX, CpuStore::written);
        own.unwritten.retain(|_, number| *number > written);
        own.unwritten.keys().cloned().collect()
    }

    /// Whether pods may start that had to wait for the disk.
    pub(super) fn is_due(&self) -> bool {
        let Self::Own(own) = self else { return false };
        let written = own.store.as_ref().map_or(u64::MAX, CpuStore::written);
        own.unwritten.values().any(|number| *number <= written)
    }

    /// Notes that the pods which have cgroups are known.
    pub(super) fn stand(&mut self) {
        if let Self::Own(own) = self {
            own.has_stood = true;
        }
    }

    /// Who has which CPUs; `None` if nothing is known of them.
    pub(super) fn assignments(&self) -> Option<&Assignments> {
        let assignments = match self {
            Self::Own(own) => &own.assignments,
            Self::Kubelets(assignments) => assignments.as_ref()?,
        };
        (!assignments.default_cpu_set.is_empty()).then_some(assignments)
    }
}

/// The machine's CPUs, as far as they are to be given to containers.
pub(crate) fn machine(root: &Path, node: &Node, settings: &Settings, controllers: &str) -> Cpus {
    if !controllers.split_ascii_whitespace().any(|name| name == "cpuset") {
        return Err(String::from(
            "the kernel keeps no cgroup to certain CPUs, as the controller cpuset is not on cgroup v2",
        ));
    }
    let topology = sense::cpu_topology(root)
        .map_err(|error| format!("what the machine's CPUs share is not known: {}", crate::chain(&error)))?;
    machine_of(topology, node, settings)
}

/// A machine of that topology.
pub(crate) fn machine_of(topology: Topology, node: &Node, settings: &Settings) -> Cpus {
    let options = settings.cpu_manager_options;
    let reserved = if settings.reserved_system_cpus.is_empty() {
        let amounts = allocatable::reserved(&allocatable::capacity(node), settings);
        let milli = amounts.get(ResourceName::CPU).map_or(0, |cpu| cpu.milli());
        let count = u32::try_from(milli.div_ceil(1_000)).unwrap_or(u32::MAX);
        reserve(&topology, count, options)
            .map_err(|refusal| format!("the reserved cpu is not there: {refusal}"))?
    } else {
        settings.reserved_system_cpus.clone()
    };
    Ok(CpuMachine { topology, reserved, offline: CpuSet::new(), options })
}

/// When CPUs are looked at, and where.
#[derive(Debug)]
pub(super) struct CpuLook {
    root: PathBuf,
    kubelet: RunningKubelet,
    due: Instant,
}

impl Desired {
    /// Takes over who has which CPUs, and keeps it on the disk from now on.
    pub(in crate::daemon) fn restore_cpus(&mut self, kubelet: RunningKubelet) {
        if self.config.settings.cpu_manager_policy == CpuManagerPolicy::None {
            return;
        }
        self.cpu_look = Some(CpuLook { root: PathBuf::from(sense::CPUS), kubelet, due: Instant::now() });
        if self.placing.is_some() {
            self.pods.set_cpus(PinnedCpus::Kubelets(None));
            return self.look_at_cpus();
        }
        let kept = cpu_state::read(&self.config.state_dir).unwrap_or_else(|error| {
            let message =
                format!("containers may get other CPUs of their own than before: {}", crate::chain(&error));
            emit::degraded(&self.journal, WHAT, &message);
            None
        });
        let store = self
            .permit
            .is_some()
            .then(|| CpuStore::start(&self.config.state_dir, Arc::clone(&self.woken), self.journal.clone()));
        let store = store.and_then(|store| {
            let report = |error: &std::io::Error| {
                let message = format!(
                    "after a restart, containers may get other CPUs of their own: no thread: {error}"
                );
                emit::degraded(&self.journal, WHAT, &message);
            };
            store.inspect_err(report).ok()
        });
        let controllers =
            self.hierarchy.as_ref().and_then(|hierarchy| hierarchy.root().read("cgroup.controllers").ok());
        let cpus = machine(
            Path::new(sense::CPUS),
            self.pods.node(),
            &self.config.settings,
            &controllers.unwrap_or_default(),
        );
        let own = OwnCpus::new(cpus, kept.unwrap_or_default(), store);
        self.pods.set_cpus(PinnedCpus::Own(Box::new(own)));
        self.look_at_cpus();
    }

    /// Looks at which CPUs are online, or at what a kubelet has decided, if it is time to. Its consequences are decided with
    /// the next work.
    pub(super) fn look_at_cpus(&mut self) {
        let now = Instant::now();
        let Some(look) = self.cpu_look.as_mut().filter(|look| look.due <= now) else { return };
        look.due = now + LOOK;
        let (root, kubelet_root) = (look.root.clone(), look.kubelet.last_folders().root);
        let mut problems = Vec::new();
        let differs = match self.pods.cpus_mut() {
            Some(PinnedCpus::Own(own)) => own.look(&root),
            Some(PinnedCpus::Kubelets(known)) => {
                let read = cpu_state::look(&kubelet_root);
                if let Err(error) = &read {
                    problems.push(Problem {
                        what: WHAT,
                        place: cpu_state::path(&kubelet_root).display().to_string(),
                        message: format!(
                            "which CPUs containers are to have is not known, and not compared: cannot read {}: {error}",
                            cpu_state::path(&kubelet_root).display()
                        ),
                    });
                }
                let read = read.ok();
                std::mem::replace(known, read.clone()) != read
            }
            None => false,
        };
        if differs {
            self.pods.is_due_for_cpus();
            self.schedule.request_resync(now);
        }
        problems.extend(self.cpu_problems());
        self.cpu_problems.renew(problems, &self.journal);
    }

    /// When [`Self::look_at_cpus`] must be called.
    pub(super) fn cpus_due(&self) -> Option<Instant> {
        self.cpu_look.as_ref().map(|look| look.due)
    }

    fn cpu_problems(&self) -> Vec<Problem> {
        let name = |uid: &PodUid| {
            self.pods.roster().get(uid).map_or_else(|| uid.to_string(), |entry| entry.pod.name.to_string())
        };
        match self.pods.cpus() {
            Some(PinnedCpus::Own(own)) => own.problems(name),
            Some(PinnedCpus::Kubelets(_)) | None => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
