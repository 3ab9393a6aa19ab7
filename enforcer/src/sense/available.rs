use std::{os::fd::OwnedFd, path::Path};

use rustix::fs::{Mode, OFlags};

use super::{Meminfo, MeminfoError, text};

/// The `memory.stat` of the root of the hierarchy, in its usual place.
pub const ROOT_MEMORY_STAT: &str = "/sys/fs/cgroup/memory.stat";

/// `memory.stat` has some 3 KiB on current kernels, and what is read of it stands in its first half.
const BUFFER_BYTES: usize = 8192;

/// What `memory.available` is measured by, open: one system call a reading, or two for the kubelet's, and no allocation.
#[derive(Debug)]
pub enum Available {
    /// The kernel's own estimate, `MemAvailable`.
    Estimated(Box<Meminfo>),
    /// The kubelet's reckoning.
    Reckoned(Reckoned),
}

/// How much there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvailableMemory {
    /// What can be had.
    pub available_bytes: u64,
    /// What the machine has.
    pub total_bytes: u64,
}

/// The kubelet's reckoning: what the machine has, less the working set of the root cgroup.
#[derive(Debug)]
pub struct Reckoned {
    stat: OwnedFd,
    /// What the machine has is read each time: memory is plugged in and ballooned out while it runs. The kubelet notices
    /// within minutes.
    summary: Box<Meminfo>,
    buffer: Box<[u8; BUFFER_BYTES]>,
}

impl Available {
    /// Measures by the memory summary at `meminfo`; with `root_stat`, the root cgroup's `memory.stat`, by the kubelet's
    /// reckoning.
    pub fn open(meminfo: &Path, root_stat: Option<&Path>) -> Result<Self, MeminfoError> {
        let mut summary = Meminfo::open(meminfo)?;
        summary.read()?;
        let summary = Box::new(summary);
        let Some(path) = root_stat else { return Ok(Self::Estimated(summary)) };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let stat = rustix::fs::open(path, flags, Mode::empty()).map_err(MeminfoError::Read)?;
        let mut reckoned = Reckoned { stat, summary, buffer: Box::new([0; BUFFER_BYTES]) };
        reckoned.read()?;
        Ok(Self::Reckoned(reckoned))
    }

    /// Measures anew.
    pub fn read(&mut self) -> Result<AvailableMemory, MeminfoError> {
        match self {
            Self::Estimated(meminfo) => {
                let memory = meminfo.read()?;
                Ok(AvailableMemory {
                    available_bytes: memory.available_bytes,
                    total_bytes: memory.total_bytes,
                })
            }
            Self::Reckoned(reckoned) => reckoned.read(),
        }
    }
}

impl Reckoned {
    fn read(&mut self) -> Result<AvailableMemory, MeminfoError> {
        let total_bytes = self.summary.read()?.total_bytes;
        let text = text::read_into(&self.stat, self.buffer.as_mut_slice()).map_err(MeminfoError::Read)?;
        let available_bytes = reckon(total_bytes, text).ok_or(MeminfoError::Malformed)?;
        Ok(AvailableMemory { available_bytes, total_bytes })
    }
}

/// The kubelet's `AvailableBytes` of the node: `MemTotal` − (`anon` + `file` − `inactive_file`), where the working set is 0 if
/// `inactive_file` is more than the usage. The root has no `memory.current`, so its usage is `anon` + `file`: what the
/// kernel uses itself is left out.
fn reckon(total_bytes: u64, stat: &[u8]) -> Option<u64> {
    let bytes = |key: &[u8]| text::keyed(stat, key);
    let usage_bytes = bytes(b"anon")?.checked_add(bytes(b"file")?)?;
    Some(total_bytes.saturating_sub(usage_bytes.saturating_sub(bytes(b"inactive_file")?)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn is_the_kubelets_formula() {
        let stat = |anon: u64, file: u64, inactive_file: u64| {
            format!("anon {anon}\nfile {file}\nkernel 999\ninactive_anon 9\ninactive_file {inactive_file}\n")
        };
        let reckoned = |total, text: String| reckon(total, text.as_bytes());
        assert_eq!(reckoned(8_000, stat(3_000, 2_000, 500)), Some(3_500));
        // More cache than usage is no working set; more usage than memory leaves nothing.
        assert_eq!(reckoned(8_000, stat(10, 10, 500)), Some(8_000));
        assert_eq!(reckoned(8_000, stat(9_000, 0, 0)), Some(0));
        assert_eq!(reckoned(8_000, stat(u64::MAX, 1, 0)), None);
        assert_eq!(reckoned(8_000, String::from("anon 1\nfile 1\n")), None);
    }

    #[test]
    fn what_is_asked_for_is_measured() {
        let (meminfo, stat) =
            (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
        fs::write(meminfo.path(), "MemTotal: 8000 kB\nMemFree: 1000 kB\nMemAvailable: 5000 kB\n").unwrap();
        fs::write(stat.path(), "anon 1024000\nfile 2048000\ninactive_file 512000\n").unwrap();
        let measured = |root_stat| {
            Available::open(meminfo.path(), root_stat).unwrap().read().map(|read| read.available_bytes)
        };
        assert_eq!(measured(None), Ok(5_000 * 1_024));
        assert_eq!(measured(Some(stat.path())), Ok(8_000 * 1_024 - 2_560_000));
        // Memory is plugged in while it runs.
        let mut open = Available::open(meminfo.path(), Some(stat.path())).unwrap();
        fs::write(meminfo.path(), "MemTotal: 9000 kB\nMemFree: 1000 kB\nMemAvailable: 5000 kB\n").unwrap();
        let read = open.read().unwrap();
        assert_eq!((read.total_bytes, read.available_bytes), (9_000 * 1_024, 9_000 * 1_024 - 2_560_000));
        fs::write(stat.path(), "").unwrap();
        let opened = Available::open(meminfo.path(), Some(stat.path()));
        assert_eq!(opened.unwrap_err(), MeminfoError::Malformed);
    }
}
