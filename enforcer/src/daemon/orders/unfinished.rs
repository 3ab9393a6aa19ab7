//! Evictions by order that an earlier process did not live to finish.
use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    daemon::recovery::{self, BACK},
    journal::{Batch, Event, EventType, Filter, Journal},
};

/// Reports how they ended. No pod is signalled for an order to an earlier process: a pod that still lives can be
/// evicted by a new order.
pub(super) fn emit(journal: &Journal) {
    for (id, event) in left(journal) {
        let victim = &event["data"]["victim"];
        let path = victim["cgroup"].as_str().unwrap_or_default();
        let lives = victim["cgroupId"].as_u64().is_some_and(|cgroup| recovery::is_populated(path, cgroup));
        let (kind, message) = if lives {
            (
                EventType::EvictionFailed,
                "the daemon ended meanwhile; the rest of the pod lives on until another order or until memory is short",
            )
        } else {
            (EventType::EvictionCompleted, "the daemon ended meanwhile; the pod has no process any more")
        };
        let data = json!({
            "evictionId": id,
            "namespace": victim["namespace"],
            "name": victim["name"],
            "uid": victim["uid"],
            "operator": event["data"]["operator"],
            "reconstructed": true,
            "reason": "interrupted",
            "message": message,
        });
        let subject = recovery::subject(event["subject"].as_str().unwrap_or_default());
        journal.append(Event { kind, subject, data });
    }
}

/// The decisions by order without a reported end, by the eviction's id.
fn left(journal: &Journal) -> BTreeMap<String, Value> {
    let kinds = vec![EventType::EvictionDecided, EventType::EvictionCompleted, EventType::EvictionFailed];
    let newest = journal.range().newest;
    let mut reader = journal.reader(Some(newest.saturating_sub(BACK)), Filter { kinds, ..Filter::default() });
    let mut left = BTreeMap::new();
    while let Some(batch) = reader.read() {
        let Batch::Records(records) = batch else { continue };
        for record in records {
            let Ok(event) = serde_json::from_slice::<Value>(&record.line) else { continue };
            let Some(id) = event["data"]["evictionId"].as_str().map(str::to_owned) else { continue };
            let by_order = event["data"]["operator"].is_object() && event["data"]["dryRun"] == false;
            match record.kind {
                EventType::EvictionDecided if by_order => drop(left.insert(id, event)),
                _ => drop(left.remove(&id)),
            }
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{journal::Subject, model::PodName};

    fn decided(journal: &Journal, id: &str, dry_run: bool, operator: &Value) {
        let pod = PodName { namespace: String::from("default"), name: String::from("web") };
        let victim = json!({"namespace": "default", "name": "web", "cgroup": "/no/such", "cgroupId": 1});
        let data = json!({"evictionId": id, "dryRun": dry_run, "operator": operator, "victim": victim});
        journal.append(Event { kind: EventType::EvictionDecided, subject: Subject::Pod(pod), data });
    }

    #[test]
    fn what_has_no_end_is_reported_once() {
        let journal = Journal::new("n", "b");
        let operator = json!({"uid": 0, "reason": "it hangs"});
        decided(&journal, "own", false, &Value::Null);
        decided(&journal, "dry", true, &operator);
        decided(&journal, "left", false, &operator);
        assert_eq!(left(&journal).into_keys().collect::<Vec<_>>(), ["left"]);
        for _ in 0..2 {
            emit(&journal);
            assert_eq!(journal.range().newest, 4);
        }
        assert_eq!(left(&journal), BTreeMap::new());
    }
}
