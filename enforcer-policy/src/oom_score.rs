//! `oom_score_adj` of a container's processes: `pkg/kubelet/qos/policy.go`.

use crate::model::{Container, ContainerKind, Pod, QosClass, ResourceName};

use super::{critical, effective, lists, qos};

/// For the components that the node needs to run pods at all (upstream `KubeletOOMScoreAdj`, `KubeProxyOOMScoreAdj`).
pub const NODE_COMPONENT: i16 = -999;
/// For the process that holds a pod's namespaces, as in container runtimes (containerd's `defaultSandboxOOMAdj`).
pub const SANDBOX: i16 = -998;
/// For pods that the kernel should kill last, and those that the node needs.
pub const GUARANTEED: i16 = -997;
/// For pods without requests.
pub const BEST_EFFORT: i16 = 1000;
/// The lowest score of a Burstable pod's container: above every Guaranteed one.
pub const BURSTABLE_MIN: i16 = 3;
/// The highest score of a Burstable pod's container: below every BestEffort one.
pub const BURSTABLE_MAX: i16 = 999;

/// The score of one container on a node with `memory_bytes` of memory, `MemTotal` (upstream
/// `GetContainerOOMScoreAdjust`).
///
/// The larger the share of the node's memory that a Burstable pod's container requests, the lower its score. The excess
/// of a pod-level request over the containers' own is divided evenly among them, and a sidecar scores no higher than
/// the pod's app containers.
#[must_use]
pub fn score(pod: &Pod, container: &Container, memory_bytes: u64) -> i16 {
    Scores::of(pod, memory_bytes).score(container)
}

/// The scores of one pod's containers ([`score`]): values that all of them share are computed once, so that the time
/// for a pod of many containers is linear and not quadratic in their number.
#[derive(Clone, Copy, Debug)]
pub struct Scores {
    memory_bytes: u64,
    rule: Rule,
}

#[derive(Clone, Copy, Debug)]
enum Rule {
    Same(i16),
    ByRequest {
        remainder: i128,
        /// The smallest request of an app container.
        least_of_app: Option<i128>,
    },
}

impl Scores {
    /// The scores of this pod's containers, on a node with `memory_bytes` of memory.
    #[must_use]
    pub fn of(pod: &Pod, memory_bytes: u64) -> Self {
        let rule = if critical::is_node_critical(pod) {
            Rule::Same(GUARANTEED)
        } else {
            match qos::class(pod) {
                QosClass::Guaranteed => Rule::Same(GUARANTEED),
                QosClass::BestEffort => Rule::Same(BEST_EFFORT),
                QosClass::Burstable => Rule::ByRequest {
                    remainder: remainder_per_container(pod),
                    least_of_app: pod.app_containers().map(memory_request).min(),
                },
            }
        };
        Self { memory_bytes, rule }
    }

    /// The score of one of the pod's containers.
    #[must_use]
    pub fn score(self, container: &Container) -> i16 {
        let (remainder, least_of_app) = match self.rule {
            Rule::Same(score) => return score,
            Rule::ByRequest { remainder, least_of_app } => (remainder, least_of_app),
        };
        let own = scaled(memory_request(container) + remainder, self.memory_bytes);
        let adj = match container.kind {
            ContainerKind::App | ContainerKind::Init | ContainerKind::Ephemeral => own,
            ContainerKind::Sidecar => {
                least_of_app.map_or(own, |least| own.min(scaled(least + remainder, self.memory_bytes)))
            }
        };
        let bounded = adj.clamp(BURSTABLE_MIN.into(), BURSTABLE_MAX.into());
        i16::try_from(bounded).unwrap_or(BURSTABLE_MAX)
    }
}

/// 1000 minus the request in thousandths of the node's memory. The lowest, 0, if the node has no memory.
fn scaled(request_bytes: i128, memory_bytes: u64) -> i128 {
    (1000 * request_bytes).checked_div(memory_bytes.into()).map_or(0, |thousandths| 1000 - thousandths)
}

fn memory_request(container: &Container) -> i128 {
    lists::get(&container.resources.requests, ResourceName::MEMORY).value_ceil().into()
}

/// Each container's share of the excess of the pod-level request over the containers' (upstream
/// `remainingPodMemReqPerContainer`).
fn remainder_per_container(pod: &Pod) -> i128 {
    let Some(resources) = &pod.resources else { return 0 };
    let pod_level = lists::get(&resources.requests, ResourceName::MEMORY);
    if pod_level.is_zero() {
        return 0;
    }
    let containers = lists::get(&effective::container_requests(pod), ResourceName::MEMORY);
    let remainder = i128::from(pod_level.value_ceil()) - i128::from(containers.value_ceil());
    i128::try_from(pod.containers.len()).map_or(0, |count| remainder.checked_div(count).unwrap_or(0))
}
