//! Requests and answers on the admin socket.
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ReservationView;
use crate::{
    clock,
    policy::{
        order::{Moment, Order, OrderError, What},
        reservation::ReservationError,
    },
};

/// A request on the admin socket.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AdminRequest {
    /// `POST /v1/orders`.
    Order(OrderRequest),
    /// `POST /v1/reservations`.
    Reserve(ReservationRequest),
    /// `DELETE /v1/reservations`: the reservation of that name ends.
    Release(String),
}

/// The body of `POST /v1/reservations`: resources that are not for pods. It replaces one of the same name.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReservationRequest {
    /// The reservation's name.
    pub name: String,
    /// The amounts as quantities, by resource: `2Gi`, `500m`.
    pub resources: BTreeMap<String, String>,
    /// What it is for.
    pub reason: String,
    /// How long it holds, in milliseconds.
    pub ttl_ms: u64,
}

/// The body of `POST /v1/orders` on the admin socket.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "do", deny_unknown_fields)]
pub enum OrderRequest {
    /// Gives an order. Replaces an earlier one about the same.
    Give {
        /// The order.
        what: What,
        /// The operator's reason.
        reason: String,
        /// Its duration in milliseconds.
        for_ms: u64,
    },
    /// Ends an order early.
    End {
        /// The order.
        what: What,
        /// Why it ends.
        reason: String,
    },
    /// Evicts a pod now.
    Evict {
        /// The pod's namespace.
        namespace: String,
        /// The pod's name.
        name: String,
        /// The operator's reason.
        reason: String,
        /// Whether to report only what would be done.
        dry_run: bool,
    },
    /// Reads the configuration and the manifests again, as on SIGHUP.
    Reload {
        /// Whether to arm every threshold, even one that was crossed when it was loaded.
        #[serde(default)]
        arm: bool,
        /// Whether to accept the manifest folder even if it was replaced, or is empty or missing.
        #[serde(default)]
        accept_empty: bool,
        /// How much to log from now on: `error`, `warn`, `info`, `debug` or `trace`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        log_level: Option<String>,
    },
}

/// What was done.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Done {
    /// The result as text.
    pub message: String,
    /// The order that is in force, or was.
    pub order: Option<OrderView>,
    /// The reservation that is in force, or was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationView>,
    /// Whether it survives a restart; always true of an eviction.
    pub durable: bool,
    /// The eviction's id in events.
    pub eviction_id: Option<String>,
    /// Whether it was a dry run.
    pub dry_run: bool,
}

/// Why nothing was done.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum No {
    /// The request is malformed.
    Wrong(String),
    /// There is no such pod or order.
    Unknown(String),
    /// The request is well formed, but not allowed.
    Refused(String),
    /// The request cannot be handled now.
    Busy(String),
}

impl From<OrderError> for No {
    fn from(error: OrderError) -> Self {
        let reported = error.to_string();
        match error {
            OrderError::Reason | OrderError::Time | OrderError::Name => Self::Wrong(reported),
            OrderError::TooMany | OrderError::Share { .. } => Self::Refused(reported),
        }
    }
}

impl From<ReservationError> for No {
    fn from(error: ReservationError) -> Self {
        let reported = error.to_string();
        match error {
            ReservationError::TooMany | ReservationError::NotFree(_) => Self::Refused(reported),
            _ => Self::Wrong(reported),
        }
    }
}

/// An order in force: an entry of `GET /v1/orders`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OrderView {
    /// `protect` or `pause`.
    pub order: String,
    /// The pod's namespace, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The pod's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The operator's reason.
    pub reason: String,
    /// The user id that gave it.
    pub uid: u32,
    /// When it was given, as RFC 3339.
    pub given: String,
    /// When it ends, as RFC 3339. If the wall clock was set since, this is by the old clock.
    pub until: String,
    /// How long it still held at the time of the answer, in milliseconds.
    pub left_ms: u64,
}

impl OrderView {
    /// Whether it pauses all evictions.
    #[must_use]
    pub fn is_pause(&self) -> bool {
        self.order == What::Pause.as_str()
    }

    /// The view of an order at time `now`.
    #[must_use]
    pub fn new(order: &Order, now: Moment) -> Self {
        let pod = order.what.pod();
        let (namespace, name) = pod.map(|pod| (pod.namespace, pod.name)).unzip();
        Self {
            order: order.what.as_str().to_owned(),
            namespace,
            name,
            reason: order.reason.clone(),
            uid: order.uid,
            given: rfc3339(order.given_ms),
            until: rfc3339(order.until_ms),
            left_ms: order.left_ms(now),
        }
    }
}

/// The present time by both clocks.
pub(crate) fn now() -> Moment {
    let ms = |ns| ns / 1_000_000;
    Moment { boot_ms: ms(clock::boottime_ns()), wall_ms: ms(clock::realtime_ns()) }
}

pub(crate) fn rfc3339(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    time.unwrap_or(jiff::Timestamp::MAX).to_string()
}
