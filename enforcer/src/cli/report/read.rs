//! Reads the journal into a report, event by event: from the daemon, or from the state directory while it is down.

use std::io::{self, Write as _};

use anyhow::anyhow;
use enforcer_events::Event;
use serde_json::Value;

use super::{
    document::Report,
    fold::{Fold, Range, matters},
};
use crate::{
    cli::{Context, Failure, client, events::MAX_LINE_BYTES, exit::Unreachable},
    journal::{self, Filter, Offline, Record},
};

pub(super) fn read(context: &Context, range: Range) -> Result<Report, Failure> {
    match client::block_on(from_daemon(context, range)) {
        Ok(fold) => Ok(fold.finish(Some(jiff::Timestamp::now().as_millisecond()))),
        Err(failure) if failure.is_unreachable() && !context.live => {
            Ok(from_disk(context, range, failure)?.finish(None))
        }
        Err(failure) => Err(failure),
    }
}

async fn from_daemon(context: &Context, range: Range) -> Result<Fold, Failure> {
    let mut answer = client::get(&context.config.run_dir, "/v1/events").await?;
    if !answer.status.is_success() {
        let status = answer.status;
        return Err(client::refusal(status, &answer.bytes().await?));
    }
    let (mut fold, mut pending) = (Fold::new(range), Vec::new());
    while let Some(chunk) = answer.chunk().await? {
        pending.extend_from_slice(&chunk);
        let whole = pending.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let lines: Vec<u8> = pending.drain(..whole).collect();
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            take_line(&mut fold, line);
        }
        if pending.len() > MAX_LINE_BYTES {
            return Err(anyhow!(
                "the daemon sent a line of more than {MAX_LINE_BYTES} bytes: is it of another version?"
            )
            .into());
        }
    }
    Ok(fold)
}

/// Reads the state directory. If it has no log, the daemon's failure is returned.
fn from_disk(context: &Context, range: Range, unreachable: Failure) -> Result<Fold, Failure> {
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
    let mut fold = Fold::new(range);
    for record in events {
        take(&mut fold, &record);
    }
    Ok(fold)
}

fn take_line(fold: &mut Fold, line: &[u8]) {
    if let Some(record) = Record::from_line(line) {
        take(fold, &record);
        return;
    }
    // An event of another version still has its place in the log.
    let event: Value = serde_json::from_slice(line).unwrap_or_default();
    let text = |key: &str| event.get(key).and_then(Value::as_str);
    let time = text("time").and_then(|time| time.parse::<jiff::Timestamp>().ok());
    let ms = time.map(jiff::Timestamp::as_millisecond);
    if let (Some(sequence), Some(ms)) = (text("sequence").and_then(|sequence| sequence.parse().ok()), ms) {
        fold.take(sequence, ms, None);
    }
    fold.pass_unreadable(ms);
}

fn take(fold: &mut Fold, record: &Record) {
    let event = matters(record.kind).then(|| Event::parse(&record.line));
    if let Some(Err(_)) = event {
        fold.pass_unreadable(Some(record.time_ms));
    }
    fold.take(record.sequence, record.time_ms, event.and_then(Result::ok).as_ref());
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERYTHING: Range = Range { from_ms: 0, to_ms: i64::MAX };

    fn line(sequence: u64, kind: &str, data: &str) -> String {
        format!(
            "{{\"specversion\":\"1.0\",\"id\":\"e\",\"source\":\"urn:enforcer:n1:b1\",\"type\":\"dev.enforcer.{kind}\",\
             \"subject\":\"n1\",\"time\":\"2026-01-31T12:00:00.000000Z\",\"sequence\":\"{sequence:020}\",\"data\":{data}}}\n"
        )
    }

    #[test]
    fn what_cannot_be_read_is_counted_and_is_no_gap() {
        let mut fold = Fold::new(EVERYTHING);
        let missing = r#"{"signal":"memory.available"}"#;
        for line in [
            line(1, "limits.applied", "{}"),
            line(2, "of.another.version", "{}"),
            line(3, "eviction.suppressed", missing),
            String::from("no event\n"),
            line(4, "limits.applied", "{}"),
        ] {
            take_line(&mut fold, line.as_bytes());
        }
        let report = fold.finish(None);
        assert_eq!(report.journal.events, 4);
        let unreadable = report.losses.iter().find(|loss| loss.what == "unreadable").unwrap();
        assert_eq!(unreadable.events, Some(3));
        assert!(!report.losses.iter().any(|loss| loss.what == "gap"), "{:?}", report.losses);
    }
}
