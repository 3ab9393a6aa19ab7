//! What this host and this process offer, apart from tracing: cgroups, pressure, capabilities, calls.
use std::{
    fs, io,
    io::Write as _,
    os::{fd::AsFd as _, unix::fs::OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    fs::statfs,
    io::Errno,
    process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open},
    thread::CapabilitySet,
};

use crate::raw;

/// File system type of cgroup v2 (`CGROUP2_SUPER_MAGIC`, linux/magic.h).
const CGROUP2_SUPER_MAGIC: u64 = 0x6367_7270;
/// A bound well above the memory that the reflex locks, in bytes.
const LOCKED_BYTES: u64 = 64 << 20;
/// The most cgroups that are searched for one with the memory controller.
const MAX_LOOKED_AT: usize = 64;
/// The longest file that is read here.
const MAX_BYTES: u64 = 64 * 1024;

/// Which cgroup hierarchies are mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hierarchy {
    /// cgroup v2 alone, or at least in the usual place.
    Unified,
    /// cgroup v2 beside v1, as systemd mounts them for the transition.
    Hybrid,
    /// cgroup v1 alone.
    Legacy,
    /// None.
    Absent,
}

/// Support for pressure stall information (PSI).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Psi {
    /// Triggers with any window from 500 ms on.
    Full,
    /// Only triggers with windows of 2 s and its multiples, as without `CAP_SYS_RESOURCE`.
    Limited,
    /// Readable, but no trigger can be set.
    ReadOnly,
    /// The kernel supports it, but it is switched off.
    Off,
    /// The kernel does not offer it.
    Absent,
}

/// Facts about the host. `None` means unknown, not "no".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// We are root.
    pub root: Option<bool>,
    /// Our effective capabilities.
    pub capabilities: Option<CapabilitySet>,
    /// Enough memory can be locked without `CAP_IPC_LOCK`.
    pub memlock: Option<bool>,
    /// A seccomp filter applies to us: what it refuses looks like a missing kernel feature.
    pub seccomp: Option<bool>,
    /// The kernel has filters of system calls (3.5, `CONFIG_SECCOMP_FILTER`).
    pub filters: Option<bool>,
    /// The kernel has Landlock (5.13), and was booted with it.
    pub landlock: Option<bool>,
    /// The mounted hierarchies.
    pub hierarchy: Option<Hierarchy>,
    /// The controllers of the unified hierarchy.
    pub controllers: Option<Vec<String>>,
    /// Cgroups have `cgroup.kill` (Linux 5.14).
    pub kill: Option<bool>,
    /// Cgroups have `memory.reclaim` (5.19).
    pub reclaim: Option<bool>,
    /// Cgroups have `memory.events.local` (5.2).
    pub local_events: Option<bool>,
    /// Cgroups have `memory.oom.group` (4.19).
    pub oom_group: Option<bool>,
    /// Cgroups have `memory.swap.max` (4.5).
    pub swap_max: Option<bool>,
    /// The kernel has huge pages of some size.
    pub huge_pages: Option<bool>,
    /// Support for PSI.
    pub psi: Option<Psi>,
    /// `pidfd_open(2)` works (5.3).
    pub pidfd_open: Option<bool>,
    /// `process_mrelease(2)` works (5.15).
    pub process_mrelease: Option<bool>,
}

impl HostFacts {
    /// Examines this host and this process.
    #[must_use]
    pub fn gather() -> Self {
        Self::below(Path::new("/"))
    }

    /// As [`Self::gather`], with another root for files.
    fn below(root: &Path) -> Self {
        let hierarchy = hierarchy(&root.join("sys/fs/cgroup"));
        let (pidfd_open, process_mrelease) = calls();
        let facts = Self {
            root: Some(rustix::process::geteuid().is_root()),
            capabilities: rustix::thread::capabilities(None).ok().map(|sets| sets.effective),
            memlock: Some(
                getrlimit(Resource::Memlock).current.is_none_or(|most_bytes| most_bytes >= LOCKED_BYTES),
            ),
            seccomp: seccomp(&root.join("proc/self/status")),
            filters: filters(&root.join("proc/sys/kernel/seccomp/actions_avail")),
            landlock: Some(raw::landlock_version().is_some()),
            controllers: unified(root, hierarchy)
                .and_then(|mount| read(&mount.join("cgroup.controllers")).ok())
                .map(|text| text.split_whitespace().map(str::to_owned).collect()),
            huge_pages: huge_pages(&root.join("sys/kernel/mm/hugepages")),
            hierarchy,
            psi: psi(&root.join("proc/pressure/memory"), &root.join("proc/cmdline")),
            pidfd_open,
            process_mrelease,
            kill: None,
            reclaim: None,
            local_events: None,
            oom_group: None,
            swap_max: None,
        };
        facts.filled_in_below(root)
    }

