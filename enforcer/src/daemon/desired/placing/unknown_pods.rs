//! Whether the source of specs knows none of the pods whose cgroups stand: then it has those of another node. Or whether
//! pods run by what it says, and no cgroup of any stands: then they are not where they are looked for.

use std::time::{Duration, Instant};

use crate::{
    model::CgroupPath,
    policy::{Settings, name},
    source::{SourceKnows, SourceName},
};

/// The least time that this must last: a pod's cgroup may be there before a source is read.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is reported of a source that knows none of the pods, or others.
#[derive(Debug)]
pub(super) struct UnknownPods {
    /// The cgroup root, and the kubepods where pods are looked for.
    root: CgroupPath,
    kubepods: CgroupPath,
    /// How long a pod must be known before it may be evicted without its spec.
    grace: Duration,
    /// The source that knows none or others, and since when.
    since: Option<(SourceKnows, Instant)>,
    /// The same, for long.
    reported: Option<SourceKnows>,
}

impl UnknownPods {
    pub(super) fn new(settings: &Settings, grace: Duration) -> Self {
        Self {
            root: settings.cgroup_root.clone(),
            kubepods: name::kubepods(&settings.cgroup_root, settings.cgroup_driver),
            grace,
            since: None,
            reported: None,
        }
    }

    pub(super) fn set_grace(&mut self, grace: Duration) {
        self.grace = grace;
    }

    /// Takes what the source knows now.
    pub(super) fn note(&mut self, knows: SourceKnows, now: Instant) {
        self.since = match knows {
            SourceKnows::NoPod(_) | SourceKnows::NoCgroup(_) => {
                let since = self.since.filter(|(of, _)| *of == knows);
                Some(since.unwrap_or((knows, now)))
            }
            SourceKnows::Pods | SourceKnows::NoSource => None,
        };
        match (self.since, knows) {
            (Some((knows, since)), _) if since + self.patience() <= now => self.reported = Some(knows),
            (_, SourceKnows::Pods) => self.reported = None,
            // A cgroup stands now.
            (_, SourceKnows::NoPod(_)) if matches!(self.reported, Some(SourceKnows::NoCgroup(_))) => {
                self.reported = None;
            }
            // One that is silent, or has not said it for long, takes nothing back.
            (_, SourceKnows::NoPod(_) | SourceKnows::NoCgroup(_) | SourceKnows::NoSource) => {}
        }
    }

    /// When [`note`](Self::note) must be called although nothing has changed.
    pub(super) fn due(&self) -> Option<Instant> {
        let (knows, since) = self.since?;
        (self.reported != Some(knows)).then(|| since + self.patience())
    }

    /// What is wrong, in words; `node` is the one that the API server is asked for.
    pub(super) fn problem(&self, node: Option<&str>) -> Option<String> {
        match self.reported? {
            SourceKnows::NoPod(source) => Some(no_pod(source, node)),
            SourceKnows::NoCgroup(source) => Some(self.no_cgroup(source, node)),
            SourceKnows::Pods | SourceKnows::NoSource => None,
        }
    }

    fn no_cgroup(&self, source: SourceName, node: Option<&str>) -> String {
        let Self { root, kubepods, .. } = self;
        let other_node = match (source, node) {
            (SourceName::API_SERVER, Some(node)) => {
                format!("; or nodeName, if this node is not {node:?}, which it is asked for")
            }
            _ => String::new(),
        };
        format!(
            "{source}: pods run on this node, and no pod has a cgroup in {kubepods}, so none is known and none is evicted: \
             unless the kubelet is yet to start, set cgroupRoot, which is {root} now, to the kubelet's --cgroup-root or \
             cgroupRoot{other_node}"
        )
    }

    fn patience(&self) -> Duration {
        self.grace.max(PATIENCE)
    }
}

