//! Counters that the kernel itself reports.

use std::fs;

use anyhow::Context as _;

/// A counter of /proc/vmstat, such as `oom_kill`.
pub fn vmstat(counter: &str) -> anyhow::Result<u64> {
    keyed("/proc/vmstat", counter, "")
}

/// A field of /proc/meminfo in bytes, such as `MemAvailable`.
pub fn meminfo_bytes(field: &str) -> anyhow::Result<u64> {
    Ok(keyed("/proc/meminfo", &format!("{field}:"), " kB")? * 1024)
}

/// A counter of a cgroup file with keys, such as `oom_kill` of memory.events.
pub fn cgroup_counter(cgroup: &str, file: &str, key: &str) -> anyhow::Result<u64> {
    keyed(&format!("/sys/fs/cgroup{cgroup}/{file}"), key, "")
}

/// A number after a key with its colon in any file that has one per line, such as `syscw:` in /proc/\<pid\>/io.
pub fn field(path: &str, key: &str) -> anyhow::Result<u64> {
    keyed(path, key, "")
}

fn keyed(path: &str, key: &str, unit: &str) -> anyhow::Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    text.lines()
        .filter_map(|line| line.strip_prefix(key))
        .find_map(|rest| rest.strip_prefix(' ')?.trim_start().trim_end_matches(unit).parse().ok())
        .with_context(|| format!("{path} has no {key}"))
}
