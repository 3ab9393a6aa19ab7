//! Collects all events about one eviction or one OOM.

use enforcer_events::{
    Event, Payload,
    eviction::{Decision, EvictionDecided, EvictionEnded, ReconstructedDecision},
    node::Degraded,
    pressure::{PressureCleared, Shortage, ShortageOver},
};
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::{find::Subject, log::Entry, sentence};
use crate::journal::EventType;

/// An event: printed as it was emitted, and read by its type.
#[derive(Debug)]
pub(super) struct Reported {
    event: Event,
    whole: Value,
}

impl Reported {
    fn of(entry: &Entry) -> Self {
        let whole = serde_json::from_slice(&entry.record.line).unwrap_or_default();
        Self { event: entry.event.clone(), whole }
    }

    pub(super) fn payload(&self) -> &Payload {
        &self.event.payload
    }

    pub(super) fn subject(&self) -> &str {
        &self.event.subject
    }

    pub(super) fn time(&self) -> &str {
        &self.event.time
    }
}

impl Serialize for Reported {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.whole.serialize(serializer)
    }
}

/// A warning belongs to a decision if it is at most this much older.
const WARNED_MS: i64 = 600_000;

/// The whole case. Each part is an event as it was emitted.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Folded {
    /// `eviction`, `suppression`, `oom`, `rejection`, `degradation`, or `spared`: a pod that was not evicted.
    pub(super) kind: &'static str,
    /// The id of the eviction, the incident, or the event.
    pub(super) id: String,
    /// When it was decided, or first reported.
    pub(super) time: String,
    /// What happened to which pod, why, and by which comparison.
    pub(super) sentence: String,
    /// The pod that was spared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pod: Option<String>,
    /// The warning that came before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) warned: Option<Reported>,
    /// The threshold that was crossed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) crossed: Option<Reported>,
    /// The decision; or the event itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) decided: Option<Reported>,
    /// All later events of the eviction, in order; of an OOM, all its events; else the event, and the one that ended it.
    pub(super) steps: Vec<Reported>,
    /// The next decision in the same shortage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) followed_by: Option<Reported>,
    /// The event that no other pod was evicted in the same shortage, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) suppressed: Option<Reported>,
    /// The end of the shortage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cleared: Option<Reported>,
    /// Whether the flight recorder's file of the decision exists.
    #[serde(skip)]
    pub(super) is_recorded: bool,
}

impl Folded {
    /// The payload of the latest step that is what is looked for.
    pub(super) fn step<'a, T>(&'a self, is: impl Fn(&'a Payload) -> Option<T>) -> Option<T> {
        self.steps.iter().rev().find_map(|step| is(step.payload()))
    }

    /// How the eviction was completed.
    pub(super) fn completed(&self) -> Option<&EvictionEnded> {
        self.step(|payload| if let Payload::EvictionCompleted(ended) = payload { Some(ended) } else { None })
    }

    /// How the eviction failed.
    pub(super) fn failed(&self) -> Option<&EvictionEnded> {
        self.step(|payload| if let Payload::EvictionFailed(ended) = payload { Some(ended) } else { None })
    }

    fn is_signalled(&self) -> bool {
        self.step(|payload| matches!(payload, Payload::EvictionSignalled(_)).then_some(())).is_some()
    }

    /// The decision, if all of it is kept.
    pub(super) fn decision(&self) -> Option<&Decision> {
        match self.decided.as_ref()?.payload() {
            Payload::EvictionDecided(EvictionDecided::Decision(decision)) => Some(decision),
            _ => None,
        }
    }

    /// What is known of a decision that an earlier daemon did not report.
    pub(super) fn reconstructed(&self) -> Option<&ReconstructedDecision> {
        match self.decided.as_ref()?.payload() {
            Payload::EvictionDecided(EvictionDecided::Reconstructed(decision)) => Some(decision),
            _ => None,
        }
    }

