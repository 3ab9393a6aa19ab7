//! Evictions by order that an earlier process did not live to finish.

use std::{collections::BTreeMap, time::Instant};

use enforcer_events::{
    Event, Payload,
    eviction::{Decision, EvictionDecided, EvictionEnded},
};
use ulid::Ulid;

use super::{BACK, DEATH, subject, verdict};
use crate::{
    clock,
    evict::Holding,
    journal::{Batch, EventType, Filter, Journal},
    model::CgroupId,
    source::{EndedPod, Why},
};

const NS_PER_MS: u64 = 1_000_000;

/// An eviction by order without a reported end.
struct Unfinished {
    /// The pod, as events name it.
    subject: String,
    decision: Box<Decision>,
    /// Whether the machine has not been restarted since: otherwise nothing of it is left.
    is_of_this_boot: bool,
    /// Whether a signal was reported.
    was_signalled: bool,
    /// Whether that was SIGKILL.
    was_killed: bool,
}

/// Reports how they ended, as for evictions that no one ordered, and returns the pods that stay evicted.
///
/// No pod is signalled for an order to an earlier process: one that still lives can be evicted by a new order.
pub(super) fn end(
    journal: &Journal,
    look: impl Fn(Option<(&str, CgroupId)>, &[CgroupId], Instant) -> Holding,
) -> Vec<EndedPod> {
    let mut ended = Vec::new();
    let deadline = Instant::now() + DEATH;
    for (eviction_id, unfinished) in left(journal) {
        let Unfinished { subject: pod, decision, is_of_this_boot, was_signalled, was_killed } = unfinished;
        let Decision { victim, operator, .. } = *decision;
        let holding = match victim.as_ref().filter(|_| is_of_this_boot) {
            Some(victim) => {
                let own = (&*victim.cgroup, CgroupId(victim.cgroup_id));
                let mut others: Vec<_> = victim.killed_cgroup_ids.iter().copied().map(CgroupId).collect();
                let is_own_killed = others.is_empty() || others.contains(&own.1);
                others.retain(|id| *id != own.1);
                look(is_own_killed.then_some(own), &others, deadline)
            }
            None => Holding::NoProcess,
        };
        let (ended_as, message, is_ended) = verdict(holding, was_signalled, false);
        if let Some(victim) = victim.as_ref().filter(|_| is_ended && is_of_this_boot) {
            ended.push(EndedPod { uid: victim.uid.clone(), fingerprint: None, why: Why::Evicted });
        }
        // Carried out without an event of its kill: the API server is asked to remove the pod. After a restart of the machine
        // it may run again.
        let is_unreported = is_of_this_boot && holding != Holding::Living && !was_killed;
        let data = EvictionEnded {
            boot_ms: is_unreported.then(|| decided_boot_ms(&eviction_id)),
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
        journal.emit(subject(&pod), ended_as(data));
    }
    ended
}

/// When it was decided, since the machine was started. The id has that by the wall clock, which may have been set since.
fn decided_boot_ms(eviction_id: &str) -> u64 {
    let now_ms = clock::realtime_ns() / NS_PER_MS;
    let age_ms = Ulid::from_string(eviction_id).map_or(0, |id| now_ms.saturating_sub(id.timestamp_ms()));
    (clock::boottime_ns() / NS_PER_MS).saturating_sub(age_ms)
}

/// The decisions by order without a reported end, by the eviction's id.
fn left(journal: &Journal) -> BTreeMap<String, Unfinished> {
    let kinds = vec![
        EventType::EvictionDecided,
        EventType::EvictionSignalled,
        EventType::EvictionCompleted,
        EventType::EvictionFailed,
    ];
    let newest = journal.range().newest;
    let mut reader = journal.reader(Some(newest.saturating_sub(BACK)), Filter { kinds, ..Filter::default() });
    let mut left = BTreeMap::new();
    while let Some(batch) = reader.read() {
        let Batch::Records(records) = batch else { continue };
        for record in records {
            let Ok(Event { subject, source, payload, .. }) = Event::parse(&record.line) else { continue };
            match payload {
                Payload::EvictionDecided(EvictionDecided::Decision(decision))
                    if decision.operator.is_some() && !decision.dry_run =>
                {
                    let unfinished = Unfinished {
                        subject,
                        is_of_this_boot: journal.is_of_this_boot(&source),
                        was_signalled: false,
                        was_killed: false,
                        decision,
                    };
                    left.insert(unfinished.decision.eviction_id.clone(), unfinished);
                }
                Payload::EvictionSignalled(signalled) => {
                    if let Some(unfinished) = left.get_mut(&signalled.eviction_id) {
                        unfinished.was_signalled = true;
                        unfinished.was_killed |= signalled.sent == "SIGKILL";
                    }
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
    use crate::{
        daemon::{past, recovery::held_in_the_end},
        journal::Subject,
        model::PodName,
    };

    fn emit(journal: &Journal, kind: EventType, data: &serde_json::Value) {
        let pod = PodName { namespace: String::from("default"), name: String::from("web") };
        journal.emit(Subject::Pod(pod), Payload::parse(kind, data).unwrap());
    }

    fn decided(journal: &Journal, id: &str, dry_run: bool, operator: Option<&str>, killed: &[u64]) {
        let data = serde_json::json!({
            "evictionId": id,
            "dryRun": dry_run,
            "hard": false,
            "graceMs": 0,
            "victim": {
                "namespace": "default", "name": "web", "uid": "u", "qosClass": "Burstable", "priority": 0,
                "cgroup": "/no/such", "cgroupId": 1, "killedCgroupIds": killed, "requestBytes": 0,
                "statsMissing": true, "growthBytesPerSecond": 0,
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
        emit(journal, EventType::EvictionDecided, &data);
    }

    fn signalled(journal: &Journal, id: &str, sent: &str) {
        let data = serde_json::json!({
            "evictionId": id, "namespace": "default", "name": "web", "uid": "u", "sent": sent,
            "operator": {"uid": 0, "reason": "it hangs"},
        });
        emit(journal, EventType::EvictionSignalled, &data);
    }

    /// The newest event, which is an end: whether it is a completion, and its data.
    fn newest_end(journal: &Journal) -> (bool, EvictionEnded) {
        let mut reader = journal.reader(Some(journal.range().newest - 1), Filter::default());
        let Some(Batch::Records(records)) = reader.read() else { panic!("no event") };
        match Event::parse(&records[0].line).unwrap().payload {
            Payload::EvictionCompleted(ended) => (true, ended),
            Payload::EvictionFailed(ended) => (false, ended),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_has_no_end_is_reported_once() {
        let journal = Journal::new("n", "b");
        decided(&journal, "own", false, None, &[]);
        decided(&journal, "dry", true, Some("it hangs"), &[]);
        decided(&journal, "left", false, Some("it hangs"), &[]);
        assert_eq!(left(&journal).into_keys().collect::<Vec<_>>(), ["left"]);
        for stay_evicted in [1, 0] {
            assert_eq!(end(&journal, held_in_the_end).len(), stay_evicted);
            assert_eq!(journal.range().newest, 4);
        }
        assert!(left(&journal).is_empty());
    }

    /// Beside a kubelet: the sandbox in the pod's own cgroup lives on.
    #[test]
    fn a_pod_whose_containers_have_ended_is_completed_and_its_removal_requested_once() {
        for (sent, is_requested) in [("SIGTERM", true), ("SIGKILL", false)] {
            let journal = Journal::new("n", "b");
            decided(&journal, "left", false, Some("it hangs"), &[7, 8]);
            signalled(&journal, "left", sent);
            let ended = end(&journal, |own, others, _deadline| {
                assert_eq!((own, others), (None, &[CgroupId(7), CgroupId(8)][..]));
                Holding::NoProcess
            });
            assert_eq!(ended, [EndedPod { uid: String::from("u"), fingerprint: None, why: Why::Evicted }]);
            let (is_completed, data) = newest_end(&journal);
            assert!(is_completed && data.reconstructed && data.operator.is_some());
            assert_eq!(data.boot_ms.is_some(), is_requested, "{sent}");
            assert_eq!(past::read(&journal), [], "it is not the engine's");
        }
    }

    #[test]
    fn what_lives_on_failed_and_stays_evicted_only_if_it_was_signalled() {
        for was_signalled in [true, false] {
            let journal = Journal::new("n", "b");
            decided(&journal, "left", false, Some("it hangs"), &[1, 8]);
            if was_signalled {
                signalled(&journal, "left", "SIGTERM");
            }
            let ended = end(&journal, |own, others, _deadline| {
                assert_eq!((own, others), (Some(("/no/such", CgroupId(1))), &[CgroupId(8)][..]));
                Holding::Living
            });
            assert_eq!(!ended.is_empty(), was_signalled);
            let (is_completed, data) = newest_end(&journal);
            assert_eq!((is_completed, data.boot_ms), (false, None));
        }
    }

    /// The kubelet has restarted all pods since, and other cgroups may have the ids.
    #[test]
    fn an_order_of_another_boot_is_over_and_nothing_is_requested() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let open = |boot| Journal::open("n", boot, dirs[0].path(), dirs[1].path()).unwrap().0;
        let journal = open("before");
        decided(&journal, "left", false, Some("it hangs"), &[7]);
        signalled(&journal, "left", "SIGTERM");
        journal.close();
        drop(journal);
        let journal = open("now");
        assert_eq!(end(&journal, |_, _, _| panic!("nothing of it is left")), []);
        let (is_completed, data) = newest_end(&journal);
        assert_eq!((is_completed, data.boot_ms), (true, None));
    }
}
