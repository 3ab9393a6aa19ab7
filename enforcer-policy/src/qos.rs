//! The quality-of-service class: `pkg/apis/core/v1/helper/qos/qos.go`.

use crate::model::{Pod, QosClass, Quantity, Requirements, ResourceList, ResourceName};

use super::lists;

/// The pod's class: the one that the API server stored, as it never changes; else the computed one (upstream
/// `GetPodQOS`).
#[must_use]
pub fn class(pod: &Pod) -> QosClass {
    pod.stored_qos_class.unwrap_or_else(|| compute(pod))
}

/// The class that follows from requests and limits (upstream `ComputePodQOS`).
///
/// Pod-level resources decide alone if they name a resource that the pod level supports; `spec.resources: {}` does not
/// (`PodLevelResourcesFixKubeletQOSClass`, Kubernetes 1.37). Otherwise the sums over all containers, including init
/// containers, are compared, not each container's own.
#[must_use]
pub fn compute(pod: &Pod) -> QosClass {
    if let Some(resources) = pod.resources.as_ref().filter(|set| lists::has_pod_level(Some(set))) {
        return judge(std::slice::from_ref(&resources).iter().copied());
    }
    judge(pod.containers.iter().map(|container| &container.resources))
}

/// Cpu and memory; only amounts above zero count.
#[derive(Clone, Copy, Default)]
struct Compute {
    cpu: Quantity,
    memory: Quantity,
}

impl Compute {
    fn add(&mut self, list: &ResourceList) {
        let positive = |name| lists::get(list, name).max(Quantity::ZERO);
        self.cpu = self.cpu.saturating_add(positive(ResourceName::CPU));
        self.memory = self.memory.saturating_add(positive(ResourceName::MEMORY));
    }

    fn is_empty(self) -> bool {
        self.cpu.is_zero() && self.memory.is_zero()
    }
}

fn judge<'pod>(all: impl Iterator<Item = &'pod Requirements>) -> QosClass {
    let (mut requests, mut limits) = (Compute::default(), Compute::default());
    let mut every_one_limited = true;
    for resources in all {
        requests.add(&resources.requests);
        limits.add(&resources.limits);
        every_one_limited &= [ResourceName::CPU, ResourceName::MEMORY]
            .iter()
            .all(|name| lists::get(&resources.limits, name).is_positive());
    }
    if requests.is_empty() && limits.is_empty() {
        QosClass::BestEffort
    } else if every_one_limited && requests.cpu == limits.cpu && requests.memory == limits.memory {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}
