//! Writes evictions and OOM kills to the kernel log, one line each, while the journal's disk refuses writes.

use std::{
    fmt,
    fs::OpenOptions,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    time::{Duration, Instant},
};

use enforcer_events::{Event, Payload};

use super::{EventType, record::Kept};

/// The burst of lines, and the interval for one more. The kernel's own limit for user space is ten in 5 s.
const BURST: u32 = 10;
const REFILL: Duration = Duration::from_secs(5);

/// The kernel accepts lines of up to about a kilobyte.
const MAX_MESSAGE_CHARS: usize = 600;

/// Writes one line.
type Out = Box<dyn FnMut(&str) -> io::Result<()> + Send>;

/// The output, with its rate limit.
pub(super) struct Kmsg {
    out: Out,
    allowed: u32,
    refilled: Option<Instant>,
    /// Lines that the rate limit left out since the last line.
    left_out: u64,
    /// The newest event that was examined.
    seen: u64,
}

impl fmt::Debug for Kmsg {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Kmsg").field("allowed", &self.allowed).finish_non_exhaustive()
    }
}

impl Kmsg {
    /// `/dev/kmsg`.
    pub(super) fn system() -> Self {
        Self::new(Box::new(|line| {
            let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).map_err(io::Error::other)?;
            let mut kmsg = OpenOptions::new().write(true).custom_flags(flags).open("/dev/kmsg")?;
            // One call is one line.
            kmsg.write_all(line.as_bytes())
        }))
    }

    pub(super) fn new(out: Out) -> Self {
        Self { out, allowed: BURST, refilled: None, left_out: 0, seen: 0 }
    }

    /// The newest event that it has examined.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// Reports that the disk begins to refuse writes.
    pub(super) fn trouble(&mut self, error: &anyhow::Error) {
        self.put(&reported(&format!("{error:#}: the newest events are kept in memory, older ones are lost")));
    }

    /// Writes a line for each eviction and each OOM kill that it has not examined before.
    pub(super) fn emit(&mut self, records: &[Kept], now: Instant) {
        for record in records {
            if record.sequence <= self.seen {
                continue;
            }
            self.seen = record.sequence;
            let Some(kind @ (EventType::EvictionSignalled | EventType::OomIncident)) = record.kind else {
                continue;
            };
            self.refill(now);
            if self.allowed == 0 {
                self.left_out += 1;
                continue;
            }
            self.allowed -= 1;
            let line = line(record, kind, std::mem::take(&mut self.left_out));
            self.put(&line);
        }
    }

    fn put(&mut self, line: &str) {
        if let Err(error) = (self.out)(line) {
            tracing::warn!("cannot write to /dev/kmsg: {error}: {line}");
        }
    }

    fn refill(&mut self, now: Instant) {
        let since = *self.refilled.get_or_insert(now);
        let times = u32::try_from(now.duration_since(since).as_secs() / REFILL.as_secs()).unwrap_or(u32::MAX);
        self.allowed = self.allowed.saturating_add(times).min(BURST);
        if times > 0 {
            self.refilled = Some(since + REFILL.saturating_mul(times));
        }
    }
}

fn line(record: &Kept, kind: EventType, left_out: u64) -> String {
    let event = Event::parse(&record.line).ok();
    let subject = match (&record.pod, &event) {
        (Some(pod), _) => pod.to_string(),
        (None, Some(event)) => event.subject.clone(),
        (None, None) => String::from("?"),
    };
    let mut text = format!("{kind} {subject} sequence={}", record.sequence);
    if let Some(event) = &event {
        describe(&event.payload, &mut text);
    }
    if left_out > 0 {
        text.push_str(&format!(" ({left_out} such lines before it were left out)"));
    }
    reported(&text)
}

/// What finds the event's case again, and its message.
fn describe(payload: &Payload, text: &mut String) {
    if let Some(id) = payload.eviction_id() {
        text.push_str(&format!(" evictionId={id}"));
    }
    if let Some(id) = payload.incident_id() {
        text.push_str(&format!(" incidentId={id}"));
    }
    if let Payload::EvictionSignalled(signalled) = payload {
        text.push_str(&format!(" sent={}", signalled.sent));
    }
    if let Payload::OomIncident(incident) = payload {
        if let Some(scope) = incident.scope {
            text.push_str(&format!(" scope={}", scope.as_str()));
        }
        text.push_str(&format!(" kills={}", incident.kills));
    }
    if let Some(message) = payload.message() {
        text.push_str(&format!(": {message}"));
    }
}

fn reported(text: &str) -> String {
    // Others choose the names: a line end in one would begin another line.
    let clean = text.chars().map(|char| if char.is_control() { '?' } else { char });
    let clean: String = clean.take(MAX_MESSAGE_CHARS).collect();
    // 28 is the facility `daemon` with the level `warning`.
    format!("<28>enforcer: the journal's disk takes nothing: {clean}\n")
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::{
        journal::{Journal, RawEvent, Subject},
        model::PodName,
    };

    fn records(kinds: &[EventType]) -> Vec<Kept> {
        let journal = Journal::new("n1", "b1");
        for &kind in kinds {
            let pod = PodName { namespace: "default".into(), name: "web\n<0>panic".into() };
            let data = serde_json::json!({
                "evictionId": "x", "namespace": "default", "name": "web", "uid": "u", "sent": "SIGKILL",
            });
            journal.append_raw(RawEvent { kind, subject: Subject::Pod(pod), data });
        }
        journal.shared.behind(0)
    }

    #[test]
    fn evictions_and_oom_kills_get_a_line_once_and_not_too_many() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&lines);
        let mut kmsg = Kmsg::new(Box::new(move |line| {
            to.lock().unwrap().push(line.to_owned());
            Ok(())
        }));
        let now = Instant::now();
        let mut kinds = vec![EventType::PodAdded, EventType::OomIncident, EventType::EvictionDecided];
        kinds.extend([EventType::EvictionSignalled; 20]);
        let records = records(&kinds);
        kmsg.emit(&records, now);
        kmsg.emit(&records, now + REFILL);
        assert_eq!(lines.lock().unwrap().len(), 10, "each is looked at once");
        assert_eq!(kmsg.seen(), 23);
        let mut later = records[5].clone();
        later.sequence = 24;
        kmsg.emit(&[later], now + REFILL * 2);
        let lines = lines.lock().unwrap();
        assert_eq!(lines.len(), 11);
        for line in &*lines {
            assert!(line.starts_with("<28>enforcer: ") && line.len() < 900, "{line}");
            assert_eq!(line.matches('\n').count(), 1, "{line}");
        }
        assert!(reported(&"y".repeat(3_000)).len() < 900);
        assert!(lines[0].contains("oom.incident default/web?<0>panic sequence=2"), "{}", lines[0]);
        assert!(lines[1].contains("eviction.signalled") && lines[1].contains("sent=SIGKILL"), "{}", lines[1]);
    }

    #[test]
    fn what_was_left_out_is_counted() {
        let all = records(&[EventType::OomIncident]);
        let line = |record: &Kept, left_out| line(record, EventType::OomIncident, left_out);
        assert!(!line(&all[0], 0).contains("left out"));
        let mut short = all[0].clone();
        short.line = bytes::Bytes::from_static(b"{}\n");
        assert!(line(&short, 7).contains("(7 such lines before it were left out)"), "{}", line(&short, 7));
    }
}
