//! The writes to cgroup files and scores that the kernel saw, by any process.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
};

use anyhow::Context as _;

const TRACING: &str = "/sys/kernel/tracing";

/// The kernel's functions behind `write` to a cgroup's file and to `oom_score_adj`, and the probes' names.
const PROBES: [(&str, &str); 2] =
    [("enforcer_cgroup", "cgroup_file_write"), ("enforcer_score", "oom_score_adj_write")];

/// Counts writes by kernel probes, until it is dropped.
#[derive(Debug)]
pub struct Writes(());

/// How many there were.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Count {
    /// To any file of any cgroup.
    pub cgroup_files: u64,
    /// To any process's `oom_score_adj`.
    pub scores: u64,
}

impl Writes {
    /// Begins to count.
    pub fn record() -> anyhow::Result<Self> {
        for (name, function) in PROBES {
            let probe = format!("p:{name}/{name} {function}");
            define(&probe).with_context(|| format!("cannot set the probe {probe:?}"))?;
            enable(name, "1")?;
        }
        Ok(Self(()))
    }

    /// All since the beginning.
    pub fn count(&self) -> anyhow::Result<Count> {
        let path = format!("{TRACING}/kprobe_profile");
        let profile = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let of = |name| hits(&profile, name).with_context(|| format!("{path} has no {name}:\n{profile}"));
        let [cgroup, score] = PROBES.map(|(name, _)| of(name));
        Ok(Count { cgroup_files: cgroup?, scores: score? })
    }
}

impl Drop for Writes {
    fn drop(&mut self) {
        // A failure only leaves the probe enabled, which costs time.
        for (name, _) in PROBES {
            if enable(name, "0").is_ok() {
                drop(define(&format!("-:{name}/{name}")));
            }
        }
    }
}

/// Adds to the list of probes: a write that is not appended would replace it.
fn define(probe: &str) -> io::Result<()> {
    OpenOptions::new().append(true).open(format!("{TRACING}/kprobe_events"))?.write_all(probe.as_bytes())
}

fn enable(name: &str, value: &str) -> anyhow::Result<()> {
    let path = format!("{TRACING}/events/{name}/{name}/enable");
    fs::write(&path, value).with_context(|| format!("cannot write {value:?} to {path}"))
}

/// Reads `  enforcer_cgroup    12    0`: the hits, and the misses.
fn hits(profile: &str, name: &str) -> Option<u64> {
    profile.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == name).then_some(())?;
        let (seen, missed): (u64, u64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        seen.checked_add(missed)
    })
}

#[cfg(test)]
mod tests {
    use super::hits;

    #[test]
    fn hits_and_misses_count() {
        let profile = "  enforcer_cgroup      12     1\n  enforcer_score      0     0\n";
        assert_eq!(hits(profile, "enforcer_cgroup"), Some(13));
        assert_eq!(hits(profile, "enforcer_score"), Some(0));
        assert_eq!(hits(profile, "other"), None);
    }
}
