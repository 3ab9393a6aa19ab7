/// The leave to change the hierarchy and scores.
///
/// Everything that writes takes one, so that the modes `observe` and `dry-run`, and a host whose cgroups the kubelet
/// owns, cannot write by mistake: they have none to give.
#[derive(Debug)]
pub struct Permit(());

impl Permit {
    /// Hands out the leave. To be called in one place only: where the configuration says `mode: enforce`; for more than
    /// scores that follow the ranking, where the ownership is ours as well.
    #[must_use]
    pub fn for_enforce_mode() -> Self {
        Self(())
    }
}
