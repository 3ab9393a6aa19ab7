//! `GET /v1/ranking`: who would be evicted first now, for `enforcer next` and `top`.

use std::{fmt, sync::Arc};

use axum::{
    Json,
    extract::{Query as Pairs, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::server::Shared;
use crate::{
    nearest::nearest,
    policy::{engine::Resource, threshold::Signal},
};

/// The present eviction order: the answer to `GET /v1/ranking`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RankingView {
    /// The signal of the shortage.
    pub signal: String,
    /// The pods that may be evicted, in order.
    pub order: Vec<RankedView>,
    /// The pods that may not.
    pub excluded: Vec<ExcludedView>,
}

/// A pod that may be evicted. Without stats the amounts are absent. The rows of `eviction.decided` are the same with
/// fewer fields.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RankedView {
    /// Its rank, from 1.
    pub rank: usize,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its QoS class.
    pub qos_class: String,
    /// Whether it may be evicted; true of all pods in the order.
    pub evictable: bool,
    /// Whether its usage could not be read.
    pub stats_missing: bool,
    /// Whether it uses more than it requests.
    pub exceeds_request: bool,
    /// The priority by which it is ranked.
    pub priority: i32,
    /// Its working set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_bytes: Option<u64>,
    /// Its request.
    pub request_bytes: u64,
    /// Its limit; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// Usage above its request; negative if it is below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub above_request_bytes: Option<i64>,
    /// `anon`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anon_bytes: Option<u64>,
    /// `file`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_bytes: Option<u64>,
    /// `shmem`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shmem_bytes: Option<u64>,
    /// `memory.current`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_bytes: Option<u64>,
    /// The number of its tasks, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_count: Option<u64>,
    /// How fast its working set grows; negative if it shrinks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth_bytes_per_second: Option<i64>,
    /// The key that ranks it before the next; absent for the last, and `onlyCandidate` for a single pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
    /// Its cgroup's id.
    pub cgroup_id: u64,
}

/// A pod that may not be evicted.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExcludedView {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Why, with the values of `eviction.decided`.
    pub reason: String,
}

/// Ranks the candidates by their present usage. This may take a few hundred milliseconds.
#[derive(Clone)]
pub struct Ranker(Arc<dyn Fn(Signal) -> RankingView + Send + Sync>);

impl Ranker {
    /// Uses this function.
    pub fn by(rank: impl Fn(Signal) -> RankingView + Send + Sync + 'static) -> Self {
        Self(Arc::new(rank))
    }

    /// Ranks them for a shortage of `signal`.
    #[must_use]
    pub fn rank(&self, signal: Signal) -> RankingView {
        (self.0)(signal)
    }
}

impl fmt::Debug for Ranker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ranker")
    }
}

/// Parses a signal for which pods are evicted: `memory.available`, `allocatableMemory.available` or `pid.available`.
/// The error suggests or lists the signals.
pub fn ranked_signal(name: &str) -> Result<Signal, String> {
    let ranked = || Signal::ALL.into_iter().filter(|signal| Resource::of(*signal).is_some());
    if let Some(signal) = ranked().find(|signal| signal.as_str() == name) {
        return Ok(signal);
    }
    let names: Vec<_> = ranked().map(Signal::as_str).collect();
    let hint = match nearest(name, names.iter().copied()) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("there are {}", names.join(", ")),
    };
    Err(format!("pods are not ranked by {name:?}: {hint}"))
}

fn signal(pairs: &[(String, String)]) -> Result<Signal, String> {
    let mut signal = Signal::MemoryAvailable;
    for (name, value) in pairs {
        match name.as_str() {
            "signal" => signal = ranked_signal(value).map_err(|error| format!("signal: {error}"))?,
            _ => return Err(format!("{name:?} is not a parameter: there is only signal")),
        }
    }
    Ok(signal)
}

pub(super) async fn ranking(
    State(shared): State<Shared>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Response {
    let signal = match signal(&pairs) {
        Ok(signal) => signal,
        Err(message) => return (StatusCode::BAD_REQUEST, Json(json!({"error": message}))).into_response(),
    };
    Json(crate::threads::blocking(move || shared.foresight.ranker.rank(signal)).await).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_without_a_ranking_is_refused_with_one_that_has_one() {
        let asked = |pairs: &[(&str, &str)]| {
            signal(&pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect::<Vec<_>>())
        };
        assert_eq!(asked(&[]), Ok(Signal::MemoryAvailable));
        assert_eq!(asked(&[("signal", "pid.available")]), Ok(Signal::PidAvailable));
        let error = asked(&[("signal", "memory.availabel")]).unwrap_err();
        assert!(error.contains("did you mean memory.available?"), "{error}");
        let error = asked(&[("signal", "nodefs.inodesFree")]).unwrap_err();
        assert!(error.contains("memory.available, allocatableMemory.available, pid.available"), "{error}");
        assert!(asked(&[("n", "3")]).unwrap_err().contains("only signal"));
    }
}
