//! Temporary orders of operators: a pod is not evicted, or no pod is.
//!
//! An order has a reason, and it ends by itself. Its time runs by `CLOCK_BOOTTIME`, which cannot be set, so setting the
//! wall clock neither prolongs nor shortens it. Over a reboot there is only the wall clock: then an order ends by that,
//! and at once if it shows a time before the order was given.

use serde::{Deserialize, Serialize};

use crate::model::PodName;

/// The longest duration of an order.
pub const MAX_FOR_MS: u64 = 24 * 60 * 60 * 1_000;

/// The shortest duration of an order.
pub const MIN_FOR_MS: u64 = 1_000;

/// The longest reason, in characters.
pub const MAX_REASON: usize = 300;

/// The most orders in force at a time.
pub const MAX_ORDERS: usize = 256;

/// The longest namespace or name, in bytes: a DNS subdomain's.
const MAX_NAME_BYTES: usize = 253;

/// The content of an order.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase", tag = "order", deny_unknown_fields)]
pub enum What {
    /// This pod is not evicted.
    Protect {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// No pod is evicted: decisions are only reported, as in `dry-run`.
    Pause,
}

impl What {
    /// Protects this pod.
    #[must_use]
    pub fn protect(pod: &PodName) -> Self {
        Self::Protect { namespace: pod.namespace.clone(), name: pod.name.clone() }
    }

    /// The pod that the order is about, if any.
    #[must_use]
    pub fn pod(&self) -> Option<PodName> {
        match self {
            Self::Protect { namespace, name } => {
                Some(PodName { namespace: namespace.clone(), name: name.clone() })
            }
            Self::Pause => None,
        }
    }

    /// Its name: `protect` or `pause`.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Protect { .. } => "protect",
            Self::Pause => "pause",
        }
    }

    fn is_bounded(&self) -> bool {
        match self {
            Self::Protect { namespace, name } => {
                [namespace, name].iter().all(|part| (1..=MAX_NAME_BYTES).contains(&part.len()))
            }
            Self::Pause => true,
        }
    }
}

/// One moment by both clocks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Moment {
    /// Milliseconds of `CLOCK_BOOTTIME`.
    pub boot_ms: u64,
    /// Milliseconds since 1970, as far as the wall clock is right.
    pub wall_ms: u64,
}

/// An order in force.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Order {
    /// The content of the order.
    pub what: What,
    /// The operator's reason.
    pub reason: String,
    /// The user id of the operator.
    pub uid: u32,
    /// When it was given, in milliseconds since 1970.
    pub given_ms: u64,
    /// When it ends, by the wall clock at the time of the order.
    pub until_ms: u64,
    /// When it ends, in milliseconds of `CLOCK_BOOTTIME`; this is decisive until the machine reboots.
    pub until_boot_ms: u64,
}

impl Order {
    /// How much longer it is in force, in milliseconds.
    #[must_use]
    pub fn left_ms(&self, now: Moment) -> u64 {
        self.until_boot_ms.saturating_sub(now.boot_ms)
    }

    fn for_ms(&self) -> u64 {
        self.until_ms.saturating_sub(self.given_ms)
    }

    /// Whether it could have been given.
    fn is_sound(&self) -> bool {
        check(&self.what, &self.reason, self.for_ms()).is_ok()
    }
}

/// Why an order is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum OrderError {
    /// It has no meaningful reason.
    #[error("the reason must say why, in 1 to {MAX_REASON} characters on one line")]
    Reason,
    /// Its duration is out of range.
    #[error("an order holds for 1s to 24h, and can be given again")]
    Time,
    /// Its pod name is not possible.
    #[error("a namespace and a name have 1 to {MAX_NAME_BYTES} characters")]
    Name,
    /// Too many orders are in force.
    #[error("{MAX_ORDERS} orders are in force already: end some first")]
    TooMany,
    /// The protected pods would hold too much of the node's memory.
    #[error(
        "the protected pods would hold {bytes} bytes of memory, and no more than {most_bytes} may be protected, \
         {most_permille} thousandths of the node (protectedMaxShare): end another protection, or allow more"
    )]
    Share {
        /// Their sum of the greater of request and usage.
        bytes: u64,
        /// The most that is allowed.
        most_bytes: u64,
        /// The same in thousandths of the node's memory.
        most_permille: u16,
    },
}

/// Whether a reason is meaningful: one line, not too long.
pub fn check_reason(reason: &str) -> Result<(), OrderError> {
    let length = reason.chars().take(MAX_REASON + 1).count();
    let is_reported =
        !reason.trim().is_empty() && length <= MAX_REASON && !reason.chars().any(char::is_control);
    is_reported.then_some(()).ok_or(OrderError::Reason)
}

