//! Ends evictions that do not help: after too many in a window the engine only reports.

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use super::settings::BreakerSettings;

/// From so many kills within the window on, the share of pods counts: half of two pods is one.
const SHARE_FROM_KILLS: usize = 10;

/// The same within one shortage that has not ended in between: the breaker is there for kills that do not end a
/// shortage, and a node of ten pods is empty before ten of them.
const SHARE_FROM_KILLS_OF_A_SHORTAGE: usize = 3;

/// The least number of kills remembered: more may be allowed later, and they count then.
const REMEMBERED: usize = 64;

/// The number of kills remembered: enough to trip, so that no kill within the window is forgotten.
fn most(settings: BreakerSettings) -> usize {
    usize::from(settings.max_kills).max(REMEMBERED)
}

/// The times of the latest kills.
#[derive(Clone, Debug, Deserialize, Schema, Serialize)]
pub(super) struct Breaker {
    settings: BreakerSettings,
    kills_ns: Vec<u64>,
}

impl Breaker {
    pub(super) fn new(settings: BreakerSettings) -> Self {
        Self { settings, kills_ns: Vec::with_capacity(most(settings)) }
    }

    /// The same with other settings: earlier kills still count.
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
        // The oldest by time, not by place: a clock that goes back must not make it forget the latest.
        if let Some(oldest) = self.kills_ns.iter_mut().min() {
            *oldest = now_ns.max(*oldest);
        }
    }

    /// Whether another kill now, with so many pods left, would be one too many. Its shortage began at `shortage_ns`.
    pub(super) fn is_open(&self, now_ns: u64, shortage_ns: u64, left: usize) -> bool {
        let recent = |at: &&u64| now_ns.saturating_sub(**at) < self.settings.window_ns;
        let kills = self.kills_ns.iter().filter(recent).count();
        let of_shortage = self.kills_ns.iter().filter(recent).filter(|at| **at >= shortage_ns).count();
        let is_share = |kills: usize| {
            let all = kills.saturating_add(left);
            kills.saturating_mul(1_000) >= all.saturating_mul(usize::from(self.settings.max_share_permille))
        };
        kills >= usize::from(self.settings.max_kills)
            || kills >= SHARE_FROM_KILLS && is_share(kills)
            || of_shortage >= SHARE_FROM_KILLS_OF_A_SHORTAGE && is_share(of_shortage)
    }
}

#[cfg(test)]
mod tests {
    use super::{Breaker, BreakerSettings};

    const MOST: BreakerSettings = BreakerSettings { max_kills: 3, window_ns: 100, max_share_permille: 500 };

    #[test]
    fn opens_at_the_most_kills_within_the_window_and_closes_as_they_age() {
        let mut breaker = Breaker::new(MOST);
        for now in [0, 50, 60] {
            assert!(!breaker.is_open(now, u64::MAX, 1_000));
            breaker.record(now);
        }
        assert!(breaker.is_open(60, u64::MAX, 1_000));
        assert!(breaker.is_open(99, u64::MAX, 1_000));
        assert!(!breaker.is_open(100, u64::MAX, 1_000));
        breaker.record(100);
        assert!(breaker.is_open(149, u64::MAX, 1_000));
        assert!(!breaker.is_open(150, u64::MAX, 1_000));
    }

    #[test]
    fn a_clock_that_goes_back_makes_it_forget_nothing() {
        let mut breaker = Breaker::new(MOST);
        for now in (1_000..1_064).chain(10..74) {
            breaker.record(now);
        }
        assert!(breaker.is_open(1_003, u64::MAX, 1_000) && breaker.is_open(20, u64::MAX, 1_000));
        assert!(!breaker.is_open(1_264, u64::MAX, 1_000));
    }

    #[test]
    fn other_settings_forget_no_kill() {
        let mut breaker = Breaker::new(MOST);
        for now in [60, 10, 70] {
            breaker.record(now);
        }
        let fewer = breaker.with(BreakerSettings { max_kills: 2, ..MOST });
        assert!(
            fewer.is_open(159, u64::MAX, 1_000) && !fewer.is_open(160, u64::MAX, 1_000),
            "the latest two"
        );
        let more = breaker.with(BreakerSettings { max_kills: 4, ..MOST });
        assert!(!more.is_open(70, u64::MAX, 1_000));
        let longer = more.with(BreakerSettings { max_kills: 3, window_ns: 1_000, ..MOST });
        assert!(longer.is_open(1_009, u64::MAX, 1_000) && !longer.is_open(1_010, u64::MAX, 1_000));
    }

    #[test]
    fn no_kill_allowed_is_always_open() {
        let mut breaker = Breaker::new(BreakerSettings { max_kills: 0, ..MOST });
        breaker.record(1);
        assert!(breaker.is_open(u64::MAX, u64::MAX, 1_000));
    }

    #[test]
    fn a_share_of_the_pods_counts_from_ten_kills_on() {
        let mut breaker = Breaker::new(BreakerSettings { max_kills: 100, ..MOST });
        for _ in 0..9 {
            breaker.record(1);
        }
        assert!(!breaker.is_open(1, u64::MAX, 0));
        breaker.record(1);
        assert!(breaker.is_open(1, u64::MAX, 10));
        assert!(!breaker.is_open(1, u64::MAX, 11));
    }

    #[test]
    fn a_machine_of_few_pods_is_not_emptied_in_one_shortage() {
        // So many of that many are killed before it opens, where no kill ends the shortage.
        let killed = |pods: usize| {
            let mut breaker = Breaker::new(BreakerSettings::default());
            let is_next = |breaker: &Breaker, killed: usize| !breaker.is_open(9, 5, pods - killed);
            let mut killed = 0;
            while killed < pods && is_next(&breaker, killed) {
                breaker.record(9);
                killed += 1;
            }
            killed
        };
        let of: Vec<_> = [1, 3, 4, 6, 10, 20, 100].into_iter().map(killed).collect();
        assert_eq!(of, [1, 3, 3, 3, 5, 10, 20]);
        // Kills that did end one count as before.
        let mut breaker = Breaker::new(BreakerSettings::default());
        (1..=9).for_each(|at_ns| breaker.record(at_ns));
        assert!(!breaker.is_open(10, 8, 1), "two in this one");
        assert!(!breaker.is_open(10, 7, 4), "three of seven");
        assert!(breaker.is_open(10, 7, 3), "three of six");
    }
}
