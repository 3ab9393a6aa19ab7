//! What is asked of the API server for whose pod.

use super::super::message::Action;

/// What is asked of the API server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ApiSettings {
    /// For a pod of a controller; `None` asks for nothing.
    pub action: Option<Action>,
    /// What to do if a disruption budget refuses.
    pub on_pdb: OnPdb,
    /// For a pod without a controller; `None` leaves it to the kubelet.
    pub bare_pods: Option<Action>,
    /// For a pod of a `DaemonSet`, which comes back on the same node; `None` leaves it to the kubelet.
    pub daemon_set_pods: Option<Action>,
}

impl Default for ApiSettings {
    fn default() -> Self {
        Self { action: Some(Action::Evict), on_pdb: OnPdb::Override, bare_pods: None, daemon_set_pods: None }
    }
}

/// What to do if a disruption budget refuses an eviction: the processes are dead already.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OnPdb {
    /// Delete the pod: a kubelet's own eviction ignores budgets too.
    Override,
    /// Ask again.
    Respect,
}

/// Whose pod it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Owner {
    /// A controller, which creates another on any node.
    Controller,
    /// A `DaemonSet`, which creates another on this node.
    DaemonSet,
    /// None: nothing creates another.
    None,
}

impl ApiSettings {
    pub(in crate::kube) fn action(self, owner: Owner) -> Option<Action> {
        match owner {
            Owner::Controller => self.action,
            Owner::DaemonSet => self.daemon_set_pods,
            Owner::None => self.bare_pods,
        }
    }
}

impl Owner {
    /// By the kind of its controller.
    #[must_use]
    pub fn of(controller: Option<&str>) -> Self {
        match controller {
            None => Self::None,
            Some("DaemonSet") => Self::DaemonSet,
            Some(_) => Self::Controller,
        }
    }

    /// Why nothing is asked for such a pod: in a word, and in words.
    pub(super) const fn withheld(self) -> (Option<&'static str>, &'static str) {
        match self {
            Self::Controller => (None, "apiAction is none"),
            Self::DaemonSet => {
                (Some("daemonSetPod"), "the pod belongs to a DaemonSet, which would recreate it on this node")
            }
            Self::None => (Some("barePod"), "the pod has no controller, and nothing would recreate it"),
        }
    }
}
