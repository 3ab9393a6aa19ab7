//! The files of a cgroup that a plan sets, and their values.

use std::{borrow::Cow, collections::BTreeMap, fmt, sync::Arc};

use super::{Limit, SmallMap};
use crate::cpus::CpuSet;

/// A file of a cgroup that holds a planned value (`Documentation/admin-guide/cgroup-v2.rst`).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum CgroupFile {
    /// `cpu.max`.
    CpuMax,
    /// `cpu.weight`.
    CpuWeight,
    /// `cpuset.cpus`.
    CpusetCpus,
    /// `hugetlb.<size>.max`.
    HugetlbMax {
        /// The size of a page in bytes, at least 1024.
        page_bytes: u64,
    },
    /// `memory.high`.
    MemoryHigh,
    /// `memory.low`.
    MemoryLow,
    /// `memory.max`.
    MemoryMax,
    /// `memory.min`.
    MemoryMin,
    /// `memory.oom.group`.
    MemoryOomGroup,
    /// `memory.swap.max`.
    MemorySwapMax,
    /// `pids.max`.
    PidsMax,
}

/// The files whose name is always the same.
const NAMES: [(CgroupFile, &str); 10] = [
    (CgroupFile::CpuMax, "cpu.max"),
    (CgroupFile::CpuWeight, "cpu.weight"),
    (CgroupFile::CpusetCpus, "cpuset.cpus"),
    (CgroupFile::MemoryHigh, "memory.high"),
    (CgroupFile::MemoryLow, "memory.low"),
    (CgroupFile::MemoryMax, "memory.max"),
    (CgroupFile::MemoryMin, "memory.min"),
    (CgroupFile::MemoryOomGroup, "memory.oom.group"),
    (CgroupFile::MemorySwapMax, "memory.swap.max"),
    (CgroupFile::PidsMax, "pids.max"),
];

/// The units of the page sizes in names of hugetlb files (`mem_fmt` in `mm/hugetlb_cgroup.c`), largest first.
const PAGE_UNITS: [(&str, u64); 3] = [("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)];

impl CgroupFile {
    /// Its name in the cgroup's directory.
    #[must_use]
    pub fn name(self) -> Cow<'static, str> {
        if let Self::HugetlbMax { page_bytes } = self {
            let unit = PAGE_UNITS.iter().find(|(_, bytes)| page_bytes >= *bytes);
            let (unit, bytes) = unit.copied().unwrap_or(("KB", 1 << 10));
            return Cow::Owned(format!("hugetlb.{}{unit}.max", page_bytes / bytes));
        }
        Cow::Borrowed(NAMES.iter().find(|(file, _)| *file == self).map_or("", |(_, name)| name))
    }

    /// The file of that name; `None` for files that no plan sets.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let fixed = NAMES.iter().find(|(_, fixed)| *fixed == name).map(|(file, _)| *file);
        fixed.or_else(|| {
            let size = name.strip_prefix("hugetlb.")?.strip_suffix(".max")?;
            let (number, unit) = size.split_at_checked(size.len().checked_sub(2)?)?;
            let (_, bytes) = PAGE_UNITS.iter().find(|(name, _)| *name == unit)?;
            let page_bytes = number.parse::<u64>().ok()?.checked_mul(*bytes).filter(|bytes| *bytes > 0)?;
            let file = Self::HugetlbMax { page_bytes };
            // `hugetlb.2048KB.max` names no file of the kernel's.
            (file.name() == name).then_some(file)
        })
    }

    /// What the kernel puts there when a cgroup is made.
    #[must_use]
    pub fn default_value(self) -> CgroupValue {
        match self {
            Self::CpuMax => {
                CgroupValue::CpuMax(CpuMax { quota_us: Limit::Max, period_us: CpuMax::DEFAULT_PERIOD_US })
            }
            Self::CpuWeight => CgroupValue::CpuWeight(100),
            Self::CpusetCpus => CgroupValue::CpusetCpus(Arc::default()),
            Self::HugetlbMax { page_bytes } => CgroupValue::HugetlbMax { page_bytes, limit: Limit::Max },
            Self::MemoryHigh => CgroupValue::MemoryHigh(Limit::Max),
            Self::MemoryLow => CgroupValue::MemoryLow(Limit::Amount(0)),
            Self::MemoryMax => CgroupValue::MemoryMax(Limit::Max),
            Self::MemoryMin => CgroupValue::MemoryMin(Limit::Amount(0)),
            Self::MemoryOomGroup => CgroupValue::MemoryOomGroup(false),
            Self::MemorySwapMax => CgroupValue::MemorySwapMax(Limit::Max),
            Self::PidsMax => CgroupValue::PidsMax(Limit::Max),
        }
    }

    /// Reads the file's content, with or without a newline; `None` if that is no value for it.
    #[must_use]
    pub fn parse(self, text: &str) -> Option<CgroupValue> {
        let limit = || Limit::parse(text);
        Some(match self {
            Self::CpuMax => CgroupValue::CpuMax(CpuMax::parse(text)?),
            Self::CpuWeight => CgroupValue::CpuWeight(text.trim_ascii().parse().ok()?),
            Self::CpusetCpus => CgroupValue::CpusetCpus(Arc::new(text.parse().ok()?)),
            Self::HugetlbMax { page_bytes } => CgroupValue::HugetlbMax { page_bytes, limit: limit()? },
            Self::MemoryHigh => CgroupValue::MemoryHigh(limit()?),
            Self::MemoryLow => CgroupValue::MemoryLow(limit()?),
            Self::MemoryMax => CgroupValue::MemoryMax(limit()?),
            Self::MemoryMin => CgroupValue::MemoryMin(limit()?),
            Self::MemoryOomGroup => CgroupValue::MemoryOomGroup(match text.trim_ascii() {
                "0" => false,
                "1" => true,
                _ => return None,
            }),
            Self::MemorySwapMax => CgroupValue::MemorySwapMax(limit()?),
            Self::PidsMax => CgroupValue::PidsMax(limit()?),
        })
    }
}

