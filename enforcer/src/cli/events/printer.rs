//! Prints events as they come, or the last of them.

use std::{
    collections::{BTreeSet, VecDeque},
    io::{self, Write as _},
};

use serde_json::Value;

use super::Args;
use crate::{
    cli::{
        Context, Failure,
        format::{self, Output},
        render,
        times::Times,
    },
    nearest::nearest,
};

/// How many other reasons are named if none is the wanted one.
const NAMED: usize = 32;

/// Prints events as they come. As JSON and as YAML they are one document together, a list.
pub(super) struct Printer {
    output: Output,
    color: bool,
    times: Times,
    is_on_terminal: bool,
    is_begun: bool,
    /// The wanted reasons; empty means all.
    reasons: Vec<String>,
    /// The reasons that were passed over.
    others: BTreeSet<String>,
    /// The newest events, while only the last so many are wanted of those that are kept.
    tail: Option<(usize, VecDeque<Vec<u8>>)>,
}

impl Printer {
    pub(super) fn new(context: &Context, args: &Args) -> Self {
        let Context { output, color, .. } = context;
        // An age is wrong a moment later, and a stream that is followed stays on the screen.
        let times = if args.follow { Times::Absolute } else { args.times.of() };
        Self {
            output: *output,
            color: *color,
            times,
            is_on_terminal: format::is_on_terminal(),
            is_begun: false,
            reasons: args.reasons.clone(),
            others: BTreeSet::new(),
            tail: args.tail.map(|most| (most, VecDeque::new())),
        }
    }

    /// Whether events are held until it is known which are the last.
    pub(super) fn holds(&self) -> bool {
        self.tail.is_some()
    }

    pub(super) fn print(&mut self, lines: &[u8]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        // An empty line is a heartbeat.
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            self.take(&mut out, line)?;
        }
        out.flush()
    }

    /// Prints those that were held, and from now on each.
    pub(super) fn release(&mut self) -> io::Result<()> {
        let Some((_, held)) = self.tail.take() else { return Ok(()) };
        let mut out = io::stdout().lock();
        for line in held {
            self.event(&mut out, &line)?;
        }
        out.flush()
    }

    fn take(&mut self, out: &mut impl io::Write, line: &[u8]) -> io::Result<()> {
        if !self.wants(line) {
            return Ok(());
        }
        let Some((most, held)) = &mut self.tail else { return self.event(out, line) };
        held.push_back(line.to_vec());
        if held.len() > *most {
            held.pop_front();
        }
        Ok(())
    }

    /// Whether its reason is wanted.
    fn wants(&mut self, line: &[u8]) -> bool {
        if self.reasons.is_empty() {
            return true;
        }
        let event: Value = serde_json::from_slice(line).unwrap_or_default();
        let Some(reason) = event.pointer("/data/reason").and_then(Value::as_str) else { return false };
        let is_wanted = self.reasons.iter().any(|wanted| wanted == reason);
        if is_wanted {
            self.others.clear();
        } else if self.others.len() < NAMED {
            self.others.insert(reason.to_owned());
        }
        is_wanted
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
            Output::Table | Output::Wide => {
                writeln!(out, "{}", render::event(line, self.color, self.times, jiff::Timestamp::now()))
            }
            Output::Html => Err(io::Error::other("events are no page")),
        }
    }

    fn json(&self, out: &mut impl io::Write, line: &[u8]) -> io::Result<()> {
        match str::from_utf8(line) {
            Ok(json) => out.write_all(format::shown(json, self.is_on_terminal).as_bytes()),
            Err(_) => out.write_all(line),
        }
    }

    /// Prints what is held, and ends the document. If no event had the wanted reason, the others are named on stderr.
    pub(super) fn end(mut self) -> Result<(), Failure> {
        self.release().map_err(Failure::printing)?;
        if !self.is_begun && !self.reasons.is_empty() {
            // If this fails, there is nowhere to report it.
            drop(writeln!(io::stderr(), "{}", self.no_such_reason()));
        }
        let end: &[u8] = match (self.output, self.is_begun) {
            (Output::Json, true) => b"\n]}\n",
            (Output::Json, false) => b"{\"items\":[]}\n",
            (Output::Yaml, false) => b"items: []\n",
            (Output::Yaml, true) | (Output::Table | Output::Wide | Output::Jsonl | Output::Html, _) => {
                return Ok(());
            }
        };
        let mut out = io::stdout().lock();
        out.write_all(end).and_then(|()| out.flush()).map_err(Failure::printing)
    }

    fn no_such_reason(&self) -> String {
        let wanted = self.reasons.join(" or ");
        let near = nearest(&wanted, self.others.iter().map(String::as_str)).map(str::to_owned);
        let others = self.others.iter().filter(|other| Some(*other) != near.as_ref()).cloned();
        let others: Vec<_> = near.iter().cloned().chain(others).collect();
        let others = if others.is_empty() { String::from("none") } else { others.join(", ") };
        render::escape(&format!("no event has the reason {wanted}; there are these reasons: {others}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn printer(output: Output) -> Printer {
        Printer {
            output,
            color: false,
            times: Times::Absolute,
            is_on_terminal: false,
            is_begun: false,
            reasons: Vec::new(),
            others: BTreeSet::new(),
            tail: None,
        }
    }

    #[test]
    fn events_are_one_document_or_lines() {
        let events = [json!({"a": 1, "b": {"c": "x: y"}}), json!({"a": 2})];
        let printed = |output, events: &[Value]| {
            let (mut printer, mut out) = (printer(output), Vec::new());
            for event in events {
                printer.take(&mut out, event.to_string().as_bytes()).unwrap();
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
    fn only_wanted_reasons_are_printed_and_the_nearest_other_is_named_first() {
        let lines =
            ["a", "noCandidate", "breakerOpen"].map(|reason| json!({"data": {"reason": reason}}).to_string());
        let run = |wanted: &str| {
            let (mut printer, mut out) = (printer(Output::Jsonl), Vec::new());
            printer.reasons = vec![wanted.to_owned()];
            for line in &lines {
                printer.take(&mut out, line.as_bytes()).unwrap();
            }
            (String::from_utf8(out).unwrap(), printer.no_such_reason())
        };
        assert_eq!(run("breakerOpen").0, format!("{}\n", lines[2]));
        let (out, reported) = run("noCandidat");
        assert_eq!(out, "");
        assert!(reported.ends_with("there are these reasons: noCandidate, a, breakerOpen"), "{reported}");
    }

    #[test]
    fn of_a_tail_only_the_last_are_kept() {
        let (mut printer, mut out) = (printer(Output::Jsonl), Vec::new());
        printer.tail = Some((2, VecDeque::new()));
        for number in 0..5 {
            printer.take(&mut out, json!({"a": number}).to_string().as_bytes()).unwrap();
        }
        assert_eq!(out, b"");
        let held: Vec<_> =
            printer.tail.unwrap().1.into_iter().map(|line| String::from_utf8(line).unwrap()).collect();
        assert_eq!(held, [r#"{"a":3}"#, r#"{"a":4}"#]);
    }
}
