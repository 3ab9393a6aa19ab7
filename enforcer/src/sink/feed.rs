//! What a sink has yet to deliver, from the log, with gaps where events are lost.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;

use super::health::Health;
use crate::journal::{Batch, Cursor, Filter, Journal, Reader};

/// An item to deliver: an event, or a gap.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// The first sequence that it covers: an event covers itself, a gap all missing events.
    pub(super) first: u64,
    /// The last sequence that it covers.
    pub(super) last: u64,
    /// Whether it reports a gap, and is not an event of the log.
    pub(super) is_gap: bool,
    /// One line of JSON with its line end.
    pub(super) line: Bytes,
}

/// The items that a sink has to deliver, in the log's order. They stay until [`done`](Self::done).
#[derive(Debug)]
pub(super) struct Feed {
    journal: Journal,
    reader: Reader,
    pending: VecDeque<Item>,
    health: Arc<Health>,
}

impl Feed {
    /// A feed of the events after `after`.
    pub(super) fn new(journal: Journal, after: u64, filter: Filter, health: Arc<Health>) -> Self {
        let reader = journal.reader(Some(after), filter);
        Self { journal, reader, pending: VecDeque::new(), health }
    }

    /// The first items, at most `events`, and more than one only while they fit in `bytes`. Empty at the log's end.
    /// Events that are no longer in memory are read from the disk, in the calling thread.
    pub(super) fn front(&mut self, events: usize, bytes: usize) -> Vec<Item> {
        while self.pending.is_empty() {
            match self.reader.read() {
                None => return Vec::new(),
                Some(Batch::Gap { from, to }) => {
                    self.health.count_lost(to - from + 1);
                    let line = Bytes::from(self.journal.gap(from, to));
                    self.pending.push_back(Item { first: from, last: to, is_gap: true, line });
                }
                Some(Batch::Records(records)) => self.pending.extend(records.into_iter().map(|record| {
                    Item { first: record.sequence, last: record.sequence, is_gap: false, line: record.line }
                })),
            }
        }
        let mut together = 0;
        let fits = |(index, item): &(usize, &Item)| {
            together += item.line.len();
            *index == 0 || together <= bytes
        };
        self.pending
            .iter()
            .take(events.max(1))
            .enumerate()
            .take_while(fits)
            .map(|(_, item)| item.clone())
            .collect()
    }

    /// Removes the first `items`, which need no delivery any more.
    pub(super) fn done(&mut self, items: usize) {
        self.pending.drain(..items.min(self.pending.len()));
    }

    /// The last sequence that needs no delivery any more.
    pub(super) fn position(&self) -> u64 {
        self.pending.front().map_or_else(|| self.reader.position(), |item| item.first - 1)
    }

    /// The cursor at that position.
    pub(super) fn cursor(&self) -> Cursor {
        self.journal.cursor(self.position())
    }

    /// Waits until there is something to read. Safe to cancel.
    pub(super) async fn readable(&mut self) {
        self.reader.readable().await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::journal::{EventType, RawEvent, Subject, resume};

    fn append(journal: &Journal, count: usize, kind: EventType) {
        for _ in 0..count {
            journal.append_raw(RawEvent {
                kind,
                subject: Subject::Node,
                data: json!({"pad": "x".repeat(1_000)}),
            });
        }
    }

    fn feed(journal: &Journal, after: u64, filter: Filter) -> Feed {
        Feed::new(journal.clone(), after, filter, Arc::default())
    }

    fn firsts(items: &[Item]) -> Vec<u64> {
        items.iter().map(|item| item.first).collect()
    }

    #[test]
    fn what_is_not_done_with_is_there_again() {
        let journal = Journal::new("n", "b");
        append(&journal, 5, EventType::PodAdded);
        let mut feed = feed(&journal, 1, Filter::default());
        assert_eq!(firsts(&feed.front(2, 1 << 20)), [2, 3]);
        assert_eq!((firsts(&feed.front(9, 1 << 20)), feed.position()), (vec![2, 3, 4, 5], 1));
        feed.done(1);
        assert_eq!((firsts(&feed.front(9, 10)), feed.position()), (vec![3], 2), "the first goes in any case");
        assert_eq!(firsts(&feed.front(9, 2_600)), [3, 4], "no more bytes than that");
        feed.done(3);
        assert!(feed.front(9, 10).is_empty());
        assert_eq!(feed.position(), 5);
        assert_eq!(feed.cursor(), journal.cursor(5));
    }

    #[test]
    fn what_is_not_wanted_needs_no_delivery() {
        let journal = Journal::new("n", "b");
        append(&journal, 300, EventType::PodAdded);
        append(&journal, 1, EventType::OomDetected);
        append(&journal, 3, EventType::PodAdded);
        let filter = Filter { kinds: vec![EventType::OomDetected], ..Filter::default() };
        let mut feed = feed(&journal, 0, filter);
        assert_eq!((firsts(&feed.front(9, 1 << 20)), feed.position()), (vec![301], 300));
        feed.done(1);
        assert_eq!((feed.front(9, 10).len(), feed.position()), (0, 304));
    }

    #[test]
    fn what_is_kept_no_longer_is_reported_once_and_counted() {
        let journal = Journal::new("n", "b");
        append(&journal, 4_000, EventType::PodAdded);
        let oldest = journal.range().oldest;
        assert!(oldest > 100, "{oldest}");
        let health = Arc::new(Health::default());
        let mut feed = Feed::new(journal, 10, Filter::default(), Arc::clone(&health));
        let front = feed.front(9, 1 << 20);
        assert_eq!((front.len(), front[0].first, front[0].last), (1, 11, oldest - 1));
        let event: serde_json::Value = serde_json::from_slice(&front[0].line).unwrap();
        assert_eq!(event["type"], "dev.enforcer.stream.gap");
        assert_eq!(event["data"]["count"], oldest - 11);
        assert_eq!(
            (&event["subject"], &event["sequence"]),
            (&json!("n"), &json!(format!("{:020}", oldest - 1)))
        );
        let id = event["id"].as_str().unwrap().to_owned();
        assert!(id.parse::<ulid::Ulid>().is_ok() && event["time"].is_string(), "{event}");
        feed.done(1);
        assert_eq!((firsts(&feed.front(1, 10)), feed.position()), (vec![oldest], oldest - 1));
        assert_eq!(health.lost(), oldest - 11);
    }

    /// What went before the sink was there, or was delivered, is no loss.
    #[test]
    fn a_cursor_of_an_epoch_that_is_kept_no_longer_invents_no_loss() {
        let journal = Journal::new("n", "b");
        append(&journal, 4_000, EventType::PodAdded);
        let oldest = journal.range().oldest;
        assert!(oldest > 100, "{oldest}");
        for (sequence, after) in
            [(40, 40), (oldest - 1, oldest - 1), (3_990, oldest - 1), (9_000, oldest - 1)]
        {
            let cursor = Cursor { epoch: String::from("other"), sequence };
            assert_eq!(resume(&journal, &cursor), Err(after), "{sequence}");
            let health = Arc::new(Health::default());
            let mut feed = Feed::new(journal.clone(), after, Filter::default(), Arc::clone(&health));
            let front = feed.front(1, 10);
            assert_eq!((front[0].first, front[0].is_gap), (after + 1, after + 1 < oldest), "{sequence}");
            assert_eq!(health.lost(), oldest - 1 - after, "{sequence}");
        }
    }
}
