//! What this kernel and this process support for tracing, and which programs follow from that.
//!
//! Only [`Facts::gather`] collects facts; [`choose`] is a pure rule over them. Kernel versions are never checked:
//! distributions backport.
use std::{fs, path::Path};

use aya::{maps::MapType, sys::is_map_supported};
use enforcer_common::{
    offsets::{ABSENT, Offsets},
    plain::PlainFormat,
    stall::StallLimits,
};
use rustix::{fs::statfs, thread::CapabilitySet};

use super::{
    AttachTypes, PidNamespace, Sight,
    btf::{Btf, Kind},
    offsets::{MemoryHierarchy, Resolved, resolve},
    tracefs,
};

mod bpf;
mod guard;
mod host;
mod incident;
mod ladder;
mod reclaim;
mod words;

pub(super) use self::reclaim::OVER_HIGH;
pub use self::{
    bpf::Lockdown,
    host::{Hierarchy, HostFacts, Psi},
    incident::Explained,
    ladder::{CGROUP2, Facility, Rung, State, host_lost, ladder, without},
    reclaim::{LimitArgument, ReclaimChoice, ReclaimFacts},
};

/// File system type of bpffs (`BPF_FS_MAGIC`, linux/magic.h).
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

/// The argument of the event `oom:mark_victim`, according to BTF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkArgument {
    /// `struct task_struct *, uid_t`.
    Task,
    /// `int pid`.
    Pid,
}

/// Facts about the kernel and this process. `None` means unknown, not "no".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The kernel provides its BTF.
    pub btf: Option<bool>,
    /// The argument of `mark_victim` for a BTF program.
    pub mark_argument: Option<MarkArgument>,
    /// BTF names `out_of_memory`, which shows the limit owner.
    pub out_of_memory: Option<bool>,
    /// BTF names `cgroup_file_write`, through which all writes to cgroup files go.
    pub cgroup_file_write: Option<bool>,
    /// BTF names `exit_mmap`, through which every process's memory is freed.
    pub exit_mmap: Option<bool>,
    /// What the kernel offers to trace stalls.
    pub reclaim: ReclaimFacts,
    /// The PID namespace of this process.
    pub pid_namespace: Option<PidNamespace>,
    /// tracefs is mounted.
    pub tracefs: Option<bool>,
    /// The format of the classic tracepoint.
    pub plain_format: Option<PlainFormat>,
    /// The kernel has BPF ring buffers (5.8).
    pub ring_buffer: Option<bool>,
    /// bpffs is mounted.
    pub bpffs: Option<bool>,
    /// bpf(2) works with our capabilities: no seccomp filter and no security module forbids it.
    pub bpf_call: Option<bool>,
    /// Programs can be attached to the entries of functions.
    pub fentry: Option<bool>,
    /// The kernel's lockdown mode.
    pub lockdown: Option<Lockdown>,
    /// We have `CAP_BPF` or `CAP_SYS_ADMIN`.
    pub cap_bpf: Option<bool>,
    /// We have `CAP_PERFMON` or `CAP_SYS_ADMIN`.
    pub cap_perfmon: Option<bool>,
    /// The memory controller is on the unified hierarchy (cgroup v2).
    pub unified_memory: Option<bool>,
    /// Offsets of the kernel's structures.
    pub resolved: Option<Resolved>,
    /// The types that programs are attached by.
    pub attach_types: AttachTypes,
}

