//! One reader's stream of events.

use std::{convert::Infallible, time::Duration};

use axum::body::Bytes;
use futures_util::{Stream, stream};
use tokio::{sync::watch, time::Instant};
use ulid::Ulid;

use super::accept::Format;
use crate::journal::{Cursor, EventType, Journal, Line, Passed, Reader};

/// How often a following reader gets a heartbeat when nothing happens.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The most bytes that are prepared for one reader; a longer event is sent alone. A reader that does not read costs no
/// more than that.
const CHUNK_BYTES: usize = 32 << 10;

/// How long a disconnected client waits before it reconnects, in milliseconds.
const RETRY_MS: u32 = 2_000;

/// A reader's stream.
pub(super) struct Follower {
    pub(super) reader: Reader,
    pub(super) journal: Journal,
    pub(super) format: Format,
    pub(super) follow: bool,
    /// The newest sequence for which followers are woken.
    pub(super) throttle: watch::Receiver<u64>,
    pub(super) stopping: watch::Receiver<bool>,
    /// The last position that was sent to the client; `None` before the first chunk.
    pub(super) reported: Option<u64>,
    /// When the last chunk was sent.
    pub(super) heard: Instant,
}

impl Follower {
    /// The chunks of its body.
    pub(super) fn chunks(self) -> impl Stream<Item = Result<Bytes, Infallible>> {
        stream::unfold(self, async |mut follower| follower.next().await.map(|chunk| (Ok(chunk), follower)))
    }

    async fn next(&mut self) -> Option<Bytes> {
        let mut chunk =
            Chunk { format: self.format, bytes: Vec::new(), epoch: None, reported: self.reported };
        if self.reported.is_none() {
            chunk.reported = Some(self.reader.position());
            if self.format == Format::Sse {
                chunk.text(&format!("retry: {RETRY_MS}\n\n"));
            }
        }
        while chunk.bytes.is_empty() {
            let mut passed = self.reader.pass(CHUNK_BYTES, |line| chunk.line(&line));
            if passed == Passed::Disk {
                (passed, chunk) = self.read_disk(chunk).await;
            }
            match passed {
                Passed::Gap { from, to } => {
                    self.journal.note_lost_to_reader(to - from + 1);
                    chunk.gap(&self.journal, from, to);
                }
                Passed::Some | Passed::Disk if self.is_silent(&chunk) => self.beat(&mut chunk),
                // A reader whose filter takes few of many events yields to the others.
                Passed::Some | Passed::Disk => tokio::task::yield_now().await,
                // A stopping daemon ends the streams once all appended events are sent.
                Passed::End if !self.follow || *self.stopping.borrow() => return None,
                Passed::End => self.wait(&mut chunk).await,
            }
        }
        self.reported = chunk.reported;
        self.heard = Instant::now();
        // The chunk may wait long for the client.
        chunk.bytes.shrink_to_fit();
        Some(chunk.bytes.into())
    }

    /// Reads from the disk in a thread that may block.
    async fn read_disk(&mut self, mut chunk: Chunk) -> (Passed, Chunk) {
        let mut reader = self.reader.clone();
        let (passed, chunk, reader) = crate::threads::blocking(move || {
            let passed = reader.pass_from_disk(CHUNK_BYTES, |line| chunk.line(&line));
            (passed, chunk, reader)
        })
        .await;
        self.reader = reader;
        (passed, chunk)
    }

    /// Waits for new events, the daemon's stop or the next heartbeat.
    async fn wait(&mut self, chunk: &mut Chunk) {
        let position = self.reader.position();
        // Events that the filter skips do not count as a heartbeat.
        let beat = self.heard + HEARTBEAT;
        tokio::select! {
            // The sender is gone only when the daemon stops.
            _ = self.throttle.wait_for(|newest| *newest > position) => return,
            _ = self.stopping.wait_for(|stopping| *stopping) => return,
            () = tokio::time::sleep_until(beat) => {}
        }
        self.beat(chunk);
    }

    /// Whether it has long passed only events that the client does not want.
    fn is_silent(&self, chunk: &Chunk) -> bool {
        self.follow && chunk.bytes.is_empty() && self.heard.elapsed() >= HEARTBEAT
    }

    fn beat(&self, chunk: &mut Chunk) {
        let position = self.reader.position();
        chunk.heartbeat((chunk.reported != Some(position)).then(|| self.journal.cursor(position)));
    }
}

/// The next part of the body.
struct Chunk {
    format: Format,
    bytes: Vec<u8>,
    /// The log epoch of the last line, also as text.
    epoch: Option<(Ulid, String)>,
    /// See [`Follower::reported`].
    reported: Option<u64>,
}