impl fmt::Display for CgroupFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.name())
    }
}

/// The time that a cgroup may use in each period: `cpu.max`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct CpuMax {
    /// In microseconds.
    pub quota_us: Limit,
    /// In microseconds.
    pub period_us: u64,
}

impl CpuMax {
    /// The period that the kernel gives a new cgroup (`default_cfs_period` in kernel/sched/core.c).
    pub const DEFAULT_PERIOD_US: u64 = 100_000;

    /// Reads `<quota or max> <period>`; a missing period is the kernel's default.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let quota_us = Limit::parse(words.next()?)?;
        let period_us = words.next().map_or(Ok(Self::DEFAULT_PERIOD_US), str::parse).ok()?;
        words.next().is_none().then_some(Self { quota_us, period_us })
    }

    /// Whether `new` is a larger share of a cpu.
    fn is_raised_by(self, new: Self) -> bool {
        match (self.quota_us, new.quota_us) {
            // old/a < new/b without a division.
            (Limit::Amount(old_us), Limit::Amount(new_us)) => {
                u128::from(old_us) * u128::from(new.period_us)
                    < u128::from(new_us) * u128::from(self.period_us)
            }
            (old, new) => old < new,
        }
    }
}

impl fmt::Display for CpuMax {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.quota_us, self.period_us)
    }
}

/// A value of a cgroup's file. Printed, it is what is written there.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CgroupValue {
    /// `cpu.max`.
    CpuMax(CpuMax),
    /// `cpu.weight`, 1 to 10,000.
    CpuWeight(u64),
    /// `cpuset.cpus`; none for those of the cgroup above.
    CpusetCpus(Arc<CpuSet>),
    /// `hugetlb.<size>.max`, in bytes.
    HugetlbMax {
        /// The size of a page in bytes.
        page_bytes: u64,
        /// The limit of all such pages together.
        limit: Limit,
    },
    /// `memory.high`, in bytes.
    MemoryHigh(Limit),
    /// `memory.low`, in bytes.
    MemoryLow(Limit),
    /// `memory.max`, in bytes.
    MemoryMax(Limit),
    /// `memory.min`, in bytes.
    MemoryMin(Limit),
    /// `memory.oom.group`: whether an OOM kill takes all processes of the cgroup.
    MemoryOomGroup(bool),
    /// `memory.swap.max`, in bytes.
    MemorySwapMax(Limit),
    /// `pids.max`, a number of processes.
    PidsMax(Limit),
}

impl CgroupValue {
    /// The file that it is a value of.
    #[must_use]
    pub fn file(&self) -> CgroupFile {
        match *self {
            Self::CpuMax(_) => CgroupFile::CpuMax,
            Self::CpuWeight(_) => CgroupFile::CpuWeight,
            Self::CpusetCpus(_) => CgroupFile::CpusetCpus,
            Self::HugetlbMax { page_bytes, limit: _ } => CgroupFile::HugetlbMax { page_bytes },
            Self::MemoryHigh(_) => CgroupFile::MemoryHigh,
            Self::MemoryLow(_) => CgroupFile::MemoryLow,
            Self::MemoryMax(_) => CgroupFile::MemoryMax,
            Self::MemoryMin(_) => CgroupFile::MemoryMin,
            Self::MemoryOomGroup(_) => CgroupFile::MemoryOomGroup,
            Self::MemorySwapMax(_) => CgroupFile::MemorySwapMax,
            Self::PidsMax(_) => CgroupFile::PidsMax,
        }
    }

