//! Opens all that a pod's eviction needs ahead of time, as the reflex looks nothing up.

mod per_container;

use std::{
    hash::{BuildHasher as _, RandomState},
    os::fd::OwnedFd,
    sync::{Arc, LazyLock, atomic::AtomicBool},
};

use rustix::io::Errno;

use super::{executor, spec_state::SpecState, stat};
use crate::{
    cgroup::{self, CgroupDir, Forbidden, Guard, Origin},
    journal::MOST_TARGETS,
    model::{
        CgroupFile, CgroupId, CgroupPath, ContainerKind, Knowledge, OwnerReference, PodName, PodUid,
        QosClass, ResourceName,
    },
    policy::{
        ContainerPlan, PodPlan,
        engine::{CandidateFacts, PodKey, Reading, Resource, Usage},
        message::Requests,
    },
    sense::snapshot::{BranchFiles, Charge, Missing, ReadResult},
};

/// A candidate as events identify it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Identity {
    /// Namespace and name.
    pub pod: PodName,
    /// The pod's uid.
    pub uid: PodUid,
    /// Its QoS class.
    pub qos_class: QosClass,
    /// Its effective memory limit in bytes; `None` without a limit.
    pub limit_bytes: Option<u64>,
    /// Its cgroup.
    pub cgroup: CgroupPath,
    /// Its controller; `None` if it has none, or if that is not known.
    pub controller: Option<Arc<OwnerReference>>,
    /// How much is known of it, if another made its cgroups.
    pub placed: Option<Knowledge>,
    /// Where its spec is from at present.
    pub spec: SpecState,
}

/// A pod that can be evicted, with all files open that its eviction needs.
#[derive(Debug)]
pub struct Candidate {
    pub(super) identity: Identity,
    /// `namespace/name`, formatted in advance for code that must not allocate.
    pub(super) label: String,
    pub(super) facts: CandidateFacts,
    pub(super) dir: CgroupDir,
    /// Whether its own cgroup was made for it.
    pub(super) origin: Origin,
    /// Checks it again before it gets SIGTERM or is throttled, and now and then for the eviction thread.
    pub(super) guard: Arc<Guard>,
    /// Whether it must not be killed, by the latest of those checks that was made for the eviction thread.
    pub(super) is_forbidden: AtomicBool,
    /// The cgroups that its memory is charged to: its own, and adopted ones of its containers outside of it. `None` if one of
    /// them has no memory controller: what the pod uses is unknown.
    pub(super) charged: Option<Vec<BranchFiles>>,
    /// `pids.current` of the same cgroups, where it exists.
    pub(super) counted: Vec<OwnedFd>,
    /// `cpu.max` of the pod and of its containers that are killed, and `memory.high` of those that are removed with
    /// them, where the files exist.
    pub(super) brakes: Vec<Brake>,
    /// The pod's `cpu.weight`; `None` if it does not exist, or if the cgroup outlives the kill, since nothing restores
    /// it.
    pub(super) weight: Option<OwnedFd>,
    /// The cgroups to kill, in this order: the pod's former ones come before those into which processes are moved from
    /// them.
    pub(super) targets: Vec<Target>,
    /// Whether processes may be moved from one of them into another.
    pub(super) is_moving: bool,
    /// The ids of targets outside of its own cgroup.
    pub(super) elsewhere: Vec<CgroupId>,
    /// For the intent page: whether all of its own cgroup is killed.
    pub(super) is_whole: bool,
    /// For the intent page: the ids of the other cgroups that are killed.
    pub(super) pledged: Vec<CgroupId>,
    /// The requests of the pod and its containers, for messages.
    pub(super) requested: Arc<Requests>,
    /// Its containers' names and cgroups.
    pub(super) containers: Vec<(String, CgroupPath)>,
}

/// Which controllers account for what a candidate uses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Accounted {
    /// Without `memory`, the pod is evicted for process ids and by order, and never for memory.
    pub memory: bool,
    /// Without `pids`, the pod is never evicted for process ids.
    pub pids: bool,
}

