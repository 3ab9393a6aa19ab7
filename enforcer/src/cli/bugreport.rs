//! `enforcer bugreport`: one archive with what a maintainer needs, without secrets.

mod redact;

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow};
use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};

use self::redact::Redacted;
use super::{
    Context, Failure, client,
    exit::Unreachable,
    format::{self, Output},
    page::Page,
    render::human_bytes,
};
use crate::{
    journal::{self, Filter, Offline},
    serve::Build,
};

/// The most bytes of one part.
const PART_BYTES: usize = 4 << 20;

/// What the daemon is asked for: the part's name, the request, and what it is.
const ASKED: [(&str, &str, &str); 10] = [
    ("config.json", "/v1/config", "the running configuration and its sources"),
    ("doctor.json", "/v1/doctor", "what the host offers, and the eBPF programs"),
    ("pods.json", "/v1/pods", "the pods"),
    ("ranking.json", "/v1/ranking", "the order of eviction"),
    ("headroom.json", "/v1/headroom", "what is left before each threshold"),
    ("orders.json", "/v1/orders", "the orders in force"),
    ("allocatable.json", "/v1/allocatable", "what may be requested, and what is"),
    ("containers.json", "/v1/containers", "the memory of pods and containers"),
    ("metrics.txt", "/metrics", "the metrics"),
    ("events.ndjson", "/v1/events", "the newest events"),
];

/// What is read of the machine: the part's name, and the file.
const READ: [(&str, &str); 4] = [
    ("proc/version", "/proc/version"),
    ("proc/meminfo", "/proc/meminfo"),
    ("proc/pressure-memory", "/proc/pressure/memory"),
    ("cgroup/controllers", "/sys/fs/cgroup/cgroup.controllers"),
];

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The archive is for its owner alone (0600), of at most 4 MiB a part before it is
compressed, and never overwrites a file. Values of tokens, passwords,
environment variables, arguments and annotations are removed, and so are
credentials, paths and queries in addresses; removed.txt lists each place. Names
of pods, namespaces, labels and reasons of orders stay: read the list before you
pass it on.")]
pub(super) struct Args {
    /// The archive; by default enforcer-bugreport-TIME.tar.gz here
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Only list what the archive would contain
    #[arg(long)]
    dry_run: bool,
}

/// A part of the archive.
#[derive(Debug)]
struct Part {
    name: String,
    what: String,
    bytes: Vec<u8>,
}

/// What is in the archive, and what is not.
#[derive(Debug, Default)]
struct Contents {
    parts: Vec<Part>,
    /// What could not be had, and why.
    missing: Vec<(String, String)>,
    /// The places where a value was removed.
    removed: Redacted,
}

impl Contents {
    fn put(&mut self, name: &str, what: &str, bytes: Vec<u8>) {
        if bytes.len() > PART_BYTES {
            return self.lack(name, &format!("it is larger than {}", human_bytes(PART_BYTES as u64)));
        }
        self.parts.push(Part { name: name.to_owned(), what: what.to_owned(), bytes });
    }

    fn lack(&mut self, name: &str, why: &str) {
        self.missing.push((name.to_owned(), why.to_owned()));
    }

    /// Takes a part of JSON without its secrets.
    fn put_json(&mut self, name: &str, what: &str, text: &[u8]) {
        match serde_json::from_slice::<Value>(text) {
            Ok(mut value) => {
                self.removed.from(name, &mut value);
                self.put(name, what, value.to_string().into_bytes());
            }
            // Of what cannot be read it is not known whether it holds a secret.
            Err(_) => self.lack(name, "it is no JSON"),
        }
    }

    /// Takes the newest events, a line each, without their secrets.
    fn put_events<'a>(&mut self, name: &str, what: &str, lines: impl DoubleEndedIterator<Item = &'a [u8]>) {
        let (mut kept, mut bytes) = (Vec::new(), 0);
        for line in lines.rev().filter(|line| !line.is_empty()) {
            let Ok(mut value) = serde_json::from_slice::<Value>(line) else { continue };
            self.removed.from(name, &mut value);
            let line = value.to_string() + "\n";
            bytes += line.len();
            if bytes > PART_BYTES {
                break;
            }
            kept.push(line);
        }
        kept.reverse();
        self.put(name, what, kept.concat().into_bytes());
    }

    /// Adds the lists of what is missing and of what was removed.
    fn close(&mut self) {
        let missing = self.missing.iter().map(|(name, why)| format!("{name}: {why}\n"));
        let missing = missing.collect::<String>().into_bytes();
        self.put("missing.txt", "what could not be had, and why", missing);
        let removed = self.removed.places().map(|place| format!("{place}\n"));
        let removed = removed.collect::<String>().into_bytes();
        self.put("removed.txt", "where a value was removed", removed);
    }

    fn document(&self, file: Option<&Path>) -> Value {
        let parts: Vec<_> = self
            .parts
            .iter()
            .map(|Part { name, what, bytes }| json!({"name": name, "what": what, "bytes": bytes.len()}))
            .collect();
        let missing: Vec<_> =
            self.missing.iter().map(|(name, why)| json!({"name": name, "why": why})).collect();
        let removed: Vec<_> = self.removed.places().collect();
        json!({"file": file, "contents": parts, "missing": missing, "removed": removed})
    }

    fn table(&self) -> String {
        let mut page = Page::default();
        for Part { name, what, bytes } in &self.parts {
            let size = human_bytes(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
            page.line(&format!("{} {size:>8}  {what}", super::page::cell(name, 22, false)));
        }
        for (name, why) in &self.missing {
            page.paragraph(&format!("not there: {name}: {why}"));
        }
        for place in self.removed.places() {
            page.paragraph(&format!("removed: {place}"));
        }
        page.finish()
    }
}

