//! Which event is the first to show that an eviction is carried out, and what its decision said.

use std::collections::{BTreeMap, VecDeque};

use enforcer_events::{
    Event, EventType, Payload,
    eviction::{Decision, EvictionDecided, EvictionEnded},
};

use crate::{
    journal::{Batch, Filter, Journal},
    kube::PodRef,
};

/// How many evictions are kept. Of others the log is asked.
const MOST: usize = 64;

/// How far back the log is asked for a decision, in events, and how many of them at a time. Nothing of an eviction is before
/// its decision, and most are carried out at once.
const MOST_BACK: u64 = 1 << 16;
const CHUNK: u64 = 1 << 10;

/// The types that say something of an eviction that is carried out.
const TYPES: [EventType; 4] = [
    EventType::EvictionDecided,
    EventType::EvictionSignalled,
    EventType::EvictionRequested,
    EventType::EvictionCompleted,
];

/// The latest evictions.
pub(super) struct Evictions {
    journal: Journal,
    known: VecDeque<Known>,
    most_back: u64,
}

#[derive(Debug, Default)]
struct Known {
    id: String,
    decided: Decided,
    /// The position of the first event that shows that it is carried out.
    first: Option<u64>,
}

/// What the decision said.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Decided {
    /// Why, in the kubelet's words; `None` if the log no longer has the decision.
    pub(super) message: Option<String>,
    /// The kubelet's annotations.
    pub(super) annotations: BTreeMap<String, String>,
}

impl Decided {
    pub(super) fn of(decision: &Decision) -> Self {
        let annotations = decision.annotations.iter().map(|(key, value)| (key.to_string(), value.clone()));
        Self { message: Some(decision.message.clone()), annotations: annotations.collect() }
    }
}

impl Evictions {
    pub(super) fn new(journal: Journal) -> Self {
        Self { journal, known: VecDeque::new(), most_back: MOST_BACK }
    }

    /// Takes the event at that position. Returns the victim and what was decided, if the event is the first to show that its
    /// eviction is carried out. It is so again if it is taken again.
    pub(super) fn take(&mut self, sequence: u64, event: &Event) -> Option<(PodRef, Decided)> {
        if let Payload::EvictionDecided(EvictionDecided::Decision(decision)) = &event.payload {
            if !decision.dry_run && self.known.iter().all(|known| known.id != decision.eviction_id) {
                let (id, decided) = (decision.eviction_id.clone(), Decided::of(decision));
                self.keep(Known { id, decided, first: None });
            }
            return None;
        }
        let (id, pod) = step(event)?;
        if self.known.iter().all(|known| known.id != id) {
            let known = self.look_up(id, pod.as_ref(), sequence);
            self.keep(known);
        }
        let known = self.known.iter_mut().find(|known| known.id == id)?;
        let is_first = *known.first.get_or_insert(sequence) == sequence;
        pod.filter(|_| is_first).map(|pod| (pod, known.decided.clone()))
    }

    fn keep(&mut self, known: Known) {
        self.known.truncate(MOST - 1);
        self.known.push_front(known);
    }

    /// What the log has of an eviction before that position: an earlier sink has passed it, or so many others came since. It is
    /// read backwards, up to the decision.
    fn look_up(&self, id: &str, pod: Option<&PodRef>, before: u64) -> Known {
        let pod = pod.map(|pod| format!("{}/{}", pod.namespace, pod.name));
        let filter = Filter { kinds: TYPES.to_vec(), pod, ..Filter::default() };
        let mut known = Known { id: id.to_owned(), ..Known::default() };
        let oldest = self.journal.range().oldest.max(before.saturating_sub(self.most_back));
        let mut end = before;
        while end > oldest && known.decided.message.is_none() {
            let begin = end.saturating_sub(CHUNK).max(oldest);
            self.look_between(begin, end, &filter, &mut known);
            end = begin;
        }
        known
    }

