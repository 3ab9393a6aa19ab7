//! The specs of pods that another made, as sources give them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::SourceName;
use crate::{
    model::{Pod, PodUid},
    specs::{ApiPod, Change},
};

/// The specs by uid. What a source no longer names keeps its spec as long as its cgroup exists: a kubelet forgets a pod
/// before its last process has ended.
#[derive(Debug, Default)]
pub struct SpecifiedPods(BTreeMap<PodUid, SpecifiedPod>);

/// A pod's spec.
#[derive(Clone, Debug)]
pub struct SpecifiedPod {
    /// As the source gave it.
    api: ApiPod,
    /// As it is in the model.
    pub pod: Arc<Pod>,
    /// Who gave it.
    pub provenance: Provenance,
    /// Whether the source still has it.
    is_listed: bool,
}

/// Who gave a spec, and whether that was in the life of this daemon.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Provenance {
    /// The source.
    pub source: SourceName,
    /// Whether an earlier daemon left it on the disk.
    pub is_from_disk: bool,
}

impl SpecifiedPod {
    /// Whether the pod has ended and only its rest is there.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.api.has_ended()
    }
}

impl SpecifiedPods {
    /// Takes what has changed at a source. Returns why pods were left out, by their names as the source has them.
    ///
    /// The spec of such a pod is not known: a former one may be of other requests.
    pub fn take(&mut self, provenance: Provenance, change: Change) -> Vec<(String, String)> {
        let pods = match change {
            Change::Whole(pods) => {
                self.0.values_mut().for_each(|known| known.is_listed = false);
                pods
            }
            Change::Some { changed, removed } => {
                for uid in removed {
                    if let Some(known) = PodUid::new(&uid).and_then(|uid| self.0.get_mut(&uid)) {
                        known.is_listed = false;
                    }
                }
                changed
            }
        };
        let mut refused = Vec::new();
        for api in pods {
            match api.to_pod() {
                Ok(pod) => {
                    let spec = SpecifiedPod { pod: Arc::new(pod), api, provenance, is_listed: true };
                    self.0.insert(spec.pod.uid.clone(), spec);
                }
                Err(invalid) => {
                    if let Some(uid) = PodUid::new(&api.metadata.uid) {
                        self.0.remove(&uid);
                    }
                    let name = format!("{}/{}", api.metadata.namespace, api.metadata.name);
                    refused.push((crate::helper::plain(&name), invalid.to_string()));
                }
            }
        }
        refused
    }

    /// Forgets those that neither the source has nor a cgroup.
    pub fn forget_all_but(&mut self, standing: &BTreeSet<PodUid>) {
        self.0.retain(|uid, known| known.is_listed || standing.contains(uid));
    }

    /// The pod's spec, if it is known.
    #[must_use]
    pub fn get(&self, uid: &PodUid) -> Option<&SpecifiedPod> {
        self.0.get(uid)
    }

    /// All pods as sources gave them, for the disk.
    #[must_use]
    pub fn to_kept(&self) -> Vec<ApiPod> {
        self.0.values().map(|known| known.api.clone()).collect()
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
        specs.0.iter().map(of).collect()
    }

    #[test]
    fn a_pod_that_a_source_no_longer_has_is_known_while_its_cgroup_stands() {
        let mut specs = SpecifiedPods::default();
        assert_eq!(specs.take(KEPT, Change::Whole(vec![pod("a", 1), pod("b", 1), pod("c", 1)])), []);
        assert_eq!(specs.take(LIVE, Change::Whole(vec![pod("a", 2)])), []);
        specs.forget_all_but(&[uid("b")].into());
        assert_eq!(shown(&specs), [("a".into(), Some(2), false), ("b".into(), Some(1), true)]);
        specs
            .take(LIVE, Change::Some { changed: vec![pod("d", 4)], removed: vec!["a".into(), "x y".into()] });
        specs.forget_all_but(&[uid("a")].into());
        assert_eq!(shown(&specs), [("a".into(), Some(2), false), ("d".into(), Some(4), false)]);
        assert_eq!(specs.to_kept(), [pod("a", 2), pod("d", 4)]);
    }

    #[test]
    fn of_a_pod_that_is_none_no_former_spec_is_left() {
        let mut specs = SpecifiedPods::default();
        specs.take(LIVE, Change::Whole(vec![pod("a", 1)]));
        let mut wrong = pod("a", 1);
        wrong.spec.containers.clear();
        let refused = specs.take(LIVE, Change::Some { changed: vec![wrong], removed: Vec::new() });
        assert_eq!(refused[0].0, "n/a");
        assert!(specs.get(&uid("a")).is_none());
    }
}
