//! What a kubelet's pods and containers are called, by their ids: the container runtime says it, the cgroups have the ids.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::{Arc, PoisonError, RwLock},
    time::Instant,
};

use tokio::sync::watch;

use super::{
    PlacedPod,
    wanted::{Held, Wanted},
};
use crate::{
    cgroup::PodCgroup,
    cri::{Container, Listing, Sandbox},
    model::{
        CgroupPath, ContainerId, ContainerKind, Instance, Owner, OwnerLevel, Pod, PodName, PodUid, QosClass,
        SmallMap, Unnamed,
    },
    policy::{
        CgroupDriver,
        name::{Leaf, Place, PodPlace},
        oom_score,
    },
};

/// The namespace of a pod whose name is not known. No namespace has parentheses.
const UNKNOWN_NAMESPACE: &str = "(unknown)";

/// The container that stands for a pod's sandbox, the process that holds its namespaces. No container has parentheses.
pub(super) const SANDBOX: &str = "(sandbox)";

/// What the pods and containers that another made are called; shared with whoever reads cgroup ids or paths.
#[derive(Clone, Debug, Default)]
pub struct Identities(Arc<RwLock<Names>>);

#[derive(Debug, Default)]
struct Names {
    pods: BTreeMap<PodUid, PodName>,
    /// The pods that the kubelet has from manifests of its own, as the runtime says.
    statics: BTreeSet<PodUid>,
    containers: BTreeMap<ContainerId, ContainerName>,
    sandboxes: BTreeMap<ContainerId, SandboxName>,
    /// Those that are needed whether their cgroups stand or not.
    wanted: Wanted,
}

/// A container's name, and the pod that it belongs to.
#[derive(Debug)]
struct ContainerName {
    pod: PodUid,
    name: String,
    attempt: u32,
    /// `None` until the pod has a spec.
    kind: Option<ContainerKind>,
}

/// A pod's containers, as its cgroups show them.
#[derive(Debug)]
pub(super) struct Found {
    /// By name. While an earlier attempt still ends, the latest counts.
    pub(super) named: SmallMap<String, CgroupPath>,
    /// Those that no name leads to.
    pub(super) unnamed: Option<Arc<Unnamed>>,
    /// Whether there is one at all, and each of the pod's cgroups is its sandbox's or one of these. Otherwise a container
    /// that takes memory could be missed.
    pub(super) is_whole: bool,
}

/// The pod that a sandbox is of, and how often that had one before.
#[derive(Debug, Eq, PartialEq)]
struct SandboxName {
    pod: PodUid,
    attempt: u32,
}

impl Names {
    fn is_sandbox(&self, id: &ContainerId, pod: &PodUid) -> bool {
        self.sandboxes.get(id).is_some_and(|of| of.pod == *pod)
    }

    /// Whether the pod has a name, or one of its containers. One that the runtime says is in another pod has none.
    fn have(&self, pod: &PodUid, container: Option<&ContainerId>) -> bool {
        match container {
            None => self.pods.contains_key(pod),
            Some(id) => self.is_sandbox(id, pod) || self.containers.get(id).is_some_and(|of| of.pod == *pod),
        }
    }

    /// Forgets the names of what neither stands nor is wanted.
    fn forget_all_but(
        &mut self,
        standing: &BTreeMap<PodUid, PlacedPod>,
        standing_containers: &BTreeSet<&ContainerId>,
        now: Instant,
    ) {
        self.wanted.forget_old(now);
        let Self { pods, statics, containers, sandboxes, wanted } = self;
        let is_pod = |uid: &PodUid| standing.contains_key(uid) || wanted.held().any(|held| held.pod == *uid);
        let is_container = |id: &ContainerId| {
            standing_containers.contains(id) || wanted.held().any(|held| held.container.as_ref() == Some(id))
        };
        pods.retain(|uid, _| is_pod(uid));
        statics.retain(|uid| is_pod(uid));
        containers.retain(|id, _| is_container(id));
        sandboxes.retain(|id, _| is_container(id));
    }

    /// Notes which of the wanted have names by now: the runtime need not be asked for those.
    fn note_named(&mut self) {
        let is_named = |held: &&Held| self.have(&held.pod, held.container.as_ref());
        let named: BTreeSet<u64> = self.wanted.held().filter(is_named).map(|held| held.number).collect();
        self.wanted.answer(|held| named.contains(&held.number));
    }
}

