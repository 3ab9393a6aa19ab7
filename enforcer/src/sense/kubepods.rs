//! Measures `allocatableMemory.available`: pods may run short before the node does.

use std::os::fd::OwnedFd;

use super::{
    available::AvailableMemory,
    snapshot::{Charge, ChargeFiles, Missing, ReadResult},
    text,
};
use crate::{
    cgroup::{self, CgroupDir},
    model::CgroupPath,
};

/// Open files to measure `allocatableMemory.available`, the memory that all pods together may still take. Three system
/// calls a reading, and no allocation.
///
/// Measured as the kubelet does: the limit of kubepods less its working set (`makeSignalObservations` of
/// `pkg/kubelet/eviction/helpers.go`).
#[derive(Debug)]
pub struct PodsMemory {
    path: CgroupPath,
    limit: OwnedFd,
    charge: ChargeFiles,
}

/// Charge and limit of kubepods.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PodsCharge {
    total_bytes: u64,
    charge: Charge,
}

impl PodsMemory {
    /// Opens the files of kubepods.
    pub fn open(dir: &CgroupDir) -> Result<Self, cgroup::Error> {
        Ok(Self {
            path: dir.path().clone(),
            limit: dir.open_read("memory.max")?,
            charge: ChargeFiles::open(dir)?,
        })
    }

    /// From open files of a simulated kubepods.
    #[must_use]
    pub(crate) fn of(path: CgroupPath, limit: OwnedFd, charge: ChargeFiles) -> Self {
        Self { path, limit, charge }
    }

    /// Reads again; `None` if it has no limit: then the pods cannot exhaust it before the node's memory.
    pub fn read(&self, buffer: &mut [u8]) -> ReadResult<Option<PodsCharge>> {
        let limit = text::read_into(&self.limit, buffer)?;
        if limit.trim_ascii() == b"max" {
            return Ok(None);
        }
        let total_bytes = text::number(limit).ok_or(Missing::Malformed)?;
        Ok(Some(PodsCharge { total_bytes, charge: self.charge.charge(buffer)? }))
    }

    /// Corrects a reading by the sum of the charges of the [pods themselves](Charge::made_of), which was read after it.
    ///
    /// During that reading the pods take and free memory. What they freed is gone, and what they took is in their
    /// charges: so the smaller whole of before and after counts, or the pods' sum if that is larger.
    pub fn made_of(&self, read: PodsCharge, pods: Charge, buffer: &mut [u8]) -> ReadResult<PodsCharge> {
        let since_bytes = self.charge.current_bytes(buffer)?;
        let charge = Charge { current_bytes: read.charge.current_bytes.min(since_bytes), ..read.charge };
        Ok(PodsCharge { charge: charge.made_of(pods), ..read })
    }

    /// The path of kubepods.
    #[must_use]
    pub fn path(&self) -> &CgroupPath {
        &self.path
    }
}

impl PodsCharge {
    /// What the pods may still take, by these figures.
    #[must_use]
    pub fn available(&self) -> AvailableMemory {
        let Self { total_bytes, charge } = *self;
        let available_bytes = total_bytes.saturating_sub(charge.usage().working_set_bytes);
        AvailableMemory { available_bytes, total_bytes }
    }

    /// A lower bound of it: all page cache that counts as idle may be gone, and other memory used in its place.
    #[must_use]
    pub fn least_available_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.charge.current_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read(files: &[(&str, &str)]) -> ReadResult<Option<AvailableMemory>> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let dir = CgroupDir::unchecked(dir.path()).unwrap();
        let read = PodsMemory::open(&dir).unwrap().read(&mut [0; 512]);
        read.map(|charge| charge.map(|charge| charge.available()))
    }

    const STAT: (&str, &str) = ("memory.stat", "anon 500\nfile 400\nshmem 0\ninactive_file 300\n");

    #[test]
    fn is_the_limit_less_the_working_set() {
        let read = |limit, current| read(&[("memory.max", limit), ("memory.current", current), STAT]);
        let some = |available_bytes| Ok(Some(AvailableMemory { available_bytes, total_bytes: 2_000 }));
        assert_eq!(read("2000\n", "1000\n"), some(1_300));
        // Lowered below what is in use.
        assert_eq!(read("2000\n", "2900\n"), some(0));
        assert_eq!(read("max\n", "1000\n"), Ok(None));
        assert_eq!(read("lots\n", "1000\n"), Err(Missing::Malformed));
        assert_eq!(read("2000\n", "lots\n"), Err(Missing::Malformed));
    }
}
