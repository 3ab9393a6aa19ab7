//! `enforcer events`: prints the stream, from the disk if the daemon is down.

mod stream;

use std::io::{self, Write as _};

use anyhow::{Context as _, anyhow};
use hyper::StatusCode;
use serde_json::Value;

pub(super) use self::stream::MAX_LINE_BYTES;
use self::stream::Stream;
use super::{Context, Failure, client, exit::Unreachable, format, format::Output, render};
use crate::journal::{self, Cursor, Filter, Offline, named_type};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Keep printing new events
    #[arg(short, long)]
    follow: bool,
    /// Print only events after this cursor
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// Print only events of at most this age: 90s, 30m, 2h, 1d
    #[arg(long, value_name = "AGE")]
    since: Option<String>,
    /// Print only this type, with or without its prefix; may be repeated
    #[arg(long = "type", value_name = "TYPE")]
    kinds: Vec<String>,
    /// Print only events about pods of this namespace
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Print only events about this pod: NAME or NAMESPACE/NAME
    #[arg(long, value_name = "POD")]
    pod: Option<String>,
    /// Print the JSON Schema of events, and no event
    #[arg(long, conflicts_with_all = ["follow", "after", "since", "kinds", "namespace", "pod"])]
    schema: bool,
}

/// The request, which stays the same over several connections.
#[derive(Debug)]
struct Asked {
    /// The query for the daemon, without its start.
    query: String,
    /// The same as a filter for the state directory.
    filter: Filter,
    /// The cursor to start after, as it was given.
    after: Option<String>,
}

/// Up to which event was printed.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Place {
    /// No event was printed.
    Start,
    /// The event with this cursor was the last one.
    Behind(Cursor),
    /// The events had no cursors.
    Unknown,
}

impl Asked {
    fn new(args: &Args) -> Result<Self, Failure> {
        let Args { follow, after, since, kinds, namespace, pod, schema: _ } = args;
        // Resolved once: on a later connection the same age would be another time.
        let since = since.as_deref().map(since_time).transpose()?;
        let mut query = format!("follow={follow}");
        let mut add = |name: &str, value: &str| {
            query.push_str(&format!("&{name}={}", client::encode(value)));
        };
        for kind in kinds {
            add("type", kind);
        }
        for (name, value) in [("namespace", namespace), ("pod", pod)] {
            if let Some(value) = value {
                add(name, value);
            }
        }
        if let Some(since) = since {
            add("since", &since.to_string());
        }
        let kind =
            |name: &String| named_type(name).map_err(|error| Failure::usage(anyhow!("--type: {error}")));
        let filter = Filter {
            kinds: kinds.iter().map(kind).collect::<Result<_, _>>()?,
            namespace: namespace.clone(),
            pod: pod.clone(),
            since_ms: since.map(jiff::Timestamp::as_millisecond),
        };
        Ok(Self { query, filter, after: after.clone() })
    }

    /// The request target to continue from that place.
    fn target(&self, place: &Place) -> String {
        let after = match place {
            Place::Behind(cursor) => Some(cursor.to_string()),
            Place::Start | Place::Unknown => self.after.clone(),
        };
        let after = after.map_or_else(String::new, |after| format!("&after={}", client::encode(&after)));
        format!("/v1/events?{}{after}", self.query)
    }

    /// The cursor to read the state directory's log from.
    fn cursor(&self, place: &Place) -> Result<Option<Cursor>, Failure> {
        if let Place::Behind(cursor) = place {
            return Ok(Some(cursor.clone()));
        }
        let after = self.after.as_deref().map(str::parse::<Cursor>).transpose();
        after.map_err(|error| Failure::usage(anyhow::Error::new(error).context("--after")))
    }
}

fn since_time(age: &str) -> Result<jiff::Timestamp, Failure> {
    let seconds = age_seconds(age).ok_or_else(|| {
        Failure::usage(anyhow!("--since {age:?} is not an age: write a number and s, m, h or d, such as 2h"))
    })?;
    jiff::Timestamp::now()
        .checked_sub(jiff::SignedDuration::from_secs(seconds))
        .with_context(|| format!("--since {age} is too long ago"))
        .map_err(Failure::usage)
}

