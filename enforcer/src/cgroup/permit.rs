//! Keeps `observe` and `dry-run` from writing: every change takes this value, which they lack.

/// Permission to change the hierarchy and scores.
///
/// Everything that writes takes one. The modes `observe` and `dry-run`, and a host whose cgroups the kubelet owns, have
/// none, and so cannot write by mistake.
#[derive(Debug)]
pub struct Permit(());

impl Permit {
    /// Grants the permission. Call it in one place only: where the configuration says `mode: enforce`; for more than
    /// scores that follow the ranking, where we own the cgroups as well.
    #[must_use]
    pub fn for_enforce_mode() -> Self {
        Self(())
    }

    /// Grants the permission to undo what a daemon has done. Only for who has made sure that no other runs.
    #[must_use]
    pub fn for_cleanup() -> Self {
        Self(())
    }
}
