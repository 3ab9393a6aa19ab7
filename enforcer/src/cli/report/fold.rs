//! Folds the events of a journal, one by one in their order, into a report.
//!
//! Pure: what is read, and until when it is known, comes from the caller. Events before the range say what was under way
//! when it began.

mod evictions;
mod few;
mod forecasts;
mod oom;
mod pressure;
mod stalls;
#[cfg(test)]
pub(super) mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use enforcer_events::{
    Event, EventType, Payload,
    eviction::{Controller, EvictionDecided},
    node::{ConfigLoaded, Degraded, StreamGap},
    pod::Place,
    pressure::{PressureCleared, PressureRising},
};

pub(super) use self::few::MOST_ITEMS;
use super::{
    document::{Exceeded, Journal, Loss, Report},
    words::counted,
};

/// How many controllers of pods are remembered.
const MOST_CONTROLLERS: usize = 4_096;

/// Of how many things that are degraded at once it is remembered.
const MOST_DEGRADED: usize = 1_024;

/// Words of `degraded.entered` that are orders and states of the node, without which nothing is missing here.
const NO_LOSS: &[&str] = &["protect", "pause", "sharedMemory", "unarmed", "limitStuck", "journal"];

/// The range of a report, in milliseconds since 1970, both ends included.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Range {
    pub(super) from_ms: i64,
    pub(super) to_ms: i64,
}

/// When an event was appended.
#[derive(Clone, Copy, Debug)]
struct At {
    ms: i64,
    /// Whether that is in the range, and not before it.
    is_in_range: bool,
}

/// The newest event so far.
#[derive(Clone, Copy, Debug)]
struct Last {
    sequence: u64,
    ms: i64,
}

/// What has been folded so far. Its size is bounded.
#[derive(Debug)]
pub(super) struct Fold {
    range: Range,
    node: Option<String>,
    first: Option<Last>,
    last: Option<Last>,
    /// Whether there are events behind the range.
    is_whole_range_read: bool,
    /// When the daemon was started whose events are the first behind the range.
    started_behind_ms: Option<i64>,
    journal: Journal,
    losses: Vec<Loss>,
    losses_before: u64,
    unreadable: u64,
    restarts: u64,
    degraded: BTreeMap<String, u64>,
    /// What is degraded, and where, by the events so far.
    open: BTreeSet<(String, Option<String>)>,
    /// Whether an event of the range was seen.
    has_begun: bool,
    /// The controllers of pods by uid, as decisions name them.
    controllers: BTreeMap<String, String>,
    evictions: evictions::Evictions,
    oom: oom::Oom,
    pressure: pressure::Pressure,
    stalls: stalls::Stalls,
    forecasts: forecasts::Forecasts,
}

/// Whether the report depends on the payload of such an event.
pub(super) fn matters(kind: EventType) -> bool {
    matches!(
        kind,
        EventType::PressureRising
            | EventType::PressureCleared
            | EventType::ThresholdCrossed
            | EventType::EvictionDecided
            | EventType::EvictionSignalled
            | EventType::EvictionCompleted
            | EventType::EvictionFailed
            | EventType::EvictionSuppressed
            | EventType::EvictionForeign
            | EventType::OomDetected
            | EventType::OomIncident
            | EventType::OomAverted
            | EventType::ConfigLoaded
            | EventType::DegradedEntered
            | EventType::DegradedLeft
            | EventType::StreamGap
    )
}

impl Fold {
    pub(super) fn new(range: Range) -> Self {
        Self {
            range,
            node: None,
            first: None,
            last: None,
            is_whole_range_read: false,
            started_behind_ms: None,
            journal: Journal::default(),
            losses: Vec::new(),
            losses_before: 0,
            unreadable: 0,
            restarts: 0,
            degraded: BTreeMap::new(),
            open: BTreeSet::new(),
            has_begun: false,
            controllers: BTreeMap::new(),
            evictions: evictions::Evictions::default(),
            oom: oom::Oom::default(),
            pressure: pressure::Pressure::new(range),
            stalls: stalls::Stalls::default(),
            forecasts: forecasts::Forecasts::default(),
        }
    }

