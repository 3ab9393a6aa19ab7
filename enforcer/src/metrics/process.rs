//! What the daemon itself takes: memory, CPU time, descriptors, threads.

use std::{fs, path::Path};

use procfs::process::{LimitValue, Process as Proc};

/// The folders of this process's descriptors.
const OWN_FDS: &str = "/proc/self/fd";
const OWN_FDINFO: &str = "/proc/self/fdinfo";

/// The link target of an eBPF program's descriptor.
const PROGRAM: &str = "anon_inode:bpf-prog";

/// The daemon's own process; values that cannot be read are absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Process {
    /// Its resident memory.
    pub resident_bytes: Option<u64>,
    /// Its address space.
    pub virtual_bytes: Option<u64>,
    /// The locked part of its address space.
    pub locked_bytes: Option<u64>,
    /// Its user and system CPU time.
    pub cpu_seconds: Option<f64>,
    /// Its open descriptors.
    pub open_fds: Option<u64>,
    /// The most descriptors it may open; `None` without a limit.
    pub max_fds: Option<u64>,
    /// Its number of threads.
    pub threads: Option<u64>,
    /// When it started, in seconds since 1970.
    pub start_seconds: Option<f64>,
    /// How often the kernel skipped its eBPF programs because they were already running on that CPU, from fdinfo.
    pub recursion_misses: u64,
}

impl Process {
    /// Reads the values of this process.
    #[must_use]
    pub fn read() -> Self {
        let Ok(own) = Proc::myself() else { return Self::default() };
        let (status, stat) = (own.status().ok(), own.stat().ok());
        let bytes = |kib: Option<u64>| kib.map(|kib| kib.saturating_mul(1_024));
        let ticks = rustix::param::clock_ticks_per_second();
        let seconds = |count: u64| ticked(count, ticks);
        let max_fds = own.limits().ok().and_then(|limits| match limits.max_open_files.soft_limit {
            LimitValue::Value(value) => Some(value),
            LimitValue::Unlimited => None,
        });
        Self {
            resident_bytes: bytes(status.as_ref().and_then(|status| status.vmrss)),
            virtual_bytes: bytes(status.as_ref().and_then(|status| status.vmsize)),
            locked_bytes: bytes(status.as_ref().and_then(|status| status.vmlck)),
            threads: status.as_ref().map(|status| status.threads),
            cpu_seconds: stat.as_ref().map(|stat| seconds(stat.utime.saturating_add(stat.stime))),
            open_fds: own.fd_count().ok().and_then(|count| u64::try_from(count).ok()),
            max_fds,
            start_seconds: stat.as_ref().and_then(|stat| Some(booted()? + seconds(stat.starttime))),
            recursion_misses: recursion_misses(Path::new(OWN_FDS), Path::new(OWN_FDINFO)),
        }
    }
}

/// The boot time, in seconds since 1970.
fn booted() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// Kernel clock ticks as seconds.
fn ticked(count: u64, per_second: u64) -> f64 {
    let per_second = per_second.max(1);
    let rest = (count % per_second).saturating_mul(1_000_000_000) / per_second;
    let whole = std::time::Duration::from_secs(count / per_second);
    (whole + std::time::Duration::from_nanos(rest)).as_secs_f64()
}

/// The sum over all programs whose descriptors are open.
fn recursion_misses(fds: &Path, fdinfo: &Path) -> u64 {
    let entries = fs::read_dir(fds).into_iter().flatten().flatten();
    entries
        .filter(|entry| fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == PROGRAM))
        .filter_map(|entry| {
            let info = fs::read_to_string(fdinfo.join(entry.file_name())).ok()?;
            info.lines().find_map(|line| line.strip_prefix("recursion_misses:"))?.trim().parse::<u64>().ok()
        })
        .fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_can_be_read() {
        let Process {
            resident_bytes,
            virtual_bytes,
            locked_bytes,
            cpu_seconds,
            open_fds,
            max_fds: _,
            threads,
            start_seconds,
            recursion_misses,
        } = Process::read();
        assert!(resident_bytes.is_some_and(|bytes| bytes > 100_000), "{resident_bytes:?}");
        assert!(virtual_bytes > resident_bytes);
        assert!(locked_bytes.is_some() && cpu_seconds.is_some_and(|seconds| seconds >= 0.0));
        assert!(open_fds.is_some_and(|fds| fds >= 3) && threads.is_some_and(|threads| threads > 0));
        let now = jiff::Timestamp::now().as_second();
        let age = start_seconds
            .map(|start| std::time::Duration::from_secs(now.unsigned_abs()).as_secs_f64() - start);
        assert!(age.is_some_and(|age| (-2.0..100_000.0).contains(&age)), "{age:?}");
        assert_eq!(recursion_misses, 0);
    }

    #[test]
    fn misses_are_summed_over_programs_alone() {
        let temp = tempfile::tempdir().unwrap();
        let (fds, info) = (temp.path().join("fd"), temp.path().join("fdinfo"));
        fs::create_dir_all(&fds).unwrap();
        fs::create_dir_all(&info).unwrap();
        for (fd, link, misses) in [("3", PROGRAM, 4), ("4", "anon_inode:bpf-map", 9), ("5", PROGRAM, 2)] {
            std::os::unix::fs::symlink(link, fds.join(fd)).unwrap();
            fs::write(info.join(fd), format!("pos:\t0\nrecursion_misses:\t{misses}\n")).unwrap();
        }
        assert_eq!(recursion_misses(&fds, &info), 6);
    }

    #[test]
    fn ticks_are_seconds() {
        assert!((ticked(1_050, 100) - 10.5).abs() < 1e-9);
        assert!((ticked(7, 0) - 7.0).abs() < 1e-9);
    }
}
