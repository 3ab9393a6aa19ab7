use std::{error::Error as _, io, os::fd::AsRawFd as _, path::PathBuf};

use cgroups_rs::fs::{
    MaxValue,
    cpu::CpuController,
    memory::{MemController, SetMemory},
    pid::PidController,
};

use super::{CgroupDir, Error, Knob};
use crate::model::Limit;
use std::os::fd::AsFd as _;

/// Sets the limits that have typed setters; [`CgroupDir::write`] writes every other file.
pub trait LimitWriter {
    /// Sets `memory.min`, `memory.low`, `memory.high` or `memory.max`.
    fn set_memory(&self, dir: &CgroupDir, file: MemoryFile, limit: Limit) -> Result<(), Error>;
    /// Sets `cpu.weight`, 1 to 10,000.
    fn set_cpu_weight(&self, dir: &CgroupDir, weight: u64) -> Result<(), Error>;
    /// Sets `cpu.max`; quota and period in microseconds.
    fn set_cpu_max(&self, dir: &CgroupDir, quota: Limit, period_us: u64) -> Result<(), Error>;
    /// Sets `pids.max`.
    fn set_pids_max(&self, dir: &CgroupDir, limit: Limit) -> Result<(), Error>;
}

/// The memory files that have a typed setter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MemoryFile {
    /// `memory.min`.
    Min,
    /// `memory.low`.
    Low,
    /// `memory.high`.
    High,
    /// `memory.max`.
    Max,
}

impl MemoryFile {
    /// The file's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Min => "memory.min",
            Self::Low => "memory.low",
            Self::High => "memory.high",
            Self::Max => "memory.max",
        }
    }

    /// The file of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Min, Self::Low, Self::High, Self::Max].into_iter().find(|file| file.name() == name)
    }
}

/// Sets limits through the typed setters of cgroups-rs.
///
/// That crate opens files by path with `O_CREAT|O_TRUNC`, and its `Cgroup` handle supports no mount point but
/// `/sys/fs/cgroup`. So only its controllers are used, each on `/proc/self/fd/<n>` of the directory handle, which
/// cannot lead elsewhere, and only after the file was opened without `O_CREAT`; `O_TRUNC` has no effect on a cgroup
/// file. Deliberately not used: `Cgroup::apply`, which swallows memory errors; the getters, which return defaults when
/// a read fails; `Cgroup::create`, which enables controllers on every ancestor.
#[derive(Clone, Copy, Debug, Default)]
pub struct CgroupsRs;

impl CgroupsRs {
    fn set(
        dir: &CgroupDir,
        file: &str,
        value: &Knob,
        set: impl FnOnce(PathBuf) -> cgroups_rs::fs::error::Result<()>,
    ) -> Result<(), Error> {
        // Fails with ENOENT for a missing file before the crate could create one.
        drop(dir.open_write(file)?);
        let handle = PathBuf::from(format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd()));
        set(handle).map_err(|error| Error::Write {
            path: dir.path().to_string(),
            file: file.to_owned(),
            value: value.to_string(),
            source: io_error(error),
        })
    }
}

impl LimitWriter for CgroupsRs {
    fn set_memory(&self, dir: &CgroupDir, file: MemoryFile, limit: Limit) -> Result<(), Error> {
        let Some(value) = max_value(limit) else {
            return dir.write(file.name(), &limit.to_string());
        };
        let memory = match file {
            MemoryFile::Min => SetMemory { min: Some(value), ..SetMemory::default() },
            MemoryFile::Low => SetMemory { low: Some(value), ..SetMemory::default() },
            MemoryFile::High => SetMemory { high: Some(value), ..SetMemory::default() },
            MemoryFile::Max => SetMemory { max: Some(value), ..SetMemory::default() },
        };
        Self::set(dir, file.name(), &Knob::Limit(limit), |handle| {
            MemController::new(handle, PathBuf::new(), true).set_mem(memory)
        })
    }

    fn set_cpu_weight(&self, dir: &CgroupDir, weight: u64) -> Result<(), Error> {
        Self::set(dir, "cpu.weight", &Knob::Weight(weight), |handle| {
            CpuController::new(handle, PathBuf::new(), true).set_shares(weight)
        })
    }