    /// Takes the next event: all by its place and time, and of those that [`matters`] says the payload. `None` for an event
    /// that is not read.
    pub(super) fn take(&mut self, sequence: u64, ms: i64, event: Option<&Event>) {
        if let Some(Payload::StreamGap(gap)) = event.map(|event| &event.payload) {
            self.gap(gap);
            return;
        }
        if ms > self.range.to_ms {
            let is_first = !std::mem::replace(&mut self.is_whole_range_read, true);
            if let Some(event) = event {
                self.behind(ms, is_first, &event.payload);
            }
            return;
        }
        let before = self.last.replace(Last { sequence, ms });
        self.first.get_or_insert(Last { sequence, ms });
        let at = At { ms, is_in_range: ms >= self.range.from_ms };
        if let Some(before) = before {
            let missing = sequence.saturating_sub(before.sequence.saturating_add(1));
            if missing > 0 && at.is_in_range {
                let (from, to) = (before.sequence + 1, sequence - 1);
                self.lose(Loss {
                    what: "gap",
                    time: Some(time(ms)),
                    events: Some(missing),
                    message: format!(
                        "the events of sequence {from} to {to} are missing: lost, or of another version"
                    ),
                });
            }
        }
        if at.is_in_range {
            self.journal.events += 1;
            self.begin();
        }
        if let Some(event) = event {
            self.event(at, before, event);
        }
    }

    /// A line that is no event of this version, or whose payload cannot be read.
    pub(super) fn pass_unreadable(&mut self, ms: Option<i64>) {
        let is_in_range = |ms: i64| (self.range.from_ms..=self.range.to_ms).contains(&ms);
        if ms.is_none_or(is_in_range) {
            self.unreadable += 1;
        }
    }

    fn event(&mut self, at: At, before: Option<Last>, event: &Event) {
        let node = event.source.strip_prefix("urn:enforcer:").and_then(|rest| rest.rsplit_once(':'));
        if let Some((node, _)) = node
            && self.node.as_deref() != Some(node)
        {
            self.node = Some(node.to_owned());
        }
        match &event.payload {
            Payload::ConfigLoaded(ConfigLoaded::Started(started)) => {
                self.started(at, before, &started.mode);
            }
            Payload::ConfigLoaded(ConfigLoaded::Changed(changed)) if at.is_in_range => {
                self.mode(&changed.mode);
            }
            Payload::ThresholdCrossed(shortage) => {
                self.pressure.crossed(at, shortage);
                self.forecasts.crossed(at, shortage);
            }
            Payload::PressureCleared(PressureCleared::Shortage(over)) => self.pressure.cleared(at, over),
            Payload::PressureCleared(PressureCleared::Headroom(back)) => self.forecasts.back(&back.approach),
            Payload::PressureCleared(PressureCleared::Stalls(over)) => self.stalls.over(at, over),
            Payload::PressureRising(PressureRising::Headroom(shrinking)) => {
                self.forecasts.warned(at, shrinking);
            }
            Payload::PressureRising(PressureRising::Stalls(stalling)) => self.stalls.stalling(at, stalling),
            Payload::EvictionDecided(decided) => {
                if let EvictionDecided::Decision(decision) = decided
                    && let Some(victim) = &decision.victim
                    && let Some(controller) = &victim.controller
                    && self.controllers.len() < MOST_CONTROLLERS
                {
                    self.controllers.insert(victim.uid.clone(), workload(controller));
                }
                self.evictions.decided(at, decided);
            }
            Payload::EvictionSignalled(signalled) => self.evictions.signalled(signalled),
            Payload::EvictionCompleted(ended) => self.evictions.ended(at, ended, "completed"),
            Payload::EvictionFailed(ended) => self.evictions.ended(at, ended, "failed"),
            Payload::EvictionSuppressed(suppressed) if at.is_in_range => {
                self.evictions.suppressed(at, suppressed);
            }
            Payload::EvictionForeign(_) if at.is_in_range => self.evictions.foreign(),
            Payload::OomDetected(detected) => self.oom.detected(at, detected),
            Payload::OomIncident(incident) => self.oom.incident(at, incident, &self.controllers),
            Payload::OomAverted(averted) => self.oom.averted(at, averted),
            Payload::DegradedEntered(degraded) => self.degraded(at, degraded),
            Payload::DegradedLeft(degraded) => {
                self.open.remove(&(degraded.what.to_string(), degraded.place.clone()));
            }
            _ => {}
        }
    }

