//! Which cgroup is a static pod's: the API server shows its mirror, with another uid.

use std::collections::BTreeSet;

use crate::model::{Pod, PodUid};

use super::super::critical::CONFIG_MIRROR;

/// The kubelet's annotation with the hash of a static pod's manifest, which is its uid on the node.
const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// The uid in the name of each pod's cgroup, in the pods' order (`GetPodContainerName` in
/// `pkg/kubelet/cm/pod_container_manager_linux.go`).
///
/// It is the pod's own, except for the API server's mirror of a static pod: the cgroup is the static pod's, whose uid
/// is the hash. A mirror whose hash is not a uid, or whose cgroup another of the pods has, keeps its own uid: no
/// annotation gives a pod access to another's cgroup.
#[must_use]
pub fn cgroup_uids<'pod>(pods: impl IntoIterator<Item = &'pod Pod> + Clone) -> Vec<PodUid> {
    let mut taken: BTreeSet<PodUid> = pods.clone().into_iter().map(|pod| pod.uid.clone()).collect();
    pods.into_iter()
        .map(|pod| match hash(pod) {
            Some(hash) if taken.insert(hash.clone()) => hash,
            Some(_) | None => pod.uid.clone(),
        })
        .collect()
}

fn hash(pod: &Pod) -> Option<PodUid> {
    if !pod.annotations.contains_key(CONFIG_MIRROR) {
        return None;
    }
    PodUid::new(pod.annotations.get(CONFIG_HASH)?)
}
