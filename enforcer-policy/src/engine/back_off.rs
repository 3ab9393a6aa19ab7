//! Remembers evicted pods: one that comes back soon is reported, and does not count for the breaker again.
//!
//! A pod may come back by itself: its manager starts it again, in a cgroup that is adopted or under the same name. It
//! has *returned* while its back-off lasts. Its next eviction then does not count for the breaker, which guards against
//! an engine that kills too many: the same pod again is not one more. The ranking is unchanged: a hog that comes back
//! is evicted each time that it fills the node, and no other pod dies in its place.
//!
//! The times are those of the kubelet's `CrashLoopBackOff` (`pkg/kubelet/kubelet.go`: `MaxCrashLoopBackOff`, and
//! `initialCrashLoopBackOff`; forgotten after twice the longest, as in client-go's `flowcontrol.Backoff`).

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use super::Engine;
use crate::few::Few;

const SECOND: u64 = 1_000_000_000;

/// The length of the first back-off; each further one is twice as long, up to the longest.
const FIRST_NS: u64 = 10 * SECOND;
const LONGEST_NS: u64 = 300 * SECOND;

/// A pod that is not evicted for so long is forgotten.
const FORGET_NS: u64 = 2 * LONGEST_NS;

/// The most pods remembered. With more, the one whose back-off ends first is forgotten.
const MOST: usize = 64;

/// Stands for a pod's namespace and name, which stay the same when it comes back.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub struct PodKey {
    /// A hash that no tenant can predict: otherwise one could choose a name that is taken for another's.
    pub hash: u64,
}

/// The state of one pod.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
struct Entry {
    pod: PodKey,
    /// The number of its evictions, with no long time between.
    evictions: u32,
    evicted_ns: u64,
    until_ns: u64,
}

/// A pod that has returned.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub struct Returned {
    /// The number of its earlier evictions, with no more than ten minutes between.
    pub evictions: u32,
    /// When its back-off ends, in nanoseconds of `CLOCK_BOOTTIME`.
    pub until_ns: u64,
}

/// An eviction that an earlier process of the daemon began, in this boot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Past {
    /// The pod.
    pub pod: PodKey,
    /// When its first signal was sent: nanoseconds of `CLOCK_BOOTTIME`.
    pub at_ns: u64,
}

/// The pods that were evicted recently.
#[derive(Clone, Copy, Debug, Default, Deserialize, Schema, Serialize)]
pub(super) struct BackOffs {
    entries: Few<Entry, MOST>,
}

impl BackOffs {
    /// Records an eviction. Returns whether it is the pod's first, or the first after its back-off.
    pub(super) fn note(&mut self, pod: PodKey, now_ns: u64) -> bool {
        let mut fresh = Entry { pod, evictions: 1, evicted_ns: now_ns, until_ns: 0 };
        fresh.until_ns = now_ns.saturating_add(length_ns(1));
        if let Some(known) = self.entries.iter_mut().find(|entry| entry.pod == pod) {
            let has_returned = now_ns < known.until_ns;
            let is_forgotten = now_ns.saturating_sub(known.evicted_ns) >= FORGET_NS;
            if is_forgotten {
                *known = fresh;
            } else {
                known.evictions = known.evictions.saturating_add(1);
                known.evicted_ns = now_ns;
                let until_ns = now_ns.saturating_add(length_ns(known.evictions));
                // Never earlier than already announced, even if the clock went back.
                known.until_ns = known.until_ns.max(until_ns);
            }
            return !has_returned;
        }
        if !self.entries.push(fresh)
            && let Some(first) = self.entries.iter_mut().min_by_key(|entry| entry.until_ns)
        {
            *first = fresh;
        }
        true
    }

    /// The pod's evictions, if its back-off lasts.
    pub(super) fn returned(&self, pod: PodKey, now_ns: u64) -> Option<Returned> {
        let entry = self.entries.iter().find(|entry| entry.pod == pod && now_ns < entry.until_ns)?;
        Some(Returned { evictions: entry.evictions, until_ns: entry.until_ns })
    }
}

/// The length of the back-off after so many evictions.
fn length_ns(evictions: u32) -> u64 {
    let doubled = evictions.saturating_sub(1).min(u64::BITS - 1);
    FIRST_NS.saturating_mul(1 << doubled).min(LONGEST_NS)
}

impl Engine {
    /// Restores the evictions of an earlier process, the oldest first; called before anything else. So a restart
    /// neither closes an open breaker within its window nor ends a back-off.
    pub fn remember(&mut self, past: &[Past]) {
        for Past { pod, at_ns } in past {
            self.count(*pod, *at_ns);
            // Its death was not seen, but it was not earlier.
            self.died_ns = self.died_ns.max(Some(*at_ns));
        }
    }

    /// Counts an eviction that has begun. The same pod within its back-off does not count for the breaker.
    pub(super) fn count(&mut self, pod: PodKey, now_ns: u64) {
        if self.back_offs.note(pod, now_ns) {
            self.breaker.record(now_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60 * SECOND;

    fn pod(hash: u64) -> PodKey {
        PodKey { hash }
    }

    #[test]
    fn each_back_off_is_twice_as_long_up_to_five_minutes() {
        let lengths: Vec<_> = (0..8).map(|evictions| length_ns(evictions) / SECOND).collect();
        assert_eq!(lengths, [10, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(length_ns(u32::MAX), LONGEST_NS);
    }

    #[test]
    fn who_returns_within_its_back_off_counts_once_and_is_forgotten_after_ten_minutes() {
        let mut known = BackOffs::default();
        assert!(known.note(pod(1), 0));
        assert!(!known.note(pod(1), 9 * SECOND));
        let returned = known.returned(pod(1), 28 * SECOND).unwrap();
        assert_eq!((returned.evictions, returned.until_ns), (2, 29 * SECOND));
        assert_eq!(known.returned(pod(2), 28 * SECOND), None);
        assert_eq!(known.returned(pod(1), 29 * SECOND), None);
        assert!(known.note(pod(1), 29 * SECOND), "after its back-off it counts");
        assert_eq!(known.returned(pod(1), 68 * SECOND).unwrap().evictions, 3);
        assert!(known.note(pod(1), 29 * SECOND + 10 * MINUTE));
        assert_eq!(known.returned(pod(1), 30 * SECOND + 10 * MINUTE).unwrap().evictions, 1);
    }

    #[test]
    fn one_pod_counts_six_times_in_ten_minutes_at_the_most() {
        let mut known = BackOffs::default();
        let counted = (0..600_u64).filter(|second| known.note(pod(1), second * SECOND)).count();
        assert_eq!(counted, 1, "one that returns every second");
        let (mut known, mut now_ns, mut counted) = (BackOffs::default(), 0, 0);
        while now_ns < 10 * MINUTE {
            counted += usize::from(known.note(pod(1), now_ns));
            now_ns = known.returned(pod(1), now_ns).unwrap().until_ns;
        }
        assert_eq!(counted, 6, "one that waits until it is trusted again");
    }

    #[test]
    fn the_most_are_remembered_whose_back_off_lasts_longest() {
        let mut known = BackOffs::default();
        known.note(pod(0), 0);
        known.note(pod(0), 0);
        for number in 1..100 {
            assert!(known.note(pod(number), number));
        }
        assert_eq!(known.entries.len(), MOST);
        assert!(known.returned(pod(0), 100).is_some() && known.returned(pod(99), 100).is_some());
        assert_eq!(known.returned(pod(1), 100), None);
    }
}