    /// An event behind the range: it may end what began in it, and nothing begins.
    fn behind(&mut self, ms: i64, is_first: bool, payload: &Payload) {
        let at = At { ms, is_in_range: false };
        match payload {
            Payload::ConfigLoaded(ConfigLoaded::Started(_)) => {
                if let Some(last) = self.last.filter(|_| is_first) {
                    self.started_behind_ms = Some(ms);
                    self.pressure.close_all(last.ms, "restart");
                }
                self.forecasts.forget();
            }
            Payload::ThresholdCrossed(shortage) => self.forecasts.crossed(at, shortage),
            Payload::PressureCleared(PressureCleared::Headroom(back)) => self.forecasts.back(&back.approach),
            // It begins another warning, which ends the former as within the range.
            Payload::PressureRising(PressureRising::Headroom(shrinking)) => {
                self.forecasts.warned(at, shrinking);
            }
            Payload::EvictionSignalled(signalled) => self.evictions.signalled(signalled),
            Payload::EvictionCompleted(ended) => self.evictions.ended(at, ended, "completed"),
            Payload::EvictionFailed(ended) => self.evictions.ended(at, ended, "failed"),
            Payload::OomIncident(incident) => self.oom.incident(at, incident, &self.controllers),
            Payload::OomAverted(averted) => self.oom.averted(at, averted),
            _ => {}
        }
    }

    /// The reader was slower than the log removes events. It is no event of the log.
    fn gap(&mut self, gap: &StreamGap) {
        let StreamGap { from_sequence, to_sequence, count } = gap;
        let message = format!(
            "the events of sequence {from_sequence} to {to_sequence} were removed while this was read"
        );
        self.lose(Loss { what: "gap", time: None, events: Some(*count), message });
        if let (Some(last), Ok(sequence)) = (&mut self.last, to_sequence.parse()) {
            last.sequence = last.sequence.max(sequence);
        }
    }

    /// Another daemon runs: what was open is known until the last event of the former.
    fn started(&mut self, at: At, before: Option<Last>, mode: &str) {
        if at.is_in_range {
            self.journal.starts += 1;
            self.mode(mode);
        }
        // It says anew what it lacks.
        self.open.clear();
        let Some(before) = before else { return };
        if at.is_in_range {
            self.restarts += 1;
        }
        self.pressure.close_all(before.ms, "restart");
        self.forecasts.forget();
        self.stalls.forget();
    }

    fn mode(&mut self, mode: &str) {
        if !self.journal.modes.iter().any(|known| known == mode) && self.journal.modes.len() < MOST_ITEMS {
            self.journal.modes.push(mode.to_owned());
        }
    }

    /// The range begins: what is degraded then is so within it.
    fn begin(&mut self) {
        if !std::mem::replace(&mut self.has_begun, true) {
            for (what, _) in self.open.clone() {
                self.count_degraded(&what);
            }
        }
    }

    fn degraded(&mut self, at: At, degraded: &Degraded) {
        if self.open.len() < MOST_DEGRADED {
            self.open.insert((degraded.what.to_string(), degraded.place.clone()));
        }
        if !at.is_in_range {
            return;
        }
        if let Some(lost) = degraded.lost_events {
            let message =
                degraded.message.clone().unwrap_or_else(|| String::from("the disk did not take them"));
            self.lose(Loss { what: "journal", time: Some(time(at.ms)), events: Some(lost), message });
        }
        self.count_degraded(&degraded.what);
    }

    fn count_degraded(&mut self, what: &str) {
        let is_known = self.degraded.contains_key(what);
        if !NO_LOSS.contains(&what) && (is_known || self.degraded.len() < MOST_ITEMS) {
            *self.degraded.entry(what.to_owned()).or_default() += 1;
        }
    }

    fn lose(&mut self, loss: Loss) {
        if self.losses.len() < MOST_ITEMS {
            self.losses.push(loss);
        } else {
            self.losses_before += 1;
        }
    }

    /// The report. `known_until_ms` is until when the journal would have later events: the present if a daemon answered.
    pub(super) fn finish(mut self, known_until_ms: Option<i64>) -> Report {
        let Range { from_ms, to_ms } = self.range;
        self.begin();
        let newest_ms = self.last.map(|last| last.ms).filter(|_| !self.is_whole_range_read);
        let until_ms = known_until_ms.or(newest_ms).unwrap_or(to_ms).min(to_ms);
        self.pressure.close_all(until_ms, "open");
        self.forecasts.forget();
        self.stalls.forget();
        let losses = self.all_losses(known_until_ms);
        let mut journal = self.journal;
        journal.begins = self.first.map(|first| time(first.ms));
        journal.ends = self.last.map(|last| time(last.ms));
        let (evictions, suppressed, requests) = self.evictions.finish();
        let (oom, triggers) = self.oom.finish();
        Report {
            node: self.node,
            from: time(from_ms),
            to: time(to_ms),
            journal,
            losses,
            evictions,
            suppressed,
            oom,
            exceeded: Exceeded { requests, triggers },
            pressure: self.pressure.finish(),
            stalls: self.stalls.finish(),
            forecasts: self.forecasts.finish(),
        }
    }

