//! The Kubernetes API server as the daemon has it: who it is to that, and the evictions that are asked for.

use std::{io, sync::Arc, time::Duration};

use ulid::Ulid;

use super::{EngineEvent, orders::OrderBook, repeats::Repeating, specifying::Access};
use crate::{
    config::{Config, Mode},
    evict::{Identity, Requested, Requester},
    journal::Journal,
    kube::{
        ApiServer, ApiSettings, DiskPressure, Evictions, NodeMarks, NodeSettings, Owner, PodRef,
        SoftEvictions, SoftOutcome,
    },
    model::{Knowledge, PodName},
    policy::threshold::NodeCondition,
};

/// The API server by the configured credentials.
pub(super) fn server(access: &Access) -> io::Result<ApiServer> {
    let (name, access) = (access.name(), access.clone());
    let access = move || access.api_server().map_err(|error| crate::chain(&error));
    ApiServer::start(Arc::new(move || name.in_cluster()), Arc::new(access))
}

/// Starts to ask for the evictions of a kubelet's pods, if there are any and something is to be asked. Without a position
/// of an earlier daemon it begins with the next event.
pub(super) fn evictions(
    config: &Config,
    is_beside_kubelet: bool,
    journal: &Journal,
    server: &ApiServer,
) -> io::Result<Option<Evictions>> {
    if !requests(config, is_beside_kubelet) {
        return Ok(None);
    }
    let begin = journal.range().newest;
    Evictions::start(journal, &config.state_dir, begin, config.api, server.clone()).map(Some)
}

/// Who is asked to end a soft eviction's victim, if anything is to be requested.
pub(super) fn requester(
    config: &Config,
    is_beside_kubelet: bool,
    journal: &Journal,
    server: &ApiServer,
) -> Option<Arc<dyn Requester>> {
    let soft = SoftEvictions::new(server, config.api, journal);
    requests(config, is_beside_kubelet).then(|| Arc::new(SoftRequests(soft)) as Arc<dyn Requester>)
}

/// Whether evictions are requested from the API server.
pub(super) fn requests(config: &Config, is_beside_kubelet: bool) -> bool {
    let ApiSettings { action, bare_pods, daemon_set_pods, on_pdb: _ } = config.api;
    let asks = action.or(bare_pods).or(daemon_set_pods).is_some();
    is_beside_kubelet && config.mode == Mode::Enforce && asks
}

/// How the end of a pod is requested.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    /// Not at all.
    Never,
    /// At once, as its controller is known.
    AtOnce,
    /// After a look at it: an earlier process may have requested it, or what is known of it may be old.
    AfterLook,
}

impl Way {
    /// That of a pod of which this is known, if `is_live` says whether its spec holds now.
    fn of(placed: Option<Knowledge>, is_live: bool, is_again: bool) -> Self {
        match placed {
            _ if is_again => Self::AfterLook,
            // The API server does not have it, or it is being deleted and keeps the grace period that was asked for.
            None | Some(Knowledge::Spec { is_terminating: true, .. }) => Self::Never,
            Some(_) if is_live => Self::AtOnce,
            Some(_) => Self::AfterLook,
        }
    }
}

/// Requests the end of a kubelet's pods.
#[derive(Debug)]
struct SoftRequests(SoftEvictions);

impl Requester for SoftRequests {
    fn request(
        &self,
        id: Ulid,
        pod: &Identity,
        grace: Duration,
        is_again: bool,
        is_withdrawn: &dyn Fn() -> bool,
    ) -> Requested {
        let owner = Owner::of(pod.controller.as_ref().map(|controller| controller.kind.as_str()));
        let (id, reference) = (id.to_string(), reference(pod));
        let outcome = match Way::of(pod.placed, pod.spec.is_live(), is_again) {
            Way::Never => return Requested::Unanswered,
            Way::AtOnce => self.0.request(&id, &reference, owner, grace, is_withdrawn),
            Way::AfterLook => self.0.request_after_look(&id, &reference, grace, is_withdrawn),
        };
        match outcome {
            SoftOutcome::Accepted => Requested::Accepted,
            SoftOutcome::Budget => Requested::Budget,
            SoftOutcome::Unanswered => Requested::Unanswered,
        }
    }

