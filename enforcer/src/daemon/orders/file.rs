//! Keeps orders on disk, so that a restart finds them.
use std::{io, path::Path, sync::mpsc, thread::JoinHandle};

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use tokio::sync::oneshot;

use crate::{
    daemon::emit,
    durable::{self, State, StateError},
    journal::Journal,
    policy::order::{MAX_ORDERS, Order},
    serve::{Done, No},
};

/// The file in the state directory.
const FILE: &str = "orders.json";

/// The writing thread's stack: no call there is deep.
const STACK_BYTES: usize = 256 * 1024;

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Content {
    /// The boot of the orders' monotonic times.
    boot_id: String,
    #[serde(deserialize_with = "few")]
    orders: Vec<Order>,
}

impl State for Content {
    const MAX_BYTES: u64 = 1 << 20;
}

/// As many orders as there can be.
fn few<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Order>, D::Error> {
    let orders = Vec::deserialize(deserializer)?;
    if orders.len() > MAX_ORDERS {
        return Err(D::Error::custom(format_args!("{} orders", orders.len())));
    }
    Ok(orders)
}

/// The orders that an earlier process kept.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) orders: Vec<Order>,
    /// Whether the machine has not been rebooted since.
    pub(super) same_boot: bool,
}

/// Reads the kept orders; none if there is no file.
pub(super) fn read(state_dir: &Path, boot_id: &str) -> Result<Kept, StateError> {
    let content = durable::read::<Content>(&state_dir.join(FILE))?;
    let kept = |content: Content| Kept { same_boot: content.boot_id == boot_id, orders: content.orders };
    Ok(content.map(kept).unwrap_or_default())
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
    durable::write(&dir.join(FILE), &Content { boot_id: boot_id.to_owned(), orders })
}

#[cfg(test)]
mod tests {
    use std::fs;

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
}