    fn set_cpu_max(&self, dir: &CgroupDir, quota: Limit, period_us: u64) -> Result<(), Error> {
        let value = Knob::CpuMax { quota, period_us };
        // The crate writes `max` for a quota of 0 or less; a real quota of 0 is left for the kernel to refuse.
        let quota_us = match quota {
            Limit::Max => Some(-1),
            Limit::Bytes(0) => None,
            Limit::Bytes(quota) => i64::try_from(quota).ok(),
        };
        let Some(quota_us) = quota_us else {
            return dir.write("cpu.max", &value.to_string());
        };
        Self::set(dir, "cpu.max", &value, |handle| {
            CpuController::new(handle, PathBuf::new(), true)
                .set_cfs_quota_and_period(Some(quota_us), Some(period_us))
        })
    }

    fn set_pids_max(&self, dir: &CgroupDir, limit: Limit) -> Result<(), Error> {
        let Some(value) = max_value(limit) else {
            return dir.write("pids.max", &limit.to_string());
        };
        Self::set(dir, "pids.max", &Knob::Limit(limit), |handle| {
            PidController::new(handle, PathBuf::new(), true).set_pid_max(value)
        })
    }
}

/// The crate's limit; `None` for a number that it cannot hold.
fn max_value(limit: Limit) -> Option<MaxValue> {
    match limit {
        Limit::Max => Some(MaxValue::Max),
        Limit::Bytes(bytes) => i64::try_from(bytes).ok().map(MaxValue::Value),
    }
}

/// The system call's error inside the crate's, so that callers can distinguish a vanished cgroup from a refused value.
fn io_error(error: cgroups_rs::fs::error::Error) -> io::Error {
    let code =
        error.source().and_then(|cause| cause.downcast_ref::<io::Error>()).and_then(io::Error::raw_os_error);
    code.map_or_else(|| io::Error::other(error), io::Error::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, CgroupDir) {
        let temp = tempfile::tempdir().unwrap();
        for (file, content) in files {
            fs::write(temp.path().join(file), content).unwrap();
        }
        let dir = CgroupDir::unchecked(temp.path()).unwrap();
        (temp, dir)
    }

    #[test]
    fn every_setter_writes_its_file_below_the_handle() {
        let (_temp, dir) = tree(&[
            ("memory.min", "0\n"),
            ("memory.low", "0\n"),
            ("memory.high", "max\n"),
            ("memory.max", "max\n"),
            ("cpu.weight", "100\n"),
            ("cpu.max", "max 100000\n"),
            ("pids.max", "max\n"),
        ]);
        let writer = CgroupsRs;
        writer.set_memory(&dir, MemoryFile::Min, Limit::Bytes(1)).unwrap();
        writer.set_memory(&dir, MemoryFile::Low, Limit::Bytes(2)).unwrap();
        writer.set_memory(&dir, MemoryFile::High, Limit::Bytes(3)).unwrap();
        writer.set_memory(&dir, MemoryFile::Max, Limit::Bytes(u64::MAX)).unwrap();
        writer.set_cpu_weight(&dir, 79).unwrap();
        writer.set_cpu_max(&dir, Limit::Bytes(20_000), 100_000).unwrap();
        writer.set_pids_max(&dir, Limit::Bytes(1000)).unwrap();
        let read = |file: &str| dir.read(file).unwrap();
        assert_eq!(read("memory.min"), "1");
        assert_eq!(read("memory.low"), "2");
        assert_eq!(read("memory.high"), "3");
        assert_eq!(read("memory.max"), u64::MAX.to_string());
        assert_eq!(read("cpu.weight"), "79");
        assert_eq!(read("cpu.max"), "20000 100000");
        assert_eq!(read("pids.max"), "1000");
        writer.set_cpu_max(&dir, Limit::Max, 100_000).unwrap();
        assert_eq!(read("cpu.max"), "max 100000");
        writer.set_memory(&dir, MemoryFile::High, Limit::Max).unwrap();
        assert_eq!(read("memory.high"), "max");
    }

    #[test]
    fn a_missing_file_is_an_error_and_never_created() {
        let (temp, dir) = tree(&[]);
        let error = CgroupsRs.set_memory(&dir, MemoryFile::High, Limit::Bytes(1)).unwrap_err();
        assert!(error.is_gone(), "{error}");
        assert!(!temp.path().join("memory.high").exists());
    }

    #[test]
    fn the_system_calls_error_is_kept() {
        let nowhere = MemController::new(PathBuf::from("/proc/self/fd/none"), PathBuf::new(), true);
        let error =
            nowhere.set_mem(SetMemory { max: Some(MaxValue::Max), ..SetMemory::default() }).unwrap_err();
        assert_eq!(io_error(error).kind(), io::ErrorKind::NotFound);
    }
}
