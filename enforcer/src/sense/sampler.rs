//! How long the eviction thread may sleep before memory could run short.

const MS: u64 = 1_000_000;

/// How fast one CPU is assumed to fill memory even if none has yet: it zeroes each page before it hands it out. A
/// machine has at least two.
const ASSUMED_BYTES_PER_SECOND_AND_CPU: u64 = 2 << 30;
const LEAST_CPUS: u64 = 2;

/// The shortest and longest pause. At rest a look every two seconds costs about 0.004 % of a core; close to the threshold a
/// thousand a second cost about 3 %, and only there.
const MIN_PAUSE_NS: u64 = MS;
const MAX_PAUSE_NS: u64 = 2_000 * MS;

/// A fill rate counts in full at first, and no longer after this time.
const FORGET_NS: u64 = 5_000 * MS;

/// How long a fill must go on to count: a victim's grace period is not cut short for a spike, and the kernel's counters
/// jump by megabytes within a millisecond.
const SUSTAINED_NS: u64 = 250 * MS;

/// Samples closer than this are merged: the kernel's counters are batched, and would seem to jump.
const SPAN_NS: u64 = MS / 2;

/// Decides when to look again: no later than the headroom lasts at the fastest fill rate seen or assumed.
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    last: Option<Look>,
    fastest_bytes_per_second: u64,
    assumed_bytes_per_second: u64,
    /// Where the last span of [`SUSTAINED_NS`] began, and the one before it.
    spans: (Option<Look>, Option<Look>),
    sustained_bytes_per_second: u64,
}

/// A time, and the memory available then.
type Look = (u64, u64);

impl Sampler {
    /// For a machine with this many CPUs.
    #[must_use]
    pub fn new(cpus: u64) -> Self {
        let assumed_bytes_per_second = ASSUMED_BYTES_PER_SECOND_AND_CPU.saturating_mul(cpus.max(LEAST_CPUS));
        Self {
            last: None,
            fastest_bytes_per_second: 0,
            assumed_bytes_per_second,
            spans: (None, None),
            sustained_bytes_per_second: 0,
        }
    }

    /// Takes the memory available at that time.
    pub fn observe(&mut self, now_ns: u64, available_bytes: u64) {
        self.sustain(now_ns, available_bytes);
        let Some((before_ns, before_bytes)) = self.last else {
            self.last = Some((now_ns, available_bytes));
            return;
        };
        let span_ns = now_ns.saturating_sub(before_ns);
        if span_ns < SPAN_NS {
            return;
        }
        let filled = before_bytes.saturating_sub(available_bytes);
        let faded = scale(self.fastest_bytes_per_second, FORGET_NS.saturating_sub(span_ns), FORGET_NS);
        self.fastest_bytes_per_second = faded.max(scale(filled, 1_000 * MS, span_ns));
        self.last = Some((now_ns, available_bytes));
    }

    /// How long the next look may wait with this headroom above the threshold.
    #[must_use]
    pub fn next_look_ns(&self, headroom_bytes: u64) -> u64 {
        scale(headroom_bytes, 1_000 * MS, self.fastest_bytes_per_second()).clamp(MIN_PAUSE_NS, MAX_PAUSE_NS)
    }

    /// Updates the fill rate over the last 250 to 500 ms, or between two looks that are further apart.
    fn sustain(&mut self, now_ns: u64, available_bytes: u64) {
        let long_ago = |look: &Look| now_ns.saturating_sub(look.0) >= SUSTAINED_NS;
        if self.spans.0.as_ref().is_none_or(long_ago) {
            self.spans = (Some((now_ns, available_bytes)), self.spans.0);
        }
        let base = self.spans.1.filter(long_ago);
        self.sustained_bytes_per_second = base.map_or(0, |(since_ns, before_bytes)| {
            let filled = before_bytes.saturating_sub(available_bytes);
            scale(filled, 1_000 * MS, now_ns.saturating_sub(since_ns))
        });
    }

    /// The fill rate over the last 250 ms or more; 0 if memory was not filled, or the rate is not known yet.
    #[must_use]
    pub fn fill_bytes_per_second(&self) -> u64 {
        self.sustained_bytes_per_second
    }

    /// The fill rate that [`Self::next_look_ns`] uses.
    #[must_use]
    pub fn fastest_bytes_per_second(&self) -> u64 {
        self.fastest_bytes_per_second.max(self.assumed_bytes_per_second)
    }
}

