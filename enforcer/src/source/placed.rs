//! The pods that another made, by their cgroups: which there are, what is known of them, and where their containers are.
//!
//! cgroupfs says which pods exist; the container runtime gives names, and another source specs. If those are away, no pod
//! is missing.

mod identities;
mod wanted;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    Health, Snapshot, SourceName,
    specified::{EvictedPod, Provenance, SpecifiedPod, SpecifiedPods},
};
use crate::{
    cgroup::PodCgroup,
    cri::Listing,
    model::{ContainerId, Knowledge, Placement, Pod, PodUid},
    policy::critical::CONFIG_SOURCE,
    specs::{Change, KeptPod},
};

use self::identities::Found;
pub use self::identities::{Identities, Kubelet};

/// Pods of this namespace may be what the node needs, whatever their class. While their priority is not known, they are
/// spared.
const SYSTEM_NAMESPACE: &str = "kube-system";

/// How long a new pod waits for its name before it is reported without one.
const NAME_PATIENCE: Duration = Duration::from_secs(5);

/// The pods that another made.
#[derive(Debug)]
pub struct PlacedPods {
    /// How long a pod must be known before it may be evicted without its spec.
    grace: Duration,
    pods: BTreeMap<PodUid, PlacedPod>,
    identities: Identities,
    /// Whether a pod or container has no name yet.
    wants_names: bool,
    /// Whether names are from an earlier daemon, and the runtime has not answered yet.
    has_old_names: bool,
    specs: SpecifiedPods,
}

#[derive(Debug)]
struct PlacedPod {
    cgroup: PodCgroup,
    since: Instant,
    /// Since when it has a name; `None` without one.
    named_since: Option<Instant>,
}

/// What the source of specs that answers knows of the pods whose cgroups stand.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SourceKnows {
    /// No source has given all its pods.
    NoSource,
    /// One of them, or there is none that it must know.
    Pods,
    /// None of them, although not all are static.
    NoPod(SourceName),
    /// Pods that run here, none of which has a cgroup.
    NoCgroup(SourceName),
}

impl PlacedPods {
    /// No pods yet, whose names go into `identities`. A pod must be known for `grace` before it may be evicted without its
    /// spec.
    #[must_use]
    pub fn new(grace: Duration, identities: Identities) -> Self {
        Self {
            grace,
            pods: BTreeMap::new(),
            identities,
            wants_names: false,
            has_old_names: false,
            specs: SpecifiedPods::default(),
        }
    }

    /// Sets the grace from now on.
    pub fn set_grace(&mut self, grace: Duration) {
        self.grace = grace;
    }

    /// Takes the pods whose cgroups exist now. Returns whether that is a change.
    pub fn take(&mut self, cgroups: Vec<PodCgroup>, now: Instant) -> bool {
        let mut before = std::mem::take(&mut self.pods);
        let mut differs = false;
        for cgroup in cgroups {
            let known = before.remove(&cgroup.place.uid);
            // Another cgroup of the same name is another pod.
            let mut pod = match known {
                // The one that is known shares its paths with others.
                Some(known) if known.cgroup == cgroup => known,
                Some(known) if known.cgroup.id == cgroup.id => {
                    differs = true;
                    PlacedPod { cgroup, ..known }
                }
                Some(_) | None => {
                    differs = true;
                    PlacedPod { cgroup, since: now, named_since: None }
                }
            };
            let uid = pod.cgroup.place.uid.clone();
            if pod.named_since.is_none() && self.identities.is_named(&uid) {
                pod.named_since = Some(now);
            }
            self.pods.insert(uid, pod);
        }
        self.forget_old_specs();
        if differs {
            // The runtime may have named a container before its cgroup was seen.
            self.classify();
        }
        differs |= !before.is_empty();
        if differs {
            self.wants_names = !self.identities.know_all(&self.pods);
        }
        differs
    }

    /// The pods' cgroups as last taken.
    #[must_use]
    pub fn cgroups(&self) -> Vec<PodCgroup> {
        self.pods.values().map(|pod| pod.cgroup.clone()).collect()
    }

    /// Takes what has changed about the pods' specs at `read_ms`, and returns the pods that were evicted since they ran.
    pub fn specify(&mut self, provenance: Provenance, change: Change, read_ms: u64) -> Vec<EvictedPod> {
        let evicted = self.specs.take(provenance, change, read_ms);
        self.forget_old_specs();
        self.classify();
        evicted
    }

