//! The specs of pods that another made, as sources give them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::SourceName;
use crate::{
    helper::plain,
    model::{Freshness, LabelTexts, Pod, PodName, PodUid, SpecOrigin},
    policy::critical,
    specs::{ApiPod, Change, KeptPod},
};

/// The most pods that are kept, of those with a valid spec and of the others: what reads a source is not trusted with more.
/// It is twice what a source may have, as what it no longer has is kept for a time.
const MOST_PODS: usize = 8_192;

/// The longest uid of a pod whose spec is not valid that is kept, in bytes.
const MOST_UID_BYTES: usize = 253;

/// The specs by uid. What a source no longer names keeps its spec as long as its cgroup exists: a kubelet forgets a pod
/// before its last process has ended.
#[derive(Debug, Default)]
pub struct SpecifiedPods {
    known: BTreeMap<PodUid, SpecifiedPod>,
    /// The names of pods whose specs are not valid, and what is wrong, by uid as the source has it.
    invalid: BTreeMap<String, String>,
    /// The texts of all pods' labels.
    label_texts: LabelTexts,
    /// The source that answers, and has given all its pods since it does.
    answering: Option<SourceName>,
    /// When a source was read last, in milliseconds since 1970.
    read_ms: u64,
}

/// A pod's spec.
#[derive(Clone, Debug)]
pub struct SpecifiedPod {
    /// As the source gave it; `None` if it cannot be kept.
    kept: Option<KeptPod>,
    phase: Phase,
    /// Whether its deletion was requested.
    is_deleted: bool,
    /// The uid of the static pod that it says to be the mirror of.
    mirrors: Option<Box<str>>,
    /// As it is in the model.
    pub pod: Arc<Pod>,
    /// Who gave it.
    pub provenance: Provenance,
    /// Whether the source still has it.
    is_listed: bool,
    /// When it was read last, in milliseconds since 1970; `None` while the source has it, and answers.
    lost_ms: Option<u64>,
}

/// What matters of a pod's phase.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Running,
    /// Succeeded or Failed.
    Ended,
    Other,
}

/// Who gave a spec, and whether that was in the life of this daemon.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Provenance {
    /// The source.
    pub source: SourceName,
    /// Whether an earlier daemon left it on the disk.
    pub is_from_disk: bool,
}

/// A pod that ran and is evicted now, by enforcer or by the kubelet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EvictedPod {
    /// Its name.
    pub name: PodName,
    /// Its uid.
    pub uid: PodUid,
    /// Why, in words.
    pub message: Option<String>,
    /// Whether enforcer wrote that into its status.
    pub is_marked_by_enforcer: bool,
}

impl SpecifiedPod {
    /// Whether what decides about its eviction is known. An earlier daemon kept no priority of a pod that has ended.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.phase != Phase::Ended || self.pod.priority.is_some()
    }

    /// Where it is from, and whether the pod is so now. `read_ms` is when a source was read last.
    fn origin(&self, read_ms: u64) -> SpecOrigin {
        let Provenance { source, is_from_disk } = self.provenance;
        let freshness = match self.lost_ms {
            None if self.is_listed && !is_from_disk => Freshness::Live,
            lost if is_from_disk => Freshness::Disk { read_ms: lost.unwrap_or(read_ms) },
            lost => Freshness::Stale { read_ms: lost.unwrap_or(read_ms) },
        };
        SpecOrigin { source: source.as_str(), freshness }
    }

    fn lose(&mut self, read_ms: u64) {
        self.lost_ms.get_or_insert(read_ms);
    }

    /// Whether it ends by itself: its deletion was requested, or it has ended and its last processes have not.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.is_deleted || self.phase == Phase::Ended
    }

    fn is_mirror_of(&self, uid: &PodUid) -> bool {
        self.mirrors.as_deref() == Some(uid.as_str())
    }
}

