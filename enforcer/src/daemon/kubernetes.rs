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

/// Requests the end of pods whose controller is known from a live spec.
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
        // One that is being deleted keeps the grace period that was asked for, and of an old spec the controller may be too.
        let is_terminating = matches!(pod.placed, Some(Knowledge::Spec { is_terminating: true, .. }));
        if !is_again && (is_terminating || !pod.spec.is_live()) {
            return Requested::Unanswered;
        }
        let owner = Owner::of(pod.controller.as_ref().map(|controller| controller.kind.as_str()));
        let (id, pod) = (id.to_string(), reference(pod));
        let outcome = if is_again {
            self.0.request_again(&id, &pod, grace, is_withdrawn)
        } else {
            self.0.request(&id, &pod, owner, grace, is_withdrawn)
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
