//! Keeps orders and reservations on disk, so that a restart finds them.
use std::{io, path::Path, sync::mpsc, thread::JoinHandle};

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use tokio::sync::oneshot;

use crate::{
    daemon::emit,
    durable::{self, State, StateError},
    journal::Journal,
    policy::{
        order::{MAX_ORDERS, Order},
        reservation::{MAX_RESERVATIONS, Reservation},
    },
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
    /// Earlier versions kept none.
    #[serde(default, deserialize_with = "few_reservations")]
    reservations: Vec<Reservation>,
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

/// As many reservations as there can be.
fn few_reservations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Reservation>, D::Error> {
    let kept: Vec<serde_json::Value> = Vec::deserialize(deserializer)?;
    // One that is not possible any more must not take the orders with it.
    let reservation = |kept: serde_json::Value| {
        let name = kept["name"].to_string();
        serde_json::from_value(kept)
            .inspect_err(|error| tracing::warn!("the reservation {name} is not in force any more: {error}"))
            .ok()
    };
    Ok(kept.into_iter().take(MAX_RESERVATIONS).filter_map(reservation).collect())
}

/// The orders and reservations that an earlier process kept.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) orders: Vec<Order>,
    pub(super) reservations: Vec<Reservation>,
    /// Whether the machine has not been rebooted since.
    pub(super) same_boot: bool,
}

/// Reads the kept orders; none if there is no file.
pub(super) fn read(state_dir: &Path, boot_id: &str) -> Result<Kept, StateError> {
    let content = durable::read::<Content>(&state_dir.join(FILE))?;
    let kept = |Content { boot_id: of, orders, reservations }| Kept {
        same_boot: of == boot_id,
        orders,
        reservations,
    };
    Ok(content.map(kept).unwrap_or_default())
}

/// An answer that is sent once its orders are on disk.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) done: Done,
    pub(super) answer: oneshot::Sender<Result<Done, No>>,
}

/// The orders and reservations in force.
pub(super) type InForce = (Vec<Order>, Vec<Reservation>);

struct Job {
    in_force: InForce,
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
                let (mut in_force, mut waiting) = (first.in_force, first.waiting);
                for job in queue.try_iter() {
                    in_force = job.in_force;
                    waiting.extend(job.waiting);
                }
                let written = write(&dir, &boot_id, in_force);
                if let Err(error) = &written
                    && !std::mem::replace(&mut reported, true)
                {
                    let path = dir.join(FILE);
                    let message = format!(
                        "a restart forgets orders and reservations: cannot write {}: {error}",
                        path.display()
                    );
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

    /// Stores these, and then sends the answers.
    pub(super) fn keep(&self, in_force: InForce, waiting: Vec<Waiting>) {
        if let Some(jobs) = &self.jobs {
            // The thread ends after this sender.
            drop(jobs.send(Job { in_force, waiting }));
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

fn write(dir: &Path, boot_id: &str, (orders, reservations): InForce) -> io::Result<()> {
    durable::write(&dir.join(FILE), &Content { boot_id: boot_id.to_owned(), orders, reservations })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{
        model::{Quantity, ResourceName},
        policy::order::{Moment, Orders, What},
    };

    fn orders() -> Vec<Order> {
        let mut orders = Orders::default();
        orders.give(What::Pause, "why", 0, Moment { boot_ms: 1, wall_ms: 2 }, 60_000).unwrap();
        orders.all().to_vec()
    }

    fn reservations() -> Vec<Reservation> {
        vec![Reservation {
            name: String::from("batch"),
            resources: [(ResourceName::new("memory"), Quantity::from_units(2 << 30))].into(),
            reason: String::from("why"),
            uid: 7,
            given_ms: 1,
            until_ms: 2,
            until_boot_ms: 3,
        }]
    }

    #[tokio::test]
    async fn what_was_answered_is_on_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path(), "b").unwrap().orders, []);
        let writer = Writer::start(dir.path(), "b", Journal::new("n", "b")).unwrap();
        let (answer, answered) = oneshot::channel();
        writer.keep((orders(), reservations()), vec![Waiting { done: Done::default(), answer }]);
        assert!(answered.await.unwrap().unwrap().durable);
        let kept = read(dir.path(), "b").unwrap();
        assert_eq!((kept.orders, kept.reservations, kept.same_boot), (orders(), reservations(), true));
        assert!(!read(dir.path(), "another").unwrap().same_boot);
        // As an earlier version wrote it.
        let path = dir.path().join(FILE);
        let mut content: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let mut kept = content.as_object_mut().unwrap().remove("reservations").unwrap();
        kept[0]["resources"] = serde_json::json!({"memory": "-1"});
        content["reservations"] = kept;
        fs::write(&path, content.to_string()).unwrap();
        let without = read(dir.path(), "b").unwrap();
        assert_eq!((without.orders, without.reservations), (orders(), Vec::new()));
        content.as_object_mut().unwrap().remove("reservations").unwrap();
        fs::write(&path, content.to_string()).unwrap();
        assert_eq!(read(dir.path(), "b").unwrap().reservations, []);
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
            writer.keep((orders(), Vec::new()), vec![Waiting { done: Done::default(), answer }]);
            assert!(!answered.await.unwrap().unwrap().durable);
        }
        assert_eq!(journal.range().newest, 1, "once is enough");
    }
}
