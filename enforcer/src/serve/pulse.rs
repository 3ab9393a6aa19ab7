use std::time::Duration;

use tokio::sync::watch;

use crate::journal::Journal;

/// How long followers are left alone after they were woken. A hundred of them that are each woken for each of a thousand
/// events a second would keep a processor busy with that alone; what comes meanwhile is sent at once.
const PACE: Duration = Duration::from_millis(1);

/// Wakes those who follow: at once when something comes after a rest, and no more often than the pace.
#[derive(Debug)]
pub(super) struct Pulse(watch::Sender<u64>);

impl Pulse {
    pub(super) fn new(journal: &Journal) -> Self {
        Self(watch::Sender::new(*journal.newest().borrow()))
    }

    /// The newest sequence that is worth waking for.
    pub(super) fn beats(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }

    /// Beats until it is dropped.
    pub(super) async fn beat(self, journal: &Journal) {
        let mut newest = journal.newest();
        newest.mark_changed();
        // The journal keeps the sender.
        while newest.changed().await.is_ok() {
            self.0.send_replace(*newest.borrow_and_update());
            tokio::time::sleep(PACE).await;
        }
    }
}