    /// Takes what the events from `begin` to below `end` say of an eviction.
    fn look_between(&self, begin: u64, end: u64, filter: &Filter, known: &mut Known) {
        let mut reader = self.journal.reader(Some(begin.saturating_sub(1)), filter.clone());
        while reader.position() + 1 < end
            && let Some(batch) = reader.read()
        {
            let Batch::Records(records) = batch else { continue };
            for record in records.iter().take_while(|record| record.sequence < end) {
                let Ok(event) = Event::parse(&record.line) else { continue };
                match &event.payload {
                    Payload::EvictionDecided(EvictionDecided::Decision(decision))
                        if decision.eviction_id == known.id =>
                    {
                        known.decided = Decided::of(decision);
                    }
                    _ if step(&event).is_some_and(|(of, _)| of == known.id) => {
                        let first = known.first.map_or(record.sequence, |first| first.min(record.sequence));
                        known.first = Some(first);
                    }
                    _ => {}
                }
            }
        }
    }
}

/// The eviction that an event shows to be carried out, and its victim, if that is known. A decision, a refusal and a failure
/// show nothing: the pod may run on.
fn step(event: &Event) -> Option<(&str, Option<PodRef>)> {
    let pod = |namespace: &str, name: &str, uid: &str| {
        Some(PodRef { namespace: namespace.to_owned(), name: name.to_owned(), uid: uid.to_owned() })
    };
    match &event.payload {
        Payload::EvictionSignalled(of) => Some((&of.eviction_id, pod(&of.namespace, &of.name, &of.uid))),
        Payload::EvictionRequested(of) if of.outcome == "accepted" => {
            Some((&of.eviction_id, pod(&of.namespace, &of.name, &of.uid)))
        }
        Payload::EvictionCompleted(EvictionEnded { eviction_id, uid, .. }) => {
            // A reconstructed one names its pod in the subject only.
            let victim = event.subject.split_once('/').zip(uid.as_deref());
            Some((eviction_id, victim.and_then(|((namespace, name), uid)| pod(namespace, name, uid))))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        journal::{RawEvent, Subject},
        model::PodName,
    };

    fn emit(journal: &Journal, kind: EventType, data: Value) {
        let subject = Subject::Pod(PodName { namespace: String::from("shop"), name: String::from("web") });
        journal.append_raw(RawEvent { kind, subject, data });
    }

    fn decide(journal: &Journal, id: &str) {
        let data = json!({
            "evictionId": id, "dryRun": false, "hard": true, "graceMs": 0, "victim": null, "decidedBy": "order",
            "ranking": [], "rankedCount": 1, "excluded": [], "excludedCount": 0, "predictedFreedBytes": 1,
            "message": format!("why {id}"), "annotations": {"starved_resource": "memory"}, "configHash": "h",
        });
        emit(journal, EventType::EvictionDecided, data);
    }

    fn step(journal: &Journal, kind: EventType, id: &str, more: &Value) {
        let mut data = json!({"evictionId": id, "namespace": "shop", "name": "web", "uid": "u1"});
        data.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        emit(journal, kind, data);
    }

    fn signal(journal: &Journal, id: &str, sent: &str) {
        step(journal, EventType::EvictionSignalled, id, &json!({"sent": sent}));
    }

    /// What is said of each event from that position on, by its sequence.
    fn reported(evictions: &mut Evictions, from: u64) -> Vec<(u64, Option<String>)> {
        let mut reader = evictions.journal.reader(Some(from - 1), Filter::default());
        let mut reported = Vec::new();
        while let Some(Batch::Records(records)) = reader.read() {
            for record in records {
                let event = Event::parse(&record.line).unwrap();
                if let Some((pod, decided)) = evictions.take(record.sequence, &event) {
                    assert_eq!((&*pod.namespace, &*pod.name, &*pod.uid), ("shop", "web", "u1"));
                    reported.push((record.sequence, decided.message));
                }
            }
        }
        reported
    }

    #[test]
    fn the_first_that_carries_it_out_has_the_words_of_the_decision() {
        let journal = Journal::new("n", "b");
        decide(&journal, "hard");
        signal(&journal, "hard", "SIGTERM");
        signal(&journal, "hard", "SIGKILL");
        step(&journal, EventType::EvictionCompleted, "hard", &json!({}));
        decide(&journal, "soft");
        let requested = |outcome: &str| json!({"outcome": outcome, "requests": 1, "message": ""});
        step(&journal, EventType::EvictionRequested, "soft", &requested("refused"));
        step(&journal, EventType::EvictionRequested, "soft", &requested("accepted"));
        decide(&journal, "ended");
        step(&journal, EventType::EvictionCompleted, "ended", &json!({}));
        decide(&journal, "spared");
        step(&journal, EventType::EvictionRequested, "spared", &requested("refused"));
        step(&journal, EventType::EvictionFailed, "spared", &json!({"reason": "disruptionBudget"}));
        let all: [(u64, Option<String>); 3] =
            [(2, Some("why hard".into())), (7, Some("why soft".into())), (9, Some("why ended".into()))];
        let mut evictions = Evictions::new(journal.clone());
        assert_eq!(reported(&mut evictions, 1), all);
        assert_eq!(
            reported(&mut evictions, 1),
            all,
            "an event that is delivered again is the same Event again"
        );
        // A sink that begins in between has passed the decision, or the first step.
        for (from, expected) in
            [(2, &all[..]), (3, &all[1..]), (6, &all[1..]), (8, &all[2..]), (9, &all[2..])]
        {
            assert_eq!(reported(&mut Evictions::new(journal.clone()), from), expected, "{from}");
        }
    }

    #[test]
    fn a_decision_that_the_log_no_longer_has_has_no_words() {
        let journal = Journal::new("n", "b");
        signal(&journal, "e", "SIGKILL");
        assert_eq!(reported(&mut Evictions::new(journal), 1), [(1, None)]);
    }

    #[test]
    fn what_is_kept_is_bounded_and_the_log_has_the_rest() {
        let journal = Journal::new("n", "b");
        decide(&journal, "first");
        signal(&journal, "first", "SIGTERM");
        for number in 0..2 * MOST {
            decide(&journal, &number.to_string());
        }
        signal(&journal, "first", "SIGKILL");
        signal(&journal, "0", "SIGKILL");
        let mut evictions = Evictions::new(journal.clone());
        let newest = journal.range().newest;
        assert_eq!(
            reported(&mut evictions, 1),
            [(2, Some(String::from("why first"))), (newest, Some(String::from("why 0")))]
        );
        assert_eq!(evictions.known.len(), MOST);
    }
    /// Its decision and its first step are in chunks of their own.
    #[test]
    fn the_log_is_asked_backwards_up_to_the_decision_and_no_further_than_a_bound() {
        let journal = Journal::new("n", "b");
        let begin = journal.range().newest;
        decide(&journal, "far");
        signal(&journal, "far", "SIGTERM");
        let fill = |count: u64| {
            for _ in 0..count {
                step(&journal, EventType::EvictionFailed, "other", &json!({"reason": "relieved"}));
            }
        };
        fill(2 * CHUNK);
        signal(&journal, "far", "SIGTERM");
        fill(10);
        signal(&journal, "far", "SIGKILL");
        let newest = journal.range().newest;
        let looked_up = |most_back: u64| {
            let evictions = Evictions { most_back, ..Evictions::new(journal.clone()) };
            let known = evictions.look_up("far", None, newest);
            (known.decided.message, known.first)
        };
        let of_the_decision = (Some(String::from("why far")), Some(begin + 2));
        assert_eq!(looked_up(MOST_BACK), of_the_decision);
        assert_eq!(looked_up(newest - begin - 1), of_the_decision, "the decision is the last that is read");
        assert_eq!(looked_up(newest - begin - 2), (None, Some(begin + 2)));
        assert_eq!(looked_up(CHUNK), (None, Some(newest - 11)));
        assert_eq!(looked_up(10), (None, None));
    }
}
