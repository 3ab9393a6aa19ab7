//! Keeps on disk which pods were ended for good, so that a restart does not start them again.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::emit;
use crate::{
    durable::{self, State, StateError},
    journal::Journal,
    keeper::Keeper,
    source::EndedPod,
};

/// The file in the state directory.
const FILE: &str = "ended.json";

#[derive(Debug, Default, Deserialize, Serialize)]
struct Content {
    pods: Vec<EndedPod>,
}

impl State for Content {
    /// About 100,000 pods.
    const MAX_BYTES: u64 = 16 << 20;
}

/// Reads the pods that an earlier process kept; none if there is no file.
pub(super) fn read(state_dir: &Path) -> Result<Vec<EndedPod>, StateError> {
    Ok(durable::read::<Content>(&path(state_dir))?.unwrap_or_default().pods)
}

/// Writes the file on a separate thread: no caller waits for the disk.
#[derive(Debug)]
pub(super) struct EndedPodStore {
    /// The pods, and the number of the latest eviction among them.
    keeper: Keeper<(Vec<EndedPod>, u64)>,
    last: Vec<EndedPod>,
}

impl EndedPodStore {
    /// `kept` is the file's present content; `recorded` is raised to the latest eviction on disk.
    pub(super) fn start(
        state_dir: &Path,
        kept: Vec<EndedPod>,
        recorded: Arc<AtomicU64>,
        journal: Journal,
    ) -> io::Result<Self> {
        let dir = state_dir.to_owned();
        let mut is_reported = false;
        let keeper =
            Keeper::start("keeper", Duration::ZERO, move |(ended, eviction)| match write(&dir, ended) {
                Ok(()) => {
                    recorded.fetch_max(eviction, Ordering::Release);
                    is_reported = false;
                }
                Err(error) if !std::mem::replace(&mut is_reported, true) => emit::degraded(
                    &journal,
                    "evictions",
                    &format!(
                        "after a restart, pods that were evicted may come back: cannot write {}: {error}",
                        dir.join(FILE).display()
                    ),
                ),
                Err(_) => {}
            })?;
        Ok(Self { keeper, last: kept })
    }

    /// Stores these pods from now on, instead of the previous ones.
    pub(super) fn keep(&mut self, ended: Vec<EndedPod>, eviction: u64) {
        if ended == self.last && eviction == 0 {
            return;
        }
        self.last.clone_from(&ended);
        self.keeper.keep((ended, eviction));
    }
}

/// Writes the file now. A caller with an [`EndedPodStore`] must use that instead.
pub(super) fn write(dir: &Path, pods: Vec<EndedPod>) -> io::Result<()> {
    durable::write(&path(dir), &Content { pods })
}

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Why;

    fn pod(uid: &str) -> EndedPod {
        EndedPod { uid: uid.to_owned(), fingerprint: Some(7), why: Why::Evicted }
    }

    #[test]
    fn what_was_kept_is_read_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), []);
        let recorded = Arc::new(AtomicU64::new(0));
        let mut keeper =
            EndedPodStore::start(dir.path(), Vec::new(), Arc::clone(&recorded), Journal::new("n", "b"))
                .unwrap();
        keeper.keep(vec![pod("a")], 1);
        keeper.keep(vec![pod("a"), pod("b")], 2);
        drop(keeper);
        assert_eq!(read(dir.path()).unwrap(), [pod("a"), pod("b")]);
        assert_eq!(recorded.load(Ordering::Acquire), 2);
    }
}
