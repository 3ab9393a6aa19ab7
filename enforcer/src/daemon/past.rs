//! The evictions of earlier daemon processes, from the journal: to the breaker, a crash loop is one daemon.
//!
//! The first signal of each eviction, or the accepted request of a soft one, is reported with the time since boot (`bootMs`), which does not move when the
//! clock is set. [`super::recovery`] reports what a killed process signalled but did not report, with the time of its
//! decision. Evictions of another boot do not count: what filled the node then is gone.

use std::collections::BTreeSet;

use enforcer_events::{Event, Payload};

use crate::{
    evict,
    journal::{Batch, EventType, Filter, Journal},
    policy::engine::Past,
};

/// How many events back the journal is searched. Only a storm of more events can hide evictions within the window.
const BACK: u64 = 50_000;

/// The evictions of this boot in the journal, the oldest first.
pub(super) fn read(journal: &Journal) -> Vec<Past> {
    let kinds = vec![
        EventType::EvictionSignalled,
        EventType::EvictionRequested,
        EventType::EvictionCompleted,
        EventType::EvictionFailed,
    ];
    let newest = journal.range().newest;
    let mut reader = journal.reader(Some(newest.saturating_sub(BACK)), Filter { kinds, ..Filter::default() });
    let mut counted = BTreeSet::new();
    let mut past = Vec::new();
    while let Some(batch) = reader.read() {
        let Batch::Records(records) = batch else { continue };
        for record in records {
            let Ok(event) = Event::parse(&record.line) else { continue };
            let is_ours = journal.is_of_this_boot(&event.source);
            let (id, boot_ms) = match event.payload {
                Payload::EvictionSignalled(signalled) => (signalled.eviction_id, signalled.boot_ms),
                Payload::EvictionRequested(requested) => (requested.eviction_id, requested.boot_ms),
                Payload::EvictionCompleted(ended) | Payload::EvictionFailed(ended) => {
                    // An operator's is not the engine's.
                    (ended.eviction_id, ended.boot_ms.filter(|_| ended.operator.is_none()))
                }
                _ => continue,
            };
            let (Some(pod), Some(boot_ms)) = (&record.pod, boot_ms) else { continue };
            // A request, SIGTERM and SIGKILL are one eviction.
            if is_ours && counted.insert(id) {
                past.push(Past { pod: evict::pod_key(pod), at_ns: boot_ms.saturating_mul(1_000_000) });
            }
        }
    }
    past.sort_by_key(|past| past.at_ns);
    past
}

#[cfg(test)]
mod tests {
    use enforcer_events::eviction::{EvictionEnded, EvictionSignalled, Operator, Timeline};

    use super::*;
    use crate::{journal::Subject, model::PodName};

    fn pod(name: &str) -> PodName {
        PodName { namespace: String::from("default"), name: name.to_owned() }
    }

    fn signalled(id: &str, boot_ms: Option<u64>) -> Payload {
        let operator = Operator { uid: 0, pid: None, reason: String::from("it hangs") };
        Payload::EvictionSignalled(EvictionSignalled {
            eviction_id: id.to_owned(),
            namespace: String::from("default"),
            name: String::from("p"),
            uid: String::from("u"),
            signal: None,
            controller: None,
            spec: None,
            terminating: false,
            sent: "SIGKILL".into(),
            grace_ms: None,
            killed_because: None,
            brakes_failed: None,
            boot_ms,
            timeline: Timeline::default(),
            decided_to_terminated_ms: None,
            decided_to_signalled_ms: None,
            hook: None,
            operator: boot_ms.is_none().then_some(operator),
        })
    }

    #[test]
    fn each_eviction_of_this_boot_is_there_once_with_its_first_signal() {
        let journal = Journal::new("n", "b");
        let emit = |name: &str, payload: Payload| journal.emit(Subject::Pod(pod(name)), payload);
        emit("b", signalled("2", Some(20)));
        emit("a", signalled("1", Some(10)));
        emit("b", signalled("2", Some(25)));
        // An operator's, which is not the engine's, and one whose signal was reported.
        emit("c", signalled("3", None));
        let ended = |id: &str| EvictionEnded { eviction_id: id.to_owned(), ..EvictionEnded::default() };
        emit("a", Payload::EvictionCompleted(ended("1")));
        let reconstructed = EvictionEnded { boot_ms: Some(30), reconstructed: true, ..ended("4") };
        emit("d", Payload::EvictionCompleted(reconstructed));
        let past: Vec<_> = [("a", 10), ("b", 20), ("d", 30)]
            .map(|(name, at_ms)| Past { pod: evict::pod_key(&pod(name)), at_ns: at_ms * 1_000_000 })
            .into();
        assert_eq!(read(&journal), past);
    }

    #[test]
    fn another_boots_are_none() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let open = |node, boot| Journal::open(node, boot, dirs[0].path(), dirs[1].path()).unwrap().0;
        let journal = open("n", "before");
        journal.emit(Subject::Pod(pod("a")), signalled("1", Some(10)));
        assert_eq!(read(&journal).len(), 1);
        journal.close();
        drop(journal);
        // A daemon in a pod has that pod's name.
        let journal = open("another", "before");
        assert_eq!(read(&journal).len(), 1);
        journal.close();
        drop(journal);
        assert_eq!(read(&open("n", "now")), []);
        assert_eq!(read(&Journal::new("n", "now")), []);
    }
}