/// A limit file that slows a dying process down.
#[derive(Debug)]
pub(super) struct Brake {
    pub(super) fd: OwnedFd,
    /// The file's location, if its cgroup outlives the kill and the value must be restored.
    pub(super) owner: Option<Owner>,
}

/// The location of a file.
#[derive(Debug)]
pub(super) struct Owner {
    pub(super) path: CgroupPath,
    pub(super) cgroup: CgroupId,
    pub(super) file: CgroupFile,
}

/// A cgroup that is killed.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) dir: CgroupDir,
    pub(super) origin: Origin,
    pub(super) kill: OwnedFd,
    pub(super) events: OwnedFd,
}

/// Why a pod cannot be a candidate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A cgroup or one of its files could not be opened.
    #[error(transparent)]
    Cgroup(#[from] cgroup::Error),
    /// No container of it has a cgroup, or one without a name may be its next sandbox.
    #[error("{path} holds no container that is known for certain")]
    Unnamed {
        /// The pod's cgroup.
        path: String,
    },
    /// The cgroup must never be evicted.
    #[error("{path} is never evicted: {reason}")]
    Forbidden {
        /// The cgroup.
        path: String,
        /// The rule that forbids it.
        reason: Forbidden,
    },
}

impl Candidate {
    /// Opens a pod whose own cgroup is killed, together with adopted cgroups of its containers outside of it. `root` is
    /// the root of the hierarchy, to which the plan's paths are relative. Refuses cgroups that `guard` forbids.
    pub fn open(root: &CgroupDir, guard: &Arc<Guard>, plan: &PodPlan) -> Result<Self, OpenError> {
        let below = format!("{}/", plan.cgroup.path);
        let elsewhere = plan
            .containers
            .iter()
            .filter(|container| container.adopted)
            .map(|container| &container.cgroup.path)
            .filter(|path| **path != plan.cgroup.path && !path.as_str().starts_with(&below))
            // A cgroup that does not exist holds no process.
            .filter(|path| !root.open(path).is_err_and(|error| error.is_gone()));
        let targets: Vec<_> = std::iter::once(&plan.cgroup.path).chain(elsewhere).cloned().collect();
        Self::open_with_targets(root, guard, plan, &targets)
    }

    /// The same beside a kubelet: only the containers are killed, not the sandbox, whose cgroup is in the pod's too.
    ///
    /// A container of a kubelet's pod that has no cgroup has ended or not started: it is skipped. One that no name leads to
    /// is killed like the others, while the sandbox that the pod has lives: the next one cannot be among them then. The container of a
    /// manifest's pod may run in another cgroup, so the whole pod is killed then: a pod that is killed only in part would
    /// cost another pod its life.
    pub fn open_containers(root: &CgroupDir, guard: &Arc<Guard>, plan: &PodPlan) -> Result<Self, OpenError> {
        let is_there = |container: &&ContainerPlan| {
            !root.open(&container.cgroup.path).is_err_and(|error| error.is_gone())
        };
        let (there, missing): (Vec<_>, Vec<_>) = plan.containers.iter().partition(is_there);
        let unnamed = plan.unnamed.as_deref();
        if let Some(sandbox) = unnamed.and_then(|of| of.sandbox.as_ref())
            && !lives(root, sandbox)?
        {
            return Err(OpenError::Unnamed { path: plan.cgroup.path.to_string() });
        }
        let unnamed: Vec<_> = unnamed
            .iter()
            .flat_map(|of| &of.containers)
            .filter(|path| !root.open(path).is_err_and(|error| error.is_gone()))
            .cloned()
            .collect();
        if plan.placed.is_some() && there.is_empty() && unnamed.is_empty() {
            return Err(OpenError::Unnamed { path: plan.cgroup.path.to_string() });
        }
        // Init containers end before the others begin.
        let may_be_elsewhere = |container: &&ContainerPlan| container.kind != ContainerKind::Init;
        if plan.placed.is_none() && (there.is_empty() || missing.iter().any(may_be_elsewhere)) {
            return Self::open(root, guard, plan);
        }
        let named = there.into_iter().map(|container| container.cgroup.path.clone());
        let paths: Vec<_> = named.chain(unnamed).collect();
        Self::open_with_targets(root, guard, plan, &paths)
    }