    /// Fills in what is unknown for lack of a cgroup that would have the file, if there is one by now.
    #[must_use]
    pub fn filled_in(self) -> Self {
        self.filled_in_below(Path::new("/"))
    }

    fn filled_in_below(self, root: &Path) -> Self {
        let mount = unified(root, self.hierarchy);
        let has = |file, needs| mount.as_deref().and_then(|mount| has_file(mount, file, needs));
        let of_memory = |file| has(file, Some("memory.current"));
        // These two files are safe to delegate. A file missing from the list may exist all the same.
        let delegated = read(&root.join("sys/kernel/cgroup/delegate")).unwrap_or_default();
        let listed = |file| delegated.lines().any(|line| line == file).then_some(true);
        Self {
            kill: self.kill.or_else(|| has("cgroup.kill", None)),
            reclaim: self
                .reclaim
                .or_else(|| of_memory("memory.reclaim"))
                .or_else(|| listed("memory.reclaim")),
            local_events: self.local_events.or_else(|| of_memory("memory.events.local")),
            oom_group: self
                .oom_group
                .or_else(|| of_memory("memory.oom.group"))
                .or_else(|| listed("memory.oom.group")),
            swap_max: self.swap_max.or_else(|| of_memory("memory.swap.max")),
            ..self
        }
    }

    /// Only the host's facts, for a process other than the daemon, which has other rights.
    #[must_use]
    pub fn of_the_host_alone(self) -> Self {
        let psi = self.psi.filter(|psi| matches!(psi, Psi::Full | Psi::Off | Psi::Absent));
        Self { root: None, capabilities: None, memlock: None, seccomp: None, psi, ..self }
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(fs::File::open(path)?, MAX_BYTES), &mut text)?;
    Ok(text)
}

/// Whether there is a pool of huge pages, be it empty.
fn huge_pages(pools: &Path) -> Option<bool> {
    match fs::read_dir(pools) {
        Ok(mut pools) => Some(pools.next().is_some()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(false),
        Err(_) => None,
    }
}

fn hierarchy(cgroups: &Path) -> Option<Hierarchy> {
    let is_unified = |path: &Path| match statfs(path) {
        Ok(stat) => Some(u64::try_from(stat.f_type).is_ok_and(|magic| magic == CGROUP2_SUPER_MAGIC)),
        Err(Errno::NOENT) => Some(false),
        Err(_) => None,
    };
    let at_its_place = is_unified(cgroups)?;
    let beside_legacy = is_unified(&cgroups.join("unified"))?;
    // Any controller's own mount; `memory` is the one that matters.
    let legacy = ["memory", "cpu", "systemd"].iter().any(|name| cgroups.join(name).join("tasks").exists());
    Some(match (at_its_place, beside_legacy, legacy) {
        (true, ..) => Hierarchy::Unified,
        (false, true, _) => Hierarchy::Hybrid,
        (false, false, true) => Hierarchy::Legacy,
        (false, false, false) => Hierarchy::Absent,
    })
}

/// Where cgroup v2 is mounted.
fn unified(root: &Path, hierarchy: Option<Hierarchy>) -> Option<PathBuf> {
    let cgroups = root.join("sys/fs/cgroup");
    match hierarchy {
        Some(Hierarchy::Unified) => Some(cgroups),
        Some(Hierarchy::Hybrid) => Some(cgroups.join("unified")),
        Some(Hierarchy::Legacy | Hierarchy::Absent) | None => None,
    }
}

/// Whether cgroups have a file. The root lacks most files, so another cgroup is checked; it must have `needs`, as
/// controllers are not enabled everywhere. `None`: there is no such cgroup now.
fn has_file(mount: &Path, file: &str, needs: Option<&str>) -> Option<bool> {
    let mut looked_at = 0;
    let mut pending = vec![mount.to_owned()];
    while let Some(path) = pending.pop() {
        for entry in fs::read_dir(&path).ok().into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let child: PathBuf = entry.path();
            // Threaded cgroups have fewer files.
            let fits = needs.is_none_or(|needs| child.join(needs).exists())
                && read(&child.join("cgroup.type")).is_ok_and(|kind| kind.trim() == "domain");
            if fits {
                return Some(child.join(file).exists());
            }
            looked_at += 1;
            if looked_at == MAX_LOOKED_AT {
                return None;
            }
            pending.push(child);
        }
    }
    None
}

