use super::settings::BreakerSettings;

/// Remembers when the last kills were.
#[derive(Clone, Debug)]
pub(super) struct Breaker {
    settings: BreakerSettings,
    kills_ns: Vec<u64>,
    next: usize,
}

impl Breaker {
    pub(super) fn new(settings: BreakerSettings) -> Self {
        // As many as it takes to trip, so that no kill within the window is forgotten.
        Self { settings, kills_ns: Vec::with_capacity(usize::from(settings.max_kills)), next: 0 }
    }

    pub(super) fn record(&mut self, now_ns: u64) {
        if self.kills_ns.len() < usize::from(self.settings.max_kills) {
            self.kills_ns.push(now_ns);
            return;
        }
        if let Some(oldest) = self.kills_ns.get_mut(self.next) {
            *oldest = now_ns;
            self.next = (self.next + 1) % self.kills_ns.len();
        }
    }

    /// Whether another kill now would be one too many.
    pub(super) fn is_open(&self, now_ns: u64) -> bool {
        let recent = |at: &&u64| now_ns.saturating_sub(**at) < self.settings.window_ns;
        self.kills_ns.iter().filter(recent).count() >= usize::from(self.settings.max_kills)
    }
}

#[cfg(test)]
mod tests {
    use super::{Breaker, BreakerSettings};

    #[test]
    fn opens_at_the_most_kills_within_the_window_and_closes_as_they_age() {
        let mut breaker = Breaker::new(BreakerSettings { max_kills: 3, window_ns: 100 });
        for now in [0, 50, 60] {
            assert!(!breaker.is_open(now));
            breaker.record(now);
        }
        assert!(breaker.is_open(60));
        assert!(breaker.is_open(99));
        assert!(!breaker.is_open(100));
        breaker.record(100);
        assert!(breaker.is_open(149));
        assert!(!breaker.is_open(150));
    }

    #[test]
    fn no_kill_allowed_is_always_open() {
        let mut breaker = Breaker::new(BreakerSettings { max_kills: 0, window_ns: 100 });
        breaker.record(1);
        assert!(breaker.is_open(u64::MAX));
    }
}