    fn was_requested(&self, id: Ulid, pod: &Identity) -> bool {
        self.0.was_requested(&id.to_string(), &reference(pod))
    }
}

fn reference(pod: &Identity) -> PodRef {
    let PodName { namespace, name } = pod.pod.clone();
    PodRef { namespace, name, uid: pod.uid.to_string() }
}

/// Starts to kill containers again that the kubelet starts before an evicted pod is gone, if evictions are asked for.
pub(super) fn repeating(
    evictions: Option<&Evictions>,
    orders: &OrderBook,
    journal: &Journal,
) -> io::Result<Option<Repeating>> {
    evictions.map(|evictions| Repeating::start(evictions.open(), orders.view(), journal)).transpose()
}

/// Starts to show on the node whether memory is short, if that is wanted, and otherwise to remove what an earlier daemon
/// left there.
pub(super) fn node_marks(
    config: &Config,
    is_beside_kubelet: bool,
    journal: &Journal,
    server: &ApiServer,
) -> io::Result<Option<NodeMarks>> {
    let is_wanted = is_beside_kubelet && config.mode == Mode::Enforce;
    let settings = if is_wanted { config.node_marks } else { NodeSettings::default() };
    NodeMarks::start(journal, &config.state_dir, settings, server.clone())
}

/// Starts to read whether the node is under disk pressure by its kubelet's account. Without a kubelet it never is.
pub(super) fn disk_pressure(is_beside_kubelet: bool, server: &ApiServer) -> io::Result<Option<DiskPressure>> {
    is_beside_kubelet.then(|| DiskPressure::start(server.clone())).transpose()
}

/// Waits for another answer about disk pressure; for ever if nobody asks. Safe to cancel.
pub(super) async fn next(disk: Option<&mut DiskPressure>) -> Option<bool> {
    match disk {
        Some(disk) => disk.next().await,
        None => std::future::pending().await,
    }
}

/// Passes on that memory is short, or no longer.
pub(super) fn note(marks: Option<&NodeMarks>, repeating: Option<&Repeating>, event: &EngineEvent) {
    if let Some(repeating) = repeating {
        repeating.note(event);
    }
    if let (Some(marks), EngineEvent::Conditions(conditions)) = (marks, event) {
        marks.set_short(conditions.has(NodeCondition::MemoryPressure));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Freshness, SpecOrigin};

    /// That a kubelet is started again, or that a daemon has only the specs of an earlier one, is no API server that is
    /// away.
    #[test]
    fn a_pod_whose_spec_is_not_live_is_looked_at_and_requested_all_the_same() {
        let origin = SpecOrigin { source: "kubelet", freshness: Freshness::Live };
        let spec = |is_terminating| Some(Knowledge::Spec { is_settled: true, origin, is_terminating });
        let names = Some(Knowledge::Names { is_settled: true });
        assert_eq!(Way::of(spec(false), true, false), Way::AtOnce);
        assert_eq!(Way::of(spec(false), false, false), Way::AfterLook);
        assert_eq!(Way::of(names, false, false), Way::AfterLook, "its controller is not known");
    }

    #[test]
    fn a_pod_that_is_being_deleted_or_is_no_kubelets_is_not_requested() {
        let origin = SpecOrigin { source: "kubelet", freshness: Freshness::Live };
        let terminating = Some(Knowledge::Spec { is_settled: true, origin, is_terminating: true });
        for is_live in [false, true] {
            assert_eq!(Way::of(terminating, is_live, false), Way::Never);
            assert_eq!(Way::of(None, is_live, false), Way::Never);
            // An earlier process may have done it.
            assert_eq!(Way::of(terminating, is_live, true), Way::AfterLook);
        }
    }
}