impl Phase {
    fn of(api: &ApiPod) -> Self {
        match () {
            () if api.is_running() => Self::Running,
            () if api.has_ended() => Self::Ended,
            () => Self::Other,
        }
    }
}

/// The pod, if it is evicted.
fn evicted(api: &ApiPod, pod: &Pod) -> Option<EvictedPod> {
    api.is_evicted().then(|| EvictedPod {
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        message: api.status.message.as_deref().map(plain),
        is_marked_by_enforcer: api.is_marked_by_enforcer(),
    })
}

impl SpecifiedPods {
    /// Takes what has changed at a source that was read at `read_ms`, and returns the pods that were evicted since they ran.
    /// The spec of a pod that is not valid is not known: a former one may be of other requests.
    pub fn take(&mut self, provenance: Provenance, change: Change, read_ms: u64) -> Vec<EvictedPod> {
        let before_ms = std::mem::replace(&mut self.read_ms, read_ms);
        let Provenance { source, is_from_disk } = provenance;
        // Parts of what another source gave, or of what this one gave before it fell silent, are not all pods.
        let is_answering = matches!(change, Change::Whole(_)) || self.answering == Some(source);
        self.answering = Some(source).filter(|_| is_answering && !is_from_disk);
        let mut evicted = Vec::new();
        let pods = match change {
            Change::Whole(pods) => {
                for known in self.known.values_mut() {
                    known.is_listed = false;
                    known.lose(before_ms);
                }
                self.invalid.clear();
                pods
            }
            Change::Some { changed, removed } => {
                for uid in removed {
                    self.invalid.remove(&uid);
                    if let Some(known) = PodUid::new(&uid).and_then(|uid| self.known.get_mut(&uid)) {
                        known.is_listed = false;
                        known.lose(before_ms);
                    }
                }
                changed
            }
        };
        for mut api in pods {
            // What is on the disk went through here before.
            match provenance {
                Provenance { is_from_disk: true, .. } => {}
                Provenance { source: SourceName::API_SERVER, .. } => api.metadata.annotations.keep_mirrors(),
                Provenance { .. } => api.metadata.annotations.keep_kubelets(),
            }
            api.metadata.labels.share(&mut self.label_texts);
            let uid = api.metadata.uid.clone();
            match api.to_pod() {
                Ok(pod) => {
                    self.invalid.remove(&uid);
                    let before = self.known.remove(&pod.uid);
                    if self.known.len() >= MOST_PODS {
                        tracing::warn!(pod = %pod.name, "the source of specs has too many pods: this one is left out");
                        continue;
                    }
                    let did_run = before.as_ref().is_some_and(|before| before.phase == Phase::Running);
                    evicted.extend(self::evicted(&api, &pod).filter(|_| did_run));
                    // Others share the former one.
                    let former = before.map(|before| before.pod).filter(|former| **former == pod);
                    let spec = SpecifiedPod {
                        kept: KeptPod::of(&api),
                        phase: Phase::of(&api),
                        is_deleted: api.metadata.is_terminating,
                        mirrors: api.metadata.annotations.mirrored().map(Box::from),
                        pod: former.unwrap_or_else(|| Arc::new(pod)),
                        provenance,
                        is_listed: true,
                        lost_ms: (!is_answering || is_from_disk).then_some(read_ms),
                    };
                    self.known.insert(spec.pod.uid.clone(), spec);
                }
                Err(invalid) => {
                    if let Some(uid) = PodUid::new(&uid) {
                        self.known.remove(&uid);
                    }
                    if uid.len() > MOST_UID_BYTES || self.invalid.len() >= MOST_PODS {
                        continue;
                    }
                    let name = plain(&format!("{}/{}", api.metadata.namespace, api.metadata.name));
                    self.invalid.insert(uid, format!("{name}: {invalid}"));
                }
            }
        }
        evicted
    }

    /// Notes that the source has answered at `read_ms`, with nothing new. One that has not given all its pods yet has none.
    pub fn note_answer(&mut self, source: SourceName, read_ms: u64) {
        if self.answering == Some(source) {
            self.read_ms = read_ms;
        } else {
            self.note_silence();
        }
    }

