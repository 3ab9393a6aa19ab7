//! Reports the kubelet's own evictions, beside the pod that this daemon would have chosen.

use std::{collections::VecDeque, sync::Arc};

use enforcer_events::{
    Event, Payload,
    eviction::{EvictionForeign, OtherVictim},
};
use tokio::sync::Mutex;

use super::ranking::Ranks;
use crate::{
    evict::{Candidate, Identity},
    journal::{Batch, EventType, Filter, Journal, Subject},
    model::PodUid,
    source::EvictedPod,
    threads,
};

/// How many pods are remembered as reported: a status may change back and forth.
const REMEMBERED: usize = 256;

/// The evictions that sources of specs have shown, until they are reported.
#[derive(Debug, Default)]
pub(super) struct Foreign {
    waiting: Vec<EvictedPod>,
    reported: VecDeque<PodUid>,
    /// Held while the journal is read: one report at a time, so that a slow disk leaves threads for others.
    reading: Arc<Mutex<()>>,
}

impl Foreign {
    /// Takes pods that are evicted now.
    pub(super) fn take(&mut self, evicted: Vec<EvictedPod>) {
        for pod in evicted {
            if !self.reported.contains(&pod.uid) {
                self.reported.truncate(REMEMBERED - 1);
                self.reported.push_front(pod.uid.clone());
                self.waiting.push(pod);
            }
        }
    }

    /// Reports them. Must be called before the candidates are renewed, which these pods are no longer among, and inside a
    /// tokio runtime.
    pub(super) fn report(&mut self, ranks: impl FnOnce() -> Ranks, journal: &Journal) {
        let evicted = std::mem::take(&mut self.waiting);
        if evicted.is_empty() {
            return;
        }
        let (ranks, journal) = (ranks(), journal.clone());
        let candidates = ranks.candidates();
        let reading = Arc::clone(&self.reading);
        tokio::spawn(async move {
            let _reading = reading.lock().await;
            threads::blocking(move || {
                for pod in evicted.iter().filter(|pod| !is_ours(&journal, pod)) {
                    let payload = Payload::EvictionForeign(payload(pod, &ranks, &candidates));
                    journal.emit(Subject::Pod(pod.name.clone()), payload);
                }
            })
            .await;
        });
    }
}

/// Whether this daemon, or one before it, signalled the pod or had the API server asked. Either is in the journal before the
/// API server is.
fn is_ours(journal: &Journal, pod: &EvictedPod) -> bool {
    let kinds = vec![
        EventType::EvictionSignalled,
        EventType::EvictionCompleted,
        EventType::EvictionFailed,
        EventType::EvictionRequested,
        EventType::EvictionConfirmed,
    ];
    let filter = Filter { kinds, pod: Some(pod.name.to_string()), ..Filter::default() };
    let mut reader = journal.reader(None, filter);
    let uid = |payload: Payload| match payload {
        Payload::EvictionSignalled(signalled) => Some(signalled.uid),
        Payload::EvictionCompleted(ended) | Payload::EvictionFailed(ended) => ended.uid,
        Payload::EvictionRequested(requested) => Some(requested.uid),
        Payload::EvictionConfirmed(confirmed) => Some(confirmed.uid),
        _ => None,
    };
    while let Some(batch) = reader.read() {
        let Batch::Records(records) = batch else { continue };
        for record in records {
            // What cannot be read may be about this pod.
            let is_its = Event::parse(&record.line)
                .map_or(true, |event| uid(event.payload).is_none_or(|uid| uid == pod.uid.as_str()));
            if is_its {
                return true;
            }
        }
    }
    false
}

fn payload(pod: &EvictedPod, ranks: &Ranks, candidates: &[Arc<Candidate>]) -> EvictionForeign {
    let ranked = ranks.order_beside(candidates, &pod.uid);
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let place = ranked.iter().position(|candidate| candidate.identity().uid == pod.uid);
    let first = ranked.first().map(|candidate| {
        let Identity { pod, uid, .. } = candidate.identity();
        OtherVictim { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: uid.to_string() }
    });
    EvictionForeign {
        namespace: pod.name.namespace.clone(),
        name: pod.name.name.clone(),
        uid: pod.uid.to_string(),
        by: "kubelet".into(),
        reason: "Evicted".into(),
        message: pod.message.clone(),
        would_have_evicted: first,
        rank: place.map(|place| count(place + 1)),
        ranked_count: count(ranked.len()),
    }
}

#[cfg(test)]
mod tests {
    use enforcer_events::eviction::EvictionRequested;

    use super::*;
    use crate::model::PodName;

    fn evicted(uid: &str) -> EvictedPod {
        let name = PodName { namespace: String::from("shop"), name: String::from("web") };
        EvictedPod { name, uid: PodUid::new(uid).unwrap(), message: None }
    }

    #[test]
    fn a_pod_is_taken_once() {
        let mut foreign = Foreign::default();
        foreign.take(vec![evicted("a"), evicted("b")]);
        foreign.take(vec![evicted("a")]);
        assert_eq!(foreign.waiting, [evicted("a"), evicted("b")]);
        foreign.waiting.clear();
        foreign.take(vec![evicted("a")]);
        assert_eq!(foreign.waiting, []);
    }

    #[test]
    fn what_this_daemon_asked_for_is_its_own() {
        let journal = Journal::new("n", "b");
        assert!(!is_ours(&journal, &evicted("a")));
        let requested = EvictionRequested {
            namespace: String::from("shop"),
            name: String::from("web"),
            uid: String::from("a"),
            ..EvictionRequested::default()
        };
        journal.emit(Subject::Pod(evicted("a").name), Payload::EvictionRequested(requested));
        assert!(is_ours(&journal, &evicted("a")));
        assert!(!is_ours(&journal, &evicted("b")), "another pod of the same name");
    }

    #[test]
    fn without_candidates_none_would_have_been_evicted() {
        let ranks = Ranks::new(Arc::default(), Arc::default(), Arc::default(), None);
        let EvictionForeign { uid, would_have_evicted, rank, ranked_count, .. } =
            payload(&evicted("a"), &ranks, &[]);
        assert_eq!((uid.as_str(), would_have_evicted, rank, ranked_count), ("a", None, None, 0));
    }
}