    /// Opens a pod of which only `targets` are killed.
    pub fn open_with_targets(
        root: &CgroupDir,
        guard: &Arc<Guard>,
        plan: &PodPlan,
        targets: &[CgroupPath],
    ) -> Result<Self, OpenError> {
        let origin = Origin::of(plan.adopted);
        let dir = open_allowed(root, guard, &plan.cgroup.path, origin)?;
        let is_killed = targets.contains(&plan.cgroup.path);
        let mut brakes = Vec::new();
        // The pod's limits throttle its containers, even if the pod's cgroup outlives them.
        open_brakes(&dir, plan.adopted || !is_killed, &mut brakes)?;
        let killed = |container: &&ContainerPlan| is_killed || targets.contains(&container.cgroup.path);
        let named = plan.containers.iter().filter(killed);
        let named = named.map(|container| (&container.cgroup.path, plan.adopted || container.adopted));
        let unnamed = plan.unnamed.iter().flat_map(|of| &of.containers);
        let unnamed = unnamed.filter(|path| targets.contains(path)).map(|path| (path, plan.adopted));
        for (path, outlives) in named.chain(unnamed) {
            match root.open(path) {
                Ok(dir) => open_brakes(&dir, outlives, &mut brakes)?,
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error.into()),
            }
        }
        let weight = match dir.open_change("cpu.weight") {
            Ok(fd) => (is_killed && !plan.adopted).then_some(fd),
            Err(error) if error.is_gone() => None,
            Err(error) => return Err(error.into()),
        };
        let open_target = |path: &CgroupPath| {
            let adopts = |container: &ContainerPlan| container.adopted && container.cgroup.path == *path;
            let is_own = *path == plan.cgroup.path;
            let origin =
                if is_own { origin } else { Origin::of(plan.adopted || plan.containers.iter().any(adopts)) };
            Target::open(open_allowed(root, guard, path, origin)?, origin)
        };
        let mut targets = targets.iter().map(open_target).collect::<Result<Vec<_>, OpenError>>()?;
        let mut charged = Some(Vec::new());
        open_charge(&dir, &mut charged)?;
        let mut counted = Vec::new();
        open_count(&dir, &mut counted)?;
        let below = format!("{}/", plan.cgroup.path);
        let mut elsewhere = Vec::new();
        for Target { dir, .. } in &targets {
            if *dir.path() != plan.cgroup.path && !dir.path().as_str().starts_with(&below) {
                elsewhere.push(dir.id());
                open_charge(dir, &mut charged)?;
                open_count(dir, &mut counted)?;
            }
        }
        // An intent has room for `MOST_TARGETS` ids; a live container beyond them would be missed.
        let is_whole = is_killed || targets.len() > MOST_TARGETS;
        let pledged =
            if is_whole { elsewhere.clone() } else { targets.iter().map(|target| target.dir.id()).collect() };
        // A node has hundreds of candidates, most of them for days.
        brakes.shrink_to_fit();
        targets.shrink_to_fit();
        counted.shrink_to_fit();
        charged.iter_mut().for_each(Vec::shrink_to_fit);
        Ok(Self {
            is_whole,
            pledged,
            identity: identity(plan),
            label: plan.name.to_string(),
            facts: facts(plan, dir.id()),
            dir,
            origin,
            guard: Arc::clone(guard),
            is_forbidden: AtomicBool::new(false),
            charged,
            counted,
            brakes,
            weight,
            targets,
            is_moving: false,
            elsewhere,
            requested: Arc::clone(&plan.requested),
            containers: plan
                .containers
                .iter()
                .map(|container| (container.name.clone(), container.cgroup.path.clone()))
                .collect(),
        })
    }

    /// Also opens the cgroups that the pod had in an earlier plan; their processes are ranked and killed with it. Skips
    /// cgroups that are gone or replaced.
    pub fn with_former(
        mut self,
        root: &CgroupDir,
        former: &[(CgroupPath, CgroupId)],
    ) -> Result<Self, OpenError> {
        for (path, id) in former {
            match self.add_former(root, path, *id) {
                Ok(()) => {}
                Err(OpenError::Cgroup(error)) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self)
    }

    fn add_former(&mut self, root: &CgroupDir, path: &CgroupPath, id: CgroupId) -> Result<(), OpenError> {
        let dir = root.open(path)?;
        // A new cgroup under the same name may belong to anything.
        if dir.id() != id {
            return Ok(());
        }
        let target = Target::open(allowed(dir, &self.guard, Origin::Made)?, Origin::Made)?;
        let dir = &target.dir;
        let (mut brakes, mut counted) = (Vec::new(), Vec::new());
        open_brakes(dir, false, &mut brakes)?;
        for name in dir.children()? {
            match dir.open_below(&name).and_then(|dir| open_brakes(&dir, false, &mut brakes)) {
                Ok(()) => {}
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error.into()),
            }
        }
        open_count(dir, &mut counted)?;
        open_charge(dir, &mut self.charged)?;
        self.counted.append(&mut counted);
        self.brakes.append(&mut brakes);
        self.elsewhere.push(dir.id());
        self.pledged.push(dir.id());
        self.is_moving = true;
        self.targets.insert(0, target);
        Ok(())
    }

    /// Sets whether an operator protects it from eviction.
    #[must_use]
    pub fn protected(mut self, protected: bool) -> Self {
        self.facts.protected = protected;
        self
    }

    /// Sets whether it ends by itself, or is being ended for another reason than a shortage: what it releases is on its way.
    #[must_use]
    pub fn ending(mut self, ending: bool) -> Self {
        self.facts.terminating = ending;
        self
    }

    /// Its name and cgroup for events.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What the engine ranks it by, apart from its usage.
    #[must_use]
    pub fn facts(&self) -> CandidateFacts {
        self.facts
    }

    /// The ids of the cgroups that are killed; none if that is its own alone.
    pub(super) fn killed_cgroup_ids(&self) -> Vec<u64> {
        let ids: Vec<_> = self.targets.iter().map(|target| target.dir.id().0).collect();
        if ids == [self.facts.cgroup.0] { Vec::new() } else { ids }
    }

    /// The controllers that account for what it uses.
    #[must_use]
    pub fn accounted(&self) -> Accounted {
        Accounted { memory: self.charged.is_some(), pids: !self.counted.is_empty() }
    }

    /// Reads its charged memory; `None` once its cgroups are gone, or if memory is not counted.
    pub(super) fn current_bytes(&self, buffer: &mut [u8]) -> ReadResult<Option<u64>> {
        let mut whole: Option<u64> = None;
        for charged in self.charged.iter().flatten() {
            match charged.current_bytes(buffer) {
                Ok(bytes) => whole = Some(whole.unwrap_or(0).saturating_add(bytes)),
                Err(Missing::Gone) => {}
                Err(missing) => return Err(missing),
            }
        }
        Ok(whole)
    }

    /// Counts its tasks, including threads: one system call per cgroup, no allocation. `None` if the count is unknown.
    pub(super) fn process_count(&self, buffer: &mut [u8]) -> Option<u64> {
        count(&self.counted, buffer)
    }

    /// Reads its current usage, including its task count.
    #[must_use]
    pub fn usage(&self) -> Reading {
        let mut buffer = [0; stat::BUFFER_BYTES];
        self.read_usage(Resource::Pids, &mut buffer)
    }

    /// The charge of its own cgroup, if that is below `path`.
    pub(super) fn charge_within(&self, path: &CgroupPath, buffer: &mut [u8]) -> ReadResult<Charge> {
        let below = self.dir.path().as_str().strip_prefix(path.as_str());
        match self.charged.iter().flatten().next() {
            Some(own) if below.is_some_and(|below| below.starts_with('/')) => own.charge(buffer),
            Some(_) | None => Ok(Charge::default()),
        }
    }

    /// Reads its memory usage: three system calls and two per container, no allocation. Also counts tasks if process
    /// ids are `short`.
    ///
    /// A pod without processes frees nothing: its remaining charge is already being freed, or stays. It must be found
    /// empty here, not at the kill, or a dry run would report another victim.
    pub(super) fn read_usage(&self, short: Resource, buffer: &mut [u8]) -> Reading {
        if executor::is_empty(self) {
            return Reading::Usage(Usage { process_count: Some(0), ..Usage::default() });
        }
        self.read_charged(short, buffer)
    }

    /// Whether it holds or may hold a process.
    pub(super) fn is_populated(&self) -> bool {
        !executor::is_empty(self)
    }

    /// Reads its current charge, whether or not it holds a process.
    pub(super) fn charged(&self) -> Reading {
        self.read_charged(Resource::Memory, &mut [0; stat::BUFFER_BYTES])
    }

    fn read_charged(&self, short: Resource, buffer: &mut [u8]) -> Reading {
        let counted = match short {
            Resource::Memory => None,
            Resource::Pids => Some(self.counted.as_slice()),
        };
        charge(self.charged.as_deref(), counted, buffer)
    }
}

