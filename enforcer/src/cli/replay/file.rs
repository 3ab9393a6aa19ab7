//! Finds a recording.

use std::{
    fs::{self, OpenOptions},
    io::{Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow, bail};
use ulid::Ulid;

use crate::{
    cli::{Context, Failure, client},
    journal::{self, Filter, Offline},
    nearest::nearest,
    recorder::{self, FILE_ENDING, MOST_FILE_BYTES},
};

/// The requested recording: its name and its bytes.
pub(super) fn find(context: &Context, what: &str) -> Result<(String, Vec<u8>), Failure> {
    let state_dir = &context.config.state_dir;
    if what == "now" {
        let bytes = client::block_on(async {
            let answer = client::get(&context.config.run_dir, "/v1/recording").await?;
            let status = answer.status;
            let bytes = answer.bytes().await?;
            if status.is_success() { Ok(bytes) } else { Err(client::refusal(status, &bytes)) }
        })?;
        return Ok((String::from("the running daemon"), bytes));
    }
    let path = if what == "latest" {
        newest(state_dir)?
    } else if Path::new(what).exists() || what.contains(['/', '.']) {
        PathBuf::from(what)
    } else {
        let id = Ulid::from_string(what).ok().with_context(|| {
            format!("{what:?} is neither a file nor the id of an event or eviction: ids have 26 characters")
        });
        of_id(state_dir, &context.config.run_dir, id.map_err(Failure::usage)?)?
    };
    let bytes = read(&path)?;
    Ok((path.display().to_string(), bytes))
}

fn newest(state_dir: &Path) -> anyhow::Result<PathBuf> {
    let newest = recordings(state_dir)?.max();
    let (_, path) = newest.with_context(|| format!(
            "there is no recording in {}: each decision writes one, and `enforcer headroom` shows how near the next is",
            folder(state_dir)
        ))?;
    Ok(path)
}

/// The kept recordings, with the ids of their evictions.
fn recordings(state_dir: &Path) -> anyhow::Result<impl Iterator<Item = (Ulid, PathBuf)>> {
    let folder = recorder::folder(state_dir);
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    Ok(entries.filter_map(|entry| {
        let path = entry.ok()?.path();
        let id = Ulid::from_string(path.file_stem()?.to_str()?).ok()?;
        (path.extension()? == FILE_ENDING).then_some((id, path))
    }))
}

/// The recording of the eviction of that id, or of the eviction that the event of that id is about.
fn of_id(state_dir: &Path, run_dir: &Path, id: Ulid) -> anyhow::Result<PathBuf> {
    let path = recorder::path(state_dir, id);
    if path.exists() {
        return Ok(path);
    }
    let Some(eviction) = eviction_of(state_dir, run_dir, id)? else {
        let kept: Vec<_> =
            recordings(state_dir).into_iter().flatten().map(|(id, _)| id.to_string()).collect();
        let near = nearest(&id.to_string(), kept.iter().map(String::as_str));
        let hint = near.map_or_else(
            || String::from("`enforcer replay latest` takes the newest"),
            |near| format!("did you mean {near}?"),
        );
        bail!(
            "there is no recording of {id} in {}, and no event of an eviction has that id: {hint}",
            folder(state_dir)
        );
    };
    let path = recorder::path(state_dir, eviction);
    if !path.exists() {
        bail!(
            "the recording of eviction {eviction} is not, or no longer, in {}: `enforcer events` has its events",
            folder(state_dir)
        );
    }
    Ok(path)
}

fn folder(state_dir: &Path) -> String {
    recorder::folder(state_dir).display().to_string()
}

fn eviction_of(state_dir: &Path, run_dir: &Path, event: Ulid) -> anyhow::Result<Option<Ulid>> {
    if !journal::folder(state_dir).is_dir() {
        return Ok(None);
    }
    let opened = Offline::open(state_dir, run_dir, None, Filter::default())?;
    let Ok(events) = opened else { return Ok(None) };
    let event = event.to_string();
    for record in events {
        // Most lines are other events: do not parse those.
        if !record.line.windows(event.len()).any(|part| part == event.as_bytes()) {
            continue;
        }
        let value: serde_json::Value = serde_json::from_slice(&record.line)?;
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        if value.get("id").and_then(text).as_ref() == Some(&event) {
            let id = value.get("data").and_then(|data| data.get("evictionId")).and_then(text);
            let id = id.ok_or_else(|| {
                anyhow!("event {event} is not about an eviction: `enforcer events --type eviction.decided` lists those that are")
            })?;
            return Ok(Ulid::from_string(&id).ok());
        }
    }
    Ok(None)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let shown = path.display();
    let file = fs::File::open(path).with_context(|| format!("cannot open {shown}"))?;
    let mut bytes = Vec::new();
    file.take(MOST_FILE_BYTES + 1).read_to_end(&mut bytes).with_context(|| format!("cannot read {shown}"))?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > MOST_FILE_BYTES) {
        bail!("{shown} is larger than any recording, {MOST_FILE_BYTES} bytes: is it one?");
    }
    Ok(bytes)
}

pub(super) fn save(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let about = || format!("cannot write {}", path.display());
    // It contains names of pods.
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    file.with_context(about)?.write_all(bytes).with_context(about)
}
