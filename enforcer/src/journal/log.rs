use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use serde_json::json;
use tokio::sync::watch;
use ulid::{Generator, Ulid};

use super::{Cursor, Event, Filter, Record, Subject};

/// How many bytes of events are kept.
const RETAINED_BYTES: usize = 2 << 20;

/// The most events that one batch holds, so that a reader far behind does not hold the log for long.
const BATCH_RECORDS: usize = 256;

/// The log; clones share it.
#[derive(Clone)]
pub struct Journal {
    shared: Arc<Shared>,
}

struct Shared {
    node: String,
    source: String,
    epoch: String,
    retained_bytes: usize,
    log: Mutex<Log>,
    /// The newest sequence; readers wait for it to move.
    newest: watch::Sender<u64>,
}

struct Log {
    records: VecDeque<Record>,
    bytes: usize,
    next: u64,
    ids: Generator,
}

/// The sequences that are kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Range {
    /// The oldest that is kept; one past `newest` in an empty log.
    pub oldest: u64,
    /// The newest; 0 before the first.
    pub newest: u64,
}

/// What a reader gets.
#[derive(Debug)]
pub enum Batch {
    /// The next events that it wants, in order; there may be none among those that it passed.
    Records(Vec<Record>),
    /// Events that it had not read are kept no longer; it goes on behind them.
    Gap {
        /// The first sequence that it missed.
        from: u64,
        /// The last.
        to: u64,
    },
}

impl Journal {
    /// An empty log for the node of that name and boot.
    #[must_use]
    pub fn new(node: &str, boot_id: &str) -> Self {
        Self::with_retention(node, boot_id, RETAINED_BYTES)
    }

    fn with_retention(node: &str, boot_id: &str, retained_bytes: usize) -> Self {
        let log = Log { records: VecDeque::new(), bytes: 0, next: 1, ids: Generator::new() };
        Self {
            shared: Arc::new(Shared {
                node: node.to_owned(),
                source: format!("urn:enforcer:{node}:{boot_id}"),
                epoch: Ulid::generate().to_string(),
                retained_bytes,
                log: Mutex::new(log),
                newest: watch::Sender::new(0),
            }),
        }
    }

    /// Appends an event and returns its sequence. Never waits for a reader.
    #[expect(clippy::must_use_candidate, reason = "most producers have no use for the sequence")]
    pub fn append(&self, event: Event) -> u64 {
        let Event { kind, subject, data } = event;
        let shared = &*self.shared;
        let now = jiff::Timestamp::now();
        let mut log = self.log();
        let id = match log.ids.generate() {
            Ok(id) => id,
            Err(overflow) => overflow.commit_overflow_increment(),
        };
        let sequence = log.next;
        let (subject, pod) = match subject {
            Subject::Node => (shared.node.clone(), None),
            Subject::Pod(pod) => (pod.to_string(), Some(pod)),
        };
        let mut line = json!({
            "specversion": "1.0",
            "id": id.to_string(),
            "source": shared.source,
            "type": kind,
            "subject": subject,
            "time": format!("{now:.6}"),
            "sequence": format!("{sequence:020}"),
            "datacontenttype": "application/json",
            "data": data,
        })
        .to_string();
        line.push('\n');
        let record = Record { sequence, time_ms: now.as_millisecond(), kind, pod, line: Bytes::from(line) };
        log.bytes += record.line.len();
        log.next += 1;
        log.records.push_back(record);
        while log.bytes > shared.retained_bytes && log.records.len() > 1 {
            if let Some(oldest) = log.records.pop_front() {
                log.bytes -= oldest.line.len();
            }
        }
        drop(log);
        shared.newest.send_replace(sequence);
        sequence
    }

    /// The sequences that are kept.
    #[must_use]
    pub fn range(&self) -> Range {
        let log = self.log();
        Range { oldest: log.records.front().map_or(log.next, |record| record.sequence), newest: log.next - 1 }
    }

    /// The `source` of its events: `urn:enforcer:<node>:<boot id>`.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.shared.source
    }

    /// The cursor that stands behind the event of that sequence.
    #[must_use]
    pub fn cursor(&self, sequence: u64) -> Cursor {
        Cursor { epoch: self.shared.epoch.clone(), sequence }
    }

    /// A reader of what comes behind `after`; without it, of all that is kept.
    #[must_use]
    pub fn reader(&self, after: Option<u64>, filter: Filter) -> Reader {
        let next = after.map_or_else(|| self.range().oldest, |sequence| sequence.saturating_add(1));
        Reader { journal: self.clone(), newest: self.shared.newest.subscribe(), next, filter }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        // A panic cannot leave the log between two states: each field is changed after the last step that may fail.
        self.shared.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Journal").field("range", &self.range()).finish_non_exhaustive()
    }
}