    /// What the file holds once this is written, on a kernel with pages of `page_bytes`: memory limits are rounded down
    /// to whole pages (`page_counter_memparse` in `mm/page_counter.c`), hugetlb limits to whole huge pages
    /// (`mm/hugetlb_cgroup.c`).
    #[must_use]
    pub fn as_held(self, page_bytes: u64) -> Self {
        let rounded = |limit: Limit| limit.rounded_down(page_bytes);
        match self {
            Self::MemoryHigh(limit) => Self::MemoryHigh(rounded(limit)),
            Self::MemoryLow(limit) => Self::MemoryLow(rounded(limit)),
            Self::MemoryMax(limit) => Self::MemoryMax(rounded(limit)),
            Self::MemoryMin(limit) => Self::MemoryMin(rounded(limit)),
            Self::MemorySwapMax(limit) => Self::MemorySwapMax(rounded(limit)),
            Self::HugetlbMax { page_bytes, limit } => {
                Self::HugetlbMax { page_bytes, limit: limit.rounded_down(page_bytes) }
            }
            Self::CpuMax(_)
            | Self::CpuWeight(_)
            | Self::CpusetCpus(_)
            | Self::MemoryOomGroup(_)
            | Self::PidsMax(_) => self,
        }
    }

    /// Whether going from `self` to `new` gives the cgroup more. Any `memory.oom.group` counts as more, and any value
    /// of another file.
    #[must_use]
    pub fn is_raised_by(&self, new: &Self) -> bool {
        match (self, new) {
            (Self::CpuMax(old), Self::CpuMax(new)) => old.is_raised_by(*new),
            // None is all.
            (Self::CpusetCpus(old), Self::CpusetCpus(new)) => {
                new.is_empty() || !old.is_empty() && old.is_subset(new)
            }
            (Self::CpuWeight(old), Self::CpuWeight(new)) => old < new,
            (
                Self::HugetlbMax { page_bytes: a, limit: old },
                Self::HugetlbMax { page_bytes: b, limit: new },
            ) if a == b => old < new,
            (Self::MemoryHigh(old), Self::MemoryHigh(new))
            | (Self::MemoryLow(old), Self::MemoryLow(new))
            | (Self::MemoryMax(old), Self::MemoryMax(new))
            | (Self::MemoryMin(old), Self::MemoryMin(new))
            | (Self::MemorySwapMax(old), Self::MemorySwapMax(new))
            | (Self::PidsMax(old), Self::PidsMax(new)) => old < new,
            _ => true,
        }
    }
}

impl fmt::Display for CgroupValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CpuMax(value) => value.fmt(formatter),
            Self::CpuWeight(weight) => weight.fmt(formatter),
            Self::CpusetCpus(cpus) => cpus.fmt(formatter),
            Self::HugetlbMax { page_bytes: _, limit }
            | Self::MemoryHigh(limit)
            | Self::MemoryLow(limit)
            | Self::MemoryMax(limit)
            | Self::MemoryMin(limit)
            | Self::MemorySwapMax(limit)
            | Self::PidsMax(limit) => limit.fmt(formatter),
            Self::MemoryOomGroup(is_group) => u8::from(*is_group).fmt(formatter),
        }
    }
}

/// A value that a file holds only for a while, and the one that it holds again afterwards.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TemporaryValue {
    original: CgroupValue,
    temporary: CgroupValue,
}

