//! Evictions by order that an earlier process did not live to finish.

use std::collections::BTreeMap;

use enforcer_events::{
    Event, Payload,
    eviction::{Decision, EvictionDecided, EvictionEnded},
};

use crate::{
    daemon::recovery::{self, BACK},
    journal::{Batch, EventType, Filter, Journal},
};

/// Reports how they ended. No pod is signalled for an order to an earlier process: a pod that still lives can be
/// evicted by a new order.
pub(super) fn emit(journal: &Journal) {
    for (_, (subject, decision)) in left(journal) {
        let Decision { eviction_id, victim, operator, .. } = *decision;
        let lives =
            victim.as_ref().is_some_and(|victim| recovery::is_populated(&victim.cgroup, victim.cgroup_id));
        let (ended_as, message): (fn(EvictionEnded) -> Payload, _) = if lives {
            (
                Payload::EvictionFailed,
                "the daemon ended meanwhile; the rest of the pod lives on until another order or until memory is short",
            )
        } else {
            (Payload::EvictionCompleted, "the daemon ended meanwhile; the pod has no process any more")
        };
        let data = EvictionEnded {
            eviction_id,
            namespace: victim.as_ref().map(|victim| victim.namespace.clone()),
            name: victim.as_ref().map(|victim| victim.name.clone()),
            uid: victim.map(|victim| victim.uid),
            operator,
            reconstructed: true,
            reason: Some("interrupted".into()),
            message: Some(message.to_owned()),
            ..EvictionEnded::default()
        };
        journal.emit(recovery::subject(&subject), ended_as(data));
    }
}

/// The decisions by order without a reported end, with their subject, by the eviction's id.
fn left(journal: &Journal) -> BTreeMap<String, (String, Box<Decision>)> {
    let kinds = vec![EventType::EvictionDecided, EventType::EvictionCompleted, EventType::EvictionFailed];
    let newest = journal.range().newest;
    let mut reader = journal.reader(Some(newest.saturating_sub(BACK)), Filter { kinds, ..Filter::default() });
    let mut left = BTreeMap::new();
    while let Some(batch) = reader.read() {
        let Batch::Records(records) = batch else { continue };
        for record in records {
            let Ok(Event { subject, payload, .. }) = Event::parse(&record.line) else { continue };
            match payload {
                Payload::EvictionDecided(EvictionDecided::Decision(decision))
                    if decision.operator.is_some() && !decision.dry_run =>
                {
                    left.insert(decision.eviction_id.clone(), (subject, decision));
                }
                Payload::EvictionCompleted(ended) | Payload::EvictionFailed(ended) => {
                    left.remove(&ended.eviction_id);
                }
                _ => {}
            }
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{journal::Subject, model::PodName};

    fn decided(journal: &Journal, id: &str, dry_run: bool, operator: Option<&str>) {
        let data = serde_json::json!({
            "evictionId": id,
            "dryRun": dry_run,
            "hard": false,
            "graceMs": 0,
            "victim": {
                "namespace": "default", "name": "web", "uid": "u", "qosClass": "Burstable", "priority": 0,
                "cgroup": "/no/such", "cgroupId": 1, "requestBytes": 0, "statsMissing": true,
                "growthBytesPerSecond": 0,
            },
            "decidedBy": "operator",
            "operator": operator.map(|reason| serde_json::json!({"uid": 0, "reason": reason})),
            "ranking": [],
            "rankedCount": 0,
            "excluded": [],
            "excludedCount": 0,
            "predictedFreedBytes": 0,
            "message": "",
            "configHash": "",
        });
        let payload = Payload::parse(EventType::EvictionDecided, &data).unwrap();
        let pod = PodName { namespace: String::from("default"), name: String::from("web") };
        journal.emit(Subject::Pod(pod), payload);
    }

    #[test]
    fn what_has_no_end_is_reported_once() {
        let journal = Journal::new("n", "b");
        decided(&journal, "own", false, None);
        decided(&journal, "dry", true, Some("it hangs"));
        decided(&journal, "left", false, Some("it hangs"));
        assert_eq!(left(&journal).into_keys().collect::<Vec<_>>(), ["left"]);
        for _ in 0..2 {
            emit(&journal);
            assert_eq!(journal.range().newest, 4);
        }
        assert!(left(&journal).is_empty());
    }
}