pub(super) fn bugreport(context: &Context, args: &Args) -> Result<(), Failure> {
    let contents = collected(context)?;
    let path = args.file.clone().unwrap_or_else(|| PathBuf::from(default_name()));
    let for_people = matches!(context.output, Output::Table | Output::Wide);
    if for_people {
        // The list comes before the file exists.
        format::print(context.output, &(), || contents.table())?;
    }
    if !args.dry_run {
        write(&path, &contents)?;
    }
    if for_people {
        let said = if args.dry_run {
            String::from("nothing is written\n")
        } else {
            format!("written: {}\n", super::render::escape(&path.display().to_string()))
        };
        return format::print(context.output, &(), || said);
    }
    let file = (!args.dry_run).then_some(path.as_path());
    format::print(context.output, &contents.document(file), String::new)
}

fn default_name() -> String {
    let now = jiff::Timestamp::now().to_string();
    let digits: String = now.chars().take(19).filter(char::is_ascii_alphanumeric).collect();
    format!("enforcer-bugreport-{digits}Z.tar.gz")
}

fn collected(context: &Context) -> Result<Contents, Failure> {
    let mut contents = Contents::default();
    let own = json!({"client": Build::own(), "kernel": rustix::system::uname().release().to_string_lossy()});
    contents.put(
        "version.json",
        "this program's build, and the kernel's release",
        own.to_string().into_bytes(),
    );
    // A daemon that does not answer is waited for once.
    let mut is_mute = false;
    for (name, request, what) in ASKED {
        match unless_mute(&mut is_mute, || client::block_on(answer(context, request))) {
            Ok(text) if name == "events.ndjson" => {
                contents.put_events(name, what, text.split(|byte| *byte == b'\n'));
            }
            Ok(text) if name == "metrics.txt" => contents.put(name, what, text),
            Ok(text) => contents.put_json(name, what, &text),
            Err(failure) if context.live && failure.is_unreachable() => return Err(failure),
            Err(_) if name == "events.ndjson" && journal::folder(&context.config.state_dir).is_dir() => {
                match kept_events(context) {
                    Ok(lines) => contents.put_events(name, what, lines.iter().map(Vec::as_slice)),
                    Err(error) => contents.lack(name, &format!("{error:#}")),
                }
            }
            Err(failure) => contents.lack(name, &failure.to_string()),
        }
    }
    for (name, path) in READ {
        match read(Path::new(path)) {
            Ok(bytes) => contents.put(name, path, bytes),
            Err(error) => contents.lack(name, &format!("{path}: {error}")),
        }
    }
    contents.close();
    Ok(contents)
}

/// Asks, unless the daemon has not answered before.
fn unless_mute<T>(is_mute: &mut bool, ask: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    if *is_mute {
        let error = anyhow!("not asked, as the daemon has not answered before");
        return Err(Failure::unreachable(Unreachable::Mute, error));
    }
    ask().inspect_err(|failure| *is_mute = failure.silence() == Some(Unreachable::Mute))
}

/// The daemon's answer. Of events the newest part stays, of all else an answer that is too large is an error.
async fn answer(context: &Context, request: &str) -> Result<Vec<u8>, Failure> {
    let mut answer = client::get(&context.config.run_dir, request).await?;
    if !answer.status.is_success() {
        let status = answer.status;
        return Err(client::refusal(status, &answer.bytes().await?));
    }
    let is_events = request == "/v1/events";
    let mut whole = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        whole.extend_from_slice(&chunk);
        match whole.len().checked_sub(2 * PART_BYTES) {
            Some(_) if is_events => drop(whole.drain(..PART_BYTES)),
            Some(_) => return Err(anyhow!("it is larger than {}", human_bytes(2 * PART_BYTES as u64)).into()),
            None => {}
        }
    }
    Ok(whole)
}

