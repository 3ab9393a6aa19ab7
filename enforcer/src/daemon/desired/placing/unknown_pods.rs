//! Whether the source of specs knows none of the pods whose cgroups stand: then it has those of another node.

use std::time::{Duration, Instant};

use crate::source::{SourceKnows, SourceName};

/// The least time that this must last: a pod's cgroup may be there before a source is read.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is reported of a source that knows none of the pods.
#[derive(Debug)]
pub(super) struct UnknownPods {
    /// How long a pod must be known before it may be evicted without its spec.
    grace: Duration,
    /// The source that knows none, and since when.
    since: Option<(SourceName, Instant)>,
    /// The source that knows none, for long.
    reported: Option<SourceName>,
}

impl UnknownPods {
    pub(super) fn new(grace: Duration) -> Self {
        Self { grace, since: None, reported: None }
    }

    pub(super) fn set_grace(&mut self, grace: Duration) {
        self.grace = grace;
    }

    /// Takes what the source knows now.
    pub(super) fn note(&mut self, knows: SourceKnows, now: Instant) {
        self.since = match knows {
            SourceKnows::NoPod(source) => {
                let since = self.since.filter(|(of, _)| *of == source);
                Some(since.unwrap_or((source, now)))
            }
            SourceKnows::Pods | SourceKnows::NoSource => None,
        };
        match (self.since, knows) {
            (Some((source, since)), _) if since + self.patience() <= now => self.reported = Some(source),
            (_, SourceKnows::Pods) => self.reported = None,
            // One that is silent, or has not said it for long, takes nothing back.
            (_, SourceKnows::NoPod(_) | SourceKnows::NoSource) => {}
        }
    }

    /// When [`note`](Self::note) must be called although nothing has changed.
    pub(super) fn due(&self) -> Option<Instant> {
        let (source, since) = self.since?;
        (self.reported != Some(source)).then(|| since + self.patience())
    }

    /// What is wrong, in words; `node` is the one that the API server is asked for.
    pub(super) fn problem(&self, node: Option<&str>) -> Option<String> {
        let source = self.reported?;
        let remedy = match source {
            SourceName::API_SERVER => format!(
                "it is asked for those of the node {:?}: set nodeName to the name that `kubectl get nodes` has for this node",
                node.unwrap_or_default()
            ),
            SourceName::KUBELET => String::from(
                "another kubelet may answer there: set kubeletPort to that of this node's kubelet",
            ),
            _ => String::from(
                "another kubelet may answer there: set kubeletRootDir to the root directory of this node's kubelet",
            ),
        };
        Some(format!(
            "{source}: it knows none of this node's pods, of which only BestEffort ones may be evicted without a spec; {remedy}"
        ))
    }

    fn patience(&self) -> Duration {
        self.grace.max(PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(10);
    const API: SourceKnows = SourceKnows::NoPod(SourceName::API_SERVER);

    #[test]
    fn a_source_that_knows_no_pod_is_reported_after_the_grace_and_until_it_knows_one() {
        let (mut unknown, begin) = (UnknownPods::new(GRACE), Instant::now());
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
            let (mut unknown, begin) = (UnknownPods::new(GRACE), Instant::now());
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
            let (mut unknown, begin) = (UnknownPods::new(Duration::ZERO), Instant::now());
            unknown.note(SourceKnows::NoPod(source), begin);
            assert_eq!(unknown.problem(None), None, "a source is not read at once: {source}");
            unknown.note(SourceKnows::NoPod(source), begin + PATIENCE);
            let problem = unknown.problem(Some("n")).unwrap();
            assert!(problem.contains(field) && problem.starts_with(source.as_str()), "{problem}");
        }
    }
}