fn age_seconds(age: &str) -> Option<i64> {
    let unit = age.chars().next_back()?;
    let factor = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return None,
    };
    let count: i64 = age.strip_suffix(unit)?.parse().ok()?;
    if count < 0 { None } else { count.checked_mul(factor) }
}

pub(super) fn events(context: &Context, args: &Args) -> Result<(), Failure> {
    if args.schema {
        return schema(context.output);
    }
    if args.follow {
        format::no_document(context.output, "a stream that is followed")?;
    }
    let asked = Asked::new(args)?;
    let mut place = Place::Start;
    let mut printer = Printer::new(context);
    match client::block_on(from_daemon(context, &asked, &mut place, &mut printer)) {
        // Without a known place, the state directory cannot continue the output.
        Err(failure)
            if failure.is_unreachable() && !context.live && !args.follow && place != Place::Unknown =>
        {
            from_disk(context, &asked, &place, failure, &mut printer)
        }
        result => result,
    }?;
    printer.end().map_err(Failure::printing)
}

/// Prints the schema as it is published; it has no table.
fn schema(output: Output) -> Result<(), Failure> {
    let document: Value = serde_json::from_str(enforcer_events::SCHEMA).context("the schema is damaged")?;
    let output = if output == Output::Table { Output::Json } else { output };
    format::print(output, &document, String::new)
}

/// Prints the daemon's events, and moves `place` along. The daemon hangs up on a client that stops reading for a while;
/// then this reconnects and continues after the last printed event.
async fn from_daemon(
    context: &Context,
    asked: &Asked,
    place: &mut Place,
    printer: &mut Printer,
) -> Result<(), Failure> {
    loop {
        let before = place.clone();
        let result = from_connection(context, asked, place, printer).await;
        let has_hung_up =
            result.as_ref().is_err_and(|failure| failure.silence() == Some(Unreachable::HungUp));
        // A connection that brought nothing new is not worth another try.
        if !has_hung_up || *place == before || *place == Place::Unknown {
            return result;
        }
    }
}

async fn from_connection(
    context: &Context,
    asked: &Asked,
    place: &mut Place,
    printer: &mut Printer,
) -> Result<(), Failure> {
    let mut answer = client::get_with_cursors(&context.config.run_dir, &asked.target(place)).await?;
    if !answer.status.is_success() {
        let status = answer.status;
        let body = answer.bytes().await?;
        let lost = if status == StatusCode::GONE { lost(&body) } else { None };
        return Err(lost.map_or_else(|| client::refusal(status, &body), |lost| stale(place, lost)));
    }
    let mut stream = Stream::new(answer.has_cursors());
    while let Some(chunk) = answer.chunk().await? {
        let part = stream.take(&chunk)?;
        printer.print(&part.lines).map_err(Failure::printing)?;
        match part.cursor {
            Some(cursor) => *place = Place::Behind(cursor),
            None if part.lines.is_empty() => {}
            None => *place = Place::Unknown,
        }
    }
    Ok(())
}

/// How many events the daemon says are lost after an old cursor.
fn lost(body: &[u8]) -> Option<u64> {
    serde_json::from_slice::<Value>(body).ok()?.get("lost")?.as_u64()
}

/// The failure if events after that place are no longer kept.
fn stale(place: &Place, lost: u64) -> Failure {
    let cursor = match place {
        Place::Behind(cursor) => format!("the cursor {cursor}, behind what was printed,"),
        Place::Start | Place::Unknown => String::from("--after: the cursor"),
    };
    anyhow!(
        "{cursor} is older than what is kept, or of another log: {lost} events are lost; without --after all that is kept is printed"
    )
    .into()
}

