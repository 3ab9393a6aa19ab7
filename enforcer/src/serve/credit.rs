//! Limits how fast each user may send requests to the admin socket.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// The burst of requests of one user, and the interval for one more.
pub(super) const BURST: u32 = 20;
pub(super) const REFILL: Duration = Duration::from_millis(250);

/// How many users have their own limit; few may send requests at all. All further users share one.
const MOST_USERS: usize = 64;

/// The rate limit of each user.
#[derive(Debug, Default)]
pub(super) struct Credits(HashMap<u32, Credit>);

impl Credits {
    /// Takes one request of this user. The error is the time until the next is accepted.
    pub(super) fn take(&mut self, uid: u32, now: Instant) -> Result<(), Duration> {
        if self.0.len() >= MOST_USERS && !self.0.contains_key(&uid) {
            // A user with full credit is like one that never sent a request.
            self.0.retain(|_, credit| !credit.is_full(now));
        }
        let uid = if self.0.len() >= MOST_USERS && !self.0.contains_key(&uid) { u32::MAX } else { uid };
        self.0.entry(uid).or_insert_with(|| Credit::new(now)).take(now)
    }
}

/// The credit of one user.
#[derive(Debug)]
struct Credit {
    left: u32,
    /// When the last refill was.
    since: Instant,
}

impl Credit {
    fn new(now: Instant) -> Self {
        Self { left: BURST, since: now }
    }

    fn refill(&mut self, now: Instant) {
        while self.left < BURST && now.saturating_duration_since(self.since) >= REFILL {
            self.left += 1;
            self.since += REFILL;
        }
        if self.left == BURST {
            self.since = now;
        }
    }

    fn is_full(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.left == BURST
    }

    fn take(&mut self, now: Instant) -> Result<(), Duration> {
        self.refill(now);
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(REFILL.saturating_sub(now.saturating_duration_since(self.since))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_rationed_for_each_user() {
        let start = Instant::now();
        let mut credits = Credits::default();
        assert!((0..BURST).all(|_| credits.take(0, start).is_ok()));
        assert_eq!(credits.take(0, start), Err(REFILL));
        assert!(credits.take(1, start).is_ok(), "another user has its own");
        assert_eq!(credits.take(0, start + REFILL / 2), Err(REFILL / 2));
        assert!(credits.take(0, start + REFILL).is_ok());
        assert!(credits.take(0, start + REFILL).is_err());
        let later = start + REFILL * 1_000;
        assert!((0..BURST).all(|_| credits.take(0, later).is_ok()));
        assert!(credits.take(0, later).is_err());
    }

    #[test]
    fn many_users_take_no_more_room_than_a_few() {
        let start = Instant::now();
        let mut credits = Credits::default();
        for uid in 0..10_000 {
            let _taken = credits.take(uid, start);
        }
        assert_eq!(credits.0.len(), MOST_USERS + 1);
        assert!(credits.take(20_000, start).is_err(), "those beyond share one");
        let later = start + REFILL;
        assert!(credits.take(20_000, later).is_ok());
        assert!(credits.0.len() <= 2, "those that rested are forgotten");
    }
}
