//! Keeps on disk which CPUs containers have of their own, as the kubelet does: `cpu_manager_state` with its keys.

use std::{
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::emit;
use crate::{
    durable::{self, State, StateError},
    journal::Journal,
    keeper::Keeper,
    policy::cpus::Assignments,
    regular,
};

/// The file in the state directory, and in a kubelet's root directory.
const FILE: &str = "cpu_manager_state";

/// More than a file with 8192 containers has.
const MAX_BYTES: u64 = 4 << 20;

/// What the file is about.
pub(super) const WHAT: &str = "cpus";

#[derive(Debug, Deserialize, Serialize)]
#[serde(transparent)]
struct Content(Assignments);

impl State for Content {
    const MAX_BYTES: u64 = MAX_BYTES;

    fn check(&self) -> Result<(), String> {
        let Self(assignments) = self;
        if assignments.is_intact() {
            Ok(())
        } else {
            Err(String::from("its checksum is that of another content"))
        }
    }
}

/// Reads what an earlier daemon kept; `None` if there is no file. A damaged one, or one of a newer version, is set aside.
pub(super) fn read(state_dir: &Path) -> Result<Option<Assignments>, StateError> {
    Ok(durable::read::<Content>(&state_dir.join(FILE))?.map(|Content(assignments)| assignments))
}

/// Reads the file of a kubelet, or that of a daemon that runs, and changes nothing.
pub(crate) fn look(folder: &Path) -> io::Result<Assignments> {
    let mut bytes = Vec::new();
    regular::open(&folder.join(FILE))?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    let assignments: Assignments = serde_json::from_slice(&bytes)?;
    if assignments.is_intact() {
        Ok(assignments)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "its checksum is that of another content"))
    }
}

/// The path of the file in that folder.
pub(crate) fn path(folder: &Path) -> PathBuf {
    folder.join(FILE)
}

/// Writes the file on a thread of its own, and says what is on the disk.
#[derive(Debug)]
pub(super) struct CpuStore {
    keeper: Keeper<(u64, Assignments)>,
    given: u64,
    written: Arc<AtomicU64>,
}

impl CpuStore {
    /// Notifies `woken` after each write. What cannot be written is reported, and counts as written: no pod waits for a disk
    /// that is full.
    pub(super) fn start(state_dir: &Path, woken: Arc<Notify>, journal: Journal) -> io::Result<Self> {
        let path = path(state_dir);
        let written = Arc::new(AtomicU64::new(0));
        let reached = Arc::clone(&written);
        let mut is_reported = false;
        let keeper = Keeper::start("cpus-keeper", Duration::ZERO, move |(number, assignments)| {
            match durable::write(&path, &Content(assignments)) {
                Ok(()) => is_reported = false,
                Err(error) if !std::mem::replace(&mut is_reported, true) => {
                    let message = format!(
                        "after a restart, containers may get other CPUs of their own: cannot write {}: {error}",
                        path.display()
                    );
                    emit::degraded(&journal, WHAT, &message);
                }
                Err(_) => {}
            }
            reached.fetch_max(number, Ordering::Release);
            woken.notify_one();
        })?;
        Ok(Self { keeper, given: 0, written })
    }

    /// Writes this from now on, instead of what was given before; returns its number.
    pub(super) fn keep(&mut self, assignments: Assignments) -> u64 {
        self.given += 1;
        self.keeper.keep((self.given, assignments));
        self.given
    }

    /// The number of the last one that was written.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::PodUid;

    fn assignments() -> Assignments {
        let mut assignments =
            Assignments { default_cpu_set: "0-1,4-7".parse().unwrap(), ..Assignments::default() };
        let containers = assignments.entries.entry(PodUid::new("u").unwrap()).or_default();
        containers.insert(String::from("app"), "2-3".parse().unwrap());
        assignments.checksum = assignments.expected_checksum();
        assignments
    }

    #[test]
    fn what_was_kept_is_read_by_the_next_with_the_kubelets_keys() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), None);
        let journal = Journal::new("n", "b");
        let mut store = CpuStore::start(dir.path(), Arc::default(), journal).unwrap();
        let number = store.keep(assignments());
        let written = Arc::clone(&store.written);
        drop(store);
        assert_eq!(written.load(Ordering::Acquire), number);
        assert_eq!(read(dir.path()).unwrap(), Some(assignments()));
        assert_eq!(look(dir.path()).unwrap(), assignments());
        let json: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(path(dir.path())).unwrap()).unwrap();
        assert_eq!(json["policyName"], "static");
        assert_eq!(json["defaultCpuSet"], "0-1,4-7");
        assert_eq!(json["entries"], serde_json::json!({"u": {"app": "2-3"}}));
        assert_eq!(json["version"], 1);
    }

    #[test]
    fn what_is_damaged_or_newer_is_set_aside_and_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let other_sum =
            r#"{"version":1,"policyName":"static","defaultCpuSet":"0-3","entries":{},"checksum":7}"#;
        let newer = other_sum.replace("\"version\":1", "\"version\":9");
        let reversed = other_sum.replace("0-3", "3-0");
        for (content, aside) in [
            (other_sum, "damaged"),
            (newer.as_str(), "v9"),
            (reversed.as_str(), "damaged.1"),
            ("\u{0}", "damaged.2"),
        ] {
            std::fs::write(path(dir.path()), content).unwrap();
            assert!(matches!(read(dir.path()), Err(StateError::SetAside { .. })), "{content}");
            let kept = dir.path().join(format!("{FILE}.{aside}"));
            assert_eq!(std::fs::read_to_string(kept).unwrap(), content);
            assert_eq!(read(dir.path()).unwrap(), None);
        }
    }
}
