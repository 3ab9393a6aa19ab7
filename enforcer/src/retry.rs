//! Retries to restore values: first soon, then with growing pauses, without end.

use std::time::{Duration, Instant};

/// The pause before the first retry; each further one is twice as long, up to the longest.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_mins(1);

/// The most values to retry. Any others stay on the intent page for the next start.
const MOST: usize = 32;

/// Values to retry, and when.
#[derive(Debug)]
pub(crate) struct Retries<T> {
    waiting: Vec<Retry<T>>,
}

#[derive(Debug)]
struct Retry<T> {
    value: T,
    due: Instant,
    pause: Duration,
}

impl<T> Retries<T> {
    pub(crate) fn new() -> Self {
        Self { waiting: Vec::new() }
    }

    /// Retries `value` from now on.
    pub(crate) fn add(&mut self, value: T, now: Instant) {
        if self.waiting.len() < MOST {
            self.waiting.push(Retry { value, due: now + FIRST, pause: FIRST });
        }
    }

    /// The values that wait for their retry.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.waiting.iter().map(|retry| &retry.value)
    }

    /// When the next retry is due; `None` if there is nothing to retry.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.waiting.iter().map(|retry| retry.due).min()
    }

    /// Retries the values that are due; `restore` returns a value if it fails.
    pub(crate) fn attempt(&mut self, now: Instant, mut restore: impl FnMut(T) -> Option<T>) {
        for Retry { value, due, pause } in std::mem::take(&mut self.waiting) {
            if due > now {
                self.waiting.push(Retry { value, due, pause });
            } else if let Some(value) = restore(value) {
                let pause = (pause * 2).min(LONGEST);
                self.waiting.push(Retry { value, due: now + pause, pause });
            }
        }
    }

    /// Retries matching values at once; returns whether one is still left.
    pub(crate) fn attempt_those(
        &mut self,
        which: impl Fn(&T) -> bool,
        mut restore: impl FnMut(T) -> Option<T>,
    ) -> bool {
        for Retry { value, due, pause } in std::mem::take(&mut self.waiting) {
            let left = if which(&value) { restore(value) } else { Some(value) };
            self.waiting.extend(left.map(|value| Retry { value, due, pause }));
        }
        self.waiting.iter().any(|retry| which(&retry.value))
    }

    /// All remaining values.
    pub(crate) fn into_all(self) -> impl Iterator<Item = T> {
        self.waiting.into_iter().map(|retry| retry.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_minute_and_never_end() {
        let start = Instant::now();
        let mut retries = Retries::new();
        retries.add((), start);
        let mut pauses = Vec::new();
        let mut now = start;
        for _ in 0..12 {
            let due = retries.due().unwrap();
            pauses.push((due - now).as_millis());
            now = due;
            let early = now.checked_sub(Duration::from_millis(1)).unwrap();
            retries.attempt(early, |()| panic!("too early"));
            retries.attempt(now, Some);
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200, 60_000, 60_000]);
        retries.attempt(now + LONGEST, |()| None);
        assert_eq!(retries.due(), None);
    }

    #[test]
    fn one_that_works_ends_no_other() {
        let now = Instant::now();
        let mut retries = Retries::new();
        (0..3).for_each(|value| retries.add(value, now));
        retries.attempt(now + FIRST, |value| Some(value).filter(|value| *value != 1));
        assert!(retries.attempt_those(|value| *value == 2, Some));
        assert!(!retries.attempt_those(|value| *value == 2, |_| None));
        assert_eq!(retries.into_all().collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn there_is_an_end_to_how_many_are_kept() {
        let mut retries = Retries::new();
        (0..100).for_each(|value| retries.add(value, Instant::now()));
        assert_eq!(retries.into_all().count(), MOST);
    }
}
