//! Histograms on the page: how long evictions took, and how far predictions were off.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::sense::Latencies;

/// The upper bounds in nanoseconds; the last bucket has none.
const BOUNDS_NS: [u64; 17] = [
    100_000,
    250_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
    60_000_000_000,
];
const BUCKETS: usize = BOUNDS_NS.len() + 1;

/// A histogram of durations, in buckets from 0.1 ms to a minute. Takes no lock.
#[derive(Debug, Default)]
pub(super) struct Durations {
    buckets: [AtomicU64; BUCKETS],
    total_ns: AtomicU64,
}

/// A snapshot of such a histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Taken {
    buckets: [u64; BUCKETS],
    total_ns: u64,
}

impl Durations {
    pub(super) fn record(&self, ns: u64) {
        if let Some(bucket) = self.buckets.get(place(ns)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.total_ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Taken {
        Taken {
            buckets: self.buckets.each_ref().map(|bucket| bucket.load(Ordering::Relaxed)),
            total_ns: self.total_ns.load(Ordering::Relaxed),
        }
    }
}

impl Taken {
    /// Adds a histogram with powers of two as bounds. Each duration counts in the first bucket that certainly holds it.
    pub(super) fn add(&mut self, latencies: &Latencies) {
        for (bucket, count) in latencies.counts.iter().enumerate() {
            let place = Latencies::bound_ns(bucket).map_or(BUCKETS - 1, place);
            if let Some(sum) = self.buckets.get_mut(place) {
                *sum += count;
            }
        }
        self.total_ns = self.total_ns.saturating_add(latencies.total_ns);
    }

    pub(super) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub(super) fn total_seconds(&self) -> f64 {
        seconds(self.total_ns)
    }

    /// Each bucket's bound in seconds, and its count.
    pub(super) fn buckets(&self) -> [(f64, u64); BUCKETS] {
        let bounds = BOUNDS_NS.map(seconds).into_iter().chain(std::iter::once(f64::INFINITY));
        let mut buckets = [(f64::INFINITY, 0); BUCKETS];
        for (slot, pair) in buckets.iter_mut().zip(bounds.zip(self.buckets)) {
            *slot = pair;
        }
        buckets
    }
}

/// The first bucket whose bound is at least `ns`.
fn place(ns: u64) -> usize {
    BOUNDS_NS.partition_point(|bound| *bound < ns)
}

/// Nanoseconds as seconds, rounded to a float.
pub(super) fn seconds(ns: u64) -> f64 {
    std::time::Duration::from_nanos(ns).as_secs_f64()
}

/// A histogram of prediction errors, as a share of the prediction: 0 is exact.
#[derive(Debug, Default)]
pub(super) struct Ratios {
    buckets: [AtomicU64; RATIO_BOUNDS.len() + 1],
    total_millionths: AtomicU64,
}

const RATIO_BOUNDS: [(u64, f64); 7] = [
    (10_000, 0.01),
    (50_000, 0.05),
    (100_000, 0.1),
    (250_000, 0.25),
    (500_000, 0.5),
    (1_000_000, 1.0),
    (2_000_000, 2.0),
];

impl Ratios {
    /// Records a prediction and what came back; ignores a prediction of 0.
    pub(super) fn record(&self, predicted: u64, came: u64) {
        let millionths = u128::from(predicted.abs_diff(came)) * 1_000_000;
        let Some(millionths) = millionths.checked_div(u128::from(predicted)) else { return };
        // The error is capped at a thousand times the prediction.
        let millionths = u64::try_from(millionths).unwrap_or(u64::MAX).min(1_000_000_000);
        let place = RATIO_BOUNDS.partition_point(|(bound, _)| *bound < millionths);
        if let Some(bucket) = self.buckets.get(place) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.total_millionths.fetch_add(millionths, Ordering::Relaxed);
    }

    /// The sum, the count, and the buckets with their bounds.
    pub(super) fn read(&self) -> (f64, u64, Vec<(f64, u64)>) {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        let bounds = RATIO_BOUNDS.iter().map(|(_, bound)| *bound).chain(std::iter::once(f64::INFINITY));
        let buckets: Vec<_> = bounds.zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        // Millionths times 1000 are nanoseconds of a number in seconds.
        let total = seconds(self.total_millionths.load(Ordering::Relaxed).saturating_mul(1_000));
        (total, count, buckets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sense::Histogram;

    #[test]
    fn a_duration_is_in_the_first_bucket_that_holds_it() {
        let durations = Durations::default();
        for ns in [0, 100_000, 100_001, 60_000_000_000, 60_000_000_001] {
            durations.record(ns);
        }
        let taken = durations.read();
        let counts: Vec<_> = taken.buckets().iter().map(|(_, count)| *count).collect();
        assert_eq!((counts[0], counts[1], counts[16], counts[17]), (2, 1, 1, 1));
        assert_eq!(taken.count(), 5);
        assert!((taken.total_seconds() - 120.000_200_002).abs() < 1e-9);
        assert!(taken.buckets()[17].0.is_infinite());
    }

    #[test]
    fn those_by_powers_of_two_are_never_in_too_early_a_bucket() {
        let (histogram, mut taken) = (Histogram::default(), Taken::default());
        for ns in [1_000, 99_000, 3_000_000, u64::MAX / 8] {
            histogram.record(ns);
        }
        taken.add(&histogram.read());
        let buckets = taken.buckets();
        assert_eq!(taken.count(), 4);
        // 99 µs may be up to 131 µs by that histogram, 3 ms up to 4.2 ms.
        assert_eq!((buckets[0].1, buckets[1].1, buckets[4].1, buckets[17].1), (1, 1, 1, 1));
    }

    #[test]
    fn a_prediction_is_as_wrong_either_way() {
        let ratios = Ratios::default();
        for (predicted, came) in [(100, 100), (100, 60), (100, 140), (100, 0), (0, 5), (1, u64::MAX)] {
            ratios.record(predicted, came);
        }
        let (sum, count, buckets) = ratios.read();
        assert_eq!(count, 5, "a prediction of nothing has no ratio");
        assert_eq!(buckets.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [1, 0, 0, 0, 2, 1, 0, 1]);
        assert!((sum - 1_001.8).abs() < 1e-6, "{sum}");
    }
}
