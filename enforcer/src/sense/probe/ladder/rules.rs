//! The rules that find a host's rung in each row.
use rustix::thread::CapabilitySet;

use super::super::{Choice, Facts, Hierarchy, HostFacts, Lockdown, MarkProgram, Psi};

/// The inputs of a rule.
pub(super) struct Seen<'a> {
    pub(super) facts: &'a Facts,
    pub(super) host: &'a HostFacts,
    pub(super) choice: &'a Choice,
}

/// A host's rung.
pub(super) enum Stand {
    /// That rung, for this reason.
    On(usize, String),
    /// Unknown.
    Unknown,
}

pub(super) fn fact(fact: Option<bool>, yes: &str, no: &str) -> Stand {
    match fact {
        Some(true) => Stand::On(0, yes.to_owned()),
        Some(false) => Stand::On(1, no.to_owned()),
        None => Stand::Unknown,
    }
}

pub(super) fn capability(seen: &Seen<'_>, one: CapabilitySet, name: &str) -> Stand {
    let has = seen.host.capabilities.map(|have| have.contains(one));
    fact(has, &format!("we have {name}"), &format!("no {name}"))
}

/// The reasons of the choice's losses with these words, if there are any.
fn why(seen: &Seen<'_>, words: &[&str]) -> Option<String> {
    let lost: Vec<_> = seen
        .choice
        .lost
        .iter()
        .filter(|lost| words.contains(&lost.what))
        .map(|lost| lost.why.as_str())
        .collect();
    (!lost.is_empty()).then(|| lost.join("; "))
}

/// The first of two rungs or the second, as chosen.
pub(super) fn by_choice(seen: &Seen<'_>, chosen: bool, words: &[&str], yes: &str) -> Stand {
    if chosen {
        return Stand::On(0, yes.to_owned());
    }
    let no = if seen.choice.raw { "its event is not available" } else { "no eBPF" };
    Stand::On(1, why(seen, words).unwrap_or_else(|| no.to_owned()))
}

pub(super) fn programs(seen: &Seen<'_>, yes: &str) -> Stand {
    by_choice(seen, seen.choice.raw, &[], yes)
}

pub(super) fn ebpf(seen: &Seen<'_>) -> Stand {
    let Facts { ring_buffer, cap_bpf, cap_perfmon, lockdown, .. } = seen.facts;
    match why(seen, &["ringBuffer", "capBpf", "capPerfmon", "bpfCall", "lockdown"]) {
        Some(why) if seen.host.seccomp == Some(true) => {
            Stand::On(1, format!("{why}; a seccomp filter is active"))
        }
        Some(why) => Stand::On(1, why),
        None if [ring_buffer, cap_bpf, cap_perfmon].iter().any(|fact| fact.is_none()) => Stand::Unknown,
        None => {
            let lockdown = match lockdown {
                Some(Lockdown::Integrity) => ", locked down for integrity",
                Some(Lockdown::Off | Lockdown::Confidentiality) | None => "",
            };
            Stand::On(0, format!("ring buffers, CAP_BPF and CAP_PERFMON{lockdown}"))
        }
    }
}

pub(super) fn oom_victims(seen: &Seen<'_>) -> Stand {
    let found =
        |found: &str| why(seen, &["markVictimTask", "markVictim", "btf"]).unwrap_or_else(|| found.to_owned());
    match seen.choice.mark {
        Some(MarkProgram::Task) => Stand::On(0, found("BTF says that the event passes the task")),
        Some(MarkProgram::Pid) => Stand::On(1, found("BTF says that the event passes a thread id")),
        Some(MarkProgram::Plain) => Stand::On(2, found("no BTF")),
        None => Stand::On(3, found("no eBPF")),
    }
}

pub(super) fn psi(seen: &Seen<'_>) -> Stand {
    let (rung, found) = match seen.host.psi {
        Some(Psi::Full) => (0, "pressure stall information, with windows of 500 ms"),
        Some(Psi::Limited) => {
            (1, "pressure stall information, with windows of 2 s only: no CAP_SYS_RESOURCE")
        }
        Some(Psi::ReadOnly) => (2, "pressure stall information, but no trigger can be set"),
        Some(Psi::Off) => (2, "pressure stall information is switched off"),
        Some(Psi::Absent) => (2, "no pressure stall information: off, or not compiled in"),
        None => return Stand::Unknown,
    };
    Stand::On(rung, found.to_owned())
}

pub(super) fn cgroup2(seen: &Seen<'_>) -> Stand {
    let (rung, found) = match seen.host.hierarchy {
        Some(Hierarchy::Unified) => (0, "cgroup v2 at /sys/fs/cgroup"),
        Some(Hierarchy::Hybrid) => (1, "a hybrid host: cgroup v2 is at /sys/fs/cgroup/unified, beside v1"),
        Some(Hierarchy::Legacy) => (1, "no cgroup v2 at /sys/fs/cgroup, but v1"),
        Some(Hierarchy::Absent) => (1, "no cgroup v2 at /sys/fs/cgroup"),
        None => return Stand::Unknown,
    };
    Stand::On(rung, found.to_owned())
}

pub(super) fn controllers(seen: &Seen<'_>) -> Stand {
    let Some(have) = &seen.host.controllers else { return Stand::Unknown };
    let missing: Vec<_> =
        ["cpu", "memory", "pids"].into_iter().filter(|name| !have.iter().any(|have| have == name)).collect();
    if missing.is_empty() {
        Stand::On(0, have.join(" "))
    } else {
        let rung = match (missing.contains(&"memory"), missing.contains(&"pids")) {
            (false, false) => 1,
            (false, true) => 2,
            (true, false) => 3,
            (true, true) => 4,
        };
        Stand::On(rung, format!("not on cgroup v2: {}", missing.join(", ")))
    }
}

/// One controller that is no part of the row of those.
pub(super) fn controller(seen: &Seen<'_>, name: &str) -> Stand {
    let has = seen.host.controllers.as_ref().map(|have| have.iter().any(|have| have == name));
    fact(has, &format!("cgroup v2 has {name}"), &format!("not on cgroup v2: {name}"))
}

pub(super) fn release(seen: &Seen<'_>) -> Stand {
    let HostFacts { pidfd_open, process_mrelease, .. } = seen.host;
    let (call, has) = match (pidfd_open, process_mrelease) {
        (Some(false), _) => ("pidfd_open(2)", Some(false)),
        (_, has) => ("process_mrelease(2)", *has),
    };
    let refused = if seen.host.seccomp == Some(true) { ", perhaps by the active seccomp filter" } else { "" };
    fact(has, &format!("{call} works"), &format!("{call} is refused{refused}"))
}

pub(super) fn memory_lock(seen: &Seen<'_>) -> Stand {
    let capable = seen.host.capabilities.map(|have| have.contains(CapabilitySet::IPC_LOCK));
    match (capable, seen.host.memlock) {
        (Some(true), _) => Stand::On(0, String::from("we have CAP_IPC_LOCK")),
        (_, Some(true)) => Stand::On(0, String::from("the limit of locked memory is high enough")),
        (Some(false), Some(false)) => {
            Stand::On(1, String::from("no CAP_IPC_LOCK, and the limit of locked memory is below 64 MiB"))
        }
        (None, _) | (_, None) => Stand::Unknown,
    }
}