    /// Which pods' specs are not valid, and why.
    #[must_use]
    pub fn invalid_specs(&self) -> impl ExactSizeIterator<Item = &str> {
        self.specs.invalid()
    }

    /// Forgets the specs of these pods, which are no longer right.
    pub fn forget_specs(&mut self, uids: &[String]) {
        self.specs.forget(uids);
    }

    fn forget_old_specs(&mut self) {
        let standing: BTreeSet<PodUid> = self.pods.keys().cloned().collect();
        self.specs.forget_all_but(&standing);
    }

    /// The specs that are known, for the disk.
    #[must_use]
    pub fn specs(&self) -> Vec<KeptPod> {
        self.specs.to_kept()
    }

    /// How many specs are known.
    #[must_use]
    pub fn spec_count(&self) -> usize {
        self.specs.count()
    }

    /// Notes that a source of specs has answered at `read_ms`, with nothing new.
    pub fn note_answer(&mut self, source: SourceName, read_ms: u64) {
        self.specs.note_answer(source, read_ms);
    }

    /// Notes that the source of specs that has answered no longer does. Returns whether one had.
    pub fn note_silence(&mut self) -> bool {
        self.specs.note_silence()
    }

    /// The source of specs that answers.
    #[must_use]
    pub fn spec_source(&self) -> Option<SourceName> {
        self.specs.answering()
    }

    /// What the source of specs that answers knows of the pods. It need not know a static pod, whose mirror may not be made
    /// yet. One whose spec it had counts: its cgroup may stand for longer than the source has it.
    #[must_use]
    pub fn source_knows(&self) -> SourceKnows {
        let Some(source) = self.specs.answering() else { return SourceKnows::NoSource };
        // A static pod may be yet to start, whatever its mirror says.
        let has_cgroup = |pod: &Pod| !self.identities.is_static(&pod.uid);
        if self.pods.is_empty() && self.specs.running(source).any(has_cgroup) {
            return SourceKnows::NoCgroup(source);
        }
        let are_static = self.pods.keys().all(|uid| self.identities.is_static(uid));
        if are_static || self.pods.keys().any(|uid| self.specs.is_known_to(source, uid)) {
            return SourceKnows::Pods;
        }
        SourceKnows::NoPod(source)
    }

    /// The pod's spec: by its uid, or of a static pod that of its mirror. If the runtime gives the pod another name, the spec
    /// is another pod's.
    fn spec(&self, uid: &PodUid) -> Option<&SpecifiedPod> {
        let name = self.identities.is_named(uid).then(|| self.identities.pod(uid));
        let is_its = |spec: &&SpecifiedPod| name.as_ref().is_none_or(|name| *name == spec.pod.name);
        // A tenant can write of any pod that it is a mirror of this one: only the runtime knows which name this one has.
        let mirror = || self.specs.mirror(uid, name.as_ref().filter(|_| self.identities.is_static(uid))?);
        // No mirror runs itself.
        let mirror = || mirror().filter(|mirror| !self.pods.contains_key(&mirror.pod.uid));
        self.specs.get(uid).filter(is_its).or_else(mirror)
    }

    /// Takes the kinds of containers from the specs.
    fn classify(&self) {
        let specs = self.pods.keys().filter_map(|uid| Some((uid, self.spec(uid)?.pod.as_ref())));
        self.identities.classify(&specs.collect());
    }

    /// How often the container with that cgroup was made before; `None` if that is not known.
    #[must_use]
    pub fn attempt(&self, uid: &PodUid, container: &str) -> Option<u32> {
        let own = &self.pods.get(uid)?.cgroup.containers;
        let own = own.iter().find(|of| of.path.as_str() == container)?;
        self.identities.instance(uid, &own.container).attempt
    }

    /// The id of the pod's sandbox; `None` if it is not known, or has no cgroup in the pod.
    #[must_use]
    pub fn sandbox(&self, uid: &PodUid) -> Option<&ContainerId> {
        self.identities.sandbox(&self.pods.get(uid)?.cgroup)
    }

    /// Takes what a container runtime listed to an earlier daemon: it counts until it answers, and it is asked nevertheless.
    pub fn restore_names(&mut self, listing: &Listing, now: Instant) {
        self.learn(listing, now);
        self.has_old_names = true;
    }