    /// What is not known, first what concerns all of the range.
    fn all_losses(&mut self, known_until_ms: Option<i64>) -> Vec<Loss> {
        let plain = |what, events, message| Loss { what, time: None, events, message };
        let mut losses = Vec::new();
        match self.first {
            Some(first) if first.ms > self.range.from_ms => {
                let begins = time(first.ms);
                let message = if first.sequence <= 1 {
                    format!(
                        "the journal begins at {begins} with its first event: before, none was kept, or the state \
                         directory was another"
                    )
                } else {
                    let before = first.sequence - 1;
                    format!("the journal begins at {begins}: the {before} events before are no longer kept")
                };
                losses.push(Loss { what: "begins", time: Some(begins), events: None, message });
            }
            Some(_) => {}
            None => {
                losses.push(plain("empty", None, String::from("the journal holds no event up to the end")));
            }
        }
        if let (None, Some(last), false) = (known_until_ms, self.last, self.is_whole_range_read) {
            let ends = time(last.ms);
            let message =
                format!("no daemon answers, and the journal ends at {ends}: what came after is not known");
            losses.push(Loss { what: "ends", time: Some(ends), events: None, message });
        }
        if let (Some(ms), Some(last)) = (self.started_behind_ms, self.last) {
            let (started, ends) = (time(ms), time(last.ms));
            let message = format!(
                "a daemon was started at {started}, behind the range, and the last event before is of {ends}: whether \
                 one ran in between is not known"
            );
            losses.push(Loss { what: "restart", time: Some(ends), events: None, message });
        }
        if self.restarts > 0 {
            let times = counted(self.restarts, "time", "times");
            losses.push(plain(
                "restart",
                None,
                format!(
                    "the daemon was started again {times}: of what happened while none ran, only kills by the \
                     kernel's OOM killer may be known"
                ),
            ));
        }
        if !self.degraded.is_empty() {
            let each: Vec<_> =
                self.degraded.iter().map(|(what, count)| format!("{what} ({count})")).collect();
            losses.push(plain(
                "degraded",
                None,
                format!("the daemon was degraded, and may have missed something: {}", each.join(", ")),
            ));
        }
        if self.evictions.dropped() > 0 {
            let message = String::from(
                "more evictions were under way than are kept apart: the oldest of these decisions are left out, and \
                 what ended is counted by its end",
            );
            losses.push(plain("uncounted", Some(self.evictions.dropped()), message));
        }
        if self.unreadable > 0 {
            let message = String::from("these are of a later version, or damaged, and are left out");
            losses.push(plain("unreadable", Some(self.unreadable), message));
        }
        let uncounted = self.evictions.uncounted() + self.oom.uncounted() + self.stalls.uncounted();
        if uncounted > 0 {
            let message =
                String::from("these are in the totals and not in the tables by owner, which are too long");
            losses.push(plain("uncounted", Some(uncounted), message));
        }
        losses.append(&mut self.losses);
        if self.losses_before > 0 {
            let message = format!("{} more losses are not listed", self.losses_before);
            losses.push(plain("gap", None, message));
        }
        losses
    }
}

/// A time in UTC; `?` for one that no calendar has.
pub(super) fn time(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms)
        .map_or_else(|_no_time| String::from("?"), |time| format!("{time:.3}"))
}

/// From one time to another, 0 if the clock was set back.
fn between(from_ms: i64, to_ms: i64) -> u64 {
    u64::try_from(to_ms.saturating_sub(from_ms)).unwrap_or(0)
}

/// Whole milliseconds; 0 for what is no duration.
fn whole_ms(ms: f64) -> u64 {
    Duration::try_from_secs_f64(ms / 1_000.0)
        .map_or(0, |duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

fn workload(controller: &Controller) -> String {
    format!("{}/{}", controller.kind, controller.name)
}

/// A container as `namespace/pod/container`, or the cgroup of what is no pod's; `unknown` if the event names neither.
fn name_of(place: &Place) -> String {
    match (pod_of(place), &place.container, &place.cgroup) {
        (Some(pod), Some(container), _) => format!("{pod}/{container}"),
        (Some(pod), None, _) => pod,
        (None, _, Some(cgroup)) => cgroup.clone(),
        (None, _, None) => String::from("unknown"),
    }
}

fn pod_of(place: &Place) -> Option<String> {
    Some(format!("{}/{}", place.namespace.as_ref()?, place.pod.as_ref()?))
}
