//! What the system's own parts use of what is reserved for them: the reserved cgroups, the node's components, and the
//! kernel itself.
//!
//! More CPU than is reserved is no fault: a reservation is a share, and CPU time that is idle may be used.
//! Memory and process ids are gone for pods once they are used, so only these can be exceeded.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
};

use enforcer_events::{Payload, reservation::ReservationExceeded};
use tokio::sync::watch;

use super::{lock, ticks::Ticks};
use crate::{
    cgroup::{self, CgroupDir, Member, Members},
    config::Config,
    journal::{Journal, Subject},
    metrics::{KernelMemory, ReservedPart, SystemPart},
    model::{CgroupPath, Node, Quantity, ResourceList, ResourceName},
    policy::{allocatable, name},
    render::human_bytes,
    threads,
};

/// A reservation counts as kept again below this share of it, in hundredths: usage close to it is reported once.
const KEPT_PERCENT: u64 = 95;

/// The slice of the system's services, where systemd made one: `systemReserved` is for it unless another is named.
const SYSTEM_SLICE: &str = "/system.slice";

/// A reservation, and the cgroup whose usage counts against it.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Scope {
    name: &'static str,
    path: CgroupPath,
    cpu_milli: Option<u64>,
    memory_bytes: Option<u64>,
    tasks: Option<u64>,
}

/// What a part uses; what cannot be read is absent.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Usage {
    cpu_us: Option<u64>,
    memory_bytes: Option<u64>,
    tasks: Option<u64>,
}

/// The system's own parts.
#[derive(Clone, Debug)]
pub(super) struct System(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    node: Node,
    members: Members,
    scopes: Mutex<Vec<Scope>>,
}

impl System {
    /// The parts of this node, of which `members` are the components.
    pub(super) fn new(config: &Config, node: &Node, members: Members) -> Self {
        let scopes = Mutex::new(scopes(config, node));
        Self(Arc::new(Inner { node: node.clone(), members, scopes }))
    }

    /// Applies another configuration.
    pub(super) fn configure(&self, config: &Config) {
        *lock(&self.0.scopes) = scopes(config, &self.0.node);
    }

    /// Compares usage with what is reserved at each tick, until `stopping` becomes true.
    pub(super) fn watch(&self, journal: &Journal, mut ticks: Ticks, mut stopping: watch::Receiver<bool>) {
        let (system, journal) = (self.clone(), journal.clone());
        tokio::spawn(async move {
            let mut exceeded = Exceeded::default();
            loop {
                tokio::select! {
                    () = ticks.next() => {}
                    _ = stopping.wait_for(|stopping| *stopping) => return,
                }
                if !lock(&system.0.scopes).iter().any(Scope::is_limited) {
                    exceeded = Exceeded::default();
                    continue;
                }
                let read = system.clone();
                for report in exceeded.look(threads::blocking(move || read.scopes(of_reserved)).await) {
                    tracing::warn!("{}", report.message);
                    journal.emit(Subject::Node, Payload::ReservationExceeded(report));
                }
            }
        });
    }

    /// The parts with their usage, and the reservations, as metrics show them.
    pub(super) fn read(&self) -> (Vec<SystemPart>, Vec<ReservedPart>) {
        let part = |name: &str, usage: Usage| SystemPart {
            name: name.to_owned(),
            cpu_us: usage.cpu_us,
            memory_bytes: usage.memory_bytes,
            tasks: usage.tasks,
        };
        let scopes = self.scopes(|dir, _| of_cgroup(dir));
        let mut parts: Vec<SystemPart> =
            scopes.iter().map(|(scope, usage)| part(scope.name, *usage)).collect();
        for (name, usage) in of_members(Path::new("/proc"), &lock(&self.0.members)) {
            if parts.iter().all(|part| part.name != name) {
                parts.push(part(&name, usage));
            }
        }
        let reserved = scopes.into_iter().map(|(scope, usage)| ReservedPart {
            scope: scope.name,
            cpu_milli: scope.cpu_milli,
            memory_bytes: scope.memory_bytes,
            tasks: scope.tasks,
            memory_exceeded: beyond(usage.memory_bytes, scope.memory_bytes),
            tasks_exceeded: beyond(usage.tasks, scope.tasks),
        });
        (parts, reserved.collect())
    }

    /// The reservations whose cgroup exists, with its usage.
    fn scopes(&self, usage: impl Fn(&CgroupDir, &Scope) -> Usage) -> Vec<(Scope, Usage)> {
        let scopes = lock(&self.0.scopes).clone();
        let Ok(root) = CgroupDir::mount(Path::new(cgroup::MOUNT)) else { return Vec::new() };
        let of = |scope: Scope| {
            let usage = usage(&root.open(&scope.path).ok()?, &scope);
            Some((scope, usage))
        };
        scopes.into_iter().filter_map(of).collect()
    }
}

