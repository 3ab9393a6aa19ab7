//! Keeps on disk which pods were ended for good, so that a restart does not start them again.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use serde::{Deserialize, Serialize};

use super::emit;
pub(super) use crate::durable::write_file;
use crate::{journal::Journal, source::EndedPod};

/// The file in the state directory.
const FILE: &str = "ended.json";

/// The largest file that is read: about 100,000 pods.
const MAX_BYTES: u64 = 16 << 20;

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    pods: Vec<EndedPod>,
}

const VERSION: u32 = 1;

/// Reads the pods that an earlier process kept; none if there is no file.
pub(super) fn read(state_dir: &Path) -> io::Result<Vec<EndedPod>> {
    let file = match File::open(state_dir.join(FILE)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    let content: Content = serde_json::from_slice(&bytes)?;
    if content.version != VERSION {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("version {}", content.version)));
    }
    Ok(content.pods)
}

/// The next content of the file.
#[derive(Debug, Default)]
struct Queue {
    /// The pods, and the number of the latest eviction among them.
    next: Option<(Vec<EndedPod>, u64)>,
    closing: bool,
}

/// Writes the file on a separate thread: no caller waits for the disk.
#[derive(Debug)]
pub(super) struct EndedPodStore {
    queue: Arc<(Mutex<Queue>, Condvar)>,
    last: Vec<EndedPod>,
    writer: Option<JoinHandle<()>>,
}

impl EndedPodStore {
    /// `kept` is the file's present content; `recorded` is raised to the latest eviction on disk.
    pub(super) fn start(
        state_dir: &Path,
        kept: Vec<EndedPod>,
        recorded: Arc<AtomicU64>,
        journal: Journal,
    ) -> io::Result<Self> {
        let queue = Arc::new((Mutex::new(Queue::default()), Condvar::new()));
        let (shared, dir) = (Arc::clone(&queue), state_dir.to_owned());
        let writer = std::thread::Builder::new()
            .name(String::from("keeper"))
            .spawn(move || run(&shared, &dir, &recorded, &journal))?;
        Ok(Self { queue, last: kept, writer: Some(writer) })
    }

    /// Stores these pods from now on, instead of the previous ones.
    pub(super) fn keep(&mut self, ended: Vec<EndedPod>, eviction: u64) {
        if ended == self.last && eviction == 0 {
            return;
        }
        self.last.clone_from(&ended);
        let (queue, waker) = &*self.queue;
        queue.lock().unwrap_or_else(PoisonError::into_inner).next = Some((ended, eviction));
        waker.notify_one();
    }
}

impl Drop for EndedPodStore {
    fn drop(&mut self) {
        let (queue, waker) = &*self.queue;
        queue.lock().unwrap_or_else(PoisonError::into_inner).closing = true;
        waker.notify_one();
        if let Some(thread) = self.writer.take() {
            crate::threads::join(thread);
        }
    }
}

fn run(shared: &(Mutex<Queue>, Condvar), dir: &Path, recorded: &AtomicU64, journal: &Journal) {
    let (queue, waker) = shared;
    let mut reported = false;
    loop {
        let (ended, eviction) = {
            let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                if let Some(next) = queue.next.take() {
                    break next;
                }
                if queue.closing {
                    return;
                }
                queue = waker.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        };
        match write(dir, ended) {
            Ok(()) => {
                recorded.fetch_max(eviction, Ordering::Release);
                reported = false;
            }
            Err(error) if !std::mem::replace(&mut reported, true) => emit::degraded(
                journal,
                "evictions",
                &format!(
                    "after a restart, pods that were evicted may come back: cannot write {}: {error}",
                    dir.join(FILE).display()
                ),
            ),
            Err(_) => {}
        }
    }
}

/// Writes the file now. A caller with an [`EndedPodStore`] must use that instead.
pub(super) fn write(dir: &Path, pods: Vec<EndedPod>) -> io::Result<()> {
    write_file(dir, FILE, &serde_json::to_vec(&Content { version: VERSION, pods })?)
}

/// The file's path, for messages.
pub(super) fn path(state_dir: &Path) -> PathBuf {
    state_dir.join(FILE)
}

#[cfg(test)]
mod tests {
    use std::fs;

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

    #[test]
    fn another_file_is_an_error_and_is_left() {
        let dir = tempfile::tempdir().unwrap();
        for wrong in ["", "{}", "{\"version\":2,\"pods\":[]}", "{\"version\":1,\"pods\":[{\"uid\":1}]}"] {
            fs::write(dir.path().join(FILE), wrong).unwrap();
            assert!(read(dir.path()).is_err(), "{wrong}");
        }
    }
}
