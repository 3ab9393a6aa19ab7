//! The order in which pods are evicted: `rankMemoryPressure` and `rankPIDPressure` of
//! `pkg/kubelet/eviction/helpers.go`.
//!
//! Nothing here allocates: slices are sorted in place, and ties keep the caller's order.

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};
use std::cmp::{Ordering, Reverse};

/// The keys of a pod in the memory ranking.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub struct MemoryRankKey {
    /// The working set in bytes; `None` without stats, which puts the pod first.
    pub usage_bytes: Option<u64>,
    /// The memory request in bytes (`PodPlan::ranking_request_bytes`).
    pub request_bytes: u64,
    /// The pod's priority.
    pub priority: i32,
    /// The pod's place in the caller's order, unique in the slice.
    pub order: u32,
}

/// The keys of a pod in the ranking by tasks.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub struct PidRankKey {
    /// The number of tasks; `None` without stats, which puts the pod first among those of its priority.
    pub process_count: Option<u64>,
    /// The pod's priority.
    pub priority: i32,
    /// The pod's place in the caller's order, unique in the slice.
    pub order: u32,
}

/// The key that put a pod before its neighbour.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Schema, Serialize)]
pub enum DecidedBy {
    /// Only one of the two has stats: the one without comes first.
    StatsMissing,
    /// Only one of the two uses more than it requests: that one comes first.
    ExceedsRequest,
    /// The lower priority comes first.
    Priority,
    /// The one that is further above its request comes first.
    AboveRequest,
    /// The one with more tasks comes first.
    ProcessCount,
    /// The keys are equal: the caller's order applies.
    Order,
}

impl DecidedBy {
    /// The name in events and on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::StatsMissing => "statsMissing",
            Self::ExceedsRequest => "exceedsRequest",
            Self::Priority => "priority",
            Self::AboveRequest => "aboveRequest",
            Self::ProcessCount => "processCount",
            Self::Order => "order",
        }
    }

    /// The same for a victim that may have been the only candidate.
    #[must_use]
    pub fn of(key: Option<Self>) -> &'static str {
        key.map_or("onlyCandidate", Self::as_str)
    }
}

impl MemoryRankKey {
    /// Whether it uses more than it requests; false without stats.
    #[must_use]
    pub fn exceeds_request(&self) -> bool {
        self.usage_bytes.is_some_and(|usage_bytes| usage_bytes > self.request_bytes)
    }

    /// How far its usage is above its request in bytes, negative if below; `None` without stats.
    #[must_use]
    pub fn above_request_bytes(&self) -> Option<i64> {
        self.usage_bytes.map(|usage_bytes| {
            let above = i128::from(usage_bytes) - i128::from(self.request_bytes);
            i64::try_from(above).unwrap_or(if above < 0 { i64::MIN } else { i64::MAX })
        })
    }

    /// Which of the two is evicted first, and the key that decides. A total order over distinct `order`s.
    #[must_use]
    pub fn compare(&self, other: &Self) -> (Ordering, DecidedBy) {
        let stats = self.usage_bytes.is_some().cmp(&other.usage_bytes.is_some());
        let exceeds = Reverse(self.exceeds_request()).cmp(&Reverse(other.exceeds_request()));
        let above = Reverse(self.above()).cmp(&Reverse(other.above()));
        first_unequal([
            (stats, DecidedBy::StatsMissing),
            (exceeds, DecidedBy::ExceedsRequest),
            (self.priority.cmp(&other.priority), DecidedBy::Priority),
            (above, DecidedBy::AboveRequest),
            (self.order.cmp(&other.order), DecidedBy::Order),
        ])
    }

    /// [`Self::above_request_bytes`] before it is cut to 64 bits; 0 without stats.
    fn above(&self) -> i128 {
        self.usage_bytes.map_or(0, |usage_bytes| i128::from(usage_bytes) - i128::from(self.request_bytes))
    }
}

impl PidRankKey {
    /// Which of the two is evicted first, and the key that decides. A total order over distinct `order`s.
    #[must_use]
    pub fn compare(&self, other: &Self) -> (Ordering, DecidedBy) {
        let stats = self.process_count.is_some().cmp(&other.process_count.is_some());
        let count = Reverse(self.process_count).cmp(&Reverse(other.process_count));
        first_unequal([
            (self.priority.cmp(&other.priority), DecidedBy::Priority),
            (stats, DecidedBy::StatsMissing),
            (count, DecidedBy::ProcessCount),
            (self.order.cmp(&other.order), DecidedBy::Order),
        ])
    }
}

/// Sorts by the memory ranking: the pod to be evicted first comes first.
pub fn by_memory<T>(pods: &mut [T], standing: impl Fn(&T) -> MemoryRankKey) {
    pods.sort_unstable_by(|left, right| standing(left).compare(&standing(right)).0);
}

/// Sorts by the task ranking: the pod to be evicted first comes first.
pub fn by_pids<T>(pods: &mut [T], standing: impl Fn(&T) -> PidRankKey) {
    pods.sort_unstable_by(|left, right| standing(left).compare(&standing(right)).0);
}

fn first_unequal<const N: usize>(keys: [(Ordering, DecidedBy); N]) -> (Ordering, DecidedBy) {
    keys.into_iter().find(|(ordering, _)| ordering.is_ne()).unwrap_or((Ordering::Equal, DecidedBy::Order))
}

#[cfg(test)]
mod tests;
