//! Keeps orders on disk, so that a restart finds them.
use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::mpsc,
    thread::JoinHandle,
};

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::{
    daemon::{emit, ended_pods},
    journal::Journal,
    policy::order::{MAX_ORDERS, Order},
    serve::{Done, No},
};

/// The file in the state directory.
const FILE: &str = "orders.json";

/// A damaged file is kept under this name beside it.
const ASIDE: &str = "orders.json.damaged";

/// The largest file that is read.
const MAX_BYTES: u64 = 1 << 20;

const VERSION: u32 = 1;

/// The writing thread's stack: no call there is deep.
const STACK_BYTES: usize = 256 * 1024;

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Content {
    version: u32,
    /// The boot of the orders' monotonic times.
    boot_id: String,
    orders: Vec<Order>,
}

/// The orders that an earlier process kept.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) orders: Vec<Order>,
    /// Whether the machine has not been rebooted since.
    pub(super) same_boot: bool,
}

/// The error of reading the file.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    /// It cannot be read, and stays unchanged.
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// It is damaged or from another version.
    #[error("{} is damaged or from another version ({why}), and is kept as {ASIDE}", path.display())]
    Damaged { path: PathBuf, why: String },
}

/// Reads the kept orders; none if there is no file. A damaged file is set aside.
pub(super) fn read(state_dir: &Path, boot_id: &str) -> Result<Kept, FileError> {
    let path = state_dir.join(FILE);
    let content = read_bytes(&path).map_err(|source| FileError::Read { path: path.clone(), source })?;
    let Some(content) = content else { return Ok(Kept::default()) };
    match parse(&content) {
        Ok(content) => Ok(Kept { same_boot: content.boot_id == boot_id, orders: content.orders }),
        Err(why) => {
            fs::rename(&path, state_dir.join(ASIDE))
                .map_err(|source| FileError::Read { path: path.clone(), source })?;
            Err(FileError::Damaged { path, why })
        }
    }
}

fn read_bytes(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

fn parse(bytes: &[u8]) -> Result<Content, String> {
    if u64::try_from(bytes.len()).is_ok_and(|length| length > MAX_BYTES) {
        return Err(format!("it has more than {MAX_BYTES} bytes"));
    }
    let content: Content = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    match content {
        Content { version, .. } if version != VERSION => Err(format!("version {version}")),
        Content { ref orders, .. } if orders.len() > MAX_ORDERS => Err(format!("{} orders", orders.len())),
        content => Ok(content),
    }
}

/// An answer that is sent once its orders are on disk.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) done: Done,
    pub(super) answer: oneshot::Sender<Result<Done, No>>,
}

struct Job {
    orders: Vec<Order>,
    waiting: Vec<Waiting>,
}

/// Writes the file on a separate thread: only the requester waits for the disk.
#[derive(Debug)]
pub(super) struct Writer {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(state_dir: &Path, boot_id: &str, journal: Journal) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let (dir, boot_id) = (state_dir.to_owned(), boot_id.to_owned());
        let work = move || {
            let mut reported = false;
            while let Ok(first) = queue.recv() {
                // Only the newest orders count.
                let (mut orders, mut waiting) = (first.orders, first.waiting);
                for job in queue.try_iter() {
                    orders = job.orders;
                    waiting.extend(job.waiting);
                }
                let written = write(&dir, &boot_id, orders);
                if let Err(error) = &written
                    && !std::mem::replace(&mut reported, true)
                {
                    let path = dir.join(FILE);
                    let message =
                        format!("a restart forgets orders: cannot write {}: {error}", path.display());
                    emit::degraded(&journal, "orders", &message);
                }
                reported &= written.is_err();
                for Waiting { mut done, answer } in waiting {
                    done.durable = written.is_ok();
                    // The requester may have gone.
                    drop(answer.send(Ok(done)));
                }
            }
        };
        let builder = std::thread::Builder::new().name(String::from("orders")).stack_size(STACK_BYTES);
        Ok(Self { jobs: Some(jobs), thread: Some(builder.spawn(work)?) })
    }

    /// Stores these orders, and then sends the answers.
    pub(super) fn keep(&self, orders: Vec<Order>, waiting: Vec<Waiting>) {
        if let Some(jobs) = &self.jobs {
            // The thread ends after this sender.
            drop(jobs.send(Job { orders, waiting }));
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            crate::threads::join(thread);
        }
    }
}

fn write(dir: &Path, boot_id: &str, orders: Vec<Order>) -> io::Result<()> {
    let content = Content { version: VERSION, boot_id: boot_id.to_owned(), orders };
    ended_pods::write_file(dir, FILE, &serde_json::to_vec(&content)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::order::{Moment, Orders, What};

    fn orders() -> Vec<Order> {
        let mut orders = Orders::default();
        orders.give(What::Pause, "why", 0, Moment { boot_ms: 1, wall_ms: 2 }, 60_000).unwrap();
        orders.all().to_vec()
    }

    #[tokio::test]
    async fn what_was_answered_is_on_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path(), "b").unwrap().orders, []);
        let writer = Writer::start(dir.path(), "b", Journal::new("n", "b")).unwrap();
        let (answer, answered) = oneshot::channel();
        writer.keep(orders(), vec![Waiting { done: Done::default(), answer }]);
        assert!(answered.await.unwrap().unwrap().durable);
        let kept = read(dir.path(), "b").unwrap();
        assert_eq!((kept.orders, kept.same_boot), (orders(), true));
        assert!(!read(dir.path(), "another").unwrap().same_boot);
    }

    #[tokio::test]
    async fn a_disk_that_takes_nothing_is_reported_with_the_answer() {
        let dir = tempfile::tempdir().unwrap();
        let blocked = dir.path().join("file");
        fs::write(&blocked, "").unwrap();
        let journal = Journal::new("n", "b");
        let writer = Writer::start(&blocked, "b", journal.clone()).unwrap();
        for _ in 0..2 {
            let (answer, answered) = oneshot::channel();
            writer.keep(orders(), vec![Waiting { done: Done::default(), answer }]);
            assert!(!answered.await.unwrap().unwrap().durable);
        }
        assert_eq!(journal.range().newest, 1, "once is enough");
    }

    #[test]
    fn a_damaged_file_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        for wrong in ["", "{}", "{\"version\":2,\"bootId\":\"b\",\"orders\":[]}", "\u{0}"] {
            fs::write(dir.path().join(FILE), wrong).unwrap();
            assert!(matches!(read(dir.path(), "b"), Err(FileError::Damaged { .. })), "{wrong:?}");
            assert_eq!(fs::read_to_string(dir.path().join(ASIDE)).unwrap(), wrong);
            assert_eq!(read(dir.path(), "b").unwrap().orders, []);
        }
    }
}
