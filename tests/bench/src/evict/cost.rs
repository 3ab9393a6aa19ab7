//! What a contender's process costs.

use std::fs;

use anyhow::Context as _;
use enforcer_tests::{figures::float, kernel};

/// The processor time of a process's threads so far, in milliseconds: by the scheduler's own account, which the kernel
/// keeps to the nanosecond (the first number of `schedstat`). Threads that have ended are left out.
pub(crate) fn cpu_ms(pid: u32) -> anyhow::Result<f64> {
    let tasks = format!("/proc/{pid}/task");
    let mut nanos = 0_u64;
    for task in fs::read_dir(&tasks).with_context(|| format!("cannot read {tasks}"))? {
        // It may end meanwhile.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        nanos += first_number(&text).with_context(|| format!("a schedstat of {pid} is {text:?}"))?;
    }
    Ok(float(nanos) / 1e6)
}

/// Its resident memory.
pub(crate) fn resident_bytes(pid: u32) -> anyhow::Result<u64> {
    let file = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
    let kib = text.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    let kib: u64 = kib.and_then(|kib| kib.parse().ok()).with_context(|| format!("{file} has no VmRSS"))?;
    Ok(kib * 1024)
}

/// The kernel's count of its own OOM kills.
pub(crate) fn kernel_kills() -> anyhow::Result<u64> {
    kernel::vmstat("oom_kill")
}

fn first_number(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheduler_counts_this_process() {
        let own = std::process::id();
        assert!(cpu_ms(own).unwrap() > 0.0);
        assert!(resident_bytes(own).unwrap() > 0);
        assert_eq!(first_number("1500000 3 4\n"), Some(1_500_000));
    }
}
