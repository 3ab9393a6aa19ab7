//! The event stream as a test reads it.

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use serde_json::Value;

/// A follower of the event stream, which keeps all events that it has read.
#[derive(Debug)]
pub struct Stream {
    child: Child,
    incoming: Receiver<Value>,
    /// Everything read so far, in order.
    pub seen: Vec<Value>,
    /// The latest `pod.added` of each pod that was not removed since, by `namespace/name`.
    added: HashMap<String, Value>,
}

impl Stream {
    /// Runs `enforcer events -f -o jsonl` and reads what it prints.
    pub fn follow(mut command: Command) -> anyhow::Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot follow the events")?;
        let lines = BufReader::new(child.stdout.take().context("no output to read")?).lines();
        let (sender, incoming) = channel();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let Ok(event) = serde_json::from_str(&line) else { return };
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, incoming, seen: Vec::new(), added: HashMap::new() })
    }

    /// Waits for an event that matches, among those read so far and those to come, and returns it.
    pub fn wait_for(
        &mut self,
        what: &str,
        timeout: Duration,
        fits: impl Fn(&Value) -> bool,
    ) -> anyhow::Result<Value> {
        if let Some(event) = self.seen.iter().find(|event| fits(event)) {
            return Ok(event.clone());
        }
        let deadline = Instant::now() + timeout;
        loop {
            let event = self.next(what, deadline)?;
            if fits(&event) {
                return Ok(event);
            }
        }
    }

    /// Waits for an event of that type, given without its prefix, about that pod.
    pub fn wait_for_pod(&mut self, kind: &str, pod: &str, timeout: Duration) -> anyhow::Result<Value> {
        self.wait_for(&format!("{kind} about {pod}"), timeout, |event| {
            is(event, kind) && event["subject"] == pod
        })
    }

    /// The latest `pod.added` about a pod that is not removed. Waits for one if there is none yet.
    pub fn added(&mut self, pod: &str, timeout: Duration) -> anyhow::Result<Value> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(added) = self.added.get(pod) {
                return Ok(added.clone());
            }
            self.next(&format!("pod.added about {pod}"), deadline)?;
        }
    }

    /// Reads the next event; if none comes, the error says what was waited for.
    fn next(&mut self, what: &str, deadline: Instant) -> anyhow::Result<Value> {
        match self.incoming.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(event) => {
                self.keep(event.clone());
                Ok(event)
            }
            Err(RecvTimeoutError::Timeout) => {
                bail!("no {what} in time; seen:\n{}", self.list())
            }
            Err(RecvTimeoutError::Disconnected) => {
                bail!("the stream ended before {what}; seen:\n{}", self.list())
            }
        }
    }

    fn keep(&mut self, event: Value) {
        if let Some(pod) = event["subject"].as_str() {
            if is(&event, "pod.added") {
                self.added.insert(pod.to_owned(), event.clone());
            } else if is(&event, "pod.removed") {
                self.added.remove(pod);
            }
        }
        self.seen.push(event);
    }

    /// Keeps reading for that long.
    pub fn drain(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        while let Ok(event) = self.incoming.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            self.keep(event);
        }
    }

    /// The events of that type read so far.
    pub fn of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.seen.iter().filter(move |event| is(event, kind))
    }

    /// The events after the last one of that type, or all.
    #[must_use]
    pub fn since(&self, kind: &str) -> &[Value] {
        let last = self.seen.iter().rposition(|event| is(event, kind));
        last.and_then(|last| self.seen.get(last + 1..)).unwrap_or(&self.seen)
    }

    fn list(&self) -> String {
        self.seen.iter().map(|event| format!("  {event}")).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // It may have ended already, which is what is wanted.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Whether the event is of that type, given without its prefix.
#[must_use]
pub fn is(event: &Value, kind: &str) -> bool {
    event["type"].as_str().and_then(|name| name.strip_prefix("dev.enforcer.")) == Some(kind)
}