/// A position in the log, and what is wanted from there on.
#[derive(Debug)]
pub struct Reader {
    journal: Journal,
    newest: watch::Receiver<u64>,
    next: u64,
    filter: Filter,
}

impl Reader {
    /// The next events that are there already; none at the log's end.
    pub fn read(&mut self) -> Option<Batch> {
        let log = self.journal.log();
        let oldest = log.records.front().map_or(log.next, |record| record.sequence);
        if self.next >= log.next {
            return None;
        }
        if self.next < oldest {
            let from = std::mem::replace(&mut self.next, oldest);
            return Some(Batch::Gap { from, to: oldest - 1 });
        }
        let skip = usize::try_from(self.next - oldest).unwrap_or(usize::MAX);
        let passed: Vec<_> = log.records.iter().skip(skip).take(BATCH_RECORDS).cloned().collect();
        drop(log);
        self.next = passed.last().map_or(self.next, |record| record.sequence + 1);
        Some(Batch::Records(passed.into_iter().filter(|record| self.filter.takes(record)).collect()))
    }

    /// Waits until there is something to read. Safe to cancel.
    pub async fn readable(&mut self) {
        let next = self.next;
        // The journal that this reader holds keeps the sender alive, so waiting cannot fail.
        let waited = self.newest.wait_for(|newest| *newest >= next).await;
        debug_assert!(waited.is_ok(), "the reader holds its journal");
    }

    /// The last sequence that it passed.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.next - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{journal::EventType, model::PodName};

    fn event(kind: EventType, pod: Option<&str>) -> Event {
        let subject = pod.map_or(Subject::Node, |name| {
            Subject::Pod(PodName { namespace: "default".into(), name: name.into() })
        });
        Event { kind, subject, data: json!({"a": 1}) }
    }

    fn sequences(reader: &mut Reader) -> Vec<u64> {
        let mut read = Vec::new();
        while let Some(batch) = reader.read() {
            match batch {
                Batch::Records(records) => read.extend(records.iter().map(|record| record.sequence)),
                Batch::Gap { .. } => panic!("a gap"),
            }
        }
        read
    }

    #[test]
    fn an_event_is_one_line_of_cloudevents() {
        let journal = Journal::new("n1", "b1");
        journal.append(event(EventType::PodAdded, Some("web\n")));
        let Some(Batch::Records(records)) = journal.reader(None, Filter::default()).read() else { panic!() };
        let text = std::str::from_utf8(&records[0].line).unwrap();
        assert_eq!(text.matches('\n').count(), 1);
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(value["specversion"], "1.0");
        assert_eq!(value["type"], "dev.enforcer.pod.added");
        assert_eq!(value["subject"], "default/web\n");
        assert_eq!(value["source"], "urn:enforcer:n1:b1");
        assert_eq!(value["sequence"], "00000000000000000001");
        assert!(value["time"].as_str().unwrap().ends_with('Z'));
        assert_eq!(value["id"].as_str().unwrap().len(), 26);
    }

    #[test]
    fn a_reader_gets_what_it_wants_from_where_it_was() {
        let journal = Journal::new("n1", "b1");
        for _ in 0..300 {
            journal.append(event(EventType::LimitsApplied, Some("a")));
            journal.append(event(EventType::OomDetected, Some("b")));
        }
        let only = Filter { kinds: vec![EventType::OomDetected], ..Filter::default() };
        assert_eq!(sequences(&mut journal.reader(Some(590), only)), [592, 594, 596, 598, 600]);
        let pod = Filter { pod: Some("default/a".into()), ..Filter::default() };
        assert_eq!(sequences(&mut journal.reader(Some(597), pod)), [599]);
        let elsewhere = Filter { namespace: Some("kube-system".into()), ..Filter::default() };
        assert!(sequences(&mut journal.reader(None, elsewhere)).is_empty());
    }

    #[test]
    fn a_reader_that_falls_behind_learns_what_it_missed() {
        let journal = Journal::with_retention("n1", "b1", 2_000);
        let mut reader = journal.reader(None, Filter::default());
        for _ in 0..100 {
            journal.append(event(EventType::PodAdded, None));
        }
        let oldest = journal.range().oldest;
        assert!(oldest > 1);
        let Some(Batch::Gap { from: 1, to }) = reader.read() else { panic!("no gap") };
        assert_eq!(to + 1, oldest);
        assert_eq!(sequences(&mut reader), (oldest..=100).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_reader_at_the_end_waits_for_the_next() {
        let journal = Journal::new("n1", "b1");
        let mut reader = journal.reader(None, Filter::default());
        assert!(reader.read().is_none());
        let ((), sequence) =
            tokio::join!(reader.readable(), async { journal.append(event(EventType::PodAdded, None)) });
        assert_eq!(sequences(&mut reader), [sequence]);
    }
}