impl Chunk {
    fn text(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn line(&mut self, line: &Line<'_>) {
        match self.format {
            Format::Ndjson => self.bytes.extend_from_slice(line.bytes),
            Format::Sse => {
                let (_, epoch) = self
                    .epoch
                    .take_if(|(epoch, _)| *epoch == line.epoch)
                    .unwrap_or_else(|| (line.epoch, line.epoch.to_string()));
                let cursor = Cursor { epoch, sequence: line.sequence };
                self.event(&cursor, line.kind(), line.bytes);
                self.epoch = Some((line.epoch, cursor.epoch));
            }
        }
        self.reported = Some(line.sequence);
    }

    /// A gap concerns one reader, so it is sent on its stream and is not in the log.
    fn gap(&mut self, journal: &Journal, from: u64, to: u64) {
        let cursor = journal.cursor(to);
        let line = journal.gap(from, to);
        match self.format {
            Format::Ndjson => self.text(&line),
            Format::Sse => self.event(&cursor, Some(EventType::StreamGap), line.as_bytes()),
        }
        self.reported = Some(to);
    }

    /// The line has a line end, and no other in it.
    fn event(&mut self, cursor: &Cursor, kind: Option<EventType>, line: &[u8]) {
        self.text("id: ");
        self.text(&cursor.epoch);
        self.text(":");
        self.text(&cursor.sequence.to_string());
        if let Some(kind) = kind {
            self.text("\nevent: ");
            self.text(kind.as_str());
        }
        self.text("\ndata: ");
        self.bytes.extend_from_slice(line);
        self.text("\n");
    }

    /// Sends a heartbeat, with the client's position if it passed unwanted events.
    fn heartbeat(&mut self, passed: Option<Cursor>) {
        match (self.format, passed) {
            (Format::Ndjson, _) => self.text("\n"),
            (Format::Sse, None) => self.text(":\n\n"),
            (Format::Sse, Some(cursor)) => {
                self.text(&format!(":\nid: {cursor}\n\n"));
                self.reported = Some(cursor.sequence);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::journal::{Filter, RawEvent, Subject};

    fn follower(
        journal: &Journal,
        format: Format,
        filter: Filter,
        stopping: &watch::Sender<bool>,
    ) -> Follower {
        Follower {
            reader: journal.reader(None, filter),
            journal: journal.clone(),
            format,
            follow: true,
            throttle: journal.newest(),
            stopping: stopping.subscribe(),
            reported: None,
            heard: Instant::now(),
        }
    }

    fn append(journal: &Journal, kind: EventType) {
        journal.append_raw(RawEvent { kind, subject: Subject::Node, data: json!({"text": "a\nb\r"}) });
    }

    async fn text(follower: &mut Follower) -> String {
        String::from_utf8(follower.next().await.unwrap().to_vec()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_is_a_block_of_fields_and_a_heartbeat_a_comment() {
        let journal = Journal::new("n1", "b1");
        let stop = watch::Sender::new(false);
        let only = Filter { kinds: vec![EventType::PodAdded], ..Filter::default() };
        let mut follower = follower(&journal, Format::Sse, only, &stop);
        append(&journal, EventType::PodAdded);
        assert_eq!(text(&mut follower).await, "retry: 2000\n\n");
        let block = text(&mut follower).await;
        let lines: Vec<_> = block.split('\n').collect();
        assert_eq!(lines.len(), 5, "{block}");
        assert_eq!(lines[0], format!("id: {}", journal.cursor(1)));
        assert_eq!(lines[1], "event: dev.enforcer.pod.added");
        let event: serde_json::Value =
            serde_json::from_str(lines[2].strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(event["data"]["text"], "a\nb\r");
        assert!(!block.contains('\r'), "{block}");
        assert_eq!(lines[3..], ["", ""]);
        assert_eq!(text(&mut follower).await, ":\n\n");
        // It learns that it need not read again what it did not want.
        append(&journal, EventType::PodRemoved);
        assert_eq!(text(&mut follower).await, format!(":\nid: {}\n\n", journal.cursor(2)));
        assert_eq!(text(&mut follower).await, ":\n\n");
        append(&journal, EventType::PodAdded);
        stop.send_replace(true);
        assert!(text(&mut follower).await.starts_with(&format!("id: {}\n", journal.cursor(3))));
        assert!(follower.next().await.is_none());
    }

    /// Time-outs on the way would end the stream, and its cursor would grow old.
    #[tokio::test(start_paused = true)]
    async fn a_reader_that_wants_little_of_much_hears_from_us_all_the_same() {
        let journal = Journal::new("n1", "b1");
        let stop = watch::Sender::new(false);
        let only = Filter { kinds: vec![EventType::PodAdded], ..Filter::default() };
        let mut follower = follower(&journal, Format::Sse, only, &stop);
        assert_eq!(text(&mut follower).await, "retry: 2000\n\n");
        let busy = tokio::spawn({
            let journal = journal.clone();
            async move {
                loop {
                    tokio::time::sleep(Duration::from_secs(4)).await;
                    append(&journal, EventType::PodRemoved);
                }
            }
        });
        for beat in 1..=3_u32 {
            let before = Instant::now();
            let reported = text(&mut follower).await;
            assert!(reported.starts_with(":\nid: "), "{beat}: {reported}");
            assert!(before.elapsed() <= HEARTBEAT + Duration::from_secs(1), "{:?}", before.elapsed());
        }
        busy.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_has_much_to_pass_hears_from_us_on_its_way() {
        let journal = Journal::new("n1", "b1");
        let stop = watch::Sender::new(false);
        for _ in 0..1_000 {
            append(&journal, EventType::PodRemoved);
        }
        append(&journal, EventType::PodAdded);
        let only = Filter { kinds: vec![EventType::PodAdded], ..Filter::default() };
        let mut follower = follower(&journal, Format::Sse, only, &stop);
        assert_eq!(text(&mut follower).await, "retry: 2000\n\n");
        tokio::time::advance(HEARTBEAT).await;
        let reported = text(&mut follower).await;
        let cursor: Cursor = reported.strip_prefix(":\nid: ").unwrap().trim_end().parse().unwrap();
        assert!(cursor.sequence < 1_000, "{reported}");
        let reported = text(&mut follower).await;
        assert!(reported.starts_with(&format!("id: {}\n", journal.cursor(1_001))), "{reported}");
    }

    #[tokio::test(start_paused = true)]
    async fn lines_come_as_they_are_and_few_at_a_time() {
        let journal = Journal::new("n1", "b1");
        let stop = watch::Sender::new(false);
        let mut follower = follower(&journal, Format::Ndjson, Filter::default(), &stop);
        for _ in 0..1_000 {
            append(&journal, EventType::PodAdded);
        }
        let mut whole = String::new();
        while whole.lines().count() < 1_000 {
            let chunk = text(&mut follower).await;
            assert!(chunk.len() <= CHUNK_BYTES && chunk.ends_with('\n'), "{}", chunk.len());
            whole.push_str(&chunk);
        }
        let sequences: Vec<u64> = whole
            .lines()
            .map(|line| {
                serde_json::from_str::<serde_json::Value>(line).unwrap()["sequence"]
                    .as_str()
                    .unwrap()
                    .parse()
                    .unwrap()
            })
            .collect();
        assert_eq!(sequences, (1..=1_000).collect::<Vec<_>>());
        assert_eq!(text(&mut follower).await, "\n");
    }

    /// One event, as others are, on this stream alone; what comes after it goes on from there.
    #[tokio::test(start_paused = true)]
    async fn a_reader_that_fell_behind_is_reported_what_it_missed() {
        let counts = crate::metrics::Counts::default();
        let journal = Journal::new("n1", "b1").observed_by(std::sync::Arc::new(counts.clone()));
        let stop = watch::Sender::new(false);
        for _ in 0..4_000 {
            let data = json!({"pad": "x".repeat(1_000)});
            journal.append_raw(RawEvent { kind: EventType::PodAdded, subject: Subject::Node, data });
        }
        let oldest = journal.range().oldest;
        assert!(oldest > 100, "{oldest}");
        for format in [Format::Ndjson, Format::Sse] {
            let mut follower = follower(&journal, format, Filter::default(), &stop);
            follower.reader = journal.reader(Some(10), Filter::default());
            let mut reported = text(&mut follower).await;
            if format == Format::Sse {
                reported = text(&mut follower).await;
                let id = format!("id: {}\nevent: dev.enforcer.stream.gap\n", journal.cursor(oldest - 1));
                assert!(reported.starts_with(&id), "{reported}");
                reported = reported.lines().find_map(|line| line.strip_prefix("data: ")).unwrap().to_owned();
            }
            let event: serde_json::Value = serde_json::from_str(&reported).unwrap();
            assert_eq!(event["type"], "dev.enforcer.stream.gap");
            assert_eq!(event["data"]["fromSequence"], format!("{:020}", 11));
            assert_eq!(event["data"]["count"], oldest - 11);
            for key in ["id", "source", "subject", "time", "specversion"] {
                assert!(event[key].is_string(), "{key}: {event}");
            }
            let next = text(&mut follower).await;
            assert!(next.contains(&format!("\"sequence\":\"{oldest:020}\"")), "{}", &next[..200]);
        }
        // Each of the two missed them. What a reader within the daemon misses is no loss to a client.
        let mut within = journal.reader(Some(10), Filter::default());
        assert!(matches!(within.read(), Some(crate::journal::Batch::Gap { from: 11, .. })));
        let metrics = crate::metrics::expose(
            &counts,
            crate::metrics::Gauges::default(),
            crate::metrics::Format::OpenMetrics,
        )
        .unwrap();
        let lost = format!("enforcer_events_lost_total{{stage=\"reader\"}} {}\n", 2 * (oldest - 11));
        assert!(metrics.contains(&lost), "{metrics}");
    }
}
