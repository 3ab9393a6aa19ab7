//! What is written to a pod's own cgroup, from the requests and limits of its containers.

use crate::model::{CgroupValues, Node, Pod, QosClass, ResourceName};

use super::{
    super::{Settings, cpu, effective, hugepages, qos},
    amount, hugetlb, milli, no_huge_pages, period, protection, quota, units,
};

/// A pod's cgroup (upstream `ResourceConfigForPod`).
///
/// A Burstable pod is limited only if each of its containers is. With `cpuCFSQuota: false` only the period is set. Huge
/// pages are limited to the request, and to 0 for sizes of the node that the pod does not request.
#[must_use]
pub fn pod(pod: &Pod, node: &Node, settings: &Settings) -> CgroupValues {
    let requests = effective::requests(pod);
    let limits = effective::limits(pod);
    let class = qos::class(pod);
    let (cpu_limited, memory_limited) = match class {
        QosClass::Guaranteed => (true, true),
        QosClass::Burstable => {
            (effective::is_limited(pod, ResourceName::CPU), effective::is_limited(pod, ResourceName::MEMORY))
        }
        QosClass::BestEffort => (false, false),
    };
    let cpu_shares = match class {
        QosClass::Guaranteed | QosClass::Burstable => cpu::shares(milli(&requests, ResourceName::CPU)),
        QosClass::BestEffort => cpu::SHARES_MIN,
    };

    let cpu_max = match (cpu_limited, settings.cpu_cfs_quota) {
        (true, true) => quota(milli(&limits, ResourceName::CPU), settings),
        (true, false) => period(settings),
        (false, _) => None,
    };
    let memory_max = if memory_limited { amount(units(&limits, ResourceName::MEMORY)) } else { None };
    let mut huge = no_huge_pages(node);
    // Sizes that the node lacks have no file. A pod that requests one is not admitted.
    let requested = hugepages::by_page_bytes(&requests).into_iter();
    let requested: Vec<_> =
        requested.filter(|(page_bytes, amount)| *amount > 0 || huge.contains_key(page_bytes)).collect();
    huge.extend(requested);
    let mut values = CgroupValues {
        cpu_max,
        cpu_weight: Some(cpu::weight_linear(cpu_shares)),
        hugetlb_max: hugetlb(huge),
        memory_max,
        pids_max: amount(settings.pod_pids_limit.unwrap_or(0)),
        ..CgroupValues::default()
    };
    // A BestEffort pod's overhead is not protected.
    if class != QosClass::BestEffort {
        protection::reserve(&mut values, class, units(&requests, ResourceName::MEMORY), settings);
    }
    values
}