impl Facts {
    /// Examines the running kernel and this process.
    #[must_use]
    pub fn gather() -> Self {
        let unified_memory = unified_memory(Path::new("/proc/cgroups"));
        let btf = match Btf::read(Path::new(super::btf::VMLINUX)) {
            Ok(btf) => Some(btf),
            Err(error) => {
                tracing::info!(%error, "no BTF");
                None
            }
        };
        let mount = tracefs::mount();
        let capabilities = rustix::thread::capabilities(None).ok().map(|sets| sets.effective);
        let can = |one: CapabilitySet| {
            capabilities.map(|have| have.intersects(one.union(CapabilitySet::SYS_ADMIN)))
        };
        let hierarchy = match unified_memory {
            Some(false) => MemoryHierarchy::Own,
            Some(true) | None => MemoryHierarchy::Unified,
        };
        let cap_bpf = can(CapabilitySet::BPF);
        let ring_buffer = is_map_supported(MapType::RingBuf);
        let fentry = btf.as_ref().and_then(bpf::fentry);
        Self {
            btf: Some(btf.is_some()),
            mark_argument: btf.as_ref().and_then(mark_argument),
            out_of_memory: btf.as_ref().map(|btf| btf.find("out_of_memory", Kind::Func).is_some()),
            cgroup_file_write: btf.as_ref().map(|btf| btf.find("cgroup_file_write", Kind::Func).is_some()),
            exit_mmap: btf.as_ref().map(|btf| btf.find("exit_mmap", Kind::Func).is_some()),
            reclaim: btf.as_ref().map(ReclaimFacts::of).unwrap_or_default(),
            pid_namespace: PidNamespace::of_this_process(Path::new("/proc")).ok(),
            tracefs: Some(mount.is_some()),
            plain_format: mount.and_then(|mount| tracefs::mark_victim(&mount).ok().flatten()),
            bpf_call: bpf::is_answered(&ring_buffer, cap_bpf),
            ring_buffer: ring_buffer.ok(),
            fentry,
            lockdown: bpf::lockdown(),
            bpffs: statfs("/sys/fs/bpf")
                .ok()
                .map(|stat| u64::try_from(stat.f_type).is_ok_and(|magic| magic == BPF_FS_MAGIC)),
            cap_bpf,
            cap_perfmon: can(CapabilitySet::PERFMON),
            unified_memory,
            attach_types: btf.as_ref().map(AttachTypes::of).unwrap_or_default(),
            resolved: btf.map(|btf| resolve(&btf, hierarchy, rustix::param::page_size())),
        }
    }
}

/// The argument in the BTF typedef of `mark_victim`. Its prototype begins with `void *__data`.
fn mark_argument(btf: &Btf) -> Option<MarkArgument> {
    let typedef = btf.find("btf_trace_mark_victim", Kind::Typedef)?;
    let parameters = btf.parameters(btf.pointee(typedef)?)?;
    let argument = btf.resolve(*parameters.get(1)?)?;
    match btf.kind(argument)? {
        Kind::Ptr => {
            let task = btf.resolve(btf.pointee(argument)?)?;
            (btf.name(task)? == "task_struct").then_some(MarkArgument::Task)
        }
        Kind::Int => Some(MarkArgument::Pid),
        _ => None,
    }
}

/// Whether the memory controller is on the unified hierarchy, which is number 0 in `/proc/cgroups`. Kernels that no
/// longer list controllers there (6.12, if without v1) have no other.
fn unified_memory(path: &Path) -> Option<bool> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.lines().find_map(memory_hierarchy).is_none_or(|hierarchy| hierarchy == 0))
}

/// The hierarchy number in a line of `/proc/cgroups`, if the line is the memory controller's.
fn memory_hierarchy(line: &str) -> Option<u32> {
    let mut words = line.split_whitespace();
    (words.next()? == "memory").then(|| words.next()?.parse().ok()).flatten()
}

/// The program that reports marked victims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkProgram {
    /// By BTF, from the task itself, with all details.
    Task,
    /// By BTF, from a thread id.
    Pid,
    /// By the classic tracepoint, with the format of [`Choice::plain_format`].
    Plain,
}

/// Which programs to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The program for marked victims; `None`: OOM kills are visible in counters only.
    pub mark: Option<MarkProgram>,
    /// The classic tracepoint's format: the fallback for `mark` if the kernel refuses it.
    pub plain_format: Option<PlainFormat>,
    /// Whether to load the program that reports the limit owner.
    pub limit_owner: bool,
    /// Whether to load the programs that need only working tracing: kills, exits, reclaim, edges.
    pub raw: bool,
    /// The programs of the guard.
    pub sight: Sight,
    /// The programs that explain a mark.
    pub explained: Explained,
    /// The programs that report stalls.
    pub reclaim: ReclaimChoice,
    /// When a stall is worth a record.
    pub stall_limits: StallLimits,
    /// The PID namespace of this process, by which the programs recognise the daemon.
    pub pid_namespace: Option<PidNamespace>,
    /// The memory controller is on the unified hierarchy.
    pub unified_memory: bool,
    /// Offsets of the kernel's structures, all absent without BTF.
    pub offsets: Offsets,
    /// The types that programs are attached by, none without BTF.
    pub attach_types: AttachTypes,
    /// The missing facilities and their consequences.
    pub lost: Vec<Lost>,
}