    /// Notes that the source that has answered no longer does. Returns whether one had.
    pub fn note_silence(&mut self) -> bool {
        let read_ms = self.read_ms;
        self.known.values_mut().for_each(|known| known.lose(read_ms));
        self.answering.take().is_some()
    }

    /// The source that answers.
    #[must_use]
    pub fn answering(&self) -> Option<SourceName> {
        self.answering
    }

    /// Where that spec is from, and whether the pod is so now.
    #[must_use]
    pub fn origin(&self, spec: &SpecifiedPod) -> SpecOrigin {
        spec.origin(self.read_ms)
    }

    /// Which pods' specs are not valid, and why.
    #[must_use]
    pub fn invalid(&self) -> impl ExactSizeIterator<Item = &str> {
        self.invalid.values().map(String::as_str)
    }

    /// Forgets these, which are no longer right.
    pub fn forget(&mut self, uids: &[String]) {
        for uid in uids.iter().filter_map(|uid| PodUid::new(uid)) {
            self.known.remove(&uid);
        }
    }

    /// Forgets those that neither the source has nor a cgroup.
    pub fn forget_all_but(&mut self, standing: &BTreeSet<PodUid>) {
        self.known.retain(|uid, known| known.is_listed || standing.contains(uid));
    }

    /// Whether this source has named the pod in the life of this daemon, or a mirror of it, with a valid spec or not.
    #[must_use]
    pub fn is_known_to(&self, source: SourceName, uid: &PodUid) -> bool {
        let is_its = |known: &&SpecifiedPod| known.provenance == Provenance { source, is_from_disk: false };
        self.known.get(uid).as_ref().is_some_and(is_its)
            || self.invalid.contains_key(uid.as_str())
            || self.known.values().filter(is_its).any(|known| known.is_mirror_of(uid))
    }

    /// The pods that run here, as this source says in the life of this daemon, and that must have a cgroup: their deletion was
    /// not requested, and none is static or the mirror of a static one by what the source says.
    pub fn running(&self, source: SourceName) -> impl Iterator<Item = &Pod> {
        let provenance = Provenance { source, is_from_disk: false };
        let runs = move |known: &&SpecifiedPod| {
            known.is_listed
                && known.provenance == provenance
                && known.phase == Phase::Running
                && !known.is_deleted
                && known.mirrors.is_none()
                && !critical::is_static(&known.pod)
        };
        self.known.values().filter(runs).map(|known| known.pod.as_ref())
    }

    /// The pod's spec, if it is known.
    #[must_use]
    pub fn get(&self, uid: &PodUid) -> Option<&SpecifiedPod> {
        self.known.get(uid)
    }

    /// The spec of a static pod's mirror, if one is known: it says that it is the mirror of the pod of this uid, and has this
    /// name. Anyone can make a pod that says so; the caller knows that the pod is static, and its name.
    #[must_use]
    pub fn mirror(&self, uid: &PodUid, name: &PodName) -> Option<&SpecifiedPod> {
        let is_mirror = |known: &&SpecifiedPod| known.is_mirror_of(uid) && known.pod.name == *name;
        // The kubelet makes a mirror again that was deleted. The former one may still be known.
        self.known.values().filter(is_mirror).max_by_key(|known| known.is_listed)
    }

    /// All pods as sources gave them, for the disk.
    #[must_use]
    pub fn to_kept(&self) -> Vec<KeptPod> {
        self.known.values().filter_map(|known| known.kept.clone()).collect()
    }

