//! Measures `memory.available`, by the kernel's own estimate or as the kubelet does.

use std::path::Path;

use super::{Meminfo, MeminfoError};

/// The source of `memory.available`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MemoryAvailableSource {
    /// The kernel's own estimate, `MemAvailable`.
    MemAvailable,
    /// The kubelet's formula: `MemTotal` less the working set ([`MemoryInfo::working_set_bytes`]).
    ///
    /// The kubelet takes the working set from the root cgroup's `memory.stat`. That counts the same pages, but may be
    /// up to two seconds old (`flush_memcg_stats_dwork` in mm/memcontrol.c): a decision based on it would choose
    /// another victim for memory that is already free. `/proc/meminfo` has the counters themselves.
    ///
    /// [`MemoryInfo::working_set_bytes`]: super::MemoryInfo::working_set_bytes
    Kubelet,
}

/// Open files to measure `memory.available`: one system call a reading, and no allocation.
#[derive(Debug)]
pub struct Available {
    summary: Box<Meminfo>,
    source: MemoryAvailableSource,
    unmapped_shmem_bytes: u64,
}

/// A reading of the node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvailableMemory {
    /// The available memory.
    pub available_bytes: u64,
    /// The machine's memory; it changes as memory is plugged in or ballooned out.
    pub total_bytes: u64,
}

impl Available {
    /// Opens the memory summary at `meminfo` and reads it once.
    pub fn open(meminfo: &Path, source: MemoryAvailableSource) -> Result<Self, MeminfoError> {
        let mut available =
            Self { summary: Box::new(Meminfo::open(meminfo)?), source, unmapped_shmem_bytes: 0 };
        available.read()?;
        Ok(available)
    }

    /// Reads again.
    pub fn read(&mut self) -> Result<AvailableMemory, MeminfoError> {
        let memory = self.summary.read()?;
        let available_bytes = match self.source {
            MemoryAvailableSource::MemAvailable => memory.available_bytes,
            MemoryAvailableSource::Kubelet => {
                let working_set_bytes = memory.working_set_bytes.ok_or(MeminfoError::Malformed)?;
                memory.total_bytes.saturating_sub(working_set_bytes)
            }
        };
        self.unmapped_shmem_bytes = memory.unmapped_shmem_bytes;
        Ok(AvailableMemory { available_bytes, total_bytes: memory.total_bytes })
    }

    /// A lower bound of the shared memory that no process mapped at the latest reading
    /// ([`MemoryInfo::unmapped_shmem_bytes`]).
    ///
    /// [`MemoryInfo::unmapped_shmem_bytes`]: super::MemoryInfo::unmapped_shmem_bytes
    #[must_use]
    pub fn unmapped_shmem_bytes(&self) -> u64 {
        self.unmapped_shmem_bytes
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_asked_for_is_measured() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |total: u64, anon: u64| {
            let text = format!(
                "MemTotal: {total} kB\nMemFree: 1000 kB\nMemAvailable: 5000 kB\nBuffers: 0 kB\nCached: 2000 kB\n\
                 Inactive(file): 500 kB\nAnonPages: {anon} kB\n"
            );
            fs::write(file.path(), text).unwrap();
        };
        let read = |available: &mut Available| {
            available.read().map(|read| (read.available_bytes / 1_024, read.total_bytes / 1_024))
        };
        write(8_000, 1_000);
        let mut estimated = Available::open(file.path(), MemoryAvailableSource::MemAvailable).unwrap();
        let mut reckoned = Available::open(file.path(), MemoryAvailableSource::Kubelet).unwrap();
        assert_eq!((read(&mut estimated), read(&mut reckoned)), (Ok((5_000, 8_000)), Ok((5_500, 8_000))));
        // Memory is plugged in while it runs, and more may be in use than there is now.
        write(9_000, 1_000);
        assert_eq!((read(&mut estimated), read(&mut reckoned)), (Ok((5_000, 9_000)), Ok((6_500, 9_000))));
        write(9_000, 10_000);
        assert_eq!(read(&mut reckoned), Ok((0, 9_000)));

        fs::write(file.path(), "MemTotal: 8000 kB\nMemFree: 1000 kB\nMemAvailable: 5000 kB\n").unwrap();
        assert_eq!(read(&mut estimated), Ok((5_000, 8_000)));
        assert_eq!(read(&mut reckoned), Err(MeminfoError::Malformed));
        let opened = Available::open(file.path(), MemoryAvailableSource::Kubelet);
        assert_eq!(opened.unwrap_err(), MeminfoError::Malformed);
    }
}
