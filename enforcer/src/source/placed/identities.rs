//! What a kubelet's pods and containers are called, by their ids: the container runtime says it, the cgroups have the ids.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, PoisonError, RwLock},
};

use super::PlacedPod;
use crate::{
    cgroup::PodCgroup,
    cri::{Container, Listing, Sandbox},
    model::{
        CgroupPath, ContainerId, ContainerKind, Instance, Owner, OwnerLevel, Pod, PodName, PodUid, QosClass,
        SmallMap,
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

    /// Whether the cgroup's pod or container has no name yet.
    #[must_use]
    pub fn awaits_name(&self, path: &CgroupPath) -> bool {
        match Place::parse(&self.kubepods, self.driver, path) {
            None | Some(Place::Node | Place::Qos(_)) => false,
            Some(Place::Leaf { pod, leaf: Leaf::Container(id), .. }) => {
                self.identities.container(&pod.uid, &id).is_none()
            }
            Some(Place::Pod(pod) | Place::Leaf { pod, .. }) => !self.identities.is_named(&pod.uid),
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

    /// Whether each of the pod's cgroups is its sandbox's or a container's, of whose name there is no other. Otherwise a
    /// container that takes memory could be missed.
    pub(super) fn are_distinct(&self, cgroup: &PodCgroup) -> bool {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let uid = &cgroup.place.uid;
        let containers = cgroup.containers.iter().filter(|of| !names.is_sandbox(&of.container, uid));
        let of_each = containers.map(|of| {
            let known = names.containers.get(&of.container).filter(|known| known.pod == *uid);
            known.map(|known| known.name.as_str())
        });
        let mut seen = BTreeSet::new();
        of_each.into_iter().all(|name| name.is_some_and(|name| seen.insert(name))) && !seen.is_empty()
    }

    /// Whether the kubelet gave a process of a BestEffort pod the score of one that the node needs (upstream
    /// `GetContainerOOMScoreAdjust`).
    pub(super) fn is_needed(&self, cgroup: &PodCgroup) -> bool {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let containers = cgroup.containers.iter().filter(|of| !names.sandboxes.contains_key(&of.container));
        cgroup.place.class == QosClass::BestEffort
            && containers.filter_map(|of| of.score).any(|score| score < oom_score::BEST_EFFORT)
    }

    /// The pod's containers that have a name, by name. While an earlier attempt still ends, the latest counts.
    pub(super) fn containers(&self, cgroup: &PodCgroup) -> SmallMap<String, CgroupPath> {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut latest: BTreeMap<&str, (u32, &CgroupPath)> = BTreeMap::new();
        for of in &cgroup.containers {
            let known = names.containers.get(&of.container).filter(|known| known.pod == cgroup.place.uid);
            let Some(ContainerName { name, attempt, .. }) = known else { continue };
            let place = latest.entry(name.as_str()).or_insert((*attempt, &of.path));
            if *attempt >= place.0 {
                *place = (*attempt, &of.path);
            }
        }
        latest.into_iter().map(|(name, (_, path))| (name.to_owned(), path.clone())).collect()
    }

    /// How many names and ids are kept, for tests.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        names.pods.len() + names.statics.len() + names.containers.len() + names.sandboxes.len()
    }

    /// Learns what a runtime lists. What it no longer lists keeps its name as long as it is in `standing`: the runtime
    /// forgets a container before its last records are read. Returns whether something has another name, or is new.
    pub(super) fn learn(&self, listing: &Listing, standing: &BTreeMap<PodUid, PlacedPod>) -> bool {
        let mut names = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let containers: BTreeSet<&ContainerId> =
            standing.values().flat_map(|pod| &pod.cgroup.containers).map(|of| &of.container).collect();
        names.pods.retain(|uid, _| standing.contains_key(uid));
        names.statics.retain(|uid| standing.contains_key(uid));
        names.containers.retain(|id, _| containers.contains(id));
        names.sandboxes.retain(|id, _| containers.contains(id));
        let mut is_news = false;
        let mut sandboxes: BTreeMap<&str, PodUid> = BTreeMap::new();
        for Sandbox { id, pod_uid, namespace, name, attempt, is_static, .. } in &listing.sandboxes {
            let Some(uid) = PodUid::new(pod_uid) else { continue };
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
        is_news
    }
}