impl Scope {
    /// Whether anything is reserved that usage can exceed.
    fn is_limited(&self) -> bool {
        self.memory_bytes.is_some() || self.tasks.is_some()
    }
}

/// The kernel's own memory, from /proc/meminfo.
pub(super) fn kernel_memory() -> Option<KernelMemory> {
    parse_kernel_memory(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse_kernel_memory(meminfo: &str) -> Option<KernelMemory> {
    let bytes = |key: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib.saturating_mul(1_024))
    };
    Some(KernelMemory {
        slab_bytes: bytes("Slab")?,
        stack_bytes: bytes("KernelStack")?,
        // Those of virtual machines' second level are counted apart since Linux 6.1.
        page_table_bytes: bytes("PageTables")?.saturating_add(bytes("SecPageTables").unwrap_or(0)),
    })
}

/// The reservations of a configuration. `kubeReserved` without a cgroup of its own is used by daemons in that of
/// `systemReserved`, so both count for that.
fn scopes(config: &Config, node: &Node) -> Vec<Scope> {
    let settings = &config.settings;
    let capacity = allocatable::capacity(node);
    let kube_reserved = allocatable::kube_reserved(&capacity, settings);
    let given = |path: &CgroupPath| name::given(path, settings.cgroup_driver);
    let kube = config.kube_reserved_cgroup.as_ref().map(given);
    let system = config.system_reserved_cgroup.as_ref().map(given);
    let system = system.or_else(|| CgroupPath::parse(SYSTEM_SLICE).ok());
    let mut scopes = Vec::new();
    if let Some(path) = system {
        let has_kube = kube.as_ref().is_none_or(|kube| is_within(kube, &path));
        let lists = [Some(&settings.system_reserved), has_kube.then_some(&kube_reserved)];
        scopes.push(scope("system", path, &lists.into_iter().flatten().collect::<Vec<_>>()));
    }
    if let Some(path) = kube {
        scopes.push(scope("kube", path, &[&kube_reserved]));
    }
    scopes
}

fn scope(name: &'static str, path: CgroupPath, lists: &[&ResourceList]) -> Scope {
    let sum = |name: &str| -> Option<Quantity> {
        let amounts = lists.iter().filter_map(|list| list.get(name).copied());
        amounts.reduce(Quantity::saturating_add).filter(|sum| sum.is_positive())
    };
    Scope {
        name,
        path,
        cpu_milli: sum(ResourceName::CPU).map(Quantity::milli),
        memory_bytes: sum(ResourceName::MEMORY).map(Quantity::units),
        tasks: sum(allocatable::PID).map(Quantity::units),
    }
}

/// Whether a cgroup is the other one or below it.
fn is_within(path: &CgroupPath, above: &CgroupPath) -> bool {
    std::iter::successors(Some(path.clone()), CgroupPath::parent).any(|path| path == *above)
}

/// The usage of a cgroup and all below it: of memory the working set, as page cache that is idle is given back.
fn of_cgroup(dir: &CgroupDir) -> Usage {
    Usage {
        cpu_us: keyed(dir, "cpu.stat", "usage_usec "),
        memory_bytes: number(dir, "memory.current").and_then(|charged| working_set(dir, charged)),
        tasks: number(dir, "pids.current"),
    }
}

/// What of a cgroup's usage can exceed the reservation. To print `memory.stat`, the kernel gathers the statistics of all
/// cgroups below. That is not needed while the whole charge is below the reservation: then the charge counts as the usage.
fn of_reserved(dir: &CgroupDir, scope: &Scope) -> Usage {
    let memory = |reserved: u64| {
        let charged_bytes = number(dir, "memory.current")?;
        if is_kept(charged_bytes, reserved) { Some(charged_bytes) } else { working_set(dir, charged_bytes) }
    };
    Usage {
        cpu_us: None,
        memory_bytes: scope.memory_bytes.and_then(memory),
        tasks: scope.tasks.and_then(|_| number(dir, "pids.current")),
    }
}

fn number(dir: &CgroupDir, file: &str) -> Option<u64> {
    dir.read(file).ok()?.trim().parse().ok()
}

fn keyed(dir: &CgroupDir, file: &str, key: &str) -> Option<u64> {
    dir.read(file).ok()?.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
}

/// What is charged, without page cache that is idle.
fn working_set(dir: &CgroupDir, charged_bytes: u64) -> Option<u64> {
    Some(charged_bytes.saturating_sub(keyed(dir, "memory.stat", "inactive_file ")?))
}