    /// How many are known.
    #[must_use]
    pub fn count(&self) -> usize {
        self.known.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVE: Provenance = Provenance { source: SourceName::KUBELET, is_from_disk: false };
    const KEPT: Provenance = Provenance { source: SourceName::KUBELET, is_from_disk: true };

    fn pod(uid: &str, priority: i32) -> ApiPod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"namespace": "n", "name": uid, "uid": uid},
            "spec": {"priority": priority, "containers": [{"name": "c"}]},
        }))
        .unwrap()
    }

    fn uid(text: &str) -> PodUid {
        PodUid::new(text).unwrap()
    }

    fn shown(specs: &SpecifiedPods) -> Vec<(String, Option<i32>, bool)> {
        let of = |(uid, known): (&PodUid, &SpecifiedPod)| {
            (uid.to_string(), known.pod.priority, known.provenance.is_from_disk)
        };
        specs.known.iter().map(of).collect()
    }

    #[test]
    fn a_pod_that_a_source_no_longer_has_is_known_while_its_cgroup_stands() {
        let mut specs = SpecifiedPods::default();
        specs.take(KEPT, Change::Whole(vec![pod("a", 1), pod("b", 1), pod("c", 1)]), 1);
        specs.take(LIVE, Change::Whole(vec![pod("a", 2)]), 1);
        specs.forget_all_but(&[uid("b")].into());
        assert_eq!(shown(&specs), [("a".into(), Some(2), false), ("b".into(), Some(1), true)]);
        specs.take(
            LIVE,
            Change::Some { changed: vec![pod("d", 4)], removed: vec!["a".into(), "x y".into()] },
            1,
        );
        specs.forget_all_but(&[uid("a")].into());
        assert_eq!(shown(&specs), [("a".into(), Some(2), false), ("d".into(), Some(4), false)]);
        let kept: Vec<_> = specs.to_kept().iter().filter_map(KeptPod::read).collect();
        assert_eq!(kept, [pod("a", 2), pod("d", 4)]);
    }

    #[test]
    fn a_pod_that_ran_and_is_evicted_is_named_once() {
        let with = |phase: &str, reason: Option<&str>| {
            let mut pod = pod("a", 1);
            pod.status.phase = Some(phase.to_owned());
            pod.status.reason = reason.map(str::to_owned);
            pod.status.message = Some(String::from("low on\u{1b} memory"));
            vec![pod]
        };
        let evicted = || with("Failed", Some("Evicted"));
        let mut specs = SpecifiedPods::default();
        let mut take = |provenance, pods| specs.take(provenance, Change::Whole(pods), 1).len();
        // One that is evicted when it is seen first may be so for long, or was not admitted.
        assert_eq!(take(LIVE, evicted()), 0);
        assert_eq!([take(LIVE, with("Pending", None)), take(LIVE, evicted())], [0, 0]);
        assert_eq!([take(LIVE, with("Running", None)), take(LIVE, with("Failed", None))], [0, 0]);
        // What an earlier daemon knew counts.
        assert_eq!(
            [take(KEPT, with("Running", None)), take(LIVE, evicted()), take(LIVE, evicted())],
            [0, 1, 0]
        );
        specs.take(LIVE, Change::Whole(with("Running", None)), 1);
        let named = specs.take(LIVE, Change::Some { changed: evicted(), removed: Vec::new() }, 1);
        let name = PodName { namespace: String::from("n"), name: String::from("a") };
        let message = Some(String::from("low on memory"));
        assert_eq!(named, [EvictedPod { name, uid: uid("a"), message, is_marked_by_enforcer: false }]);
    }

    #[test]
    fn an_invalid_spec_replaces_the_former_one() {
        let mut specs = SpecifiedPods::default();
        specs.take(LIVE, Change::Whole(vec![pod("a", 1)]), 1);
        let mut wrong = pod("a", 1);
        wrong.spec.containers.clear();
        specs.take(LIVE, Change::Some { changed: vec![wrong], removed: Vec::new() }, 1);
        assert_eq!(specs.invalid().collect::<Vec<_>>(), ["n/a: it has no containers"]);
        assert!(specs.get(&uid("a")).is_none());
        specs.take(LIVE, Change::Some { changed: vec![pod("a", 1)], removed: Vec::new() }, 1);
        assert_eq!((specs.invalid().len(), specs.get(&uid("a")).is_some()), (0, true));
        specs.forget(&["a".into(), "x y".into()]);
        assert!(specs.get(&uid("a")).is_none());
    }

    /// A source's process that is no longer ours.
    #[test]
    fn no_more_is_kept_than_sources_have() {
        let mut specs = SpecifiedPods::default();
        for part in 0..20 {
            let uids = (0..1_000).map(|number| format!("p{part}-{number}"));
            let (valid, mut wrong): (Vec<_>, Vec<_>) =
                uids.map(|uid| (pod(&uid, 1), pod(&format!("w{uid}"), 1))).unzip();
            for pod in &mut wrong {
                pod.spec.containers.clear();
            }
            let changed = valid.into_iter().chain(wrong).collect();
            specs.take(LIVE, Change::Some { changed, removed: Vec::new() }, 1);
        }
        assert_eq!((specs.known.len(), specs.invalid().len()), (MOST_PODS, MOST_PODS));
        // One that is known may change.
        specs.take(LIVE, Change::Some { changed: vec![pod("p0-0", 7)], removed: Vec::new() }, 1);
        assert_eq!(specs.get(&uid("p0-0")).and_then(|known| known.pod.priority), Some(7));
    }

    /// What is known of each pod, and when it was read last.
    fn freshness(specs: &SpecifiedPods) -> String {
        let of = |(uid, known): (&PodUid, &SpecifiedPod)| {
            let freshness = specs.origin(known).freshness;
            let read = freshness.read_ms().map_or_else(String::new, |read_ms| format!(" {read_ms}"));
            format!("{uid} {}{read}", freshness.as_str())
        };
        specs.known.iter().map(of).collect::<Vec<_>>().join(", ")
    }

    /// What may skip a look at the API server must hold now.
    #[test]
    fn a_spec_is_live_only_while_the_source_that_gave_it_answers_and_has_the_pod() {
        let mut specs = SpecifiedPods::default();
        let both = || vec![pod("a", 1), pod("b", 1)];
        specs.take(KEPT, Change::Whole(both()), 10);
        assert_eq!(freshness(&specs), "a disk 10, b disk 10");
        // An answer without pods says nothing of them.
        specs.note_answer(SourceName::KUBELET, 15);
        assert_eq!(freshness(&specs), "a disk 10, b disk 10");
        specs.take(LIVE, Change::Whole(both()), 20);
        assert_eq!(freshness(&specs), "a live, b live");
        specs.note_answer(SourceName::KUBELET, 30);
        specs.take(LIVE, Change::Some { changed: Vec::new(), removed: vec!["b".into()] }, 40);
        assert_eq!(freshness(&specs), "a live, b stale 30");
        specs.note_answer(SourceName::KUBELET, 50);
        assert!(specs.note_silence() && !specs.note_silence());
        assert_eq!(freshness(&specs), "a stale 50, b stale 30");
        // Part of its pods is not all of them.
        specs.take(LIVE, Change::Some { changed: vec![pod("b", 2)], removed: Vec::new() }, 60);
        assert_eq!(freshness(&specs), "a stale 50, b stale 60");
        assert_eq!(specs.answering(), None);
        specs.take(LIVE, Change::Whole(both()), 70);
        assert_eq!(freshness(&specs), "a live, b live");
        // Another source takes its place.
        let other = Provenance { source: SourceName::API_SERVER, is_from_disk: false };
        specs.take(other, Change::Whole(vec![pod("a", 1)]), 80);
        assert_eq!(freshness(&specs), "a live, b stale 70");
        assert_eq!(specs.origin(specs.get(&uid("b")).unwrap()).source, "kubelet");
        // And this one, without its pods.
        specs.note_answer(SourceName::PODS_API, 90);
        assert_eq!(freshness(&specs), "a stale 80, b stale 70");
    }
}