/// The sum of these charges, and of the tasks if `counted` is given.
fn charge(charged: Option<&[BranchFiles]>, counted: Option<&[OwnedFd]>, buffer: &mut [u8]) -> Reading {
    let Some(charged) = charged else {
        return Reading::Uncounted { process_count: counted.and_then(|counted| count(counted, buffer)) };
    };
    let read = |buffer: &mut [u8]| {
        let mut whole: Option<Usage> = None;
        for charged in charged {
            let usage = match charged.charge(buffer) {
                Ok(charge) => charge.usage(),
                // An adopted cgroup may go on its own; the pod's comes first.
                Err(Missing::Gone) if whole.is_some() => continue,
                Err(missing) => return Err(missing),
            };
            whole = Some(whole.map_or(usage, |whole| whole.plus(usage)));
        }
        whole.ok_or(Missing::Absent)
    };
    match read(buffer) {
        Ok(usage) => {
            let process_count = counted.and_then(|counted| count(counted, buffer));
            Reading::Usage(Usage { process_count, ..usage })
        }
        Err(Missing::Gone) => Reading::Gone,
        Err(Missing::Absent | Missing::Unread | Missing::Failed(_) | Missing::Malformed) => Reading::Missing,
    }
}

/// What these cgroups, none of them below another, are charged for in all; `None` if not all of it can be read.
#[must_use]
pub fn usage_of(dirs: &[CgroupDir]) -> Option<Usage> {
    let open = |dir: &CgroupDir| BranchFiles::open_counted(dir).ok().flatten();
    let charged = dirs.iter().map(open).collect::<Option<Vec<_>>>()?;
    charge(Some(&charged), None, &mut [0; stat::BUFFER_BYTES]).usage().copied()
}

