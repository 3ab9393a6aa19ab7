//! How a value gets into its file: through cgroups-rs where it has a setter, else directly.

use std::{
    error::Error as _,
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    path::PathBuf,
};

use cgroups_rs::fs::{
    MaxValue,
    cpu::CpuController,
    memory::{MemController, SetMemory},
    pid::PidController,
};

use super::{CgroupDir, Error};
use crate::model::{CgroupValue, CpuMax, Limit};

/// Sets the values of cgroups.
pub trait LimitWriter {
    /// Sets a value in its file.
    fn set(&self, dir: &CgroupDir, value: &CgroupValue) -> Result<(), Error>;
}

/// Sets limits through the typed setters of cgroups-rs, and writes every other file itself.
///
/// That crate opens files by path with `O_CREAT|O_TRUNC`, and its `Cgroup` handle supports no mount point but
/// `/sys/fs/cgroup`. So only its controllers are used, each on `/proc/self/fd/<n>` of the directory handle, which
/// cannot lead elsewhere, and only after the file was opened without `O_CREAT`; `O_TRUNC` has no effect on a cgroup
/// file. Deliberately not used: `Cgroup::apply`, which swallows memory errors; the getters, which return defaults when
/// a read fails; `Cgroup::create`, which enables controllers on every ancestor.
#[derive(Clone, Copy, Debug, Default)]
pub struct CgroupsRs;

impl LimitWriter for CgroupsRs {
    fn set(&self, dir: &CgroupDir, value: &CgroupValue) -> Result<(), Error> {
        let file = value.file().name();
        let Some(set) = setter(value) else {
            return match value {
                CgroupValue::CpusetCpus(cpus) if cpus.is_empty() => unset_cpus(dir, &file),
                _ => dir.write(&file, &value.to_string()),
            };
        };
        // Fails with ENOENT for a missing file before the crate could create one.
        drop(dir.open_write(&file)?);
        let handle = PathBuf::from(format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd()));
        set(handle).map_err(|error| Error::Write {
            path: dir.path().to_string(),
            file: file.into_owned(),
            value: value.to_string(),
            source: io_error(error),
        })
    }
}

/// Gives a cgroup the CPUs of the one above again. A write of no byte would not reach the kernel. The kernel refuses that where
/// processes are (`validate_change` in kernel/cgroup/cpuset.c): there every CPU that the machine can have comes to the same.
fn unset_cpus(dir: &CgroupDir, file: &str) -> Result<(), Error> {
    let refused = match dir.write(file, "\n") {
        Err(error @ Error::Write { .. }) => error,
        result => return result,
    };
    match std::fs::read_to_string(POSSIBLE_CPUS) {
        Ok(possible) => dir.write(file, possible.trim()),
        Err(_) => Err(refused),
    }
}

/// The CPUs that the machine can have.
const POSSIBLE_CPUS: &str = "/sys/devices/system/cpu/possible";

type Setter = Box<dyn FnOnce(PathBuf) -> cgroups_rs::fs::error::Result<()>>;

/// The crate's setter of a value; `None` if it has none, or cannot hold the number.
fn setter(value: &CgroupValue) -> Option<Setter> {
    let memory = |values: SetMemory| -> Setter {
        Box::new(|handle| MemController::new(handle, PathBuf::new(), true).set_mem(values))
    };
    let none = SetMemory::default();
    Some(match *value {
        CgroupValue::MemoryMin(limit) => memory(SetMemory { min: Some(max_value(limit)?), ..none }),
        CgroupValue::MemoryLow(limit) => memory(SetMemory { low: Some(max_value(limit)?), ..none }),
        CgroupValue::MemoryHigh(limit) => memory(SetMemory { high: Some(max_value(limit)?), ..none }),
        CgroupValue::MemoryMax(limit) => memory(SetMemory { max: Some(max_value(limit)?), ..none }),
        CgroupValue::CpuWeight(weight) => {
            Box::new(move |handle| CpuController::new(handle, PathBuf::new(), true).set_shares(weight))
        }
        CgroupValue::CpuMax(CpuMax { quota_us, period_us }) => {
            // The crate writes `max` for a quota of 0 or less; a real quota of 0 is left for the kernel to refuse.
            let quota_us = match quota_us {
                Limit::Max => -1,
                Limit::Amount(0) => return None,
                Limit::Amount(quota_us) => i64::try_from(quota_us).ok()?,
            };
            Box::new(move |handle| {
                CpuController::new(handle, PathBuf::new(), true)
                    .set_cfs_quota_and_period(Some(quota_us), Some(period_us))
            })
        }
        CgroupValue::PidsMax(limit) => {
            let limit = max_value(limit)?;
            Box::new(move |handle| PidController::new(handle, PathBuf::new(), true).set_pid_max(limit))
        }
        CgroupValue::CpusetCpus(_)
        | CgroupValue::HugetlbMax { .. }
        | CgroupValue::MemoryOomGroup(_)
        | CgroupValue::MemorySwapMax(_) => {
            return None;
        }
    })
}

/// The crate's limit; `None` for a number that it cannot hold.
fn max_value(limit: Limit) -> Option<MaxValue> {
    match limit {
        Limit::Max => Some(MaxValue::Max),
        Limit::Amount(bytes) => i64::try_from(bytes).ok().map(MaxValue::Value),
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
    use crate::model::CgroupFile;

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
            ("memory.oom.group", "0\n"),
        ]);
        let set = |file: &str, text: &str| {
            let value = CgroupFile::named(file).unwrap().parse(text).unwrap();
            CgroupsRs.set(&dir, &value).unwrap();
            assert_eq!(dir.read(file).unwrap().trim_ascii_end(), text);
        };
        set("memory.min", "1");
        set("memory.low", "2");
        set("memory.high", "3");
        set("memory.max", &u64::MAX.to_string());
        set("cpu.weight", "79");
        set("cpu.max", "20000 100000");
        set("pids.max", "1000");
        set("memory.oom.group", "1");
        set("cpu.max", "max 100000");
        set("memory.high", "max");
    }

    #[test]
    fn a_missing_file_is_an_error_and_never_created() {
        let (temp, dir) = tree(&[]);
        let error = CgroupsRs.set(&dir, &CgroupValue::MemoryHigh(Limit::Amount(1))).unwrap_err();
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
