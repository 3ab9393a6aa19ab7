//! Creation and removal of cgroups.
use std::{fmt, io};

use aya::maps::{MapData, PerCpuArray, RingBuf};
use enforcer_common::life::{
    CgroupGone, CgroupMade, KIND_CGROUP_GONE, KIND_CGROUP_MADE, LongCgroupMade, Made, counts,
};

use super::{
    record::{self, Undecodable},
    ring::{KernelRing, RecordRing as _},
};
use crate::model::CgroupId;

/// The most records that are taken at once: the ring holds fewer.
const MOST_RECORDS: usize = 4096;

/// A change of a cgroup. Ids are those of the unified hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// It was created, without processes.
    Made {
        /// Its id.
        cgroup: CgroupId,
        /// Its parent.
        parent: CgroupId,
        /// Its name there, chosen by its creator.
        name: Box<str>,
    },
    /// It was removed. Records of its processes may come later.
    Gone(CgroupId),
}

impl Life {
    /// The id of a removed cgroup.
    #[must_use]
    pub fn gone(&self) -> Option<CgroupId> {
        match self {
            Self::Gone(cgroup) => Some(*cgroup),
            Self::Made { .. } => None,
        }
    }
}

/// The ring of these records, not read yet.
pub struct LifeRing {
    ring: RingBuf<MapData>,
    counts: PerCpuArray<MapData, u64>,
}

/// Reads the ring, and counts its losses.
pub struct LifeWatch {
    ring: KernelRing,
    counts: PerCpuArray<MapData, u64>,
    /// How many of the losses were reported.
    lost: u64,
}

impl LifeRing {
    pub(super) const fn new(ring: RingBuf<MapData>, counts: PerCpuArray<MapData, u64>) -> Self {
        Self { ring, counts }
    }

    /// Starts to read it in the current runtime.
    pub fn watch(self) -> io::Result<LifeWatch> {
        let Self { ring, counts } = self;
        Ok(LifeWatch { ring: KernelRing::register(ring)?, counts, lost: 0 })
    }
}

impl fmt::Debug for LifeRing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LifeRing").finish_non_exhaustive()
    }
}

impl fmt::Debug for LifeWatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LifeWatch").finish_non_exhaustive()
    }
}

impl LifeWatch {
    /// Waits until there may be something to [`take`](Self::take). Safe to cancel.
    pub async fn readable(&mut self) -> io::Result<()> {
        self.ring.readable().await
    }

    /// Adds the records so far, in order. More may come meanwhile: it ends after a few thousand.
    pub fn take(&mut self, lives: &mut Vec<Life>) {
        self.ring.take(MOST_RECORDS, |record| match decode(record) {
            Ok(life) => lives.push(life),
            Err(error) => tracing::debug!(%error, "cannot use a record"),
        });
    }

    /// The losses since the last call.
    pub fn lost(&mut self) -> u64 {
        match self.counts.get(&counts::DROPPED, 0) {
            Ok(cpus) => {
                let all: u64 = cpus.iter().sum();
                all.saturating_sub(std::mem::replace(&mut self.lost, all))
            }
            Err(error) => {
                tracing::debug!(%error, "cannot read the losses of cgroup records");
                0
            }
        }
    }
}

fn decode(bytes: &[u8]) -> Result<Life, Undecodable> {
    let kind = record::header(bytes)?.kind;
    match kind {
        KIND_CGROUP_MADE if bytes.len() == size_of::<LongCgroupMade>() => {
            record::view::<LongCgroupMade>(kind, bytes).map(|record| life(&record.made, &record.name))
        }
        KIND_CGROUP_MADE => {
            record::view::<CgroupMade>(kind, bytes).map(|record| life(&record.made, &record.name))
        }
        KIND_CGROUP_GONE => {
            let CgroupGone { header: _, time_ns: _, cgroup_id } = record::body(kind, bytes)?;
            Ok(Life::Gone(CgroupId(cgroup_id)))
        }
        unknown => Err(Undecodable::UnknownKind(unknown)),
    }
}

fn life(made: &Made, name: &[u8]) -> Life {
    let Made { header: _, time_ns: _, cgroup_id, parent_id } = *made;
    Life::Made { cgroup: CgroupId(cgroup_id), parent: CgroupId(parent_id), name: record::comm(name).into() }
}

#[cfg(test)]
mod tests {
    use enforcer_common::{
        life::{LONG_NAME_LEN, NAME_LEN},
        record::Header,
    };
    use zerocopy::IntoBytes as _;

    use super::*;

    fn made(size_bytes: u16) -> Made {
        Made { header: Header::new(KIND_CGROUP_MADE, size_bytes), time_ns: 1, cgroup_id: 7, parent_id: 3 }
    }

    fn reported(name: &str) -> Life {
        Life::Made { cgroup: CgroupId(7), parent: CgroupId(3), name: name.into() }
    }

    #[test]
    fn a_name_ends_at_its_zero_short_or_long() {
        let mut short = CgroupMade { made: made(CgroupMade::SIZE_BYTES), name: [0; NAME_LEN] };
        short.name[..4].copy_from_slice(b"pod1");
        assert_eq!(decode(short.as_bytes()), Ok(reported("pod1")));
        let mut long = LongCgroupMade { made: made(LongCgroupMade::SIZE_BYTES), name: [b'x'; LONG_NAME_LEN] };
        long.name[255] = 0;
        assert_eq!(decode(long.as_bytes()), Ok(reported(&"x".repeat(255))));
        assert_eq!(decode(CgroupGone::new(7, 1).as_bytes()), Ok(Life::Gone(CgroupId(7))));
    }

    #[test]
    fn a_torn_record_is_none() {
        let long = LongCgroupMade { made: made(LongCgroupMade::SIZE_BYTES), name: [0; LONG_NAME_LEN] };
        for len in 0..long.as_bytes().len() {
            assert!(decode(&long.as_bytes()[..len]).is_err(), "{len} bytes");
        }
        let wrong = LongCgroupMade { made: made(CgroupMade::SIZE_BYTES), name: [0; LONG_NAME_LEN] };
        assert!(decode(wrong.as_bytes()).is_err(), "the header says another size");
    }
}