fn count(counted: &[OwnedFd], buffer: &mut [u8]) -> Option<u64> {
    let mut whole: Option<u64> = None;
    for counted in counted {
        match stat::read_into(counted, buffer) {
            Ok(text) => whole = Some(whole.unwrap_or(0).saturating_add(stat::number(text)?)),
            // An adopted cgroup may go on its own.
            Err(Errno::NODEV | Errno::NOENT) => {}
            Err(_) => return None,
        }
    }
    whole
}

impl Target {
    fn open(dir: CgroupDir, origin: Origin) -> Result<Self, OpenError> {
        let kill = dir.open_write("cgroup.kill")?;
        let events = dir.open_read("cgroup.events")?;
        Ok(Self { dir, origin, kill, events })
    }
}

/// Whether a cgroup is there and holds a process.
fn lives(root: &CgroupDir, path: &CgroupPath) -> Result<bool, cgroup::Error> {
    match root.open(path).and_then(|dir| dir.is_populated()) {
        Err(error) if error.is_gone() => Ok(false),
        read => read,
    }
}

fn open_allowed(
    root: &CgroupDir,
    guard: &Guard,
    path: &CgroupPath,
    origin: Origin,
) -> Result<CgroupDir, OpenError> {
    allowed(root.open(path)?, guard, origin)
}

