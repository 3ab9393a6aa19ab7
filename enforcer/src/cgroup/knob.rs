use std::{cmp::Ordering, fmt};

use crate::model::Limit;

/// A cgroup file's value as the kernel holds it, so that a written value and the value read back compare equal.
///
/// The kernel rounds memory limits down to whole pages (`mm/page_counter.c`, `page_counter_memparse`) and hugetlb
/// limits down to whole huge pages (`mm/hugetlb_cgroup.c`), and completes `cpu.max` with its period.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Knob {
    /// A limit or a protection: `memory.*`, `pids.max`, `hugetlb.*.max`.
    Limit(Limit),
    /// `cpu.max`: the time that may be used in each period, both in microseconds.
    CpuMax {
        /// The quota.
        quota: Limit,
        /// The period.
        period_us: u64,
    },
    /// `cpu.weight`, 1 to 10,000.
    Weight(u64),
    /// Any other file: its text with single spaces.
    Text(String),
}

/// The period that the kernel gives a new cgroup (`kernel/sched/core.c`, `default_cfs_period`).
const DEFAULT_PERIOD_US: u64 = 100_000;

/// The page size of a node.
#[derive(Clone, Copy, Debug)]
pub struct PageSize(u64);

impl PageSize {
    /// The size of this machine's pages.
    #[must_use]
    pub fn of_this_machine() -> Self {
        Self::new(u64::try_from(rustix::param::page_size()).unwrap_or(4096))
    }

    /// Pages of that many bytes; 0 counts as 1.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self(bytes.max(1))
    }
}

impl Knob {
    /// Parses a value that is to be written to `file`, or that was read from it.
    #[must_use]
    pub fn parse(file: &str, text: &str, page: PageSize) -> Self {
        let text = text.trim_ascii();
        Self::typed(file, text, page)
            .unwrap_or_else(|| Self::Text(text.split_ascii_whitespace().collect::<Vec<_>>().join(" ")))
    }

    fn typed(file: &str, text: &str, page: PageSize) -> Option<Self> {
        match file {
            "cpu.weight" => text.parse().ok().map(Self::Weight),
            "cpu.max" => {
                let mut words = text.split_ascii_whitespace();
                let quota = Limit::parse(words.next()?)?;
                let period_us = words.next().map_or(Ok(DEFAULT_PERIOD_US), str::parse).ok()?;
                words.next().is_none().then_some(Self::CpuMax { quota, period_us })
            }
            "pids.max" => Limit::parse(text).map(Self::Limit),
            "memory.min" | "memory.low" | "memory.high" | "memory.max" | "memory.swap.max"
            | "memory.swap.high" | "memory.zswap.max" => {
                Limit::parse(text).map(|limit| Self::Limit(round_down(limit, page.0)))
            }
            _ => {
                let size = huge_page_bytes(file)?;
                Limit::parse(text).map(|limit| Self::Limit(round_down(limit, size)))
            }
        }
    }

    /// The value of `file` in a new cgroup, for the files that a plan may name.
    #[must_use]
    pub fn kernel_default(file: &str) -> Option<&'static str> {
        match file {
            "memory.min" | "memory.low" | "memory.oom.group" => Some("0"),
            "memory.high" | "memory.max" | "memory.swap.max" | "memory.swap.high" | "memory.zswap.max"
            | "pids.max" => Some("max"),
            "cpu.weight" => Some("100"),
            "cpu.max" => Some("max 100000"),
            _ => huge_page_bytes(file).map(|_| "max"),
        }
    }

    /// Whether going from `self` to `new` gives the cgroup more; files without an order count as raised.
    #[must_use]
    pub fn is_raised_by(&self, new: &Self) -> bool {
        match (self, new) {
            (Self::Limit(old), Self::Limit(new)) => compare(*old, *new) == Ordering::Less,
            (Self::Weight(old), Self::Weight(new)) => old < new,
            (Self::CpuMax { quota: old, period_us: a }, Self::CpuMax { quota: new, period_us: b }) => {
                match (old, new) {
                    // Compared as shares of a cpu, old/a < new/b, without dividing.
                    (Limit::Bytes(old), Limit::Bytes(new)) => {
                        u128::from(*old) * u128::from(*b) < u128::from(*new) * u128::from(*a)
                    }
                    (old, new) => compare(*old, *new) == Ordering::Less,
                }
            }
            _ => true,
        }
    }
}

impl fmt::Display for Knob {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit(limit) => limit.fmt(formatter),
            Self::CpuMax { quota, period_us } => write!(formatter, "{quota} {period_us}"),
            Self::Weight(weight) => weight.fmt(formatter),
            Self::Text(text) => formatter.write_str(text),
        }
    }
}