/// Support for PSI. Sets triggers that end with their descriptor.
fn psi(pressure: &Path, command_line: &Path) -> Option<Psi> {
    let off = || {
        let switched_off =
            read(command_line).is_ok_and(|line| line.split_whitespace().any(|word| word == "psi=0"));
        if switched_off { Psi::Off } else { Psi::Absent }
    };
    match read(pressure) {
        Ok(_) => {}
        Err(error) => return unreadable(&error, off),
    }
    let trigger = |stall_us: u32, window_us: u32| -> io::Result<()> {
        let flags = rustix::fs::OFlags::NONBLOCK.bits();
        let flags = i32::try_from(flags).map_err(io::Error::other)?;
        let mut file = fs::File::options().read(true).write(true).custom_flags(flags).open(pressure)?;
        // One write with the terminating zero that the kernel expects.
        file.write_all(format!("some {stall_us} {window_us}\0").as_bytes())
    };
    Some(triggers(trigger))
}

fn unreadable(error: &io::Error, off: impl FnOnce() -> Psi) -> Option<Psi> {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT) => Some(off()),
        Some(Errno::OPNOTSUPP) => Some(Psi::Off),
        _ => None,
    }
}

/// Support by which triggers succeed, each with its stall and window in microseconds.
fn triggers(mut trigger: impl FnMut(u32, u32) -> io::Result<()>) -> Psi {
    if trigger(100_000, 500_000).is_ok() {
        Psi::Full
    } else if trigger(400_000, 2_000_000).is_ok() {
        Psi::Limited
    } else {
        Psi::ReadOnly
    }
}

/// Tries `pidfd_open(2)` and `process_mrelease(2)` on ourselves: we are not dying, so nothing is released.
fn calls() -> (Option<bool>, Option<bool>) {
    match pidfd_open(getpid(), PidfdFlags::empty()) {
        Ok(pidfd) => {
            let error = raw::process_mrelease(pidfd.as_fd()).err();
            (Some(true), released(error.and_then(|error| error.raw_os_error())))
        }
        // The kernel lacks it or a filter refuses it: either way it cannot be used.
        Err(Errno::NOSYS | Errno::PERM | Errno::ACCESS) => (Some(false), None),
        Err(_) => (None, None),
    }
}

/// A process that is not dying is refused with `EINVAL`, so that error shows that the call exists.
fn released(error: Option<i32>) -> Option<bool> {
    match error.map(Errno::from_raw_os_error) {
        None | Some(Errno::INVAL) => Some(true),
        Some(Errno::NOSYS | Errno::PERM | Errno::ACCESS) => Some(false),
        Some(_) => None,
    }
}

/// Whether a filter applies, from `Seccomp:` in /proc/self/status.
fn seccomp(status: &Path) -> Option<bool> {
    let text = read(status).ok()?;
    let mode = text.lines().find_map(|line| line.strip_prefix("Seccomp:"))?.trim().parse::<u32>().ok()?;
    Some(mode != 0)
}

/// Whether there are filters, by the list of what they can do (Linux 4.14).
fn filters(actions: &Path) -> Option<bool> {
    match read(actions) {
        Ok(actions) => Some(actions.split_whitespace().any(|action| action == "errno")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(false),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests;
