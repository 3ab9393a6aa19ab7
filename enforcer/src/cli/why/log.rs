//! The events to search: the daemon's, or those in the state directory.

use std::io::{self, Write as _};

use anyhow::anyhow;
use enforcer_events::{
    Event, Payload,
    eviction::EvictionDecided,
    pressure::{PressureCleared, PressureRising},
};

use crate::{
    cli::{Context, Failure, client, exit::Unreachable},
    journal::{self, EventType, Filter, Offline, Record},
};

/// The longest accepted event line, in bytes.
const MAX_LINE_BYTES: usize = 1 << 20;

/// An event, with what it is found by.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) record: Record,
    pub(super) event: Event,
    /// The eviction or the incident that it is about.
    pub(super) case: Option<String>,
}

impl Entry {
    /// Reads an event; `None` for one that this version cannot read.
    pub(super) fn read(record: Record) -> Option<Self> {
        let event = Event::parse(&record.line).ok()?;
        let eviction = event.payload.eviction_id().map(str::to_owned);
        let case = eviction.or_else(|| Some(event.payload.incident_id()?.to_string()));
        Some(Self { record, event, case })
    }

    /// Its own id.
    pub(super) fn id(&self) -> &str {
        &self.event.id
    }

    pub(super) fn kind(&self) -> EventType {
        self.record.kind
    }

    /// The signal that it is about.
    pub(super) fn signal(&self) -> Option<&str> {
        let shortage = match &self.event.payload {
            Payload::ThresholdCrossed(shortage) => shortage,
            Payload::PressureCleared(PressureCleared::Shortage(over)) => &over.shortage,
            Payload::PressureRising(PressureRising::Headroom(shrinking)) => {
                return Some(&shrinking.approach.signal);
            }
            Payload::PressureCleared(PressureCleared::Headroom(back)) => return Some(&back.approach.signal),
            Payload::EvictionDecided(EvictionDecided::Decision(decision)) => {
                return decision.signal.as_deref();
            }
            Payload::EvictionDecided(EvictionDecided::Reconstructed(decision)) => {
                decision.shortage.as_ref()?
            }
            Payload::EvictionSignalled(signalled) => return signalled.signal.as_deref(),
            Payload::EvictionCompleted(ended) | Payload::EvictionFailed(ended) => {
                return ended.signal.as_deref();
            }
            Payload::EvictionSuppressed(suppressed) => return Some(&suppressed.signal),
            _ => return None,
        };
        Some(&shortage.signal)
    }

    /// Whether it is only a warning of something that may happen, or the end of one.
    pub(super) fn is_headroom(&self) -> bool {
        matches!(
            self.event.payload,
            Payload::PressureRising(PressureRising::Headroom(_))
                | Payload::PressureCleared(PressureCleared::Headroom(_))
        )
    }
}

/// All kept events, the oldest first.
pub(super) fn read(context: &Context) -> Result<Vec<Entry>, Failure> {
    let records = match client::block_on(from_daemon(context)) {
        Err(failure) if failure.is_unreachable() && !context.live => from_disk(context, failure)?,
        result => result?,
    };
    Ok(records.into_iter().filter_map(Entry::read).collect())
}

async fn from_daemon(context: &Context) -> Result<Vec<Record>, Failure> {
    let mut answer = client::get(&context.config.run_dir, "/v1/events").await?;
    if !answer.status.is_success() {
        let status = answer.status;
        return Err(client::refusal(status, &answer.bytes().await?));
    }
    let (mut records, mut pending) = (Vec::new(), Vec::new());
    while let Some(chunk) = answer.chunk().await? {
        pending.extend_from_slice(&chunk);
        let whole = pending.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let lines: Vec<u8> = pending.drain(..whole).collect();
        records.extend(
            lines.split_inclusive(|byte| *byte == b'\n').filter_map(Record::from_line).filter(reports),
        );
        if pending.len() > MAX_LINE_BYTES {
            return Err(anyhow!(
                "the daemon sent a line of more than {MAX_LINE_BYTES} bytes: is it of another version?"
            )
            .into());
        }
    }
    Ok(records)
}

/// Reads the state directory. If it has no log, the daemon's failure is returned.
fn from_disk(context: &Context, unreachable: Failure) -> Result<Vec<Record>, Failure> {
    let state_dir = &context.config.state_dir;
    if !journal::folder(state_dir).is_dir() {
        return Err(unreachable);
    }
    let opened = Offline::open(state_dir, &context.config.run_dir, None, Filter::default());
    let opened = opened.map_err(anyhow::Error::new)?;
    let events = opened.map_err(|stale| anyhow!("{} events are lost", stale.lost))?;
    let why = unreachable.silence().map_or("the daemon cannot be asked", Unreachable::as_str);
    // If this fails, there is nowhere to report it.
    drop(writeln!(io::stderr(), "{why}: this is what {} holds", state_dir.display()));
    Ok(events.filter(reports).collect())
}

/// Whether an event can be part of a case, or be named by the argument. Most events of a large log are neither: they
/// are about writes to cgroups.
fn reports(record: &Record) -> bool {
    !matches!(record.kind, EventType::LimitsApplied | EventType::LimitsDrifted | EventType::LimitsRestored)
}
