//! Reports the kubelet's own evictions, beside the pod that this daemon would have chosen.

use std::{collections::VecDeque, sync::Arc};

use enforcer_events::{
    Event, Payload,
    eviction::{EvictionForeign, EvictionRequested, OtherVictim},
};
use tokio::sync::Mutex;

use super::ranking::Ranks;
use crate::{
    evict::{Candidate, Identity},
    journal::{Batch, EventType, Filter, Journal, Subject},
    kube::Action,
    model::{PodUid, ResourceName},
    policy::message,
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

    /// Reports them. Must be called before the candidates are renewed with the specs of these pods, which have ended, and inside a
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

/// Whether the status of the pod is enforcer's doing. Of all that is done here only the request `status` writes the reason
/// Evicted: a pod that was killed here, or whose eviction was requested or refused, may be evicted by the kubelet later, or
/// by both. The condition says so before the answer to the request is in the journal, and after a crash between the two;
/// the journal says so if the kubelet has replaced the condition.
fn is_ours(journal: &Journal, pod: &EvictedPod) -> bool {
    pod.is_marked_by_enforcer || is_reported_as_marked(journal, pod)
}

/// Whether the journal has it that the API server accepted to mark the pod as evicted.
fn is_reported_as_marked(journal: &Journal, pod: &EvictedPod) -> bool {
    let kinds = vec![EventType::EvictionRequested];
    let filter = Filter { kinds, pod: Some(pod.name.to_string()), ..Filter::default() };
    let mut reader = journal.reader(None, filter);
    while let Some(batch) = reader.read() {
        let Batch::Records(records) = batch else { continue };
        for record in records {
            // What cannot be read may be about this pod.
            let Ok(event) = Event::parse(&record.line) else { return true };
            if let Payload::EvictionRequested(EvictionRequested { uid, outcome, action, .. }) = event.payload
                && uid == pod.uid.as_str()
                && outcome == "accepted"
                && action.as_deref() == Some(Action::Status.as_str())
            {
                return true;
            }
        }
    }
    false
}

fn payload(pod: &EvictedPod, ranks: &Ranks, candidates: &[Arc<Candidate>]) -> EvictionForeign {
    let resource = pod.message.as_deref().and_then(message::named_resource);
    // The ranking is by memory, and says nothing of who is evicted for a full disk or for a limit of its own.
    let ranked = match resource {
        Some(ResourceName::MEMORY) => ranks.order_beside(candidates, &pod.uid),
        Some(_) | None => Vec::new(),
    };
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
        resource: resource.map(Into::into),
        would_have_evicted: first,
        rank: place.map(|place| count(place + 1)),
        ranked_count: count(ranked.len()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use enforcer_events::eviction::EvictionEnded;

    use super::*;
    use crate::{
        cgroup::{CgroupDir, Guard},
        daemon::ranking::tests::write_usage,
        model::PodName,
        policy::{Plan, PodPlan, Settings, admission::Admission, plan_decided},
        sample,
    };

    fn evicted(uid: &str) -> EvictedPod {
        let name = PodName { namespace: String::from("shop"), name: String::from("web") };
        EvictedPod { name, uid: PodUid::new(uid).unwrap(), message: None, is_marked_by_enforcer: false }
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

    /// A soft threshold that a budget forbids, a bare pod that was killed hours ago, and a pod that both evict: the kubelet
    /// writes the status of each.
    #[test]
    fn only_what_writes_the_status_is_its_own() {
        let report = |outcome: &'static str, action: Option<&'static str>| {
            let journal = Journal::new("n", "b");
            let requested = EvictionRequested {
                namespace: String::from("shop"),
                name: String::from("web"),
                uid: String::from("a"),
                outcome: outcome.into(),
                action: action.map(Into::into),
                ..EvictionRequested::default()
            };
            journal.emit(Subject::Pod(evicted("a").name), Payload::EvictionRequested(requested));
            let (name, uid) = (Some(String::from("web")), Some(String::from("a")));
            let ended = EvictionEnded {
                namespace: Some(String::from("shop")),
                name,
                uid,
                ..EvictionEnded::default()
            };
            journal.emit(Subject::Pod(evicted("a").name), Payload::EvictionCompleted(ended.clone()));
            journal.emit(Subject::Pod(evicted("a").name), Payload::EvictionFailed(ended));
            journal
        };
        assert!(!is_ours(&Journal::new("n", "b"), &evicted("a")));
        let others = ["gone", "anotherPod", "terminating", "ended", "withheld", "refused", "expired"];
        for outcome in others {
            assert!(!is_ours(&report(outcome, None), &evicted("a")), "{outcome}");
        }
        for action in ["evict", "delete"] {
            assert!(!is_ours(&report("accepted", Some(action)), &evicted("a")), "{action}");
        }
        let marked = report("accepted", Some("status"));
        assert!(is_ours(&marked, &evicted("a")));
        assert!(!is_ours(&marked, &evicted("b")), "another pod of the same name");
    }

    /// The watch may show the status before the answer to the request is in the journal.
    #[test]
    fn what_has_the_condition_of_enforcer_is_its_own_without_the_journal() {
        let journal = Journal::new("n", "b");
        assert!(is_ours(&journal, &EvictedPod { is_marked_by_enforcer: true, ..evicted("a") }));
    }

    const SHORT_OF_MEMORY: &str =
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi. ";

    fn evicted_for(message: &str, uid: &str) -> EvictedPod {
        EvictedPod { message: Some(message.to_owned()), ..evicted(uid) }
    }

    #[test]
    fn without_candidates_none_would_have_been_evicted() {
        let ranks = Ranks::new(Arc::default(), Arc::default(), Arc::default(), None);
        let EvictionForeign { uid, would_have_evicted, rank, ranked_count, .. } =
            payload(&evicted_for(SHORT_OF_MEMORY, "a"), &ranks, &[]);
        assert_eq!((uid.as_str(), would_have_evicted, rank, ranked_count), ("a", None, None, 0));
    }

    /// Candidates of these names, whose cgroups are ordinary files and hold that much.
    fn candidates(root: &Path, pods: &[(&str, u64)]) -> Vec<Arc<Candidate>> {
        let named: Vec<_> = pods.iter().map(|(name, _)| sample::pod(name, &["a"])).collect();
        let decided: Vec<_> = named.iter().map(|pod| (pod, Admission::plain())).collect();
        let plan: Plan = plan_decided(&sample::node(), &Settings::default(), &decided);
        let guard = Arc::new(Guard::new(Path::new("/proc"), &[]));
        let open = |(plan, (_, used_bytes)): (&Arc<PodPlan>, &(&str, u64))| {
            write_usage(&root.join(plan.cgroup.path.as_str().trim_start_matches('/')), *used_bytes);
            Arc::new(Candidate::open(&CgroupDir::unchecked(root).unwrap(), &guard, plan).unwrap())
        };
        plan.pods.iter().zip(pods).map(open).collect()
    }

    /// A full disk, or a pod above a limit of its own, is none of this daemon's matters.
    #[test]
    fn only_what_is_evicted_for_memory_has_a_place_in_the_ranking_by_memory() {
        let temp = tempfile::tempdir().unwrap();
        let candidates = candidates(temp.path(), &[("small", 10 << 20), ("hog", 500 << 20)]);
        let ranks = Ranks::new(Arc::default(), Arc::default(), Arc::default(), None);
        let of = |message: &str| {
            let EvictionForeign { resource, would_have_evicted, rank, ranked_count, .. } =
                payload(&evicted_for(message, "uid-small"), &ranks, &candidates);
            (resource, would_have_evicted.map(|pod| pod.name), rank, ranked_count)
        };
        assert_eq!(of(SHORT_OF_MEMORY), (Some("memory".into()), Some(String::from("hog")), Some(2), 2));
        let disk = "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 1. ";
        assert_eq!(of(disk), (Some("ephemeral-storage".into()), None, None, 0));
        let volume = "Usage of EmptyDir volume \"memory\" exceeds the limit \"1Gi\". ";
        assert_eq!(of(volume), (None, None, None, 0));
        let unknown = payload(&evicted("uid-small"), &ranks, &candidates);
        assert_eq!((unknown.would_have_evicted, unknown.rank), (None, None));
    }
}
