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

/// What is left before each threshold: the answer to `GET /v1/headroom`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeadroomView {
    /// Those signals that have a threshold and could be read.
    pub signals: Vec<SignalView>,
    /// Kubepods and the cgroups of the classes below it, as far as they stand.
    pub slices: Vec<SliceView>,
}

/// A signal. Amounts of memory are `…Bytes`, others `…Count`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SignalView {
    /// Its name.
    pub signal: String,
    /// What is left of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    /// What there is in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// How fast it falls; 0 if it does not, absent if that is not known yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill_bytes_per_second: Option<u64>,
    /// What is left of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_count: Option<u64>,
    /// What there is in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_count: Option<u64>,
    /// How fast it falls; 0 if it does not, absent if that is not known yet.
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
    /// As it is configured: `100Mi`, `5%`.
    pub value: String,
    /// How long a soft one must have been met before pods are evicted; absent of a hard one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_period_ms: Option<u64>,
    /// Whether it is met: less is available than its amount.
    pub met: bool,
    /// What it comes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold_bytes: Option<u64>,
    /// What is left before it; below zero, what is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headroom_bytes: Option<i64>,
    /// What it comes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold_count: Option<u64>,
    /// What is left before it; below zero, what is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headroom_count: Option<i64>,
    /// How long until it is crossed if it goes on so; absent if it is met, or does not come nearer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crossed_in_ms: Option<u64>,
}

/// A cgroup that holds pods. What cannot be read is absent.
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
    /// For how much of the last ten seconds some task was stalled for want of memory, in per cent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub some_avg10_percent: Option<f64>,
    /// For how much of them all tasks were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_avg10_percent: Option<f64>,
}

/// Looks at what is left; may take some milliseconds. None where nobody looks.
#[derive(Clone)]
pub struct Headrooms(Arc<dyn Fn() -> Option<HeadroomView> + Send + Sync>);

impl Headrooms {
    /// By that function.
    pub fn by(look: impl Fn() -> Option<HeadroomView> + Send + Sync + 'static) -> Self {
        Self(Arc::new(look))
    }
}

impl fmt::Debug for Headrooms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Headrooms")
    }
}

/// What is asked for what may come.
#[derive(Clone, Debug)]
pub struct Foresight {
    /// Who would be evicted before whom.
    pub ranker: Ranker,
    /// What is left before each threshold.
    pub headrooms: Headrooms,
}

pub(super) async fn headroom(State(shared): State<Shared>) -> Response {
    if let Some(headroom) = threads::blocking(move || (shared.foresight.headrooms.0)()).await {
        return Json(headroom).into_response();
    }
    let error = "nobody looks ahead: `enforcer doctor` and the event degraded.entered of outlook say why";
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"error": error}))).into_response()
}