    /// Takes what a container runtime lists. Returns whether that is news about a cgroup.
    pub fn learn(&mut self, listing: &Listing, now: Instant) -> bool {
        self.has_old_names = false;
        let is_news = self.identities.learn(listing, &self.pods, now);
        for (uid, pod) in &mut self.pods {
            if pod.named_since.is_none() && self.identities.is_named(uid) {
                pod.named_since = Some(now);
            }
        }
        // Also those whose cgroups are gone.
        self.classify();
        self.wants_names = !self.identities.know_all(&self.pods);
        is_news
    }

    /// Notes that a container runtime has answered that question, with the names that were learned last.
    pub(crate) fn note_names_answered(&self, question: u64) {
        self.identities.answer(question);
    }

    /// Whether a pod or container has no name yet, or the runtime has said nothing yet.
    #[must_use]
    pub fn wants_names(&self) -> bool {
        self.wants_names || self.has_old_names
    }

    /// When the snapshot changes although nothing was taken: a pod may be evicted from then on, or is reported without a
    /// name.
    #[must_use]
    pub fn due(&self, now: Instant) -> Option<Instant> {
        let moments = self.pods.values().flat_map(|pod| {
            let settles = pod.named_since.map(|named_since| named_since + self.grace);
            std::iter::once(pod.since + NAME_PATIENCE).chain(settles)
        });
        moments.filter(|moment| *moment > now).min()
    }

    /// Whether a pod without a spec may be evicted, if its class is BestEffort.
    fn is_settled(
        &self,
        uid: &PodUid,
        PlacedPod { cgroup, named_since, .. }: &PlacedPod,
        is_whole: bool,
        now: Instant,
    ) -> bool {
        let is_known_for_long =
            named_since.is_some_and(|named_since| now.saturating_duration_since(named_since) >= self.grace);
        is_known_for_long
            && self.identities.pod(uid).namespace != SYSTEM_NAMESPACE
            && is_whole
            && !self.identities.is_needed(cgroup)
    }

    /// The pods, and where they are; also where those are that still wait for a name.
    #[must_use]
    pub fn snapshot(&self, now: Instant, read_ms: u64) -> (Snapshot, BTreeMap<PodUid, Placement>) {
        let mut pods = Vec::new();
        let mut placements = Vec::new();
        let have_sandboxes = self.identities.have_sandboxes(&self.pods);
        for (uid, pod) in &self.pods {
            let Found { named, unnamed, is_whole } = self.identities.containers(&pod.cgroup, have_sandboxes);
            let name = self.identities.is_named(uid).then(|| self.identities.pod(uid));
            let spec = self.spec(uid);
            let knowledge = match spec {
                Some(spec) => Knowledge::Spec {
                    is_settled: spec.is_whole() && is_whole,
                    origin: self.specs.origin(spec),
                    is_terminating: spec.is_terminating(),
                },
                None => Knowledge::Names { is_settled: self.is_settled(uid, pod, is_whole, now) },
            };
            let PlacedPod { cgroup, since, named_since: _ } = pod;
            let placement =
                Placement { pod: cgroup.place.path.clone(), containers: named, unnamed, knowledge };
            placements.push((uid.clone(), placement));
            let is_patient = now.saturating_duration_since(*since) < NAME_PATIENCE;
            if name.is_none() && spec.is_none() && is_patient {
                continue;
            }
            let mut pod = match spec {
                Some(spec) => Arc::clone(&spec.pod),
                None => Arc::new(Pod::new(self.identities.pod(uid), uid.clone(), Vec::new())),
            };
            // The class that the kubelet has given it.
            let class = Some(cgroup.place.class);
            // Its uid, the runtime or the kubelet says that, and never the API server.
            let is_static = self.identities.is_static(uid);
            // Most specs say the same, and are not copied.
            if pod.stored_qos_class != class || pod.uid != *uid || is_static {
                let pod = Arc::make_mut(&mut pod);
                pod.stored_qos_class = class;
                pod.uid = uid.clone();
                if is_static {
                    pod.annotations.insert(CONFIG_SOURCE.to_owned(), String::from("file"));
                }
            }
            pods.push(pod);
        }
        (Snapshot { pods, health: Health::Up, read_ms: Some(read_ms) }, placements.into_iter().collect())
    }
}

#[cfg(test)]
mod tests;
