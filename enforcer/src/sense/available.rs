//! Measures `memory.available`, by the kernel's own estimate or as the kubelet does.

use std::path::Path;

use super::{Meminfo, MeminfoError, MemoryInfo};

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
    /// The formula counts as available what the kernel itself uses, and where that is more than the threshold the kernel's
    /// OOM killer would come first. So once the kernel's own estimate and free swap together are below 100 MiB or a
    /// hundredth of the memory, whichever is more, the reading is never above that estimate.
    ///
    /// [`MemoryInfo::working_set_bytes`]: super::MemoryInfo::working_set_bytes
    Kubelet,
}

/// The least that the kernel must have left for the kubelet's formula to count.
const LEAST_LEFT_BYTES: u64 = 100 << 20;

/// The same as a part of the memory: one hundredth.
const LEFT_DIVISOR: u64 = 100;

/// Open files to measure `memory.available`: one system call a reading, and no allocation.
#[derive(Debug)]
pub struct Available {
    summary: Box<Meminfo>,
    source: MemoryAvailableSource,
    unmapped_shmem_bytes: u64,
    shmem_bytes: u64,
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
        let summary = Box::new(Meminfo::open(meminfo)?);
        let mut available = Self { summary, source, unmapped_shmem_bytes: 0, shmem_bytes: 0 };
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
                let reckoned_bytes = memory.total_bytes.saturating_sub(working_set_bytes);
                if is_nearly_exhausted(&memory) {
                    reckoned_bytes.min(memory.available_bytes)
                } else {
                    reckoned_bytes
                }
            }
        };
        self.unmapped_shmem_bytes = memory.unmapped_shmem_bytes;
        self.shmem_bytes = memory.shmem_bytes;
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

    /// All shared memory at the latest reading.
    #[must_use]
    pub fn shmem_bytes(&self) -> u64 {
        self.shmem_bytes
    }
}

/// Whether the kernel itself finds hardly anything left.
fn is_nearly_exhausted(memory: &MemoryInfo) -> bool {
    let least_bytes = (memory.total_bytes / LEFT_DIVISOR).max(LEAST_LEFT_BYTES);
    memory.available_bytes.saturating_add(memory.swap_free_bytes) < least_bytes
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
                "MemTotal: {total} kB\nMemFree: 100000 kB\nMemAvailable: 500000 kB\nBuffers: 0 kB\nCached: 200000 kB\n\
                 Inactive(file): 50000 kB\nAnonPages: {anon} kB\n"
            );
            fs::write(file.path(), text).unwrap();
        };
        let read = |available: &mut Available| {
            available.read().map(|read| (read.available_bytes / 1_024, read.total_bytes / 1_024))
        };
        write(800_000, 100_000);
        let mut estimated = Available::open(file.path(), MemoryAvailableSource::MemAvailable).unwrap();
        let mut reckoned = Available::open(file.path(), MemoryAvailableSource::Kubelet).unwrap();
        assert_eq!(
            (read(&mut estimated), read(&mut reckoned)),
            (Ok((500_000, 800_000)), Ok((550_000, 800_000)))
        );
        // Memory is plugged in while it runs, and more may be in use than there is now.
        write(900_000, 100_000);
        assert_eq!(
            (read(&mut estimated), read(&mut reckoned)),
            (Ok((500_000, 900_000)), Ok((650_000, 900_000)))
        );
        write(900_000, 1_000_000);
        assert_eq!(read(&mut reckoned), Ok((0, 900_000)));

        fs::write(file.path(), "MemTotal: 8000 kB\nMemFree: 1000 kB\nMemAvailable: 5000 kB\n").unwrap();
        assert_eq!(read(&mut estimated), Ok((5_000, 8_000)));
        assert_eq!(read(&mut reckoned), Err(MeminfoError::Malformed));
        let opened = Available::open(file.path(), MemoryAvailableSource::Kubelet);
        assert_eq!(opened.unwrap_err(), MeminfoError::Malformed);
    }

    #[test]
    fn what_the_kernel_itself_uses_is_not_available_once_hardly_anything_is_left() {
        const GIB: u64 = 1 << 20;
        let file = tempfile::NamedTempFile::new().unwrap();
        // The kernel itself uses 2 GiB. In kB, as in the file.
        let read = |total: u64, estimate: u64, swap_free: u64| {
            let anon = total - 2 * GIB - estimate;
            let text = format!(
                "MemTotal: {total} kB\nMemFree: {estimate} kB\nMemAvailable: {estimate} kB\nBuffers: 0 kB\nCached: 0 kB\n\
                 Inactive(file): 0 kB\nAnonPages: {anon} kB\nSwapTotal: {GIB} kB\nSwapFree: {swap_free} kB\n"
            );
            fs::write(file.path(), text).unwrap();
            let mut available = Available::open(file.path(), MemoryAvailableSource::Kubelet).unwrap();
            available.read().unwrap().available_bytes / 1_024
        };
        let mib = |mib: u64| mib << 10;
        assert_eq!(read(8 * GIB, mib(100), 0), 2 * GIB + mib(100));
        assert_eq!(read(8 * GIB, mib(100) - 1, 0), mib(100) - 1);
        // A hundredth of 50 GiB is more.
        assert_eq!(read(50 * GIB, mib(512), 0), 2 * GIB + mib(512));
        assert_eq!(read(50 * GIB, mib(512) - 1, 0), mib(512) - 1);
        // What is written to swap makes room.
        assert_eq!(read(8 * GIB, mib(40), mib(60)), 2 * GIB + mib(40));
        assert_eq!(read(8 * GIB, mib(40), mib(59)), mib(40));
    }
}
