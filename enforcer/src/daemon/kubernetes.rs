//! The Kubernetes API server as the daemon has it: who it is to that, and the evictions that are asked for.

use std::{io, sync::Arc};

use super::{EngineEvent, orders::OrderBook, repeats::Repeating, specifying};
use crate::{
    config::{Config, Mode},
    journal::Journal,
    kube::{ApiServer, ApiSettings, Evictions, NodeMarks, NodeSettings},
    policy::threshold::NodeCondition,
};

/// The API server by the configured credentials. `host` is this machine's name.
pub(super) fn server(config: &Config, host: &str) -> io::Result<ApiServer> {
    let access = specifying::access(config, host);
    let node = access.node.clone();
    ApiServer::start(&node, Arc::new(move || access.api_server().map_err(|error| crate::chain(&error))))
}

/// Starts to ask for the evictions of a kubelet's pods, if there are any and something is to be asked. Without a position
/// of an earlier daemon it begins with the next event.
pub(super) fn evictions(
    config: &Config,
    is_beside_kubelet: bool,
    journal: &Journal,
    server: &ApiServer,
) -> io::Result<Option<Evictions>> {
    let ApiSettings { action, bare_pods, daemon_set_pods, on_pdb: _ } = config.api;
    let asks = action.or(bare_pods).or(daemon_set_pods).is_some();
    if !is_beside_kubelet || config.mode != Mode::Enforce || !asks {
        return Ok(None);
    }
    let begin = journal.range().newest;
    Evictions::start(journal, &config.state_dir, begin, config.api, server.clone()).map(Some)
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

/// Passes on that memory is short, or no longer.
pub(super) fn note(marks: Option<&NodeMarks>, repeating: Option<&Repeating>, event: &EngineEvent) {
    if let Some(repeating) = repeating {
        repeating.note(event);
    }
    if let (Some(marks), EngineEvent::Conditions(conditions)) = (marks, event) {
        marks.set_short(conditions.has(NodeCondition::MemoryPressure));
    }
}