impl TemporaryValue {
    /// Two values of one file; `None` if they are of different files.
    #[must_use]
    pub fn new(original: CgroupValue, temporary: CgroupValue) -> Option<Self> {
        (original.file() == temporary.file()).then_some(Self { original, temporary })
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> CgroupFile {
        self.original.file()
    }

    /// What the file holds again afterwards.
    #[must_use]
    pub fn original(&self) -> &CgroupValue {
        &self.original
    }

    /// What the file holds for a while.
    #[must_use]
    pub fn temporary(&self) -> &CgroupValue {
        &self.temporary
    }
}

/// The values of one cgroup. A file that is absent keeps the kernel's default.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct CgroupValues {
    /// `cpu.max`.
    pub cpu_max: Option<CpuMax>,
    /// `cpu.weight`, 1 to 10,000.
    pub cpu_weight: Option<u64>,
    /// `cpuset.cpus`.
    pub cpuset_cpus: Option<Arc<CpuSet>>,
    /// `hugetlb.<size>.max` by the size of a page, both in bytes.
    pub hugetlb_max: SmallMap<u64, Limit>,
    /// `memory.high`, in bytes.
    pub memory_high: Option<Limit>,
    /// `memory.low`, in bytes.
    pub memory_low: Option<Limit>,
    /// `memory.max`, in bytes.
    pub memory_max: Option<Limit>,
    /// `memory.min`, in bytes.
    pub memory_min: Option<Limit>,
    /// `memory.oom.group`.
    pub memory_oom_group: Option<bool>,
    /// `memory.swap.max`, in bytes.
    pub memory_swap_max: Option<Limit>,
    /// `pids.max`, a number of processes.
    pub pids_max: Option<Limit>,
}

impl CgroupValues {
    /// The values, in the order of their files.
    pub fn iter(&self) -> impl Iterator<Item = CgroupValue> {
        let cpu = [
            self.cpu_max.map(CgroupValue::CpuMax),
            self.cpu_weight.map(CgroupValue::CpuWeight),
            self.cpuset_cpus.clone().map(CgroupValue::CpusetCpus),
        ];
        let hugetlb = self.hugetlb_max.iter();
        let hugetlb = hugetlb
            .map(|(page_bytes, limit)| CgroupValue::HugetlbMax { page_bytes: *page_bytes, limit: *limit });
        let others = [
            self.memory_high.map(CgroupValue::MemoryHigh),
            self.memory_low.map(CgroupValue::MemoryLow),
            self.memory_max.map(CgroupValue::MemoryMax),
            self.memory_min.map(CgroupValue::MemoryMin),
            self.memory_oom_group.map(CgroupValue::MemoryOomGroup),
            self.memory_swap_max.map(CgroupValue::MemorySwapMax),
            self.pids_max.map(CgroupValue::PidsMax),
        ];
        cpu.into_iter().flatten().chain(hugetlb).chain(others.into_iter().flatten())
    }

    /// The value of a file.
    #[must_use]
    pub fn get(&self, file: CgroupFile) -> Option<CgroupValue> {
        self.iter().find(|value| value.file() == file)
    }

    /// Sets a file's value, instead of the one that it had.
    pub fn set(&mut self, value: CgroupValue) {
        match value {
            CgroupValue::CpuMax(value) => self.cpu_max = Some(value),
            CgroupValue::CpuWeight(weight) => self.cpu_weight = Some(weight),
            CgroupValue::CpusetCpus(cpus) => self.cpuset_cpus = Some(cpus),
            CgroupValue::HugetlbMax { page_bytes, limit } => {
                self.hugetlb_max.insert(page_bytes, limit);
            }
            CgroupValue::MemoryHigh(limit) => self.memory_high = Some(limit),
            CgroupValue::MemoryLow(limit) => self.memory_low = Some(limit),
            CgroupValue::MemoryMax(limit) => self.memory_max = Some(limit),
            CgroupValue::MemoryMin(limit) => self.memory_min = Some(limit),
            CgroupValue::MemoryOomGroup(is_group) => self.memory_oom_group = Some(is_group),
            CgroupValue::MemorySwapMax(limit) => self.memory_swap_max = Some(limit),
            CgroupValue::PidsMax(limit) => self.pids_max = Some(limit),
        }
    }

    /// Names and values as text, in the order of the names: what an operator reads.
    #[must_use]
    pub fn to_text(&self) -> BTreeMap<String, String> {
        self.iter().map(|value| (value.file().to_string(), value.to_string())).collect()
    }
}

impl Extend<CgroupValue> for CgroupValues {
    fn extend<T: IntoIterator<Item = CgroupValue>>(&mut self, values: T) {
        for value in values {
            self.set(value);
        }
    }
}

