//! Random numbers that can be repeated.

use std::time::{SystemTime, UNIX_EPOCH};

/// The variable that sets the seed of a failed run again.
const SEED: &str = "ENFORCER_TEST_SEED";

/// Numbers that follow from a seed (`SplitMix64`).
#[derive(Clone, Debug)]
pub struct Random {
    seed: u64,
    state: u64,
}

impl Random {
    /// The numbers that follow from this seed.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        Self { seed, state: seed }
    }

    /// Different numbers in each run, unless the environment sets `ENFORCER_TEST_SEED`.
    #[must_use]
    pub fn of_this_run() -> Self {
        let given = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok());
        let clock = || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            since.as_secs().rotate_left(32) ^ u64::from(since.subsec_nanos())
        };
        Self::of_seed(given.unwrap_or_else(clock))
    }

    /// The setting that repeats the same numbers.
    #[must_use]
    pub fn seed(&self) -> String {
        format!("{SEED}={}", self.seed)
    }

    /// The next number below `end`, which is above 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // The range is so short that the remainder's bias is negligible.
        self.next() % end.max(1)
    }

    /// One of these; the list must not be empty.
    ///
    /// # Panics
    ///
    /// If the list is empty.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        let count = u64::try_from(choices.len()).unwrap_or(u64::MAX);
        let index = usize::try_from(self.below(count)).unwrap_or_default();
        choices[index]
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn a_seed_gives_the_same_numbers_again() {
        let numbers = |seed| {
            let mut random = Random::of_seed(seed);
            (0..8).map(|_| random.below(1_000)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
    }
}
