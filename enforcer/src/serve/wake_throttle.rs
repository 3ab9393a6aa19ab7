use std::time::Duration;

use tokio::sync::watch;

use crate::journal::Journal;

/// How long followers are left alone after they were woken, and so much more for each of them. A hundred of them that are
/// each woken for each of a thousand events a second would keep a processor busy with that alone; what comes meanwhile is
/// sent at once.
const PACE: Duration = Duration::from_millis(1);
const PACE_EACH: Duration = Duration::from_micros(10);

/// Nobody waits longer, however many they are.
const MOST: Duration = Duration::from_millis(10);

/// Wakes those who follow: at once when something comes after a rest, and no more often than the pace.
#[derive(Debug)]
pub(super) struct WakeThrottle(watch::Sender<u64>);

impl WakeThrottle {
    pub(super) fn new(journal: &Journal) -> Self {
        Self(watch::Sender::new(*journal.newest().borrow()))
    }

    /// The newest sequence that is worth waking for.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }

    /// Beats until it is dropped.
    pub(super) async fn run(self, journal: &Journal) {
        let mut newest = journal.newest();
        newest.mark_changed();
        // The journal keeps the sender.
        while newest.changed().await.is_ok() {
            self.0.send_replace(*newest.borrow_and_update());
            tokio::time::sleep(pace(self.0.receiver_count())).await;
        }
    }
}

fn pace(followers: usize) -> Duration {
    let more = PACE_EACH.saturating_mul(u32::try_from(followers).unwrap_or(u32::MAX));
    PACE.saturating_add(more).min(MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_there_are_the_slower_it_beats() {
        assert_eq!(pace(0), PACE);
        assert_eq!(pace(100), Duration::from_millis(2));
        assert_eq!(pace(usize::MAX), MOST);
    }
}
