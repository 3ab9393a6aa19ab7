//! Which values a kubelet's cgroups may have instead of the planned ones, as kubelets and runtimes differ.

use super::held::Held;
use crate::{
    model::{CgroupValue, OwnerLevel},
    policy::cpu,
};

/// Whether a file of a kubelet's cgroup counts as planned, although it holds `found`.
///
/// Of kubepods itself only the weight is known: its limits depend on the kubelet's own reservations.
pub(super) fn is_as_planned(planned: &CgroupValue, found: &Held, level: Option<&OwnerLevel>) -> bool {
    if matches!(level, Some(OwnerLevel::Node)) && !matches!(planned, CgroupValue::CpuWeight(_)) {
        return true;
    }
    let Some(found) = found.value() else { return false };
    match (planned, found) {
        (CgroupValue::CpuWeight(planned), CgroupValue::CpuWeight(found)) => {
            cpu::are_of_same_shares(*planned, found)
        }
        // Not every kubelet sets these: they depend on its version, its feature gates and its configuration.
        (
            CgroupValue::HugetlbMax { .. }
            | CgroupValue::MemoryHigh(_)
            | CgroupValue::MemoryLow(_)
            | CgroupValue::MemoryMin(_)
            | CgroupValue::MemoryOomGroup(_)
            | CgroupValue::MemorySwapMax(_)
            | CgroupValue::PidsMax(_),
            found,
        ) => found == found.file().default_value(),
        (
            CgroupValue::CpuMax(_)
            | CgroupValue::CpuWeight(_)
            | CgroupValue::CpusetCpus(_)
            | CgroupValue::MemoryMax(_),
            _,
        ) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{CgroupFile, Limit};

    fn held(value: CgroupValue) -> Held {
        Held::Value(value)
    }

    #[test]
    fn what_a_kubelet_or_runtime_may_leave_or_compute_otherwise_is_no_difference() {
        let is = |planned, found| is_as_planned(&planned, &held(found), None);
        // 50m and 100m: by runc 1.1, and by later ones.
        assert!(is(CgroupValue::CpuWeight(11), CgroupValue::CpuWeight(2)));
        assert!(is(CgroupValue::CpuWeight(17), CgroupValue::CpuWeight(4)));
        assert!(is(CgroupValue::CpuWeight(4), CgroupValue::CpuWeight(17)));
        assert!(!is(CgroupValue::CpuWeight(11), CgroupValue::CpuWeight(100)));
        assert!(!is(CgroupValue::CpuWeight(17), CgroupValue::CpuWeight(2)));
        let swap = |limit| CgroupValue::MemorySwapMax(limit);
        assert!(is(swap(Limit::Amount(0)), swap(Limit::Max)));
        assert!(!is(swap(Limit::Amount(0)), swap(Limit::Amount(7))));
        assert!(is(CgroupValue::MemoryOomGroup(true), CgroupValue::MemoryOomGroup(false)));
        let memory = |limit| CgroupValue::MemoryMax(limit);
        assert!(!is(memory(Limit::Amount(4_096)), memory(Limit::Max)));
        assert!(!is_as_planned(&memory(Limit::Max), &Held::read(CgroupFile::MemoryMax, "?"), None));
    }

    #[test]
    fn of_kubepods_only_the_weight_is_known() {
        let found = held(CgroupValue::MemoryMax(Limit::Amount(4_096)));
        let planned = CgroupValue::MemoryMax(Limit::Amount(8_192));
        assert!(is_as_planned(&planned, &found, Some(&OwnerLevel::Node)));
        assert!(!is_as_planned(&planned, &found, None));
        let weight = held(CgroupValue::CpuWeight(1));
        assert!(!is_as_planned(&CgroupValue::CpuWeight(79), &weight, Some(&OwnerLevel::Node)));
    }
}
