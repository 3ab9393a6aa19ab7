//! The evictions of earlier daemon processes, from the journal: to the breaker, a crash loop is one daemon.
//!
//! The first signal of each eviction is reported with the time since boot (`bootMs`), which does not move when the
//! clock is set. [`super::recovery`] reports what a killed process signalled but did not report, with the time of its
//! decision. Evictions of another boot do not count: what filled the node then is gone.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    evict,
    journal::{Batch, EventType, Filter, Journal},
    policy::engine::Past,
};

/// How many events back the journal is searched. Only a storm of more events can hide evictions within the window.
const BACK: u64 = 50_000;

/// The evictions of this boot in the journal, the oldest first.
pub(super) fn read(journal: &Journal) -> Vec<Past> {
    let kinds = vec![EventType::EvictionSignalled, EventType::EvictionCompleted, EventType::EvictionFailed];
    let newest = journal.range().newest;
    let mut reader = journal.reader(Some(newest.saturating_sub(BACK)), Filter { kinds, ..Filter::default() });
    let mut counted = BTreeSet::new();
    let mut past = Vec::new();
    while let Some(batch) = reader.read() {
        let Batch::Records(records) = batch else { continue };
        for record in records {
            let Ok(event) = serde_json::from_slice::<Value>(&record.line) else { continue };
            let data = &event["data"];
            let is_ours = event["source"] == journal.source();
            let (Some(pod), Some(id), Some(boot_ms)) =
                (&record.pod, data["evictionId"].as_str(), data["bootMs"].as_u64())
            else {
                continue;
            };
            // SIGTERM and SIGKILL are one eviction.
            if is_ours && counted.insert(id.to_owned()) {
                past.push(Past { pod: evict::pod_key(pod), at_ns: boot_ms.saturating_mul(1_000_000) });
            }
        }
    }
    past.sort_by_key(|past| past.at_ns);
    past
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        journal::{Event, Subject},
        model::PodName,
    };

    fn pod(name: &str) -> PodName {
        PodName { namespace: String::from("default"), name: name.to_owned() }
    }

    #[test]
    fn each_eviction_of_this_boot_is_there_once_with_its_first_signal() {
        let journal = Journal::new("n", "b");
        let emit = |kind, name: &str, data: Value| {
            journal.append(Event { kind, subject: Subject::Pod(pod(name)), data });
        };
        let signalled = EventType::EvictionSignalled;
        emit(signalled, "b", json!({"evictionId": "2", "bootMs": 20, "sent": "SIGTERM"}));
        emit(signalled, "a", json!({"evictionId": "1", "bootMs": 10}));
        emit(signalled, "b", json!({"evictionId": "2", "bootMs": 25, "sent": "SIGKILL"}));
        // An operator's, which is not the engine's, and one whose signal was told.
        emit(signalled, "c", json!({"evictionId": "3", "operator": {"uid": 0}}));
        emit(EventType::EvictionCompleted, "a", json!({"evictionId": "1"}));
        emit(
            EventType::EvictionCompleted,
            "d",
            json!({"evictionId": "4", "bootMs": 30, "reconstructed": true}),
        );
        let past: Vec<_> = [("a", 10), ("b", 20), ("d", 30)]
            .map(|(name, at_ms)| Past { pod: evict::pod_key(&pod(name)), at_ns: at_ms * 1_000_000 })
            .into();
        assert_eq!(read(&journal), past);
    }

    #[test]
    fn another_boots_are_none() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let open = |boot| Journal::open("n", boot, dirs[0].path(), dirs[1].path()).unwrap().0;
        let journal = open("before");
        let data = json!({"evictionId": "1", "bootMs": 10});
        journal.append(Event { kind: EventType::EvictionSignalled, subject: Subject::Pod(pod("a")), data });
        assert_eq!(read(&journal).len(), 1);
        journal.close();
        drop(journal);
        assert_eq!(read(&open("now")), []);
        assert_eq!(read(&Journal::new("n", "now")), []);
    }
}