/// Where the kubelet's pods are, and what they are called.
#[derive(Clone, Debug)]
pub struct Kubelet {
    /// kubepods.
    pub kubepods: CgroupPath,
    /// How its cgroups are named.
    pub driver: CgroupDriver,
    /// What its pods and containers are called.
    pub identities: Identities,
}

impl Kubelet {
    /// The owner of a cgroup by its path, as far as it is known: what has no name has its uid, or the cgroup's own name.
    /// `None` if it is not the kubelet's.
    #[must_use]
    pub fn owner(&self, path: &CgroupPath) -> Option<Owner> {
        let place = Place::parse(&self.kubepods, self.driver, path)?;
        Some(Owner { path: path.clone(), level: self.identities.level(place) })
    }

    /// Which of the pod's containers the cgroup is, as far as that is known.
    #[must_use]
    pub fn instance(&self, path: &CgroupPath) -> Instance {
        match Place::parse(&self.kubepods, self.driver, path) {
            Some(Place::Leaf { pod, leaf: Leaf::Container(id), .. }) => {
                self.identities.instance(&pod.uid, &id)
            }
            Some(Place::Node | Place::Qos(_) | Place::Pod(_) | Place::Leaf { .. }) | None => {
                Instance::default()
            }
        }
    }

    /// Whether the cgroup's pod or container has no name yet. If that is [wanted](Self::want_name), the runtime's next
    /// answer is the last word.
    #[must_use]
    pub fn awaits_name(&self, path: &CgroupPath) -> bool {
        self.named(path).is_some_and(|(pod, container)| self.identities.await_name(&pod, container.as_ref()))
    }

    /// Has the cgroup's pod or container named, also if the cgroup is gone already, and its name held for late records.
    pub fn want_name(&self, path: &CgroupPath, now: Instant) {
        if let Some((pod, container)) = self.named(path) {
            self.identities.want(pod, container, now);
        }
    }

    /// The pod and the container whose name a cgroup has; without a container it has the pod's. `None` if it has
    /// neither.
    fn named(&self, path: &CgroupPath) -> Option<(PodUid, Option<ContainerId>)> {
        match Place::parse(&self.kubepods, self.driver, path)? {
            Place::Node | Place::Qos(_) => None,
            Place::Leaf { pod, leaf: Leaf::Container(id), .. } => Some((pod.uid, Some(id))),
            Place::Pod(pod) | Place::Leaf { pod, .. } => Some((pod.uid, None)),
        }
    }
}

impl Identities {
    /// The owner of a cgroup below kubepods.
    fn level(&self, place: Place) -> OwnerLevel {
        match place {
            Place::Node => OwnerLevel::Node,
            Place::Qos(class) => OwnerLevel::Qos(class),
            Place::Pod(PodPlace { uid, .. }) => OwnerLevel::Pod { pod: self.pod(&uid).into(), uid },
            Place::Leaf { pod: PodPlace { uid, .. }, path, leaf } => {
                let known = match &leaf {
                    Leaf::Container(id) => self.container(&uid, id),
                    Leaf::Helper | Leaf::Other => None,
                };
                let container = known.unwrap_or_else(|| path.names().last().unwrap_or_default().to_owned());
                OwnerLevel::Container { pod: self.pod(&uid).into(), uid, container }
            }
        }
    }

    /// Whether every one of these cgroups has a name.
    pub(super) fn know_all(&self, pods: &BTreeMap<PodUid, PlacedPod>) -> bool {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        pods.iter().all(|(uid, pod)| {
            let is_known = |id| names.containers.contains_key(id) || names.sandboxes.contains_key(id);
            names.pods.contains_key(uid) && pod.cgroup.containers.iter().all(|of| is_known(&of.container))
        })
    }

    pub(super) fn pod(&self, uid: &PodUid) -> PodName {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        names
            .pods
            .get(uid)
            .cloned()
            .unwrap_or_else(|| PodName { namespace: UNKNOWN_NAMESPACE.to_owned(), name: uid.to_string() })
    }

