//! What is asked on the admin socket, and what is answered.
use serde::{Deserialize, Serialize};

use crate::policy::order::{Moment, Order, OrderError, What};

/// What is wanted: the body of `POST /v1/orders` on the admin socket.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "do", deny_unknown_fields)]
pub enum OrderRequest {
    /// An order, instead of an earlier one about the same.
    Give {
        /// What is ordered.
        what: What,
        /// Why.
        reason: String,
        /// For how long, in milliseconds.
        for_ms: u64,
    },
    /// The end of an order before its time.
    End {
        /// What was ordered.
        what: What,
        /// Why it ends.
        reason: String,
    },
    /// A pod evicted now.
    Evict {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Why.
        reason: String,
        /// Whether it is only to be said what would be done.
        dry_run: bool,
    },
    /// The configuration and the manifests read again, as on SIGHUP.
    Reload {
        /// Whether every threshold is to be armed, also one that was crossed when it was loaded.
        #[serde(default)]
        arm: bool,
        /// Whether the folder of manifests counts as it is now, though it is another one than before, empty or missing.
        #[serde(default)]
        accept_empty: bool,
    },
}

/// What was done.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Done {
    /// For a person.
    pub message: String,
    /// The order that is in force, or was.
    pub order: Option<OrderView>,
    /// Whether a restart finds it; always of an eviction.
    pub durable: bool,
    /// Under which id an eviction is told of.
    pub eviction_id: Option<String>,
    /// Whether it was only decided.
    pub dry_run: bool,
}

/// Why nothing was done.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum No {
    /// What is wanted is not well formed.
    Wrong(String),
    /// There is no such pod or order.
    Unknown(String),
    /// It is well formed and must not be.
    Refused(String),
    /// Not now.
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

/// An order in force, as it is told: an entry of `GET /v1/orders`.
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
    /// Why.
    pub reason: String,
    /// The user id of who gave it.
    pub uid: u32,
    /// When it was given, as RFC 3339.
    pub given: String,
    /// Until when it holds; where the wall clock was set since, by that clock as it was then.
    pub until: String,
    /// How much longer it held when this was told, in milliseconds.
    pub left_ms: u64,
}

impl OrderView {
    /// Whether by it nobody is evicted.
    #[must_use]
    pub fn is_pause(&self) -> bool {
        self.order == What::Pause.as_str()
    }

    /// As it is told at that moment.
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

/// This moment, by both clocks.
pub(crate) fn now() -> Moment {
    let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let whole_ms = u64::try_from(boot.tv_sec).unwrap_or(0).saturating_mul(1_000);
    let boot_ms = whole_ms.saturating_add(u64::try_from(boot.tv_nsec / 1_000_000).unwrap_or(0));
    let wall_ms = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
    Moment { boot_ms, wall_ms }
}

pub(crate) fn rfc3339(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    time.unwrap_or(jiff::Timestamp::MAX).to_string()
}
