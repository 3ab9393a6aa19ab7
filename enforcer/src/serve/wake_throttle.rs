//! Wakes followers of the stream in groups, as one wake-up per event would keep a CPU busy.

use std::time::Duration;

use tokio::sync::watch;

use crate::journal::Journal;

/// How long followers are not woken again, and how much longer for each of them. Waking a hundred of them for each of
/// a thousand events a second would alone keep a CPU busy. Events that come meanwhile are sent together.
const PACE: Duration = Duration::from_millis(1);
const PACE_EACH: Duration = Duration::from_micros(10);

/// The longest wait, for any number of followers.
const MOST: Duration = Duration::from_millis(10);

/// Wakes the followers: at once for an event after a rest, and no more often than the pace.
#[derive(Debug)]
pub(super) struct WakeThrottle(watch::Sender<u64>);

impl WakeThrottle {
    pub(super) fn new(journal: &Journal) -> Self {
        Self(watch::Sender::new(*journal.newest().borrow()))
    }

    /// The newest sequence for which followers are woken.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }

    /// Runs until it is dropped.
    pub(super) async fn run(self, journal: &Journal) {
        let mut newest = journal.newest();
        newest.mark_changed();
        // The journal keeps the sender alive.
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
