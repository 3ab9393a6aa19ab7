//! Lets the reflex measure itself, without a lock or an allocation.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of buckets.
pub const LATENCY_BUCKETS: usize = 24;

/// The first bucket ends at 2^10 ns, about a microsecond; the last but one at 2^32 ns, about four seconds.
const FIRST_BITS: u32 = 10;

/// Durations by powers of two. Takes no lock, allocates nothing, and has a fixed size.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [AtomicU64; LATENCY_BUCKETS],
    total_ns: AtomicU64,
    max_ns: AtomicU64,
}

/// The contents of a [`Histogram`] at one moment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Latencies {
    /// Durations in each bucket: at least the bound of the previous one, below its own.
    pub counts: [u64; LATENCY_BUCKETS],
    /// The sum of all durations.
    pub total_ns: u64,
    /// The longest duration.
    pub max_ns: u64,
}

impl Histogram {
    /// Adds a duration.
    pub fn record(&self, ns: u64) {
        if let Some(count) = self.counts.get(bucket(ns)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.total_ns.fetch_add(ns, Ordering::Relaxed);
        self.max_ns.fetch_max(ns, Ordering::Relaxed);
    }

    /// The contents; a duration that is being added may be in one of the figures and not yet in the others.
    #[must_use]
    pub fn read(&self) -> Latencies {
        let Self { counts, total_ns, max_ns } = self;
        Latencies {
            counts: counts.each_ref().map(|count| count.load(Ordering::Relaxed)),
            total_ns: total_ns.load(Ordering::Relaxed),
            max_ns: max_ns.load(Ordering::Relaxed),
        }
    }
}

impl Latencies {
    /// Number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The end of a bucket; `None` for the last one.
    #[must_use]
    pub fn bound_ns(bucket: usize) -> Option<u64> {
        let bits = u32::try_from(bucket).ok().filter(|_| bucket + 1 < LATENCY_BUCKETS)?;
        1_u64.checked_shl(FIRST_BITS + bits)
    }

    /// A bound that this percentage of the durations is below, by the nearest rank; `None` without durations, or if it
    /// is in the last bucket.
    #[must_use]
    pub fn percentile_bound_ns(&self, percent: u64) -> Option<u64> {
        let rank = (self.count().checked_mul(percent)?).div_ceil(100).max(1);
        let mut seen = 0_u64;
        let bucket = self.counts.iter().position(|count| {
            seen = seen.saturating_add(*count);
            seen >= rank
        })?;
        Self::bound_ns(bucket)
    }
}

fn bucket(ns: u64) -> usize {
    let bits = u64::BITS - ns.leading_zeros();
    usize::try_from(bits.saturating_sub(FIRST_BITS)).unwrap_or(usize::MAX).min(LATENCY_BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_below_its_buckets_bound_and_not_below_the_one_before() {
        for ns in [0, 1, 1_023, 1_024, 2_047, 2_048, 5_000_000, (1 << 32) - 1, 1 << 32, u64::MAX] {
            let bucket = bucket(ns);
            assert!(Latencies::bound_ns(bucket).is_none_or(|bound| ns < bound), "{ns} in {bucket}");
            let before = bucket.checked_sub(1).and_then(Latencies::bound_ns);
            assert!(before.is_none_or(|bound| ns >= bound), "{ns} in {bucket}");
        }
        assert_eq!(Latencies::bound_ns(LATENCY_BUCKETS - 1), None);
        assert_eq!(Latencies::bound_ns(LATENCY_BUCKETS - 2), Some(1 << 32));
    }

    #[test]
    fn percentiles_are_bounds() {
        let histogram = Histogram::default();
        assert_eq!(histogram.read().percentile_bound_ns(99), None);
        for _ in 0..98 {
            histogram.record(3_000);
        }
        histogram.record(1_000_000);
        histogram.record(u64::MAX / 4);
        let read = histogram.read();
        assert_eq!((read.count(), read.max_ns), (100, u64::MAX / 4));
        assert_eq!(read.percentile_bound_ns(50), Some(4_096));
        assert_eq!(read.percentile_bound_ns(99), Some(1 << 20));
        assert_eq!(read.percentile_bound_ns(100), None);
    }
}
