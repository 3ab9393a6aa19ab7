//! How fast an amount falls right now, if it falls steadily.

/// Samples closer than this are merged: the kernel's counters are batched, and would seem to jump.
const LEAST_SPAN_NS: u64 = 150_000_000;

/// After a longer gap earlier samples say nothing about the present.
const GAP_NS: u64 = 2_500_000_000;

/// The number of spans needed, and of samples that make them.
const SPANS: usize = 3;
const LOOKS: usize = SPANS + 1;

/// The pace of the last few samples: the median of three spans, if it fell in each of them.
///
/// So one big step is no pace, and neither is a wave: a slope over some seconds covers those.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Rate {
    /// The time and the amount left of each sample, the latest first.
    looks: [Option<(u64, u64)>; LOOKS],
}

impl Rate {
    /// Adds the amount left at that time.
    pub fn observe(&mut self, now_ns: u64, available: u64) {
        if let [Some((before_ns, _)), ..] = self.looks {
            let span_ns = now_ns.saturating_sub(before_ns);
            if span_ns < LEAST_SPAN_NS {
                return;
            }
            if span_ns > GAP_NS {
                self.looks = [None; LOOKS];
            }
        }
        self.looks.rotate_right(1);
        self.looks[0] = Some((now_ns, available));
    }

    /// The loss a second, if it is steady.
    #[must_use]
    pub fn falling_per_second(&self) -> Option<u64> {
        let mut rates = [0; SPANS];
        for (rate, pair) in rates.iter_mut().zip(self.looks.windows(2)) {
            let [Some((now_ns, now)), Some((before_ns, before))] = *pair else { return None };
            let lost = u128::from(before.checked_sub(now).filter(|lost| *lost > 0)?);
            let span_ns = u128::from(now_ns.checked_sub(before_ns)?);
            *rate = u64::try_from((lost * 1_000_000_000).checked_div(span_ns)?).unwrap_or(u64::MAX);
        }
        rates.sort_unstable();
        let [_, middle, _] = rates;
        Some(middle)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    fn pace(looks: &[(u64, u64)]) -> Option<u64> {
        let mut pace = Rate::default();
        for (at_ms, available) in looks {
            pace.observe(at_ms * MS, *available);
        }
        pace.falling_per_second()
    }

    #[test]
    fn a_steady_fall_is_known_after_four_looks() {
        assert_eq!(pace(&[(0, 1_000), (250, 900), (500, 800)]), None);
        assert_eq!(pace(&[(0, 1_000), (250, 900), (500, 800), (750, 700)]), Some(400));
        // Only the latest count, and the middle one of them.
        assert_eq!(pace(&[(0, 9_000), (250, 1_000), (500, 900), (750, 850), (1_000, 600)]), Some(400));
    }

    #[test]
    fn a_step_a_wave_and_a_pause_are_no_fall() {
        assert_eq!(pace(&[(0, 1_000), (250, 100), (500, 100), (750, 100)]), None);
        assert_eq!(pace(&[(0, 1_000), (250, 100), (500, 99), (750, 98)]), Some(4));
        assert_eq!(pace(&[(0, 1_000), (250, 900), (500, 950), (750, 850)]), None);
        assert_eq!(pace(&[(0, 1_000), (250, 900), (500, 800), (9_000, 700)]), None);
        // Looks at one moment are one.
        assert_eq!(pace(&[(0, 1_000), (250, 900), (251, 890), (252, 880), (253, 870)]), None);
    }

    proptest! {
        #[test]
        fn it_lies_among_what_was_seen(looks in prop::collection::vec((150_u64..2_500, any::<u64>()), 1..12)) {
            let (mut pace, mut now_ms, mut before) = (Rate::default(), 0, None);
            let mut fastest = 0;
            for (span_ms, available) in looks {
                now_ms += span_ms;
                pace.observe(now_ms * MS, available);
                if let Some(before) = before {
                    let lost = u128::from(u64::saturating_sub(before, available));
                    fastest = fastest.max(lost * 1_000 / u128::from(span_ms));
                }
                before = Some(available);
                prop_assert!(pace.falling_per_second().is_none_or(|rate| u128::from(rate) <= fastest));
            }
        }
    }
}
