//! `memory.events.local`, and how it is matched with traced kills.
use serde::Serialize;

/// The OOM counters of `memory.events.local`: of the cgroup itself, without its descendants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OomCounts {
    /// Times its limit was hit and the OOM killer called. Not a count of kills: the kernel may retry often.
    pub oom: u64,
    /// Processes in it that the OOM killer killed.
    pub oom_kill: u64,
    /// Times it was killed as a group.
    pub oom_group_kill: u64,
}

impl OomCounts {
    /// Parses the file. A missing line counts as zero (`oom_group_kill` came with 5.17).
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let count = |key: &str| {
            text.lines()
                .filter_map(|line| line.split_once(' '))
                .find(|(name, _)| *name == key)
                .and_then(|(_, value)| value.trim().parse().ok())
                .unwrap_or(0)
        };
        Self { oom: count("oom"), oom_kill: count("oom_kill"), oom_group_kill: count("oom_group_kill") }
    }

    /// The increase since `before`. A counter that decreased belongs to another cgroup, and counts as unchanged.
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        Self {
            oom: self.oom.saturating_sub(before.oom),
            oom_kill: self.oom_kill.saturating_sub(before.oom_kill),
            oom_group_kill: self.oom_group_kill.saturating_sub(before.oom_group_kill),
        }
    }

    pub(super) const fn plus(self, more: Self) -> Self {
        Self {
            oom: self.oom.saturating_add(more.oom),
            oom_kill: self.oom_kill.saturating_add(more.oom_kill),
            oom_group_kill: self.oom_group_kill.saturating_add(more.oom_group_kill),
        }
    }
}

/// How the traced kills compare with the kernel's own count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Reconciliation {
    /// They are equal, or one more for the first victim of a group kill, which the kernel counts twice.
    Matched,
    /// The kernel counted fewer kills than were traced.
    Differs,
    /// A victim's cgroup was not known before it was marked, so the increase is unknown.
    NoBaseline,
    /// A victim's counters could not be read: its cgroup is gone or was never known.
    Unreadable,
}

#[cfg(test)]
mod tests {
    use super::OomCounts;

    #[test]
    fn reads_the_file_of_newer_and_older_kernels() {
        let new = "low 0\nhigh 7\nmax 12\noom 3\noom_kill 2\noom_group_kill 1\n";
        assert_eq!(OomCounts::parse(new), OomCounts { oom: 3, oom_kill: 2, oom_group_kill: 1 });
        assert_eq!(OomCounts::parse("oom 3\noom_kill 2\n").oom_group_kill, 0);
        assert_eq!(OomCounts::parse("oom\noom_kill x\n\n"), OomCounts::default());
    }

    #[test]
    fn a_counter_that_went_back_is_no_difference() {
        let one = OomCounts { oom: 1, oom_kill: 5, oom_group_kill: 0 };
        let other = OomCounts { oom: 4, oom_kill: 2, oom_group_kill: 0 };
        assert_eq!(other.since(one), OomCounts { oom: 3, oom_kill: 0, oom_group_kill: 0 });
    }
}
