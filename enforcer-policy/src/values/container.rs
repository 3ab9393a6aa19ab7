//! What is written to a container's cgroup; the pod level fills in missing limits.

use std::collections::BTreeMap;

use crate::model::{
    CgroupValues, Container, Limit, Node, Pod, QosClass, Quantity, ResourceList, ResourceName,
};

use super::{
    super::{CpuWeightFormula, Settings, SwapBehavior, cpu, critical, hugepages, lists, qos, threshold},
    amount, hugetlb, no_huge_pages, protection, quota, units,
};

/// A container's cgroup (upstream `generateLinuxContainerResources`).
///
/// The pod level's limit applies where the container has none; a missing cpu request is the cpu limit. Huge pages are
/// limited in every size that the node has, to 0 by default.
#[must_use]
pub fn container(pod: &Pod, container: &Container, node: &Node, settings: &Settings) -> CgroupValues {
    ContainerValues::of(pod, node, settings).values(container)
}

/// The values of one pod's containers ([`container`]): values that all of them share are computed once, so that the
/// time for a pod of many containers is linear and not quadratic in their number.
#[derive(Clone, Debug)]
pub struct ContainerValues<'a> {
    pod: &'a Pod,
    node: &'a Node,
    settings: &'a Settings,
    class: QosClass,
    /// The pod level's limits of huge pages, by page size.
    huge: BTreeMap<u64, u64>,
}

impl<'a> ContainerValues<'a> {
    /// The values of this pod's containers.
    #[must_use]
    pub fn of(pod: &'a Pod, node: &'a Node, settings: &'a Settings) -> Self {
        let mut huge = no_huge_pages(node);
        if let Some(set) = &pod.resources {
            limit_huge_pages(&mut huge, &set.limits);
        }
        Self { pod, node, settings, class: qos::class(pod), huge }
    }

    /// The values of one of the pod's containers.
    #[must_use]
    pub fn values(&self, container: &Container) -> CgroupValues {
        let Self { pod, node, settings, class, ref huge } = *self;
        let own = &container.resources;
        let cpu_limit_milli = limit(pod, container, ResourceName::CPU).milli();
        let cpu_request_milli =
            own.requests.get(ResourceName::CPU).map_or(cpu_limit_milli, |request| request.milli());
        let cpu_shares = cpu::shares(cpu_request_milli);
        let weight = match settings.cpu_weight_formula {
            CpuWeightFormula::Kubelet => cpu::weight_quadratic(cpu_shares),
            CpuWeightFormula::Linear => cpu::weight_linear(cpu_shares),
        };

        let mut huge = huge.clone();
        limit_huge_pages(&mut huge, &own.limits);
        let mut values = CgroupValues {
            cpu_max: if settings.cpu_cfs_quota { quota(cpu_limit_milli, settings) } else { None },
            cpu_weight: Some(weight),
            hugetlb_max: hugetlb(huge),
            memory_high: protection::memory_high(container, node, settings),
            memory_max: amount(limit(pod, container, ResourceName::MEMORY).units()),
            memory_oom_group: (!settings.single_process_oom_kill).then_some(true),
            memory_swap_max: node.swap_controller.then(|| Limit::Amount(self.swap_max(container))),
            ..CgroupValues::default()
        };
        protection::reserve(&mut values, class, units(&own.requests, ResourceName::MEMORY), settings);
        values
    }

    /// How much a container may swap, in bytes (upstream `configureContainerSwapResources`): the same share of the
    /// node's swap as its request is of the node's memory.
    fn swap_max(&self, container: &Container) -> u64 {
        let request = lists::get(&container.resources.requests, ResourceName::MEMORY);
        let limit = lists::get(&container.resources.limits, ResourceName::MEMORY);
        let may = match self.settings.swap_behavior {
            SwapBehavior::NoSwap => false,
            SwapBehavior::LimitedSwap => {
                self.class == QosClass::Burstable
                    && !critical::is_critical(self.pod)
                    && request.is_positive()
                    && request != limit
                    && request.units() <= self.node.memory_bytes
            }
        };
        if !may {
            return 0;
        }
        #[expect(clippy::cast_precision_loss, reason = "the kubelet's own arithmetic")]
        let share = request.units() as f64 / self.node.memory_bytes as f64;
        threshold::scale(self.node.swap_bytes, share)
    }
}

/// Sets the limits of the page sizes that the node has.
fn limit_huge_pages(huge: &mut BTreeMap<u64, u64>, limits: &ResourceList) {
    for (page_bytes, amount) in hugepages::by_page_bytes(limits) {
        huge.entry(page_bytes).and_modify(|limit| *limit = amount);
    }
}

/// The container's own limit, or if that is zero the pod level's.
fn limit(pod: &Pod, container: &Container, name: &str) -> Quantity {
    let own = lists::get(&container.resources.limits, name);
    match &pod.resources {
        Some(pod_level) if own.is_zero() => lists::get(&pod_level.limits, name),
        Some(_) | None => own,
    }
}