impl FromIterator<CgroupValue> for CgroupValues {
    fn from_iter<T: IntoIterator<Item = CgroupValue>>(values: T) -> Self {
        let mut all = Self::default();
        all.extend(values);
        all
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn held(file: &str, text: &str) -> CgroupValue {
        CgroupFile::named(file).unwrap().parse(text).unwrap().as_held(4096)
    }

    #[rstest]
    #[case("memory.max", "209715201", "209715200\n")]
    #[case("memory.max", "max", "max\n")]
    #[case("memory.min", "4095", "0\n")]
    #[case("cpu.max", "20000 100000", "20000 100000\n")]
    #[case("cpu.max", "max", "max 100000\n")]
    #[case("cpu.weight", "79", "79\n")]
    #[case("pids.max", "1001", "1001\n")]
    #[case("cpuset.cpus", "0,1,2,7", "0-2,7\n")]
    #[case("cpuset.cpus", "", "\n")]
    #[case("hugetlb.2MB.max", "2097153", "2097152\n")]
    #[case("memory.oom.group", "1", "1\n")]
    fn what_is_written_equals_what_is_read_back(
        #[case] file: &str,
        #[case] written: &str,
        #[case] read: &str,
    ) {
        assert_eq!(held(file, written), held(file, read));
    }

    #[rstest]
    #[case("memory.max", "8192", "4096\n")]
    #[case("memory.max", "max", "4096\n")]
    #[case("cpu.max", "max 100000", "max 50000\n")]
    #[case("pids.max", "4097", "4096\n")]
    #[case("cpuset.cpus", "0-3", "0-2\n")]
    #[case("cpuset.cpus", "", "0\n")]
    #[case("memory.oom.group", "1", "0\n")]
    #[case("hugetlb.2MB.max", "0", "max\n")]
    fn different_values_stay_different(#[case] file: &str, #[case] written: &str, #[case] read: &str) {
        assert_ne!(held(file, written), held(file, read));
    }

    #[rstest]
    #[case("memory.max", "4096", "max", true)]
    #[case("memory.max", "max", "4096", false)]
    #[case("cpu.max", "20000 100000", "20000 50000", true)]
    #[case("cpu.max", "max 100000", "20000 50000", false)]
    #[case("cpu.max", "20000 100000", "max 50000", true)]
    #[case("cpu.weight", "100", "4", false)]
    #[case("hugetlb.2MB.max", "max", "0", false)]
    #[case("cpuset.cpus", "0-1", "0-2", true)]
    #[case("cpuset.cpus", "0-2", "0-1", false)]
    #[case("cpuset.cpus", "0-1", "1-2", false)]
    #[case("cpuset.cpus", "", "0-2", false)]
    #[case("cpuset.cpus", "0-2", "", true)]
    #[case("memory.oom.group", "1", "0", true)]
    fn knows_raises_from_lowers(
        #[case] file: &str,
        #[case] old: &str,
        #[case] new: &str,
        #[case] raised: bool,
    ) {
        assert_eq!(held(file, old).is_raised_by(&held(file, new)), raised);
    }

    #[rstest]
    #[case(1 << 16, "hugetlb.64KB.max")]
    #[case(1 << 21, "hugetlb.2MB.max")]
    #[case(1 << 25, "hugetlb.32MB.max")]
    #[case(1 << 30, "hugetlb.1GB.max")]
    #[case(1 << 34, "hugetlb.16GB.max")]
    fn files_of_huge_pages_are_named_as_the_kernel_does(#[case] page_bytes: u64, #[case] name: &str) {
        let file = CgroupFile::HugetlbMax { page_bytes };
        assert_eq!((file.name().as_ref(), CgroupFile::named(name)), (name, Some(file)));
    }

    #[test]
    fn what_no_plan_sets_is_no_file_and_what_no_file_holds_is_no_value() {
        for name in
            ["hugetlb.0MB.max", "hugetlb.MB.max", "hugetlb..max", "hugetlb.é.max", "hugetlb.2048KB.max"]
        {
            assert_eq!(CgroupFile::named(name), None, "{name}");
        }
        assert_eq!(CgroupFile::named("cgroup.procs"), None);
        for (file, text) in [
            (CgroupFile::MemoryMax, "-1"),
            (CgroupFile::CpuMax, "1 2 3"),
            (CgroupFile::CpuWeight, "max"),
            (CgroupFile::MemoryOomGroup, "2"),
        ] {
            assert_eq!(file.parse(text), None, "{file}");
        }
    }

    #[test]
    fn every_file_is_set_and_read_by_its_name() {
        let huge = CgroupFile::HugetlbMax { page_bytes: 2 << 20 };
        let files = || NAMES.iter().map(|(file, _)| *file).chain([huge]);
        let values: CgroupValues = files().map(CgroupFile::default_value).collect();
        assert_eq!(values.iter().count(), files().count());
        for file in files() {
            let value = file.default_value();
            assert_eq!((value.file(), values.get(file)), (file, Some(value.clone())));
            assert_eq!(CgroupFile::named(&file.name()), Some(file));
            assert_eq!(file.parse(&format!("{value}\n")), Some(value.clone()));
            assert_eq!(values.to_text()[file.name().as_ref()], value.to_string());
        }
    }
}
