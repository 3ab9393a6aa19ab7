//! Smooths irregular readings into a rate, for forecasts.

/// About half of a slope's value comes from the last five seconds.
const MEMORY_NS: u64 = 5_000_000_000;

/// After a longer gap older values are ignored.
const GAP_NS: u64 = 120_000_000_000;

/// How fast an amount changes, from looks at irregular times: the differences weighted by their age.
///
/// There is no value before the second look, and none after a gap of more than two minutes until the look after that.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Slope {
    last: Option<(u64, u64)>,
    bytes_per_second: Option<i64>,
}

impl Slope {
    /// Assumes no change before the first look: so the first difference counts only for as long as it took, and a step
    /// between two close looks does not count as a pace.
    #[must_use]
    pub fn from_rest() -> Self {
        Self { last: None, bytes_per_second: Some(0) }
    }

    /// Takes an amount at a time, and returns how fast it changes. Two looks at the same time count as one.
    pub fn observe(&mut self, now_ns: u64, bytes: u64) -> Option<i64> {
        let Some((before_ns, before_bytes)) = self.last else {
            self.last = Some((now_ns, bytes));
            return None;
        };
        let span_ns = now_ns.saturating_sub(before_ns);
        if span_ns == 0 {
            return self.bytes_per_second;
        }
        self.last = Some((now_ns, bytes));
        if span_ns > GAP_NS {
            self.bytes_per_second = None;
            return None;
        }
        let difference = i128::from(bytes) - i128::from(before_bytes);
        let span = i128::from(span_ns);
        let latest = difference * 1_000_000_000 / span;
        let slope = match self.bytes_per_second {
            None => latest,
            // The weight of the latest is its span's share of that span and the remembered time.
            Some(before) => {
                let before = i128::from(before);
                before + (latest - before) * span / (span + i128::from(MEMORY_NS))
            }
        };
        self.bytes_per_second =
            Some(i64::try_from(slope).unwrap_or(if slope < 0 { i64::MIN } else { i64::MAX }));
        self.bytes_per_second
    }

    /// Forgets everything; the next look is the first.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_steady_change_is_seen_at_once_and_as_it_is() {
        let mut slope = Slope::default();
        assert_eq!(slope.observe(0, 1_000), None);
        for second in 1..20 {
            assert_eq!(slope.observe(second * SECOND, 1_000 + second * 50), Some(50));
        }
        let mut falling = Slope::default();
        falling.observe(0, 1_000);
        assert_eq!(falling.observe(SECOND / 2, 900), Some(-200));
    }

    #[test]
    fn a_change_of_pace_is_followed() {
        let mut slope = Slope::default();
        slope.observe(0, 0);
        slope.observe(SECOND, 0);
        let soon = slope.observe(2 * SECOND, 600).unwrap();
        assert_eq!(soon, 100, "a sixth of it after one second");
        let late = (3..40).map(|second| slope.observe(second * SECOND, (second - 1) * 600)).last();
        assert!(late.flatten().unwrap() > 590);
    }

    #[test]
    fn from_rest_a_step_is_no_pace() {
        let mut slope = Slope::from_rest();
        assert_eq!(slope.observe(0, 0), None);
        assert_eq!(slope.observe(SECOND / 4, 2_100), Some(400), "8,400 a second, a twenty-first of the time");
        assert_eq!(slope.observe(SECOND / 4, 9_999), Some(400));
        let late = (1..40).map(|second| slope.observe(second * SECOND, 2_100 + second * 600)).last();
        assert!((590..=610).contains(&late.flatten().unwrap()));
    }

    #[test]
    fn a_gap_and_a_moment_emit_nothing_new() {
        let mut slope = Slope::default();
        slope.observe(0, 0);
        slope.observe(SECOND, 10);
        assert_eq!(slope.observe(SECOND, 5_000), Some(10));
        assert_eq!(slope.observe(500 * SECOND, 10), None);
        assert_eq!(slope.observe(501 * SECOND, 30), Some(20));
        slope.reset();
        assert_eq!(slope.observe(502 * SECOND, 30), None);
    }

    proptest! {
        /// It lies between the least and the greatest of the differences.
        #[test]
        fn lies_within_what_was_seen(looks in prop::collection::vec((1_u64..60 * SECOND, 0_u64..1 << 40), 2..20)) {
            let (mut slope, mut now, mut before) = (Slope::default(), 0, None);
            let (mut least, mut most) = (i128::MAX, i128::MIN);
            for (span, bytes) in looks {
                now += span;
                if let Some(before) = before {
                    let rate = (i128::from(bytes) - i128::from(before)) * i128::from(SECOND) / i128::from(span);
                    (least, most) = (least.min(rate), most.max(rate));
                }
                let seen = slope.observe(now, bytes);
                prop_assert_eq!(seen.is_some(), before.is_some());
                before = Some(bytes);
                if let Some(seen) = seen {
                    prop_assert!((least..=most).contains(&i128::from(seen)), "{least} {seen} {most}");
                }
            }
        }

        #[test]
        fn no_input_makes_it_panic(looks in prop::collection::vec(any::<(u64, u64)>(), 0..20)) {
            let mut slope = Slope::default();
            for (now, bytes) in looks {
                slope.observe(now, bytes);
            }
        }
    }
}