/// Prints the state directory's events from that place on. If it has no log, the daemon's failure is returned.
fn from_disk(
    context: &Context,
    asked: &Asked,
    place: &Place,
    unreachable: Failure,
    printer: &mut Printer,
) -> Result<(), Failure> {
    let state_dir = &context.config.state_dir;
    if !journal::folder(state_dir).is_dir() {
        return Err(unreachable);
    }
    let after = asked.cursor(place)?;
    let opened = Offline::open(state_dir, &context.config.run_dir, after.as_ref(), asked.filter.clone())
        .map_err(anyhow::Error::new)?;
    let events = match (opened, place) {
        (Ok(events), _) => events,
        (Err(stale_there), Place::Start | Place::Unknown) => {
            let newest = stale_there.range.newest;
            return Err(match after {
                Some(after) if after.sequence > newest => Failure::usage(anyhow!(
                    "--after: the cursor {after} is in the future or of another log: the newest event here is number {newest}"
                )),
                _ => stale(place, stale_there.lost),
            });
        }
        (Err(_), Place::Behind(cursor)) => {
            let said = format!("{} does not go on behind {cursor}, and", state_dir.display());
            return Err(unreachable.context(said));
        }
    };
    let why = unreachable.silence().map_or("the daemon cannot be asked", Unreachable::as_str);
    let what = if *place == Place::Start { "this" } else { "the rest" };
    drop(writeln!(io::stderr(), "{why}: {what} is what {} holds", state_dir.display()));
    for record in events {
        printer.print(&record.line).map_err(Failure::printing)?;
    }
    Ok(())
}

/// Prints events as they come. As JSON and as YAML they are one document together, a list.
struct Printer {
    output: Output,
    color: bool,
    is_on_terminal: bool,
    is_begun: bool,
}

impl Printer {
    fn new(context: &Context) -> Self {
        let Context { output, color, .. } = context;
        let is_on_terminal = format::is_on_terminal();
        Self { output: *output, color: *color, is_on_terminal, is_begun: false }
    }

    fn print(&mut self, lines: &[u8]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        // An empty line is a heartbeat.
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            self.event(&mut out, line)?;
        }
        out.flush()
    }

    fn event(&mut self, out: &mut impl io::Write, line: &[u8]) -> io::Result<()> {
        let is_first = !std::mem::replace(&mut self.is_begun, true);
        match self.output {
            Output::Json => {
                out.write_all(if is_first { b"{\"items\":[\n" } else { b",\n" })?;
                self.json(out, line)
            }
            Output::Jsonl => {
                self.json(out, line)?;
                out.write_all(b"\n")
            }
            Output::Yaml => {
                let event: [Value; 1] = [serde_json::from_slice(line)?];
                let text = format::yaml(&event).map_err(io::Error::other)?;
                let head = if is_first { "items:\n" } else { "" };
                write!(out, "{head}{text}")
            }
            Output::Table | Output::Wide => writeln!(out, "{}", render::event(line, self.color)),
        }
    }

    fn json(&self, out: &mut impl io::Write, line: &[u8]) -> io::Result<()> {
        match str::from_utf8(line) {
            Ok(json) => out.write_all(format::shown(json, self.is_on_terminal).as_bytes()),
            Err(_) => out.write_all(line),
        }
    }

    /// Ends the document.
    fn end(self) -> io::Result<()> {
        let end: &[u8] = match (self.output, self.is_begun) {
            (Output::Json, true) => b"\n]}\n",
            (Output::Json, false) => b"{\"items\":[]}\n",
            (Output::Yaml, false) => b"items: []\n",
            (Output::Yaml, true) | (Output::Table | Output::Wide | Output::Jsonl, _) => return Ok(()),
        };
        let mut out = io::stdout().lock();
        out.write_all(end)?;
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn events_are_one_document_or_lines() {
        let events = [json!({"a": 1, "b": {"c": "x: y"}}), json!({"a": 2})];
        let printed = |output, events: &[Value]| {
            let mut printer = Printer { output, color: false, is_on_terminal: false, is_begun: false };
            let mut out = Vec::new();
            for event in events {
                printer.event(&mut out, event.to_string().as_bytes()).unwrap();
            }
            String::from_utf8(out).unwrap()
        };
        let lines = printed(Output::Jsonl, &events);
        assert_eq!(lines.lines().count(), 2);
        let document: Value = serde_json::from_str(&(printed(Output::Json, &events) + "]}")).unwrap();
        assert_eq!(document, json!({"items": events}));
        let document: Value = serde_saphyr::from_str(&printed(Output::Yaml, &events)).unwrap();
        assert_eq!(document, json!({"items": events}));
    }

    #[test]
    fn an_age_has_a_unit() {
        assert_eq!(age_seconds("2h"), Some(7_200));
        assert_eq!(age_seconds("90s"), Some(90));
        for wrong in ["", "h", "2", "-2h", "2w", "9223372036854775807d", "2ü"] {
            assert_eq!(age_seconds(wrong), None, "{wrong}");
        }
    }
}
