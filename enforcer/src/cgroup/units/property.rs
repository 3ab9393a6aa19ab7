use crate::{cgroup::Knob, model::Limit};

/// What systemd takes for "no limit", and for "not set" (`CGROUP_LIMIT_MAX`, `CGROUP_WEIGHT_INVALID`, `USEC_INFINITY`).
const NONE: u64 = u64::MAX;

/// The kernel's period of a new cgroup in microseconds, which systemd uses when none is set.
const DEFAULT_PERIOD_US: u64 = 100_000;

const US_PER_SECOND: u128 = 1_000_000;

/// A resource property of a unit (`org.freedesktop.systemd1(5)`); all of these are 64-bit numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Property {
    /// Its name.
    pub name: &'static str,
    /// Its value; `u64::MAX` is infinity or not set.
    pub value: u64,
}

impl Property {
    /// The properties through which systemd writes that value to a cgroup's file; empty for a file that has none.
    ///
    /// The kernel's default is systemd's default, so that systemd does not claim a restored file. The weight is an
    /// exception: without it systemd would disable the controller for all siblings.
    #[must_use]
    pub fn of(file: &str, value: &Knob) -> Vec<Self> {
        let property = |name, value| vec![Self { name, value }];
        match (file, value) {
            ("cpu.weight", Knob::Weight(weight)) => property("CPUWeight", *weight),
            ("cpu.max", Knob::CpuMax { quota, period_us }) => {
                let period = if *period_us == DEFAULT_PERIOD_US { NONE } else { *period_us };
                vec![
                    Self { name: "CPUQuotaPerSecUSec", value: per_second(*quota, *period_us) },
                    Self { name: "CPUQuotaPeriodUSec", value: period },
                ]
            }
            (_, Knob::Limit(limit)) => match file {
                "memory.min" => property("MemoryMin", bytes(*limit)),
                "memory.low" => property("MemoryLow", bytes(*limit)),
                "memory.high" => property("MemoryHigh", bytes(*limit)),
                "memory.max" => property("MemoryMax", bytes(*limit)),
                "memory.swap.max" => property("MemorySwapMax", bytes(*limit)),
                "pids.max" => property("TasksMax", bytes(*limit)),
                _ => Vec::new(),
            },
            (_, Knob::Weight(_) | Knob::CpuMax { .. } | Knob::Text(_)) => Vec::new(),
        }
    }
}

fn bytes(limit: Limit) -> u64 {
    match limit {
        Limit::Max => NONE,
        Limit::Bytes(bytes) => bytes,
    }
}

/// The quota in microseconds per second, rounded up: never less than planned.
fn per_second(quota: Limit, period_us: u64) -> u64 {
    match quota {
        Limit::Max => NONE,
        Limit::Bytes(quota_us) => {
            let per_second = (u128::from(quota_us) * US_PER_SECOND).div_ceil(u128::from(period_us.max(1)));
            u64::try_from(per_second).unwrap_or(NONE)
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::cgroup::PageSize;

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
    // systemd has none for these, or none on slices.
    #[case("memory.oom.group", "1", &[])]
    #[case("memory.zswap.max", "0", &[])]
    #[case("hugetlb.2MB.max", "0", &[])]
    #[case("cgroup.subtree_control", "+cpu", &[])]
    // What cannot be read as a value is for the kernel to refuse.
    #[case("memory.max", "-1", &[])]
    #[case("cpu.max", "1 2 3", &[])]
    fn files_have_properties(#[case] file: &str, #[case] value: &str, #[case] expected: &[(&str, u64)]) {
        let properties = Property::of(file, &Knob::parse(file, value, PageSize::new(1)));
        let found: Vec<_> = properties.iter().map(|Property { name, value }| (*name, *value)).collect();
        assert_eq!(found, expected);
    }

    /// What the kernel's defaults come to is what a slice has that was just started.
    #[rstest]
    #[case("cpu.weight", &[100])]
    #[case("cpu.max", &[NONE, NONE])]
    #[case("memory.min", &[0])]
    #[case("memory.low", &[0])]
    #[case("memory.high", &[NONE])]
    #[case("memory.max", &[NONE])]
    #[case("memory.swap.max", &[NONE])]
    #[case("pids.max", &[NONE])]
    fn defaults_are_systemds(#[case] file: &str, #[case] expected: &[u64]) {
        let default = Knob::parse(file, Knob::kernel_default(file).unwrap(), PageSize::new(1));
        let values: Vec<_> = Property::of(file, &default).iter().map(|property| property.value).collect();
        assert_eq!(values, expected);
    }
}