    /// The operator's order, if it was one.
    pub(super) fn is_by_order(&self) -> bool {
        self.decision().is_some_and(|decision| decision.operator.is_some())
    }

    /// What the decision was about.
    pub(super) fn shortage(&self) -> Option<Shortage> {
        if let Some(decision) = self.decision() {
            return Some(Shortage {
                signal: decision.signal.clone()?,
                hard: decision.hard,
                threshold_bytes: decision.threshold_bytes,
                threshold_count: decision.threshold_count,
                observed_bytes: decision.observed_bytes,
                observed_count: decision.observed_count,
            });
        }
        self.reconstructed()?.shortage.clone()
    }

    /// The threshold as it was crossed.
    pub(super) fn crossing(&self) -> Option<&Shortage> {
        match self.crossed.as_ref()?.payload() {
            Payload::ThresholdCrossed(shortage) => Some(shortage),
            _ => None,
        }
    }

    /// The end of the shortage.
    pub(super) fn over(&self) -> Option<&ShortageOver> {
        match self.cleared.as_ref()?.payload() {
            Payload::PressureCleared(PressureCleared::Shortage(over)) => Some(over),
            _ => None,
        }
    }
}

pub(super) fn fold(entries: &[Entry], subject: &Subject) -> Folded {
    let (kind, id, places): (_, _, Vec<usize>) = match subject {
        Subject::Eviction(id) => ("eviction", id.clone(), places(entries, id)),
        Subject::Oom(id) => ("oom", id.clone(), places(entries, id)),
        Subject::Event(place) => {
            let entry = entries.get(*place);
            let kind = match entry.map(Entry::kind) {
                Some(EventType::OomAverted) => "oom",
                Some(EventType::PodRejected) => "rejection",
                Some(EventType::DegradedEntered | EventType::DegradedLeft) => "degradation",
                _ => "suppression",
            };
            let id = entry.map(|entry| entry.id().to_owned()).unwrap_or_default();
            let ended = entry.and_then(|entry| ended(entries, *place, entry));
            (kind, id, std::iter::once(*place).chain(ended).collect())
        }
        Subject::Spared { place, .. } => {
            let entry = entries.get(*place);
            let case = entry.and_then(|entry| entry.case.clone());
            let id = case.clone().or_else(|| Some(entry?.id().to_owned())).unwrap_or_default();
            ("spared", id, case.map_or_else(|| vec![*place], |case| places(entries, &case)))
        }
    };
    let first = places.first().copied().unwrap_or(0);
    let decided = places.iter().copied().find(|place| {
        let kind = entries.get(*place).map(Entry::kind);
        kind == Some(EventType::EvictionDecided) || kind == Some(EventType::EvictionSuppressed)
    });
    let event = |place: usize| entries.get(place).map(Reported::of);
    let around = Around::new(entries, decided.unwrap_or(first), kind);
    let mut folded = Folded {
        kind,
        id,
        time: entries.get(first).map(|entry| entry.event.time.clone()).unwrap_or_default(),
        sentence: String::new(),
        pod: match subject {
            Subject::Spared { pod, .. } => Some(pod.clone()),
            _ => None,
        },
        warned: around.warned.and_then(event),
        crossed: around.crossed.and_then(event),
        decided: decided.and_then(event),
        steps: places.iter().copied().filter(|place| Some(*place) != decided).filter_map(event).collect(),
        followed_by: around.followed_by.and_then(event),
        suppressed: around.suppressed.and_then(event),
        cleared: around.cleared.and_then(event),
        is_recorded: false,
    };
    folded.sentence = sentence::sentence(&folded);
    folded
}

/// The event that ended what that one began: the pod was admitted, or the feature is whole again.
fn ended(entries: &[Entry], place: usize, entry: &Entry) -> Option<usize> {
    let later = || entries.iter().enumerate().skip(place + 1);
    match &entry.event.payload {
        Payload::PodRejected(_) => later()
            .find(|(_, later)| later.kind() == EventType::PodAdded && later.record.pod == entry.record.pod)
            .map(|(place, _)| place),
        Payload::DegradedEntered(entered) => later()
            .find(|(_, later)| match &later.event.payload {
                Payload::DegradedLeft(left) => is_end(entered, left),
                _ => false,
            })
            .map(|(place, _)| place),
        _ => None,
    }
}