fn no_pod(source: SourceName, node: Option<&str>) -> String {
    let remedy = match source {
        SourceName::API_SERVER => format!(
            "it is asked for those of the node {:?}: set nodeName to the name that `kubectl get nodes` has for this node",
            node.unwrap_or_default()
        ),
        SourceName::KUBELET => {
            String::from("another kubelet may answer there: set kubeletPort to that of this node's kubelet")
        }
        _ => String::from(
            "another kubelet may answer there: set kubeletRootDir to the root directory of this node's kubelet",
        ),
    };
    format!(
        "{source}: it knows none of this node's pods, of which only BestEffort ones may be evicted without a spec; {remedy}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::CgroupDriver;

    const GRACE: Duration = Duration::from_secs(10);
    const API: SourceKnows = SourceKnows::NoPod(SourceName::API_SERVER);

    fn unknown_pods(grace: Duration) -> UnknownPods {
        UnknownPods::new(&Settings::default(), grace)
    }

    #[test]
    fn a_source_that_knows_no_pod_is_reported_after_the_grace_and_until_it_knows_one() {
        let (mut unknown, begin) = (unknown_pods(GRACE), Instant::now());
        unknown.note(API, begin);
        assert_eq!((unknown.problem(None), unknown.due()), (None, Some(begin + GRACE)));
        unknown.note(API, begin + GRACE.saturating_sub(Duration::from_millis(1)));
        assert_eq!(unknown.problem(None), None);
        unknown.note(API, begin + GRACE);
        let problem = unknown.problem(Some("host-1")).unwrap();
        assert!(
            problem.starts_with("apiServer: ") && problem.contains("the node \"host-1\": set nodeName"),
            "{problem}"
        );
        assert_eq!(unknown.due(), None, "there is nothing to wait for");
        // A source that is silent takes nothing back, and one that answers again says the same.
        unknown.note(SourceKnows::NoSource, begin + 2 * GRACE);
        assert!(unknown.problem(None).is_some());
        unknown.note(API, begin + 2 * GRACE);
        assert_eq!((unknown.problem(None).is_some(), unknown.due()), (true, None));
        unknown.note(SourceKnows::Pods, begin + 3 * GRACE);
        assert_eq!((unknown.problem(None), unknown.due()), (None, None));
    }

    #[test]
    fn the_time_counts_anew_after_a_pod_was_known_the_source_was_silent_or_is_another() {
        let kubelet = SourceKnows::NoPod(SourceName::KUBELET);
        for between in [SourceKnows::Pods, SourceKnows::NoSource, kubelet] {
            let (mut unknown, begin) = (unknown_pods(GRACE), Instant::now());
            unknown.note(API, begin);
            unknown.note(between, begin + GRACE / 2);
            unknown.note(API, begin + GRACE);
            assert_eq!(
                (unknown.problem(None), unknown.due()),
                (None, Some(begin + 2 * GRACE)),
                "{between:?}"
            );
        }
    }

    /// Each has a field of its own by which it is found.
    #[test]
    fn each_source_names_the_field_to_change() {
        for (source, field) in [
            (SourceName::API_SERVER, "set nodeName "),
            (SourceName::KUBELET, "set kubeletPort "),
            (SourceName::PODS_API, "set kubeletRootDir "),
        ] {
            let (mut unknown, begin) = (unknown_pods(Duration::ZERO), Instant::now());
            unknown.note(SourceKnows::NoPod(source), begin);
            assert_eq!(unknown.problem(None), None, "a source is not read at once: {source}");
            unknown.note(SourceKnows::NoPod(source), begin + PATIENCE);
            let problem = unknown.problem(Some("n")).unwrap();
            assert!(problem.contains(field) && problem.starts_with(source.as_str()), "{problem}");
        }
    }

    /// It is all that says that the daemon looks in the wrong place: without pods everything else is well.
    #[test]
    fn pods_that_run_and_have_no_cgroup_are_reported_with_where_they_are_looked_for() {
        let settings = Settings {
            cgroup_root: CgroupPath::parse("/machine").unwrap(),
            cgroup_driver: CgroupDriver::Systemd,
            ..Settings::default()
        };
        let begin = Instant::now();
        for (source, has_node) in [(SourceName::API_SERVER, true), (SourceName::KUBELET, false)] {
            let mut unknown = UnknownPods::new(&settings, GRACE);
            unknown.note(SourceKnows::NoCgroup(source), begin);
            assert_eq!((unknown.problem(Some("n")), unknown.due()), (None, Some(begin + GRACE)));
            unknown.note(SourceKnows::NoCgroup(source), begin + GRACE);
            let problem = unknown.problem(Some("n")).unwrap();
            for part in ["/machine.slice/machine-kubepods.slice, ", "set cgroupRoot, which is /machine now"] {
                assert!(problem.starts_with(source.as_str()) && problem.contains(part), "{problem}");
            }
            assert_eq!(problem.contains("nodeName, if this node is not \"n\""), has_node, "{problem}");
            unknown.note(SourceKnows::Pods, begin + GRACE);
            assert_eq!((unknown.problem(Some("n")), unknown.due()), (None, None));
        }
    }

    /// As where a source has the pods of another node, and the last pod of this one ends.
    #[test]
    fn another_lack_is_reported_once_it_has_lasted_for_as_long() {
        let (mut unknown, begin) = (unknown_pods(GRACE), Instant::now());
        unknown.note(API, begin);
        unknown.note(API, begin + GRACE);
        let before = unknown.problem(None);
        let other = SourceKnows::NoCgroup(SourceName::API_SERVER);
        unknown.note(other, begin + 2 * GRACE);
        assert_eq!((unknown.problem(None), unknown.due()), (before.clone(), Some(begin + 3 * GRACE)));
        unknown.note(other, begin + 3 * GRACE);
        assert!(unknown.problem(None).is_some() && unknown.problem(None) != before);
        assert_eq!(unknown.due(), None);
        // What it says is over with the first cgroup.
        unknown.note(API, begin + 4 * GRACE);
        assert_eq!((unknown.problem(None), unknown.due()), (None, Some(begin + 5 * GRACE)));
    }
}
