//! Collects all events about one eviction or one OOM.
use serde::Serialize;
use serde_json::Value;

use super::{
    data::{data, is, text},
    find::Subject,
    log::Entry,
    sentence,
};
use crate::journal::EventType;

/// A warning belongs to a decision if it is at most this much older.
const WARNED_MS: i64 = 600_000;

/// The whole case. Each part is an event as it was emitted.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Folded {
    /// `eviction`, `suppression` or `oom`.
    pub(super) kind: &'static str,
    /// The id of the eviction, the incident, or the event.
    pub(super) id: String,
    /// When it was decided, or first reported.
    pub(super) time: String,
    /// What happened to which pod, why, and by which comparison.
    pub(super) sentence: String,
    /// The warning that came before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) warned: Option<Value>,
    /// The threshold that was crossed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) crossed: Option<Value>,
    /// The decision; or the event itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) decided: Option<Value>,
    /// All later events of the eviction, in order; of an OOM, all its events.
    pub(super) steps: Vec<Value>,
    /// The next decision in the same shortage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) followed_by: Option<Value>,
    /// The event that no other pod was evicted in the same shortage, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) suppressed: Option<Value>,
    /// The end of the shortage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cleared: Option<Value>,
    /// Whether the flight recorder's file of the decision exists.
    #[serde(skip)]
    pub(super) is_recorded: bool,
}

impl Folded {
    /// The latest step of that type.
    pub(super) fn step(&self, kind: EventType) -> Option<&Value> {
        self.steps.iter().rev().find(|step| text(step, "type") == Some(kind.as_str())).map(data)
    }

    /// The data of the decision.
    pub(super) fn decision(&self) -> &Value {
        self.decided.as_ref().map_or(&Value::Null, data)
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
                _ => "suppression",
            };
            (kind, entry.map(|entry| entry.id.clone()).unwrap_or_default(), vec![*place])
        }
    };
    let first = places.first().copied().unwrap_or(0);
    let decided = places.iter().copied().find(|place| {
        let kind = entries.get(*place).map(Entry::kind);
        kind == Some(EventType::EvictionDecided) || kind == Some(EventType::EvictionSuppressed)
    });
    let event = |place: usize| entries.get(place).map(Entry::event);
    let around = Around::new(entries, decided.unwrap_or(first), kind);
    let mut folded = Folded {
        kind,
        id,
        time: event(first).as_ref().and_then(|event| text(event, "time")).unwrap_or_default().to_owned(),
        sentence: String::new(),
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
        if kind == "oom" || own.signal.is_none() {
            return Self::default();
        }
        let of_signal = || {
            let same = entries.iter().enumerate();
            same.filter(|(_, entry)| entry.signal == own.signal)
        };
        let is_end = |entry: &Entry| entry.kind() == EventType::PressureCleared && !entry.is_headroom;
        let before = || of_signal().filter(|(at, _)| *at < place);
        let began = before().filter(|(_, entry)| is_end(entry)).map(|(at, _)| at).last();
        let in_this = |at: usize| began.is_none_or(|began| at > began);
        let crossed =
            before().filter(|(at, entry)| in_this(*at) && entry.kind() == EventType::ThresholdCrossed);
        let warned = before().filter(|(_, entry)| {
            let age_ms = own.record.time_ms.saturating_sub(entry.record.time_ms);
            entry.kind() == EventType::PressureRising && entry.is_headroom && age_ms <= WARNED_MS
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
        if folded.step(EventType::EvictionCompleted).is_some() {
            Self::Completed
        } else if folded.step(EventType::EvictionFailed).is_some() {
            Self::Failed
        } else if is(decision, "paused") {
            Self::Paused
        } else if is(decision, "dryRun") {
            Self::DryRun
        } else if folded.step(EventType::EvictionSignalled).is_some() {
            Self::Signalled
        } else {
            Self::Unknown
        }
    }
}