/// A missing facility and its consequence: the data of `degraded.entered`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Lost {
    /// The facility, as a word for metrics.
    pub what: &'static str,
    /// Why it is missing.
    pub why: String,
    /// What an operator loses.
    pub consequence: &'static str,
}

/// Chooses the programs. Programs with unknown requirements are tried: one that fails is reported by its name.
#[must_use]
pub fn choose(facts: &Facts) -> Choice {
    let mut lost = Vec::new();
    let mut missing = |what, why: String, consequence| lost.push(Lost { what, why, consequence });

    let blocked = [
        (facts.ring_buffer, "ringBuffer", "this kernel has no BPF ring buffers (Linux 5.8)"),
        (facts.cap_bpf, "capBpf", "neither CAP_BPF nor CAP_SYS_ADMIN"),
        (facts.cap_perfmon, "capPerfmon", "neither CAP_PERFMON nor CAP_SYS_ADMIN"),
        (facts.bpf_call, "bpfCall", "bpf(2) is refused despite the capabilities, as by a seccomp filter"),
        (
            facts.lockdown.map(|lockdown| lockdown != Lockdown::Confidentiality),
            "lockdown",
            "the kernel is locked down (confidentiality): programs may not read its memory",
        ),
    ];
    let mut raw = true;
    for (fact, what, why) in blocked {
        if fact == Some(false) {
            raw = false;
            missing(what, why.to_owned(), words::NO_EBPF);
        }
    }

    let mark = match (raw, facts.mark_argument, facts.plain_format) {
        (true, Some(MarkArgument::Task), _) => Some(MarkProgram::Task),
        (true, Some(MarkArgument::Pid), _) => Some(MarkProgram::Pid),
        (true, None, Some(_)) => Some(MarkProgram::Plain),
        (false, ..) | (true, None, None) => None,
    };
    if raw {
        match mark {
            Some(MarkProgram::Task) => {}
            Some(MarkProgram::Pid) => missing(
                "markVictimTask",
                "the event mark_victim passes only a thread id".to_owned(),
                words::PID_ALONE,
            ),
            Some(MarkProgram::Plain) => missing(
                "btf",
                "the kernel provides no BTF (/sys/kernel/btf/vmlinux)".to_owned(),
                words::CLASSIC_EVENT,
            ),
            None => missing(
                "markVictim",
                match facts.tracefs {
                    Some(true) => "neither BTF nor tracefs describes the arguments of the event mark_victim",
                    Some(false) | None => "no usable BTF, and tracefs is not mounted",
                }
                .to_owned(),
                words::NO_MARKS,
            ),
        }
    }

    let offsets = facts.resolved.as_ref().map(|resolved| resolved.offsets);
    let readable = offsets.is_some_and(|offsets| offsets.oom_control_memcg != ABSENT);
    let described = readable && facts.out_of_memory != Some(false);
    let limit_owner = mark.is_some() && described && facts.fentry != Some(false);
    if mark.is_some() && !limit_owner {
        let why = if described {
            words::NO_FENTRY
        } else {
            "BTF does not describe the function out_of_memory and its arguments"
        };
        missing("limitOwner", why.to_owned(), words::LIMIT_BY_COUNTERS);
    }
    let sight = guard::choose(facts, raw, offsets.as_ref(), &mut missing);
    let explained = incident::choose(facts, mark.is_some(), offsets.as_ref(), &mut missing);
    let reclaim = reclaim::choose(facts, raw, &mut missing);
    if let Some(resolved) = &facts.resolved
        && mark.is_some()
        && !resolved.absent.is_empty()
    {
        missing(
            "offsets",
            format!("missing from this kernel's BTF: {}", resolved.absent.join(", ")),
            words::FIELDS_MISSING,
        );
    }
    if raw && facts.bpffs == Some(false) {
        missing("bpffs", "no bpffs at /sys/fs/bpf".to_owned(), words::NO_PINS);
    }
    Choice {
        mark,
        plain_format: facts.plain_format,
        limit_owner,
        raw,
        sight,
        explained,
        reclaim,
        stall_limits: StallLimits::DEFAULT,
        pid_namespace: facts.pid_namespace,
        unified_memory: facts.unified_memory != Some(false),
        offsets: offsets.unwrap_or(Offsets::NONE),
        attach_types: facts.attach_types.clone(),
        lost,
    }
}

#[cfg(test)]
mod tests;
