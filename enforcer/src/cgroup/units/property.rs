//! What systemd must know of a cgroup value, or it would overwrite it with its own.

use crate::{
    model::{CgroupValue, CpuMax, Limit},
    policy::cpus::CpuSet,
};

/// What systemd takes for "no limit", and for "not set" (`CGROUP_LIMIT_MAX`, `CGROUP_WEIGHT_INVALID`, `USEC_INFINITY`).
const NONE: u64 = u64::MAX;

const US_PER_SECOND: u128 = 1_000_000;

/// A resource property of a unit (`org.freedesktop.systemd1(5)`).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Property {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: PropertyValue,
}

/// What a property can be.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PropertyValue {
    /// A number; `u64::MAX` is infinity or not set.
    Number(u64),
    /// A bit for each CPU, the lowest of the first byte for CPU 0; no byte is not set (`cpu_set_from_dbus` in
    /// `src/shared/cpu-set-util.c`).
    Mask(Vec<u8>),
}

impl Property {
    pub(super) fn number(name: &'static str, number: u64) -> Self {
        Self { name, value: PropertyValue::Number(number) }
    }

    /// The properties through which systemd writes that value to a cgroup's file; empty for a file that has none.
    ///
    /// The kernel's default is systemd's default, so that systemd does not claim a restored file. The weight is an
    /// exception: without it systemd would disable the controller for all siblings.
    #[must_use]
    pub fn of(value: &CgroupValue) -> Vec<Self> {
        let property = |name, number| vec![Self::number(name, number)];
        match *value {
            CgroupValue::CpuWeight(weight) => property("CPUWeight", weight),
            CgroupValue::CpuMax(CpuMax { quota_us, period_us }) => {
                // systemd uses the kernel's period when none is set.
                let period = if period_us == CpuMax::DEFAULT_PERIOD_US { NONE } else { period_us };
                vec![
                    Self::number("CPUQuotaPerSecUSec", per_second(quota_us, period_us)),
                    Self::number("CPUQuotaPeriodUSec", period),
                ]
            }
            CgroupValue::CpusetCpus(ref cpus) => {
                vec![Self { name: "AllowedCPUs", value: PropertyValue::Mask(mask(cpus)) }]
            }
            CgroupValue::MemoryMin(limit) => property("MemoryMin", number(limit)),
            CgroupValue::MemoryLow(limit) => property("MemoryLow", number(limit)),
            CgroupValue::MemoryHigh(limit) => property("MemoryHigh", number(limit)),
            CgroupValue::MemoryMax(limit) => property("MemoryMax", number(limit)),
            CgroupValue::MemorySwapMax(limit) => property("MemorySwapMax", number(limit)),
            CgroupValue::PidsMax(limit) => property("TasksMax", number(limit)),
            // systemd has none, or none on slices.
            CgroupValue::HugetlbMax { .. } | CgroupValue::MemoryOomGroup(_) => Vec::new(),
        }
    }
}

/// A bit for each of the CPUs.
fn mask(cpus: &CpuSet) -> Vec<u8> {
    let mut mask = Vec::new();
    for cpu in cpus.iter() {
        let (byte, bit) = (usize::from(cpu / 8), cpu % 8);
        if mask.len() <= byte {
            mask.resize(byte + 1, 0_u8);
        }
        if let Some(held) = mask.get_mut(byte) {
            *held |= 1 << bit;
        }
    }
    mask
}

fn number(limit: Limit) -> u64 {
    limit.amount().unwrap_or(NONE)
}

/// The quota in microseconds per second, rounded up: never less than planned.
fn per_second(quota: Limit, period_us: u64) -> u64 {
    match quota {
        Limit::Max => NONE,
        Limit::Amount(quota_us) => {
            let per_second = (u128::from(quota_us) * US_PER_SECOND).div_ceil(u128::from(period_us.max(1)));
            u64::try_from(per_second).unwrap_or(NONE)
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::model::CgroupFile;

    #[rstest]
    #[case("cpu.weight", "79", &[("CPUWeight", 79)])]
    #[case("cpu.weight", "100", &[("CPUWeight", 100)])]
    #[case("cpu.max", "20000 100000", &[("CPUQuotaPerSecUSec", 200_000), ("CPUQuotaPeriodUSec", NONE)])]
    #[case("cpu.max", "1500000 50000", &[("CPUQuotaPerSecUSec", 30_000_000), ("CPUQuotaPeriodUSec", 50_000)])]
    #[case("cpu.max", "1000 30000", &[("CPUQuotaPerSecUSec", 33_334), ("CPUQuotaPeriodUSec", 30_000)])]
    #[case("cpu.max", "max 100000", &[("CPUQuotaPerSecUSec", NONE), ("CPUQuotaPeriodUSec", NONE)])]
    #[case("memory.min", "0", &[("MemoryMin", 0)])]
    #[case("memory.low", "8192", &[("MemoryLow", 8192)])]
    #[case("memory.high", "max", &[("MemoryHigh", NONE)])]
    #[case("memory.max", "209715200", &[("MemoryMax", 209_715_200)])]
    #[case("memory.swap.max", "0", &[("MemorySwapMax", 0)])]
    #[case("pids.max", "max", &[("TasksMax", NONE)])]
    #[case("pids.max", "1024", &[("TasksMax", 1024)])]
    #[case("memory.oom.group", "1", &[])]
    #[case("hugetlb.2MB.max", "0", &[])]
    fn files_have_properties(
        #[case] file: &str,
        #[case] value: &str,
        #[case] expected: &[(&'static str, u64)],
    ) {
        let properties = Property::of(&CgroupFile::named(file).unwrap().parse(value).unwrap());
        let expected: Vec<_> =
            expected.iter().map(|(name, number)| Property::number(name, *number)).collect();
        assert_eq!(properties, expected);
    }

    /// What the kernel's defaults come to is what a slice has that was just started.
    #[rstest]
    #[case(CgroupFile::CpuWeight, &[100])]
    #[case(CgroupFile::CpuMax, &[NONE, NONE])]
    #[case(CgroupFile::MemoryMin, &[0])]
    #[case(CgroupFile::MemoryLow, &[0])]
    #[case(CgroupFile::MemoryHigh, &[NONE])]
    #[case(CgroupFile::MemoryMax, &[NONE])]
    #[case(CgroupFile::MemorySwapMax, &[NONE])]
    #[case(CgroupFile::PidsMax, &[NONE])]
    fn defaults_are_systemds(#[case] file: CgroupFile, #[case] expected: &[u64]) {
        let values: Vec<_> =
            Property::of(&file.default_value()).into_iter().map(|property| property.value).collect();
        assert_eq!(values, expected.iter().copied().map(PropertyValue::Number).collect::<Vec<_>>());
    }

    #[rstest]
    #[case("", &[])]
    #[case("0", &[1])]
    #[case("1-2,8,23", &[6, 1, 128])]
    fn cpus_are_a_mask(#[case] cpus: &str, #[case] mask: &[u8]) {
        let value = CgroupFile::CpusetCpus.parse(cpus).unwrap();
        let expected = Property { name: "AllowedCPUs", value: PropertyValue::Mask(mask.to_vec()) };
        assert_eq!(Property::of(&value), [expected]);
    }
}
