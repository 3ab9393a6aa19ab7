//! `GET /v1/usages`: candidates as the engine reads them, for `enforcer what-if`.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    model::CgroupId,
    policy::engine::{Reading, Usage},
};

/// The present usage of a candidate for eviction.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageView {
    /// Its cgroup's id.
    pub cgroup_id: u64,
    /// Whether it could not be read; a pod without stats is evicted first. All amounts are 0 then.
    pub stats_missing: bool,
    /// Whether its memory is not counted, so that it is not evicted for memory. All amounts of memory are 0 then.
    #[serde(default)]
    pub memory_unknown: bool,
    /// `memory.current`.
    pub current_bytes: u64,
    /// The working set, by which it is ranked.
    pub working_set_bytes: u64,
    /// `anon`.
    pub anon_bytes: u64,
    /// `file`.
    pub file_bytes: u64,
    /// `shmem`.
    pub shmem_bytes: u64,
    /// `file_mapped`.
    #[serde(default)]
    pub file_mapped_bytes: u64,
    /// The number of its tasks, if it was read.
    pub process_count: Option<u64>,
}

impl UsageView {
    /// The view of a reading; `None` if the cgroup is gone.
    #[must_use]
    pub fn new(cgroup: CgroupId, reading: &Reading) -> Option<Self> {
        let usage = match reading {
            Reading::Gone => return None,
            Reading::Missing => Usage::default(),
            Reading::Usage(usage) => *usage,
            Reading::Uncounted { process_count } => {
                Usage { process_count: *process_count, ..Usage::default() }
            }
        };
        let Usage {
            current_bytes,
            working_set_bytes,
            anon_bytes,
            file_bytes,
            shmem_bytes,
            file_mapped_bytes,
            process_count,
        } = usage;
        Some(Self {
            cgroup_id: cgroup.0,
            stats_missing: *reading == Reading::Missing,
            memory_unknown: matches!(reading, Reading::Uncounted { .. }),
            current_bytes,
            working_set_bytes,
            anon_bytes,
            file_bytes,
            shmem_bytes,
            file_mapped_bytes,
            process_count,
        })
    }

    /// The reading for the engine.
    #[must_use]
    pub fn reading(&self) -> Reading {
        if self.stats_missing {
            return Reading::Missing;
        }
        if self.memory_unknown {
            return Reading::Uncounted { process_count: self.process_count };
        }
        Reading::Usage(Usage {
            current_bytes: self.current_bytes,
            working_set_bytes: self.working_set_bytes,
            anon_bytes: self.anon_bytes,
            file_bytes: self.file_bytes,
            shmem_bytes: self.shmem_bytes,
            file_mapped_bytes: self.file_mapped_bytes,
            process_count: self.process_count,
        })
    }
}

/// Reads the usage of every candidate, which may take a few milliseconds.
#[derive(Clone)]
pub struct Usages(Arc<dyn Fn() -> Vec<UsageView> + Send + Sync>);

impl Usages {
    /// Uses this function.
    pub fn by(read: impl Fn() -> Vec<UsageView> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    pub(super) fn read(&self) -> Vec<UsageView> {
        (self.0)()
    }
}

impl fmt::Debug for Usages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Usages")
    }
}
