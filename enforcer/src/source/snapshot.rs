//! What a source of pods knows at one time, and what several sources know together.

use std::{collections::BTreeMap, fmt, sync::Arc};

use crate::model::{Pod, PodUid};

/// The name of a source, as events and metrics have it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct SourceName(&'static str);

impl SourceName {
    /// Manifest files.
    pub const STATIC: Self = Self("static");

    /// The cgroups of a kubelet's pods.
    pub const CGROUPS: Self = Self("cgroups");

    /// The container runtime, which gives them names.
    pub const RUNTIME: Self = Self("runtime");

    /// Where their specs are from, whichever source that is.
    pub const SPECS: Self = Self("specs");

    /// The kubelet's Pods API, which gives them.
    pub const PODS_API: Self = Self("podsAPI");

    /// The kubelet's HTTPS server, which does so too.
    pub const KUBELET: Self = Self("kubelet");

    /// The API server, which does so of what tenants wrote.
    pub const API_SERVER: Self = Self("apiServer");

    /// The name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for SourceName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }
}

/// Who decides whether a pod may run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AdmittedBy {
    /// The roster does.
    Roster,
    /// Another did, such as a kubelet: the roster never rejects or preempts the pod, whatever it requests.
    Other,
}

/// A pod as a source has it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SourcePod {
    /// The pod.
    pub pod: Arc<Pod>,
    /// The source.
    pub source: SourceName,
    /// Who decides whether it may run.
    pub admitted_by: AdmittedBy,
}

/// Whether a source can be read.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Health {
    /// It was never read.
    #[default]
    Unread,
    /// Its pods are those that it has now.
    Up,
    /// Its pods are those that were read last.
    Down,
}

/// All pods of a source: always the whole set.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Snapshot {
    /// The pods, in the order in which they are to be admitted.
    pub pods: Vec<Arc<Pod>>,
    /// Whether they are those that the source has now.
    pub health: Health,
    /// When the source was read last, in milliseconds since 1970; `None` if it never was.
    pub read_ms: Option<u64>,
}

/// Several sources and what each knows. A pod that more than one names is the first one's, in the order in which the
/// sources were added.
#[derive(Clone, Debug, Default)]
pub struct Sources(Vec<Source>);

#[derive(Clone, Debug)]
struct Source {
    name: SourceName,
    admitted_by: AdmittedBy,
    snapshot: Snapshot,
}

impl Sources {
    /// Adds a source that was not read yet.
    #[must_use]
    pub fn with(mut self, name: SourceName, admitted_by: AdmittedBy) -> Self {
        self.0.push(Source { name, admitted_by, snapshot: Snapshot::default() });
        self
    }

    /// Takes what a source knows now. One that was not added is not a source.
    pub fn take(&mut self, name: SourceName, snapshot: Snapshot) {
        if let Some(source) = self.0.iter_mut().find(|source| source.name == name) {
            source.snapshot = snapshot;
        }
    }

    /// What a source knew last.
    #[must_use]
    pub fn get(&self, name: SourceName) -> Option<&Snapshot> {
        self.0.iter().find(|source| source.name == name).map(|source| &source.snapshot)
    }

    /// Whether every source was read. Until then, a pod that none names may be another source's.
    #[must_use]
    pub fn are_read(&self) -> bool {
        self.0.iter().all(|source| source.snapshot.health != Health::Unread)
    }

    /// Whether every source can be read. Otherwise a pod that none names may still exist.
    #[must_use]
    pub fn are_up(&self) -> bool {
        self.0.iter().all(|source| source.snapshot.health == Health::Up)
    }

    /// The pods of all sources, each once.
    #[must_use]
    pub fn pods(&self) -> Vec<SourcePod> {
        let mut first: BTreeMap<&PodUid, SourceName> = BTreeMap::new();
        let mut pods = Vec::new();
        for Source { name, admitted_by, snapshot } in &self.0 {
            for pod in &snapshot.pods {
                if *first.entry(&pod.uid).or_insert(*name) == *name {
                    let pod = Arc::clone(pod);
                    pods.push(SourcePod { pod, source: *name, admitted_by: *admitted_by });
                }
            }
        }
        pods
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    const KUBELET: SourceName = SourceName::KUBELET;

    fn snapshot(uids: &[&str], health: Health) -> Snapshot {
        let pod = |uid: &&str| Arc::new(Pod { uid: PodUid::new(uid).unwrap(), ..sample::pod(uid, &[]) });
        Snapshot { pods: uids.iter().map(pod).collect(), health, read_ms: Some(1) }
    }

    fn sources() -> Sources {
        Sources::default().with(SourceName::STATIC, AdmittedBy::Roster).with(KUBELET, AdmittedBy::Other)
    }

    fn shown(sources: &Sources) -> Vec<(String, &'static str, AdmittedBy)> {
        let pods = sources.pods().into_iter();
        pods.map(|pod| (pod.pod.uid.to_string(), pod.source.as_str(), pod.admitted_by)).collect()
    }

    #[test]
    fn a_pod_of_two_sources_is_the_first_ones() {
        let mut sources = sources();
        sources.take(KUBELET, snapshot(&["a", "b"], Health::Up));
        assert_eq!(
            shown(&sources),
            [("a".into(), "kubelet", AdmittedBy::Other), ("b".into(), "kubelet", AdmittedBy::Other)]
        );
        sources.take(SourceName::STATIC, snapshot(&["b", "c"], Health::Up));
        assert_eq!(
            shown(&sources),
            [
                ("b".into(), "static", AdmittedBy::Roster),
                ("c".into(), "static", AdmittedBy::Roster),
                ("a".into(), "kubelet", AdmittedBy::Other)
            ]
        );
        sources.take(SourceName::STATIC, snapshot(&[], Health::Up));
        assert_eq!(shown(&sources).len(), 2);
    }

    #[test]
    fn all_are_up_once_each_was_read_and_none_is_down() {
        let mut sources = sources();
        sources.take(SourceName::STATIC, snapshot(&["a"], Health::Up));
        assert!(!sources.are_read() && !sources.are_up());
        sources.take(KUBELET, snapshot(&["b"], Health::Down));
        assert!(sources.are_read() && !sources.are_up());
        sources.take(KUBELET, snapshot(&["b"], Health::Up));
        assert!(sources.are_up());
        assert_eq!(sources.get(KUBELET).and_then(|snapshot| snapshot.read_ms), Some(1));
    }
}
