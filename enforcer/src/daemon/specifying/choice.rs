//! Which source to ask next: the first that works, and now and then those before it.

use std::time::Duration;

use tokio::time::Instant;

/// How often the sources before the present one are tried.
const PROBE: Duration = Duration::from_mins(1);

/// The pause after no source has worked; it doubles.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// What to do now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Step {
    /// Ask that source.
    Ask(usize),
    /// Wait until then.
    Wait(Instant),
}

/// The sources in order, the best first.
#[derive(Debug)]
pub(super) struct SourceChoice {
    count: usize,
    /// The source that works.
    present: Option<usize>,
    /// Since when it does.
    since: Instant,
    /// The next source to try.
    next: usize,
    /// When to try.
    try_at: Instant,
    pause: Duration,
}

impl SourceChoice {
    /// Sources of which none was asked.
    pub(super) fn new(count: usize, now: Instant) -> Self {
        Self { count, present: None, since: now, next: 0, try_at: now, pause: SHORTEST_PAUSE }
    }

    /// What to do now.
    pub(super) fn step(&self, now: Instant) -> Step {
        match self.present {
            Some(present) if self.next >= present || now < self.try_at => Step::Ask(present),
            None if now < self.try_at => Step::Wait(self.try_at),
            _ => Step::Ask(self.next),
        }
    }

    /// Notes whether a source has answered. Returns whether it is the present one from now on and was not before.
    pub(super) fn answered(&mut self, source: usize, works: bool, now: Instant) -> bool {
        if works {
            let is_other = self.present.replace(source) != Some(source);
            if is_other {
                self.since = now;
                (self.next, self.try_at) = (0, now + PROBE);
            }
            if now.saturating_duration_since(self.since) >= PROBE {
                self.pause = SHORTEST_PAUSE;
            }
            return is_other;
        }
        if self.present == Some(source) {
            (self.present, self.try_at) = (None, now);
            if now.saturating_duration_since(self.since) >= PROBE {
                // Those before it are better, and it may be back by itself.
                (self.next, self.try_at, self.pause) = (0, now, SHORTEST_PAUSE);
                return false;
            }
        }
        // One that fails soon after it has worked would be asked again and again.
        self.next = source + 1;
        match self.present {
            Some(present) if self.next >= present => (self.next, self.try_at) = (0, now + PROBE),
            None if self.next >= self.count => {
                (self.next, self.try_at) = (0, now + self.pause);
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            }
            _ => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sources that are asked, second by second, while those work.
    fn asked(choice: &mut SourceChoice, now: &mut Instant, steps: usize, works: &[usize]) -> Vec<usize> {
        let mut asked = Vec::new();
        while asked.len() < steps {
            match choice.step(*now) {
                Step::Ask(source) => {
                    asked.push(source);
                    *now += Duration::from_secs(10);
                    choice.answered(source, works.contains(&source), *now);
                }
                Step::Wait(until) => *now = until,
            }
        }
        asked
    }

    #[test]
    fn the_first_source_that_works_is_kept() {
        let mut now = Instant::now();
        let mut choice = SourceChoice::new(3, now);
        assert_eq!(asked(&mut choice, &mut now, 8, &[0, 1, 2]), [0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(asked(&mut choice, &mut now, 4, &[1, 2]), [0, 0, 1, 1], "it is tried once more");
    }

    #[test]
    fn a_better_source_is_tried_once_a_minute_and_taken_when_it_works() {
        let mut now = Instant::now();
        let mut choice = SourceChoice::new(3, now);
        let first = asked(&mut choice, &mut now, 13, &[2]);
        assert_eq!(first, [0, 1, 2, 2, 2, 2, 2, 2, 2, 0, 1, 2, 2]);
        let then = asked(&mut choice, &mut now, 8, &[1, 2]);
        assert_eq!(then, [2, 2, 2, 2, 0, 1, 1, 1]);
    }

    #[test]
    fn while_none_works_the_pauses_grow() {
        let mut now = Instant::now();
        let mut choice = SourceChoice::new(2, now);
        let mut pauses = Vec::new();
        while pauses.len() < 8 {
            match choice.step(now) {
                Step::Ask(source) => drop(choice.answered(source, false, now)),
                Step::Wait(until) => {
                    pauses.push((until - now).as_secs());
                    now = until;
                }
            }
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert!(choice.answered(1, true, now));
        assert!(!choice.answered(1, true, now));
        assert_eq!(choice.step(now), Step::Ask(1));
    }

    #[test]
    fn a_source_that_works_and_fails_at_once_is_not_asked_without_end() {
        let mut now = Instant::now();
        let mut choice = SourceChoice::new(2, now);
        let mut pauses = Vec::new();
        let mut works = false;
        while pauses.len() < 7 {
            match choice.step(now) {
                Step::Ask(0) => {
                    works = !works;
                    choice.answered(0, works, now);
                }
                Step::Ask(other) => drop(choice.answered(other, false, now)),
                Step::Wait(until) => {
                    pauses.push((until - now).as_secs());
                    now = until;
                }
            }
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60]);
    }
}