    pub(super) fn is_named(&self, uid: &PodUid) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).pods.contains_key(uid)
    }

    /// Whether the kubelet has the pod from a manifest of its own. Its uid is a hash of that, without hyphens, and the API
    /// server gives no such uid (`applyDefaults` in `pkg/kubelet/config/common.go`). A manifest may also give a uid like
    /// any other: then the sandbox says it.
    pub(super) fn is_static(&self, uid: &PodUid) -> bool {
        !uid.as_str().contains('-')
            || self.0.read().unwrap_or_else(PoisonError::into_inner).statics.contains(uid)
    }

    /// Whether the pod or its container has no name, and the runtime may still know one.
    fn await_name(&self, pod: &PodUid, container: Option<&ContainerId>) -> bool {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        !names.have(pod, container) && !names.wanted.is_answered(pod, container)
    }

    /// Holds the name of the pod or its container from now on. The runtime is asked for one that is not known.
    fn want(&self, pod: PodUid, container: Option<ContainerId>, now: Instant) {
        let mut names = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let is_named = names.have(&pod, container.as_ref());
        names.wanted.hold(pod, container, is_named, now);
    }

    /// Follows what the runtime is to be asked for although it may have no cgroup; `None` while there is nothing.
    pub(crate) fn wanted(&self) -> watch::Receiver<Option<u64>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).wanted.unanswered()
    }

    /// The containers that it is to be asked for in any state, and the number that [`answer`](Self::answer) takes.
    pub(crate) fn question(&self, now: Instant) -> (Vec<ContainerId>, u64) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).wanted.question(now)
    }

    /// Notes that the runtime has answered that question, after what it has was [learned](Self::learn): it does not know
    /// the others.
    pub(super) fn answer(&self, question: u64) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).wanted.answer_up_to(question);
    }

    /// A container's name. One that the runtime says is in another pod than its cgroup has none.
    fn container(&self, pod: &PodUid, id: &ContainerId) -> Option<String> {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if names.is_sandbox(id, pod) {
            return Some(SANDBOX.to_owned());
        }
        names.containers.get(id).filter(|of| of.pod == *pod).map(|of| of.name.clone())
    }

    /// A container's kind and attempt. One that the runtime says is in another pod than its cgroup has none.
    pub(super) fn instance(&self, pod: &PodUid, id: &ContainerId) -> Instance {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let known = names.containers.get(id).filter(|of| of.pod == *pod);
        known.map_or_else(Instance::default, |of| Instance { kind: of.kind, attempt: Some(of.attempt) })
    }

    /// The id of the sandbox that has a cgroup in the pod; that of the latest attempt, while an earlier one still ends.
    pub(super) fn sandbox<'a>(&self, cgroup: &'a PodCgroup) -> Option<&'a ContainerId> {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let ids = cgroup.containers.iter().map(|of| &of.container);
        let known = ids.filter_map(|id| {
            let SandboxName { pod, attempt } = names.sandboxes.get(id)?;
            (*pod == cgroup.place.uid).then_some((*attempt, id))
        });
        known.max_by_key(|(attempt, _)| *attempt).map(|(_, id)| id)
    }

    /// Takes the containers' kinds from the specs of their pods.
    pub(super) fn classify(&self, specs: &BTreeMap<&PodUid, &Pod>) {
        let mut names = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for of in names.containers.values_mut() {
            // One whose pod's spec is forgotten may still have late records.
            if let Some(pod) = specs.get(&of.pod) {
                of.kind = pod.kind_of(&of.name);
            }
        }
    }

    /// Whether sandboxes have cgroups in their pods here, or that is not known: CRI-O runs pods without them
    /// (`drop_infra_ctr`).
    pub(super) fn have_sandboxes(&self, pods: &BTreeMap<PodUid, PlacedPod>) -> bool {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut is_one = pods.iter().flat_map(|(uid, pod)| {
            pod.cgroup.containers.iter().map(|of| names.is_sandbox(&of.container, uid))
        });
        // What is gone and has a name all the same says nothing.
        let mut standing = pods.values().flat_map(|pod| &pod.cgroup.containers);
        !standing.any(|of| names.containers.contains_key(&of.container)) || is_one.any(|is_one| is_one)
    }

    /// The pod's containers. One without a name is the next sandbox only if the present one has ended: while that lives, it
    /// is a container. So a pod whose containers restart without end is no less known for it.
    pub(super) fn containers(&self, cgroup: &PodCgroup, have_sandboxes: bool) -> Found {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let uid = &cgroup.place.uid;
        let mut latest: BTreeMap<&str, (u32, &CgroupPath)> = BTreeMap::new();
        let mut sandbox: Option<(u32, &CgroupPath)> = None;
        let (mut unnamed, mut unknown, mut is_whole) = (Vec::new(), Vec::new(), true);
        for of in &cgroup.containers {
            match (names.sandboxes.get(&of.container), names.containers.get(&of.container)) {
                (Some(SandboxName { pod, attempt }), _) if pod == uid => {
                    sandbox = sandbox.max(Some((*attempt, &of.path)));
                }
                (None, Some(ContainerName { pod, name, attempt, .. })) if pod == uid => {
                    let own = (*attempt, &of.path);
                    let former = match latest.entry(name.as_str()) {
                        Entry::Vacant(place) => {
                            place.insert(own);
                            continue;
                        }
                        Entry::Occupied(mut place) if own.0 >= place.get().0 => place.insert(own),
                        Entry::Occupied(_) => own,
                    };
                    unnamed.push(former.1.clone());
                }
                (None, None) => unknown.push(of.path.clone()),
                // The runtime says that it is another pod's.
                (Some(_), _) | (None, Some(_)) => is_whole = false,
            }
        }
        let sandbox = sandbox.map(|(_, path)| path.clone()).filter(|_| !unknown.is_empty());
        is_whole &=
            unknown.is_empty() || sandbox.is_some() || (!have_sandboxes && names.pods.contains_key(uid));
        unnamed.append(&mut unknown);
        is_whole &= !latest.is_empty() || !unnamed.is_empty();
        let unnamed =
            (is_whole && !unnamed.is_empty()).then(|| Arc::new(Unnamed { containers: unnamed, sandbox }));
        let of_name = |(name, (_, path)): (&str, (u32, &CgroupPath))| (name.to_owned(), path.clone());
        Found { named: latest.into_iter().map(of_name).collect(), unnamed, is_whole }
    }

    /// Whether the kubelet gave a process of a BestEffort pod the score of one that the node needs (upstream
    /// `GetContainerOOMScoreAdjust`).
    pub(super) fn is_needed(&self, cgroup: &PodCgroup) -> bool {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let containers = cgroup.containers.iter().filter(|of| !names.sandboxes.contains_key(&of.container));
        cgroup.place.class == QosClass::BestEffort
            && containers.filter_map(|of| of.score).any(|score| score < oom_score::BEST_EFFORT)
    }

    /// How many names and ids are kept, for tests.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        names.pods.len() + names.statics.len() + names.containers.len() + names.sandboxes.len()
    }

    /// Learns what a runtime lists. What it no longer lists keeps its name as long as it is in `standing`, or is wanted:
    /// the runtime forgets a container before its last records are read. Returns whether something in `standing` has
    /// another name, or is new.
    pub(super) fn learn(
        &self,
        listing: &Listing,
        standing: &BTreeMap<PodUid, PlacedPod>,
        now: Instant,
    ) -> bool {
        let mut names = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let containers: BTreeSet<&ContainerId> =
            standing.values().flat_map(|pod| &pod.cgroup.containers).map(|of| &of.container).collect();
        names.forget_all_but(standing, &containers, now);
        let mut is_news = false;
        let mut sandboxes: BTreeMap<&str, PodUid> = BTreeMap::new();
        for Sandbox { id, pod_uid, namespace, name, attempt, is_static, .. } in &listing.sandboxes {
            let Some(uid) = PodUid::new(pod_uid) else { continue };
            // Most pods stand, and their text is held already.
            let uid = standing.get_key_value(&uid).map_or(uid, |(standing, _)| standing.clone());
            sandboxes.insert(id, uid.clone());
            if let Some(id) = ContainerId::new(id) {
                let of = SandboxName { pod: uid.clone(), attempt: *attempt };
                is_news |= names.sandboxes.get(&id) != Some(&of) && containers.contains(&id);
                names.sandboxes.insert(id, of);
            }
            if *is_static {
                names.statics.insert(uid.clone());
            }
            let name = PodName { namespace: namespace.clone(), name: name.clone() };
            names.pods.insert(uid, name);
        }
        for Container { id, sandbox_id, name, attempt, .. } in &listing.containers {
            if let (Some(id), Some(pod)) = (ContainerId::new(id), sandboxes.get(sandbox_id.as_str())) {
                let known = names.containers.get(&id);
                let is_same =
                    known.is_some_and(|of| (&of.pod, &of.name, of.attempt) == (pod, name, *attempt));
                if !is_same {
                    is_news |= containers.contains(&id);
                    let (pod, name) = (pod.clone(), name.clone());
                    names.containers.insert(id, ContainerName { pod, name, attempt: *attempt, kind: None });
                }
            }
        }
        names.note_named();
        is_news
    }
}
