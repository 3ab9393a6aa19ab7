//! `GET /v1/headroom`: amounts and times that are left before thresholds are met.

use std::{fmt, sync::Arc};

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Ranker, server::Shared};
use crate::threads;

/// The headroom before each threshold: the answer to `GET /v1/headroom`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeadroomView {
    /// The signals that have a threshold and could be read.
    pub signals: Vec<SignalView>,
    /// Kubepods and the QoS class cgroups below it, if they exist.
    pub slices: Vec<SliceView>,
}

/// A signal. Amounts of memory are `…Bytes`, others `…Count`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SignalView {
    /// Its name.
    pub signal: String,
    /// The available amount.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    /// The total amount.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// How fast the available amount falls; 0 if it does not, absent if not known yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill_bytes_per_second: Option<u64>,
    /// The available count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_count: Option<u64>,
    /// The total count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_count: Option<u64>,
    /// How fast the available count falls; 0 if it does not, absent if not known yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill_per_second: Option<u64>,
    /// Its thresholds, hard ones first.
    pub thresholds: Vec<ThresholdView>,
}

/// A threshold of a signal.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ThresholdView {
    /// Whether pods are evicted as soon as it is met.
    pub hard: bool,
    /// The configured value: `100Mi`, `5%`.
    pub value: String,
    /// How long a soft one must be met before pods are evicted; absent for a hard one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_period_ms: Option<u64>,
    /// Whether it is met: less than its amount is available.
    pub met: bool,
    /// Its amount in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold_bytes: Option<u64>,
    /// The headroom before it; negative if it is met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headroom_bytes: Option<i64>,
    /// Its amount as a count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold_count: Option<u64>,
    /// The headroom before it; negative if it is met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headroom_count: Option<i64>,
    /// The time until it is crossed at the present rate; absent if it is met or does not come nearer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crossed_in_ms: Option<u64>,
}

/// A cgroup that holds pods. Fields that cannot be read are absent.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SliceView {
    /// `kubepods`, `burstable` or `besteffort`.
    pub name: String,
    /// Its path below the mount point.
    pub cgroup: String,
    /// `memory.current`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_bytes: Option<u64>,
    /// `memory.max`; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// The share of the last ten seconds in which some task was stalled on memory, in per cent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub some_avg10_percent: Option<f64>,
    /// The share in which all tasks were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_avg10_percent: Option<f64>,
}

/// Reads the headroom, which may take a few milliseconds. Returns `None` if no forecaster runs.
#[derive(Clone)]
pub struct Headrooms(Arc<dyn Fn() -> Option<HeadroomView> + Send + Sync>);

impl Headrooms {
    /// Uses this function.
    pub fn by(look: impl Fn() -> Option<HeadroomView> + Send + Sync + 'static) -> Self {
        Self(Arc::new(look))
    }
}

impl fmt::Debug for Headrooms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Headrooms")
    }
}

/// The sources of `GET /v1/ranking` and `GET /v1/headroom`.
#[derive(Clone, Debug)]
pub struct Foresight {
    /// Ranks the pods.
    pub ranker: Ranker,
    /// Reads the headroom before each threshold.
    pub headrooms: Headrooms,
}

pub(super) async fn headroom(State(shared): State<Shared>) -> Response {
    if let Some(headroom) = threads::blocking(move || (shared.foresight.headrooms.0)()).await {
        return Json(headroom).into_response();
    }
    let error =
        "the outlook does not run: `enforcer doctor` and the event degraded.entered of outlook say why";
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"error": error}))).into_response()
}
