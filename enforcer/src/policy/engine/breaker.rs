use super::settings::BreakerSettings;
use crate::policy::wire::wire;

/// The share of pods says something from so many kills on: half of two pods is one.
const SHARE_FROM_KILLS: usize = 10;

/// Remembers when the last kills were.
#[derive(Clone, Debug)]
pub(super) struct Breaker {
    settings: BreakerSettings,
    kills_ns: Vec<u64>,
}

impl Breaker {
    pub(super) fn new(settings: BreakerSettings) -> Self {
        // As many as it takes to trip, so that no kill within the window is forgotten.
        Self { settings, kills_ns: Vec::with_capacity(usize::from(settings.max_kills)) }
    }

    pub(super) fn record(&mut self, now_ns: u64) {
        if self.kills_ns.len() < usize::from(self.settings.max_kills) {
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
        for now in [1_000, 1_001, 1_002, 10, 11, 12] {
            breaker.record(now);
        }
        assert!(breaker.is_open(1_003, 1_000) && breaker.is_open(20, 1_000));
        assert!(!breaker.is_open(1_200, 1_000));
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