/// The newest events in the state directory.
fn kept_events(context: &Context) -> anyhow::Result<Vec<Vec<u8>>> {
    let opened = Offline::open(&context.config.state_dir, &context.config.run_dir, None, Filter::default())?;
    let events = opened.map_err(|stale| anyhow!("{} events are lost", stale.lost))?;
    let (mut kept, mut bytes) = (std::collections::VecDeque::new(), 0);
    for record in events {
        bytes += record.line.len();
        kept.push_back(record.line.to_vec());
        while bytes > PART_BYTES {
            let Some(oldest) = kept.pop_front() else { break };
            bytes -= oldest.len();
        }
    }
    Ok(kept.into())
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(fs::File::open(path)?, PART_BYTES as u64), &mut bytes)?;
    Ok(bytes)
}

/// Writes the archive into a file that does not exist yet, and that only its owner may read.
fn write(path: &Path, contents: &Contents) -> Result<(), Failure> {
    let shown = path.display();
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = file.with_context(|| format!("cannot create {shown}: name another with --file"))?;
    let written = archived(file, contents).with_context(|| format!("cannot write {shown}"));
    if written.is_err() {
        // A part of an archive helps nobody.
        drop(fs::remove_file(path));
    }
    Ok(written?)
}

fn archived(file: impl Write, contents: &Contents) -> io::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0);
    for Part { name, bytes, .. } in &contents.parts {
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(bytes.len()).map_err(io::Error::other)?);
        header.set_mode(0o600);
        header.set_mtime(now);
        archive.append_data(&mut header, format!("enforcer-bugreport/{name}"), bytes.as_slice())?;
    }
    archive.into_inner()?.finish()?.flush()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn contents() -> Contents {
        let mut contents = Contents::default();
        contents.put_json(
            "pods.json",
            "the pods",
            br#"{"pods": [{"annotations": {"k": "hunter2"}, "name": "web"}]}"#,
        );
        contents.put_json("broken.json", "none", b"token: hunter2");
        contents.put_events(
            "events.ndjson",
            "events",
            [&b"{\"n\":1}"[..], b"hunter2", b"{\"n\":2}"].into_iter(),
        );
        contents.put("large.txt", "too much", vec![b'x'; PART_BYTES + 1]);
        contents.close();
        contents
    }

    fn unpacked(path: &Path) -> Vec<(String, String)> {
        let file = flate2::read::GzDecoder::new(fs::File::open(path).unwrap());
        let mut archive = tar::Archive::new(file);
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            io::Read::read_to_string(&mut entry, &mut text).unwrap();
            (entry.path().unwrap().display().to_string(), text)
        });
        entries.collect()
    }

    #[test]
    fn the_archive_has_no_secret_and_lists_what_was_removed_and_what_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.tar.gz");
        write(&path, &contents()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let parts = unpacked(&path);
        assert!(!parts.iter().any(|(_, text)| text.contains("hunter2")), "{parts:?}");
        let of = |name: &str| {
            let name = format!("enforcer-bugreport/{name}");
            parts.iter().find(|(known, _)| *known == name).map(|(_, text)| text.as_str())
        };
        assert!(of("pods.json").unwrap().contains("web"));
        assert_eq!(of("events.ndjson"), Some("{\"n\":1}\n{\"n\":2}\n"));
        assert_eq!(of("removed.txt"), Some("pods.json: pods[].annotations\n"));
        let missing = of("missing.txt").unwrap();
        assert!(missing.contains("broken.json: ") && missing.contains("large.txt: "), "{missing}");
        assert_eq!((of("broken.json"), of("large.txt")), (None, None));
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_asked_once_and_one_that_refuses_each_question() {
        let mut asked = 0;
        let mut ask = |is_mute: &mut bool, failure: fn() -> Failure| {
            let answered: Result<(), Failure> = unless_mute(is_mute, || {
                asked += 1;
                Err(failure())
            });
            answered.unwrap_err().to_string()
        };
        let refuses = || Failure::from(anyhow!("404"));
        let is_silent = || Failure::unreachable(Unreachable::Mute, anyhow!("has not answered for 10 s"));
        let mut is_mute = false;
        assert_eq!(ask(&mut is_mute, refuses), "404");
        assert!(ask(&mut is_mute, is_silent).contains("has not answered for 10 s"));
        assert!(ask(&mut is_mute, is_silent).contains("not asked"));
        assert!(ask(&mut is_mute, refuses).contains("not asked"));
        assert_eq!(asked, 2);
    }

    #[test]
    fn no_file_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.tar.gz");
        fs::write(&path, "mine").unwrap();
        let failure = write(&path, &contents()).unwrap_err();
        assert!(failure.to_string().contains("cannot create"), "{failure}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }

    #[test]
    fn the_newest_events_are_those_that_stay() {
        let mut contents = Contents::default();
        let line = format!("{{\"pad\":\"{}\"}}", "x".repeat(1 << 20));
        let lines: Vec<String> =
            std::iter::repeat_n(line, 6).chain([String::from("{\"newest\":1}")]).collect();
        contents.put_events("events.ndjson", "events", lines.iter().map(String::as_bytes));
        let text = String::from_utf8(contents.parts[0].bytes.clone()).unwrap();
        assert!(text.ends_with("{\"newest\":1}\n") && text.lines().count() == 4, "{}", text.lines().count());
    }
}
