use super::settings::BreakerSettings;
use crate::policy::wire::wire;

/// The share of pods says something from so many kills on: half of two pods is one.
const SHARE_FROM_KILLS: usize = 10;

/// So many kills are remembered at the least: more may be allowed later, and they count then.
const REMEMBERED: usize = 64;

/// How many are remembered: as many as it takes to trip, so that no kill within the window is forgotten.
fn most(settings: BreakerSettings) -> usize {
    usize::from(settings.max_kills).max(REMEMBERED)
}

/// Remembers when the last kills were.
#[derive(Clone, Debug)]
pub(super) struct Breaker {
    settings: BreakerSettings,
    kills_ns: Vec<u64>,
}

impl Breaker {
    pub(super) fn new(settings: BreakerSettings) -> Self {
        Self { settings, kills_ns: Vec::with_capacity(most(settings)) }
    }

    /// The same with other settings: the kills before count on.
    pub(super) fn with(&self, settings: BreakerSettings) -> Self {
        let mut other = Self::new(settings);
        self.kills_ns.iter().for_each(|at_ns| other.record(*at_ns));
        other
    }

    pub(super) fn record(&mut self, now_ns: u64) {
        if self.kills_ns.len() < most(self.settings) {
            self.kills_ns.push(now_ns);
            return;
        }
        // The oldest by its time and not by its place: a clock that goes back must not make it forget the latest.
        if let Some(oldest) = self.kills_ns.iter_mut().min() {
            *oldest = now_ns.max(*oldest);
        }
    }

    /// Whether another kill now, with so many pods left, would be one too many.
    pub(super) fn is_open(&self, now_ns: u64, left: usize) -> bool {
        let recent = |at: &&u64| now_ns.saturating_sub(**at) < self.settings.window_ns;
        let kills = self.kills_ns.iter().filter(recent).count();
        let all = kills.saturating_add(left);
        let too_large_a_share = kills >= SHARE_FROM_KILLS
            && kills.saturating_mul(1_000)
                >= all.saturating_mul(usize::from(self.settings.max_share_permille));
        kills >= usize::from(self.settings.max_kills) || too_large_a_share
    }
}

wire!(struct Breaker { settings, kills_ns });

#[cfg(test)]
mod tests {
    use super::{Breaker, BreakerSettings};

    const MOST: BreakerSettings = BreakerSettings { max_kills: 3, window_ns: 100, max_share_permille: 500 };

    #[test]
    fn opens_at_the_most_kills_within_the_window_and_closes_as_they_age() {
        let mut breaker = Breaker::new(MOST);
        for now in [0, 50, 60] {
            assert!(!breaker.is_open(now, 1_000));
            breaker.record(now);
        }
        assert!(breaker.is_open(60, 1_000));
        assert!(breaker.is_open(99, 1_000));
        assert!(!breaker.is_open(100, 1_000));
        breaker.record(100);
        assert!(breaker.is_open(149, 1_000));
        assert!(!breaker.is_open(150, 1_000));
    }

    #[test]
    fn a_clock_that_goes_back_makes_it_forget_nothing() {
        let mut breaker = Breaker::new(MOST);
        for now in (1_000..1_064).chain(10..74) {
            breaker.record(now);
        }
        assert!(breaker.is_open(1_003, 1_000) && breaker.is_open(20, 1_000));
        assert!(!breaker.is_open(1_264, 1_000));
    }

    #[test]
    fn other_settings_forget_no_kill() {
        let mut breaker = Breaker::new(MOST);
        for now in [60, 10, 70] {
            breaker.record(now);
        }
        let fewer = breaker.with(BreakerSettings { max_kills: 2, ..MOST });
        assert!(fewer.is_open(159, 1_000) && !fewer.is_open(160, 1_000), "the latest two");
        let more = breaker.with(BreakerSettings { max_kills: 4, ..MOST });
        assert!(!more.is_open(70, 1_000));
        let longer = more.with(BreakerSettings { max_kills: 3, window_ns: 1_000, ..MOST });
        assert!(longer.is_open(1_009, 1_000) && !longer.is_open(1_010, 1_000));
    }

    #[test]
    fn no_kill_allowed_is_always_open() {
        let mut breaker = Breaker::new(BreakerSettings { max_kills: 0, ..MOST });
        breaker.record(1);
        assert!(breaker.is_open(u64::MAX, 1_000));
    }

    #[test]
    fn a_share_of_the_pods_counts_from_ten_kills_on() {
        let mut breaker = Breaker::new(BreakerSettings { max_kills: 100, ..MOST });
        for _ in 0..9 {
            breaker.record(1);
        }
        assert!(!breaker.is_open(1, 0));
        breaker.record(1);
        assert!(breaker.is_open(1, 10));
        assert!(!breaker.is_open(1, 11));
    }
}
