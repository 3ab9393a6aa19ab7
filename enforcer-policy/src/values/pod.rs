use crate::model::{Node, Pod, QosClass, ResourceName};

use super::{
    super::{Settings, cpu, effective, hugepages, qos},
    CPU_WEIGHT, Files, MEMORY_MAX, PIDS_MAX, insert_amount, insert_hugetlb, insert_period, insert_quota,
    milli, no_huge_pages, protection, units,
};

/// A pod's cgroup (upstream `ResourceConfigForPod`).
///
/// A Burstable pod is limited only if each of its containers is. With `cpuCFSQuota: false` only the period is set. Huge
/// pages are limited to the request, and to 0 for sizes of the node that the pod does not request.
#[must_use]
pub fn pod(pod: &Pod, node: &Node, settings: &Settings) -> Files {
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

    let mut files = Files::from([(CPU_WEIGHT, cpu::weight_linear(cpu_shares).to_string())]);
    match (cpu_limited, settings.cpu_cfs_quota) {
        (true, true) => insert_quota(&mut files, milli(&limits, ResourceName::CPU), settings),
        (true, false) => insert_period(&mut files, settings),
        (false, _) => {}
    }
    if memory_limited {
        insert_amount(&mut files, MEMORY_MAX, units(&limits, ResourceName::MEMORY));
    }
    insert_amount(&mut files, PIDS_MAX, settings.pod_pids_limit.unwrap_or(0));
    // A BestEffort pod's overhead is not protected.
    if class != QosClass::BestEffort {
        protection::insert_reservation(&mut files, class, units(&requests, ResourceName::MEMORY), settings);
    }
    let mut huge = no_huge_pages(node);
    // Sizes that the node lacks have no file. A pod that requests one is not admitted.
    let requested = hugepages::by_page_bytes(&requests).into_iter();
    let requested: Vec<_> =
        requested.filter(|(page_bytes, amount)| *amount > 0 || huge.contains_key(page_bytes)).collect();
    huge.extend(requested);
    insert_hugetlb(&mut files, huge);
    files
}
