//! The events to search: the daemon's, or those in the state directory.
use std::io::{self, Write as _};

use anyhow::anyhow;
use serde_json::Value;

use super::data::text;
use crate::{
    cli::{Context, Failure, client, exit::Unreachable},
    journal::{self, EventType, Filter, Offline, Record},
};

/// The longest accepted event line, in bytes.
const MAX_LINE_BYTES: usize = 1 << 20;

/// An event, with the fields that it is found by.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) record: Record,
    /// Its own id.
    pub(super) id: String,
    /// The eviction or the incident that it is about.
    pub(super) case: Option<String>,
    /// The signal that it is about.
    pub(super) signal: Option<String>,
    /// Whether it is only a warning of something that may happen.
    pub(super) is_headroom: bool,
}

impl Entry {
    pub(super) fn read(record: Record) -> Option<Self> {
        let event: Value = serde_json::from_slice(&record.line).ok()?;
        let data = event.get("data")?;
        let case = text(data, "evictionId").or_else(|| text(data, "incidentId"));
        Some(Self {
            id: text(&event, "id").unwrap_or_default().to_owned(),
            case: case.map(str::to_owned),
            signal: text(data, "signal").map(str::to_owned),
            is_headroom: text(data, "kind") == Some("headroom"),
            record,
        })
    }

    /// The whole event.
    pub(super) fn event(&self) -> Value {
        serde_json::from_slice(&self.record.line).unwrap_or_default()
    }

    pub(super) fn kind(&self) -> EventType {
        self.record.kind
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