fn allowed(dir: CgroupDir, guard: &Guard, origin: Origin) -> Result<CgroupDir, OpenError> {
    match guard.forbidden(&dir, origin)? {
        None => Ok(dir),
        Some(reason) => Err(OpenError::Forbidden { path: dir.path().to_string(), reason }),
    }
}

fn open_charge(dir: &CgroupDir, charged: &mut Option<Vec<BranchFiles>>) -> Result<(), cgroup::Error> {
    match (BranchFiles::open_counted(dir)?, charged) {
        (Some(files), Some(charged)) => charged.push(files),
        (Some(_), None) => {}
        (None, charged) => *charged = None,
    }
    Ok(())
}

fn open_count(dir: &CgroupDir, counted: &mut Vec<OwnedFd>) -> Result<(), cgroup::Error> {
    match dir.open_read("pids.current") {
        Ok(fd) => counted.push(fd),
        // The pids controller is not enabled here, so the count is unknown.
        Err(error) if error.is_gone() => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

fn open_brakes(dir: &CgroupDir, outlives: bool, brakes: &mut Vec<Brake>) -> Result<(), cgroup::Error> {
    // SIGKILL wakes a task that sleeps over `memory.high`, so where the file outlives the kill it needs no change.
    let files: &[CgroupFile] =
        if outlives { &[CgroupFile::CpuMax] } else { &[CgroupFile::CpuMax, CgroupFile::MemoryHigh] };
    for file in files.iter().copied() {
        let owner = || Owner { path: dir.path().clone(), cgroup: dir.id(), file };
        match dir.open_change(&file.name()) {
            Ok(fd) => brakes.push(Brake { fd, owner: outlives.then(owner) }),
            // The controller is not enabled here: nothing is throttled either.
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn identity(plan: &PodPlan) -> Identity {
    Identity {
        pod: plan.name.clone(),
        uid: plan.uid.clone(),
        qos_class: plan.qos_class,
        limit_bytes: plan.limits.get(ResourceName::MEMORY).map(|limit| limit.units()),
        cgroup: plan.cgroup.path.clone(),
        controller: plan.controller.clone(),
        placed: plan.placed,
        spec: SpecState::of(plan.placed),
    }
}

/// The engine's key for a pod, valid in this process.
#[must_use]
pub fn pod_key(name: &PodName) -> PodKey {
    /// Random per process, so that no one can construct a name whose hash collides.
    static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    PodKey { hash: HASHER.hash_one((&name.namespace, &name.name)) }
}

fn facts(plan: &PodPlan, cgroup: CgroupId) -> CandidateFacts {
    CandidateFacts {
        cgroup,
        pod: pod_key(&plan.name),
        priority: plan.eviction_priority,
        request_bytes: plan.ranking_request_bytes,
        critical: plan.critical,
        protected: false,
        grace_period_ns: plan.termination_grace_period_seconds.saturating_mul(1_000_000_000),
        terminating: plan.is_terminating(),
        torn_down: plan.placed.is_some(),
        in_kubepods: plan.is_in_kubepods(),
    }
}
