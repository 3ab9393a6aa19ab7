//! Finds a recording.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow, bail};
use ulid::Ulid;

use crate::{
    cli::{Context, Failure, client, exit::Unreachable},
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
        is_asked_of_the_daemon(context)?;
        newest(state_dir)?
    } else if Path::new(what).exists() || what.contains(['/', '.']) {
        PathBuf::from(what)
    } else {
        let id = Ulid::from_string(what).map_err(|_not_an_id| {
            Failure::not_there(anyhow!(
                "{what:?} is neither a file nor the id of an event or eviction: ids have 26 characters"
            ))
        })?;
        is_asked_of_the_daemon(context)?;
        of_id(state_dir, &context.config.run_dir, id)?
    };
    let bytes = read(&path).map_err(missing)?;
    Ok((path.display().to_string(), bytes))
}

/// The daemon writes the recordings, and they can be read without it: says so, or with `--live` refuses.
fn is_asked_of_the_daemon(context: &Context) -> Result<(), Failure> {
    let asked = client::block_on(async { client::get(&context.config.run_dir, "/livez").await.map(drop) });
    match asked {
        Err(failure) if failure.is_unreachable() && !context.live => {
            let (why, state_dir) = (failure.silence(), context.config.state_dir.display());
            let why = why.map_or("the daemon cannot be asked", Unreachable::as_str);
            // If this fails, there is nowhere to report it.
            drop(writeln!(io::stderr(), "{why}: this is what {state_dir} holds"));
            Ok(())
        }
        // A user who may not ask it may still read the files.
        Err(failure) if !failure.is_unreachable() && !context.live => Ok(()),
        asked => asked,
    }
}

fn newest(state_dir: &Path) -> Result<PathBuf, Failure> {
    let newest = recordings(state_dir).map_err(missing)?.max();
    newest.map(|(_, path)| path).ok_or_else(|| {
        Failure::not_there(anyhow!(
            "there is no recording in {}: each decision writes one, and `enforcer headroom` shows how near the next is",
            folder(state_dir)
        ))
    })
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
fn of_id(state_dir: &Path, run_dir: &Path, id: Ulid) -> Result<PathBuf, Failure> {
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
        return Err(Failure::not_there(anyhow!(
            "there is no recording of {id} in {}, and no event of an eviction has that id: {hint}",
            folder(state_dir)
        )));
    };
    let path = recorder::path(state_dir, eviction);
    if !path.exists() {
        return Err(Failure::not_there(anyhow!(
            "the recording of eviction {eviction} is not, or no longer, in {}: `enforcer events` has its events",
            folder(state_dir)
        )));
    }
    Ok(path)
}

/// The failure if a file or a folder is not there, or cannot be read.
fn missing(error: anyhow::Error) -> Failure {
    let cause = error.downcast_ref::<io::Error>().map(io::Error::kind);
    if cause == Some(io::ErrorKind::NotFound) { Failure::not_there(error) } else { error.into() }
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

/// The bytes of a recording's file.
pub(in crate::cli) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
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
