//! `enforcer events`: prints the stream, from the disk if the daemon is down.

mod connection;
mod printer;
mod stream;

use std::io::{self, Write as _};

use anyhow::{Context as _, anyhow};
use serde_json::Value;

pub(super) use self::stream::MAX_LINE_BYTES;
use self::{connection::stale, printer::Printer};
use super::{Context, Failure, client, exit::Unreachable, format, format::Output, times};
use crate::journal::{self, Cursor, Filter, Offline, moment, named_type};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Keep printing new events, also over restarts of the daemon
    #[arg(short, long)]
    follow: bool,
    /// Print only events after this cursor
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// Print only events from this time on: 5m, 2h or 7d ago, or
    /// 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Print only events up to this time
    #[arg(long, value_name = "TIME", conflicts_with = "follow")]
    until: Option<String>,
    /// Of the kept events, print only this many, the newest
    #[arg(long, value_name = "COUNT")]
    tail: Option<usize>,
    /// Print only this type, with or without its prefix; may be repeated
    #[arg(long = "type", value_name = "TYPE")]
    kinds: Vec<String>,
    /// Print only events with this reason, such as noCandidate; may be repeated
    #[arg(long = "reason", value_name = "REASON")]
    reasons: Vec<String>,
    /// Print only events about pods of this namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Print the events about all namespaces and the node, as without --namespace
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Print only events about this pod: NAME or NAMESPACE/NAME
    #[arg(long, value_name = "POD")]
    pod: Option<String>,
    #[command(flatten)]
    times: times::Args,
    /// Print the JSON Schema of events, and no event
    #[arg(long, conflicts_with_all = ["follow", "after", "since", "until", "tail", "kinds", "reasons", "namespace", "pod"])]
    schema: bool,
}

/// The request, which stays the same over several connections.
#[derive(Clone, Debug)]
struct Asked {
    /// Whether to wait for new events.
    follow: bool,
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
    /// Before the oldest kept event: those behind the last one are no longer kept.
    Oldest,
    /// The events had no cursors.
    Unknown,
}

impl Place {
    /// All up to that event has been passed, printed or left out.
    fn advance(&mut self, passed: Cursor) {
        match self {
            Self::Start | Self::Oldest => *self = Self::Behind(passed),
            Self::Behind(last) if last.epoch == passed.epoch && last.sequence < passed.sequence => {
                *last = passed;
            }
            Self::Behind(_) | Self::Unknown => {}
        }
    }
}

impl Asked {
    fn new(args: &Args) -> Result<Self, Failure> {
        let Args { follow, after, since, until, kinds, namespace, pod, .. } = args;
        // Resolved once: on a later connection the same age would be another time.
        let time = |name: &str, text: &Option<String>| {
            let time = text.as_deref().map(|text| moment(text, jiff::Timestamp::now())).transpose();
            time.map_err(|error| Failure::usage(anyhow!("--{name}: {error}")))
        };
        let (since, until) = (time("since", since)?, time("until", until)?);
        let mut query = String::new();
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
        for (name, time) in [("since", since), ("until", until)] {
            if let Some(time) = time {
                add(name, &time.to_string());
            }
        }
        let kind =
            |name: &String| named_type(name).map_err(|error| Failure::usage(anyhow!("--type: {error}")));
        let filter = Filter {
            kinds: kinds.iter().map(kind).collect::<Result<_, _>>()?,
            namespace: namespace.clone(),
            pod: pod.clone(),
            since_ms: since.map(jiff::Timestamp::as_millisecond),
            until_ms: until.map(jiff::Timestamp::as_millisecond),
        };
        Ok(Self { follow: *follow, query, filter, after: after.clone() })
    }

    /// The same without waiting for new events.
    fn ending(&self) -> Self {
        Self { follow: false, ..self.clone() }
    }

    /// The request target to continue from that place.
    fn target(&self, place: &Place) -> String {
        let after = match place {
            Place::Behind(cursor) => Some(cursor.to_string()),
            Place::Start | Place::Unknown => self.after.clone(),
            Place::Oldest => None,
        };
        let after = after.map_or_else(String::new, |after| format!("&after={}", client::encode(&after)));
        format!("/v1/events?follow={}{}{after}", self.follow, self.query)
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

pub(super) fn events(context: &Context, args: &Args) -> Result<(), Failure> {
    if args.schema {
        return schema(context.output);
    }
    if args.follow {
        format::no_document(context.output, "a stream that is followed")?;
    }
    let asked = Asked::new(args)?;
    let mut place = Place::Start;
    let mut printer = Printer::new(context, args);
    if args.follow {
        return client::block_on(connection::follow(context, &asked, &mut place, &mut printer));
    }
    match client::block_on(connection::from_daemon(context, &asked, &mut place, &mut printer)) {
        // Without a known place, the state directory cannot continue the output.
        Err(failure) if failure.is_unreachable() && !context.live && place != Place::Unknown => {
            from_disk(context, &asked, &place, failure, &mut printer)
        }
        result => result,
    }?;
    printer.end()
}

/// Prints the schema as it is published; it has no table.
fn schema(output: Output) -> Result<(), Failure> {
    let document: Value = serde_json::from_str(enforcer_events::SCHEMA).context("the schema is damaged")?;
    let output = if output == Output::Table { Output::Json } else { output };
    format::print(output, &document, String::new)
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
        (Err(stale_there), Place::Start | Place::Oldest | Place::Unknown) => {
            let newest = stale_there.range.newest;
            return Err(match after {
                Some(after) if newest > 0 && after.sequence > newest => Failure::usage(anyhow!(
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