/// Whether usage is so far below what is reserved that a report of more is over.
fn is_kept(used: u64, reserved: u64) -> bool {
    u128::from(used) * 100 <= u128::from(reserved) * u128::from(KEPT_PERCENT)
}

/// The usage of components, each the sum of its processes.
fn of_members(proc: &Path, members: &[Member]) -> Vec<(String, Usage)> {
    let mut parts: Vec<(String, Usage)> = Vec::new();
    for Member { pid, start_ticks, name } in members {
        let Some(usage) = of_process(&proc.join(pid.to_string()), *start_ticks) else { continue };
        let add = |sum: Option<u64>, more: Option<u64>| Some(sum?.saturating_add(more?));
        match parts.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => {
                *sum = Usage {
                    cpu_us: add(sum.cpu_us, usage.cpu_us),
                    memory_bytes: add(sum.memory_bytes, usage.memory_bytes),
                    tasks: add(sum.tasks, usage.tasks),
                };
            }
            None => parts.push((name.clone(), usage)),
        }
    }
    parts
}

/// The usage of one process, if it is still the one that started then: of memory what it has alone.
fn of_process(dir: &Path, start_ticks: u64) -> Option<Usage> {
    let stat = fs::read_to_string(dir.join("stat")).ok()?;
    // The name, in brackets, may hold anything; the words after it are from field 3 on (proc_pid_stat(5)).
    let (_, after) = stat.rsplit_once(')')?;
    let words: Vec<&str> = after.split_ascii_whitespace().collect();
    let field = |number: usize| words.get(number.checked_sub(3)?)?.parse::<u64>().ok();
    if field(22)? != start_ticks {
        return None;
    }
    let ticks = field(14)?.saturating_add(field(15)?);
    let cpu_us = ticks.saturating_mul(1_000_000) / rustix::param::clock_ticks_per_second().max(1);
    let statm = fs::read_to_string(dir.join("statm")).ok()?;
    let pages: Vec<u64> = statm.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
    let own = pages.get(1)?.saturating_sub(*pages.get(2)?);
    let page_bytes = u64::try_from(rustix::param::page_size()).ok()?;
    Some(Usage { cpu_us: Some(cpu_us), memory_bytes: Some(own.saturating_mul(page_bytes)), tasks: field(20) })
}

/// Whether more is used than is reserved; `None` if nothing is reserved, or usage is not known.
fn beyond(used: Option<u64>, reserved: Option<u64>) -> Option<bool> {
    Some(used? > reserved?)
}

/// The reservations that are exceeded, as reported: by scope and resource.
#[derive(Debug, Default)]
struct Exceeded(Vec<(&'static str, &'static str)>);

impl Exceeded {
    /// What is exceeded since this look; each is reported once until it was kept again.
    fn look(&mut self, scopes: Vec<(Scope, Usage)>) -> Vec<ReservationExceeded> {
        let mut reports = Vec::new();
        self.0.retain(|(name, _)| scopes.iter().any(|(scope, _)| scope.name == *name));
        for (scope, usage) in scopes {
            let pairs = [
                (ResourceName::MEMORY, usage.memory_bytes, scope.memory_bytes),
                (allocatable::PID, usage.tasks, scope.tasks),
            ];
            for (resource, used, reserved) in pairs {
                let key = (scope.name, resource);
                let (Some(used), Some(reserved)) = (used, reserved) else {
                    self.0.retain(|known| *known != key);
                    continue;
                };
                let is_known = self.0.contains(&key);
                if used > reserved && !is_known {
                    self.0.push(key);
                    reports.push(report(&scope, resource, used, reserved));
                } else if is_kept(used, reserved) {
                    self.0.retain(|known| *known != key);
                }
            }
        }
        reports
    }
}

fn report(scope: &Scope, resource: &'static str, used: u64, reserved: u64) -> ReservationExceeded {
    let is_memory = resource == ResourceName::MEMORY;
    let path = &scope.path;
    let message = if is_memory {
        let (used, reserved) = (human_bytes(used), human_bytes(reserved));
        format!("{path} uses {used} of memory, and {reserved} are reserved: reserve more, or find what grew")
    } else {
        format!("{path} has {used} tasks, and {reserved} are reserved: reserve more, or find what grew")
    };
    ReservationExceeded {
        scope: scope.name.into(),
        resource: resource.into(),
        cgroup: Some(path.to_string()),
        used_bytes: is_memory.then_some(used),
        reserved_bytes: is_memory.then_some(reserved),
        used_count: (!is_memory).then_some(used),
        reserved_count: (!is_memory).then_some(reserved),
        message,
    }
}

#[cfg(test)]
mod tests;