fn compare(left: Limit, right: Limit) -> Ordering {
    match (left, right) {
        (Limit::Max, Limit::Max) => Ordering::Equal,
        (Limit::Max, Limit::Bytes(_)) => Ordering::Greater,
        (Limit::Bytes(_), Limit::Max) => Ordering::Less,
        (Limit::Bytes(left), Limit::Bytes(right)) => left.cmp(&right),
    }
}

fn round_down(limit: Limit, unit: u64) -> Limit {
    match limit {
        Limit::Max => Limit::Max,
        Limit::Bytes(bytes) => Limit::Bytes(bytes - bytes % unit),
    }
}

/// The huge page size that `hugetlb.<size>.max` or `hugetlb.<size>.rsvd.max` names
/// (`mm/hugetlb_cgroup.c`, `mem_fmt`: whole KB, MB or GB).
fn huge_page_bytes(file: &str) -> Option<u64> {
    let size = file.strip_prefix("hugetlb.")?.strip_suffix(".max")?;
    let size = size.strip_suffix(".rsvd").unwrap_or(size);
    let (number, unit) = size.split_at_checked(size.len().checked_sub(2)?)?;
    let unit: u64 = match unit {
        "KB" => 1 << 10,
        "MB" => 1 << 20,
        "GB" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const PAGE: PageSize = PageSize(4096);

    #[rstest]
    #[case("memory.max", "209715201", "209715200\n")]
    #[case("memory.max", "max", "max\n")]
    #[case("memory.min", "4095", "0\n")]
    #[case("cpu.max", "20000 100000", "20000 100000\n")]
    #[case("cpu.max", "max", "max 100000\n")]
    #[case("cpu.weight", "79", "79\n")]
    #[case("pids.max", "1001", "1001\n")]
    #[case("hugetlb.2MB.max", "2097153", "2097152\n")]
    #[case("hugetlb.1GB.rsvd.max", "0", "0\n")]
    #[case("cpuset.cpus", " 0-3 ", "0-3\n")]
    fn what_is_written_equals_what_is_read_back(
        #[case] file: &str,
        #[case] written: &str,
        #[case] read: &str,
    ) {
        assert_eq!(Knob::parse(file, written, PAGE), Knob::parse(file, read, PAGE));
    }

    #[rstest]
    #[case("memory.max", "8192", "4096\n")]
    #[case("memory.max", "max", "4096\n")]
    #[case("cpu.max", "max 100000", "max 50000\n")]
    #[case("pids.max", "4097", "4096\n")]
    #[case("memory.oom.group", "1", "0\n")]
    #[case("hugetlb.2MB.max", "0", "max\n")]
    fn different_values_stay_different(#[case] file: &str, #[case] written: &str, #[case] read: &str) {
        assert_ne!(Knob::parse(file, written, PAGE), Knob::parse(file, read, PAGE));
    }

    #[rstest]
    #[case("memory.max", "4096", "max", true)]
    #[case("memory.max", "max", "4096", false)]
    #[case("cpu.max", "20000 100000", "20000 50000", true)]
    #[case("cpu.max", "max 100000", "20000 50000", false)]
    #[case("cpu.weight", "100", "4", false)]
    #[case("memory.oom.group", "1", "0", true)]
    fn knows_raises_from_lowers(
        #[case] file: &str,
        #[case] old: &str,
        #[case] new: &str,
        #[case] raised: bool,
    ) {
        assert_eq!(Knob::parse(file, old, PAGE).is_raised_by(&Knob::parse(file, new, PAGE)), raised);
    }

    #[rstest]
    #[case("hugetlb.2MB.max", Some(2 << 20))]
    #[case("hugetlb.64KB.rsvd.max", Some(64 << 10))]
    #[case("hugetlb.0MB.max", None)]
    #[case("hugetlb.MB.max", None)]
    #[case("hugetlb..max", None)]
    #[case("hugetlb.2MB.current", None)]
    #[case("hugetlb.é.max", None)]
    fn reads_huge_page_sizes(#[case] file: &str, #[case] bytes: Option<u64>) {
        assert_eq!(huge_page_bytes(file), bytes);
    }

    #[test]
    fn what_the_kernel_does_not_know_is_text() {
        assert_eq!(Knob::parse("memory.max", "-1", PAGE), Knob::Text("-1".into()));
        assert_eq!(Knob::parse("cpu.max", "1 2 3", PAGE), Knob::Text("1 2 3".into()));
        assert_eq!(Knob::kernel_default("cgroup.procs"), None);
    }
}
