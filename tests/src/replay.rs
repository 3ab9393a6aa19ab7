//! Replays what a daemon recorded, and compares it with its events.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::{daemon::Daemon, stream::is};

/// What must be the same in the event of a decision and in its replay.
const KEYS: [&str; 10] = [
    "evictionId",
    "dryRun",
    "signal",
    "hard",
    "thresholdBytes",
    "thresholdCount",
    "observedBytes",
    "observedCount",
    "decidedBy",
    "predictedFreedBytes",
];

/// At least this many of the newest decisions have a recording.
const KEPT: usize = 64;

/// Replays every decision that has a recording, and returns their number. The daemon has ended, and must have recorded
/// each of its own decisions.
///
/// A decision that an earlier daemon made right before it was killed may have no recording, or one without its end.
pub fn check(daemon: &Daemon) -> anyhow::Result<usize> {
    let folder = daemon.folder().join("state/recordings");
    let output = daemon.verb(&["-o", "jsonl", "events"]).output().context("cannot read the events")?;
    let events: Vec<Value> = String::from_utf8(output.stdout)?
        .lines()
        .map(|line| serde_json::from_str(line).context("an event that is no JSON"))
        .collect::<Result<_, _>>()?;
    let decided: Vec<_> = of_type(&events, "eviction.decided").collect();
    let files: Vec<PathBuf> = match std::fs::read_dir(&folder) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", folder.display())),
    };
    let recordings: Vec<_> =
        files.iter().filter(|path| path.extension().is_some_and(|ending| ending == "rec")).collect();
    let since = events.iter().rposition(|event| is(event, "config.loaded")).unwrap_or(0);
    let events_since = events.get(since..).unwrap_or_default();
    // If the disk took none, or some are incomplete, an event says so.
    let was_hindered =
        of_type(events_since, "degraded.entered").any(|event| event["data"]["what"] == "recorder");
    let own = if was_hindered {
        0
    } else {
        of_type(events_since, "eviction.decided").filter(|event| engines(event)).count()
    };
    for (newer, event) in decided.iter().rev().filter(|event| engines(event)).enumerate() {
        let id = text(event.pointer("/data/evictionId")).context("a decision without an id")?;
        if recordings.iter().any(|path| path.file_stem().is_some_and(|stem| stem == id)) {
            let is_own = newer < own;
            decision(daemon, event, is_own, &events).with_context(|| format!("the replay of {id}"))?;
        } else {
            ensure!(newer >= own.min(KEPT), "{id} was not recorded: {recordings:?}");
        }
    }
    ensure!(recordings.len() <= decided.len(), "more recordings than decisions: {recordings:?}");
    Ok(recordings.len())
}

fn decision(daemon: &Daemon, event: &Value, is_own: bool, events: &[Value]) -> anyhow::Result<()> {
    // By the id of the event, as an operator has it from `events`.
    let id = text(event.get("id")).context("an event without an id")?;
    let output = daemon.verb(&["-o", "json", "replay", id]).output().context("cannot run enforcer replay")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", output.status);
    let document: Value = serde_json::from_slice(&output.stdout)?;
    let nothing_is_missing = document.pointer("/replay/equal") == Some(&Value::Bool(true))
        && document.pointer("/replay/stepsNotRun") == Some(&Value::from(0))
        && document.pointer("/recording/lostRecords") == Some(&Value::from(0));
    ensure!(nothing_is_missing, "{} {}", document["recording"], document["replay"]);
    let data = &event["data"];
    let decisions = document["decisions"].as_array().context("no decisions")?;
    let again = decisions.iter().find(|again| again["evictionId"] == data["evictionId"]);
    let again = again.with_context(|| format!("it is not in {decisions:?}"))?;
    for key in KEYS.iter().filter(|key| data.get(**key).is_some()) {
        ensure!(data[key] == again[key], "{key}: reported {}, replayed {}", data[key], again[key]);
    }
    for key in ["namespace", "name", "uid", "qosClass", "usageBytes", "anonBytes", "growthBytesPerSecond"] {
        let (reported, replayed) = (&data["victim"][key], &again["victim"][key]);
        ensure!(reported == replayed, "victim's {key}: reported {reported}, replayed {replayed}");
    }
    let order = |data: &Value| -> Vec<_> {
        let ranking = data["ranking"].as_array().into_iter().flatten();
        ranking.map(|ranked| (ranked["name"].clone(), ranked["usageBytes"].clone())).collect()
    };
    ensure!(order(data) == order(again), "ranking: reported {:?}, replayed {:?}", order(data), order(again));
    // Another daemon reports the outcome, if this one was killed meanwhile.
    let own = events.iter().skip_while(|one| *one != event).take_while(|one| !is(one, "config.loaded"));
    let completed = own
        .filter(|one| is(one, "eviction.completed"))
        .find(|completed| completed["data"]["evictionId"] == data["evictionId"]);
    if let Some(completed) = completed {
        let mut happenings = document["happenings"].as_array().into_iter().flatten();
        let end = happenings.find(|happening| {
            happening["what"] == "completed" && happening["evictionId"] == data["evictionId"]
        });
        ensure!(end.is_some() || !is_own, "its end is not recorded");
        if let Some(end) = end {
            let (reported, replayed) = (&completed["data"]["freedBytes"], &end["freedBytes"]);
            ensure!(reported == replayed, "freed: reported {reported}, replayed {replayed}");
        }
    }
    // The verb got the daemon's own configuration as the other one: unless that was replaced, it decides the same.
    if of_type(events, "config.loaded").count() == 1 {
        ensure!(
            document["under"]["parted"].is_null(),
            "the same policy, another deed: {}",
            document["under"]
        );
    }
    Ok(())
}

/// Whether the engine decided it: no operator, and no daemon that found it on the intent page.
fn engines(event: &Value) -> bool {
    let data = &event["data"];
    data["decidedBy"] != "operator" && data["reconstructed"] != Value::Bool(true)
}

fn of_type<'a>(events: &'a [Value], kind: &'static str) -> impl Iterator<Item = &'a Value> {
    events.iter().filter(move |event| is(event, kind))
}

fn text(value: Option<&Value>) -> Option<&str> {
    value.and_then(Value::as_str)
}