/// Whether `left` ends `entered`. Without a place, several problems of a kind differ in their messages.
pub(super) fn is_end(entered: &Degraded, left: &Degraded) -> bool {
    let was = left.message.as_deref().and_then(|message| message.strip_prefix("no longer so: "));
    entered.what == left.what
        && entered.place == left.place
        && (entered.place.is_some() || was.is_none_or(|was| Some(was) == entered.message.as_deref()))
}

fn places(entries: &[Entry], id: &str) -> Vec<usize> {
    let about = entries.iter().enumerate().filter(|(_, entry)| entry.case.as_deref() == Some(id));
    about.map(|(place, _)| place).collect()
}

/// What came before and after a decision for the same signal.
#[derive(Debug, Default)]
struct Around {
    warned: Option<usize>,
    crossed: Option<usize>,
    followed_by: Option<usize>,
    suppressed: Option<usize>,
    cleared: Option<usize>,
}

impl Around {
    fn new(entries: &[Entry], place: usize, kind: &str) -> Self {
        let Some(own) = entries.get(place) else { return Self::default() };
        // An order has no signal, and an OOM is not a shortage of the node.
        if kind == "oom" || own.signal().is_none() {
            return Self::default();
        }
        let of_signal = || {
            let same = entries.iter().enumerate();
            same.filter(|(_, entry)| entry.signal() == own.signal())
        };
        let is_end = |entry: &Entry| entry.kind() == EventType::PressureCleared && !entry.is_headroom();
        let before = || of_signal().filter(|(at, _)| *at < place);
        let began = before().filter(|(_, entry)| is_end(entry)).map(|(at, _)| at).last();
        let in_this = |at: usize| began.is_none_or(|began| at > began);
        let crossed =
            before().filter(|(at, entry)| in_this(*at) && entry.kind() == EventType::ThresholdCrossed);
        let warned = before().filter(|(_, entry)| {
            let age_ms = own.record.time_ms.saturating_sub(entry.record.time_ms);
            entry.kind() == EventType::PressureRising && entry.is_headroom() && age_ms <= WARNED_MS
        });
        let after = || of_signal().filter(|(at, _)| *at > place);
        let cleared = after().find(|(_, entry)| is_end(entry)).map(|(at, _)| at);
        let until = cleared.unwrap_or(entries.len());
        let first = |kind: EventType| {
            let other = |entry: &Entry| entry.case.is_none() || entry.case != own.case;
            after().find(|(at, entry)| *at < until && entry.kind() == kind && other(entry)).map(|(at, _)| at)
        };
        Self {
            warned: warned.map(|(at, _)| at).last(),
            crossed: crossed.map(|(at, _)| at).last(),
            followed_by: first(EventType::EvictionDecided),
            suppressed: first(EventType::EvictionSuppressed),
            cleared,
        }
    }
}

/// The outcome of an eviction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    Completed,
    Failed,
    /// It was only decided: an operator had paused eviction.
    Paused,
    /// It was only decided.
    DryRun,
    /// It was signalled, and its end is not recorded.
    Signalled,
    /// No event about its outcome exists.
    Unknown,
}

impl Outcome {
    pub(super) fn of(folded: &Folded) -> Self {
        let decision = folded.decision();
        if folded.completed().is_some() {
            Self::Completed
        } else if folded.failed().is_some() {
            Self::Failed
        } else if decision.is_some_and(|decision| decision.paused) {
            Self::Paused
        } else if decision.is_some_and(|decision| decision.dry_run) {
            Self::DryRun
        } else if folded.is_signalled() {
            Self::Signalled
        } else {
            Self::Unknown
        }
    }
}