/// What is left of a time that was given before a restart: from, until, and until by `CLOCK_BOOTTIME`.
pub(crate) fn resumed_left_ms(
    (given_ms, until_ms, until_boot_ms): (u64, u64, u64),
    same_boot: bool,
    now: Moment,
) -> u64 {
    let left_ms = match same_boot {
        true => until_boot_ms.saturating_sub(now.boot_ms),
        // The clock is or was wrong: how long ago that was is unknown.
        false if now.wall_ms < given_ms => 0,
        false => until_ms.saturating_sub(now.wall_ms),
    };
    left_ms.min(until_ms.saturating_sub(given_ms))
}

fn check(what: &What, reason: &str, for_ms: u64) -> Result<(), OrderError> {
    check_reason(reason)?;
    if !(MIN_FOR_MS..=MAX_FOR_MS).contains(&for_ms) {
        return Err(OrderError::Time);
    }
    what.is_bounded().then_some(()).ok_or(OrderError::Name)
}

/// Whether pods that hold `bytes` together may be protected on a node with `node_bytes` of memory. If nearly all pods
/// are protected there is no candidate left, and the kernel chooses.
pub fn check_share(bytes: u64, node_bytes: u64, most_permille: u16) -> Result<(), OrderError> {
    let most = u128::from(node_bytes) * u128::from(most_permille) / 1_000;
    let most_bytes = u64::try_from(most).unwrap_or(u64::MAX);
    if bytes <= most_bytes { Ok(()) } else { Err(OrderError::Share { bytes, most_bytes, most_permille }) }
}

/// The orders in force, in the order in which they were given.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Orders(Vec<Order>);

impl Orders {
    /// Restores the orders that were in force before a restart, and returns those that are over. `same_boot`: the
    /// machine has not rebooted since.
    #[must_use]
    pub fn resume(kept: Vec<Order>, same_boot: bool, now: Moment) -> (Self, Vec<Order>) {
        let (mut orders, mut over) = (Self::default(), Vec::new());
        for mut order in kept {
            let left_ms =
                resumed_left_ms((order.given_ms, order.until_ms, order.until_boot_ms), same_boot, now);
            order.until_boot_ms = now.boot_ms.saturating_add(left_ms);
            let is_new = orders.find(&order.what).is_none();
            if left_ms > 0 && is_new && order.is_sound() && orders.0.len() < MAX_ORDERS {
                orders.0.push(order);
            } else {
                over.push(order);
            }
        }
        (orders, over)
    }

    /// Adds an order; it replaces an earlier one about the same.
    pub fn give(
        &mut self,
        what: What,
        reason: &str,
        uid: u32,
        now: Moment,
        for_ms: u64,
    ) -> Result<Order, OrderError> {
        check(&what, reason, for_ms)?;
        if self.find(&what).is_none() && self.0.len() >= MAX_ORDERS {
            return Err(OrderError::TooMany);
        }
        let order = Order {
            what,
            reason: reason.trim().to_owned(),
            uid,
            given_ms: now.wall_ms,
            until_ms: now.wall_ms.saturating_add(for_ms),
            until_boot_ms: now.boot_ms.saturating_add(for_ms),
        };
        self.0.retain(|before| before.what != order.what);
        self.0.push(order.clone());
        Ok(order)
    }

    /// Ends an order early; `None` if it is not in force.
    pub fn end(&mut self, what: &What) -> Option<Order> {
        let place = self.0.iter().position(|order| order.what == *what)?;
        Some(self.0.remove(place))
    }

    /// Ends the expired orders, and returns them.
    pub fn expire(&mut self, now: Moment) -> Vec<Order> {
        let (over, kept) = std::mem::take(&mut self.0).into_iter().partition(|order| order.left_ms(now) == 0);
        self.0 = kept;
        over
    }

    /// How long until the next order ends, in milliseconds.
    #[must_use]
    pub fn next_end_ms(&self, now: Moment) -> Option<u64> {
        self.0.iter().map(|order| order.left_ms(now)).min()
    }

    /// Whether no pod may be evicted.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.find(&What::Pause).is_some()
    }

    /// The order with this content, if one is in force.
    #[must_use]
    pub fn find(&self, what: &What) -> Option<&Order> {
        self.0.iter().find(|order| order.what == *what)
    }

    /// The pods that must not be evicted.
    pub fn protected(&self) -> impl Iterator<Item = PodName> {
        self.0.iter().filter_map(|order| order.what.pod())
    }

    /// All orders in force.
    #[must_use]
    pub fn all(&self) -> &[Order] {
        &self.0
    }
}

#[cfg(test)]
mod tests;