/// `value * by / of`, capped to 64 bits; 0 if `of` is 0.
fn scale(value: u64, by: u64, of: u64) -> u64 {
    let scaled = (u128::from(value) * u128::from(by)).checked_div(u128::from(of)).unwrap_or(0);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn waits_no_longer_than_the_headroom_lasts() {
        let sampler = Sampler::new(1);
        assert_eq!(sampler.next_look_ns(0), MS);
        assert_eq!(sampler.next_look_ns(GIB / 8), 31_250_000);
        assert_eq!(sampler.next_look_ns(100 * GIB), 2_000 * MS);
        assert_eq!(Sampler::new(64).next_look_ns(16 * GIB), 125 * MS);
    }

    #[test]
    fn a_faster_fill_than_assumed_is_believed_and_forgotten_again() {
        let mut sampler = Sampler::new(2);
        sampler.observe(0, 100 * GIB);
        sampler.observe(250 * MS, 96 * GIB);
        assert_eq!(sampler.fastest_bytes_per_second(), 16 * GIB);
        assert_eq!(sampler.next_look_ns(GIB), 62_500_000);
        sampler.observe(1_250 * MS, 96 * GIB);
        assert!(sampler.fastest_bytes_per_second() < 16 * GIB);
        for second in 2..20 {
            sampler.observe(second * 1_000 * MS, 96 * GIB);
        }
        assert_eq!(sampler.fastest_bytes_per_second(), 4 * GIB);
    }

    #[test]
    fn a_spike_is_no_fill_that_goes_on() {
        let mut sampler = Sampler::new(2);
        for ms in 0..100 {
            sampler.observe(ms * MS, GIB);
        }
        assert_eq!(sampler.fill_bytes_per_second(), 0, "nothing is known yet");
        sampler.observe(100 * MS, GIB - (4 << 20));
        for ms in 101..2_000 {
            sampler.observe(ms * MS, GIB - (4 << 20));
            assert!(sampler.fill_bytes_per_second() <= 16 << 20, "at {ms} ms");
        }
        assert_eq!(sampler.fill_bytes_per_second(), 0);
    }

    #[test]
    fn a_fill_that_goes_on_is_known_within_a_quarter_of_a_second_and_over_within_half_of_one() {
        let mut sampler = Sampler::new(2);
        let at = |ms: u64| 10 * GIB - ms.min(1_000) * (1 << 20);
        for ms in 0..=1_000 {
            sampler.observe(ms * MS, at(ms));
            let known = sampler.fill_bytes_per_second();
            assert_eq!(known, if ms < 250 { 0 } else { 1_000 << 20 }, "at {ms} ms");
        }
        for ms in 1_001..1_500 {
            sampler.observe(ms * MS, at(ms));
        }
        sampler.observe(1_501 * MS, at(1_501));
        assert_eq!(sampler.fill_bytes_per_second(), 0);
        sampler.observe(3_501 * MS, at(1_501) - GIB);
        assert!((GIB / 4..=GIB / 2).contains(&sampler.fill_bytes_per_second()), "two looks far apart");
    }

    #[test]
    fn memory_that_comes_back_is_no_fill() {
        let mut sampler = Sampler::new(2);
        sampler.observe(0, 0);
        sampler.observe(MS, 100 * GIB);
        assert_eq!(sampler.fastest_bytes_per_second(), 4 * GIB);
    }

    proptest! {
        /// A fill that goes on as fast as it was seen is caught before the threshold, down to the shortest pause.
        #[test]
        fn a_steady_fill_does_not_slip_through(rate_gib in 1_u64..64, headroom_mib in 0_u64..8_192) {
            let mut sampler = Sampler::new(2);
            sampler.observe(0, 1_000 * GIB);
            sampler.observe(1_000 * MS, (1_000 - rate_gib) * GIB);
            let headroom = headroom_mib << 20;
            let pause_ns = sampler.next_look_ns(headroom);
            let filled = scale(rate_gib * GIB, pause_ns, 1_000 * MS);
            prop_assert!(pause_ns == MIN_PAUSE_NS || filled <= headroom);
        }

        #[test]
        fn no_input_makes_it_panic(looks in prop::collection::vec(any::<(u64, u64)>(), 0..20), headroom: u64) {
            let mut sampler = Sampler::new(2);
            for (now_ns, available_bytes) in looks {
                sampler.observe(now_ns, available_bytes);
            }
            prop_assert!((MIN_PAUSE_NS..=MAX_PAUSE_NS).contains(&sampler.next_look_ns(headroom)));
        }
    }
}
