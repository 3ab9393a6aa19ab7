//! Two processes that keep writing different values to one file.
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// In this window a file may be written back at once a few times; all is forgotten after this long without a write.
const WINDOW: Duration = Duration::from_mins(1);
/// How long a contested value stays before it is written back: at first, and at most.
const DELAY_MIN: Duration = Duration::from_secs(1);
const DELAY_MAX: Duration = Duration::from_mins(1);
/// How long foreign writes must have stopped, at least, until the contest is over.
const QUIET_MIN: Duration = Duration::from_secs(1);

/// The contest for one value: it is written back for ever, but less and less often while another process writes it too.
///
/// It is over once the other has not written for twice the longest pause between two of its writes. So a process that
/// writes without a pause is undone a second after its last write, however long it went on, and one that writes every
/// few seconds does not count as stopped.
#[derive(Clone, Debug, Default)]
pub(in crate::cgroup) struct Contest {
    /// The planned value.
    planned: String,
    /// When it was written back at once, within the last window.
    rounds: VecDeque<Instant>,
    /// When the other process wrote last.
    written: Option<Instant>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Stage {
    /// Each foreign write is undone at once.
    #[default]
    Calm,
    /// Another process insists on its value.
    Contested {
        /// How long its value stays the next time.
        delay: Duration,
        /// The longest pause between two of its writes.
        pause: Duration,
        /// When its value is overwritten at the latest; `None` while the file holds the planned value.
        due: Option<Instant>,
        /// Whether it wrote lately.
        is_on: bool,
    },
}

/// What to do about the foreign value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::cgroup) enum Verdict {
    /// Write the planned one now.
    Restore,
    /// Leave it for now.
    Wait {
        /// Whether the contest has just begun.
        is_news: bool,
    },
}

impl Contest {
    /// Decides about a foreign value found instead of `planned`: it is overwritten at once up to `rounds` times within
    /// a minute.
    pub(in crate::cgroup) fn judge(&mut self, planned: &str, rounds: usize, now: Instant) -> Verdict {
        if self.planned != planned {
            *self = Self { planned: planned.to_owned(), ..Self::default() };
        }
        match &mut self.stage {
            Stage::Calm => {
                self.written = Some(now);
                self.rounds.retain(|round| now.saturating_duration_since(*round) < WINDOW);
                if self.rounds.len() < rounds {
                    self.rounds.push_back(now);
                    return Verdict::Restore;
                }
                let due = Some(now + DELAY_MIN);
                self.stage = Stage::Contested { delay: DELAY_MIN, pause: Duration::ZERO, due, is_on: true };
                Verdict::Wait { is_news: true }
            }
            Stage::Contested { due: Some(_), .. } => {
                if self.waits(now) {
                    return Verdict::Wait { is_news: false };
                }
                if let Stage::Contested { delay, due, .. } = &mut self.stage {
                    *delay = (*delay * 2).min(DELAY_MAX);
                    *due = None;
                }
                Verdict::Restore
            }
            Stage::Contested { delay, due, is_on, .. } => {
                *due = Some(now + *delay);
                let is_news = !std::mem::replace(is_on, true);
                self.wrote(now);
                Verdict::Wait { is_news }
            }
        }
    }

    /// Notes a foreign write. While the file holds the planned value, the write may be our own.
    pub(in crate::cgroup) fn wrote(&mut self, now: Instant) {
        let since = self.written.map(|written| now.saturating_duration_since(written));
        if let Stage::Contested { pause, due: Some(_), .. } = &mut self.stage {
            *pause = (*pause).max(since.unwrap_or_default());
            self.written = Some(now);
        }
    }

    /// Notes that the file holds the planned value without our doing.
    pub(in crate::cgroup) fn settled(&mut self) {
        if let Stage::Contested { due, .. } = &mut self.stage {
            *due = None;
        }
    }

    /// Ends it if the file holds the planned value and foreign writes stopped long enough ago.
    pub(in crate::cgroup) fn advance(&mut self, now: Instant) {
        let is_quiet = self.quiet_from().is_some_and(|from| from <= now);
        if let Stage::Contested { due: None, is_on, .. } = &mut self.stage
            && is_quiet
        {
            *is_on = false;
        }
    }

    /// From when on the other process counts as stopped.
    fn quiet_from(&self) -> Option<Instant> {
        match self.stage {
            Stage::Calm => None,
            Stage::Contested { pause, .. } => Some(self.written? + (pause * 2).max(QUIET_MIN)),
        }
    }

    /// Whether the file holds the foreign value and keeps it for now.
    pub(in crate::cgroup) fn waits(&self, now: Instant) -> bool {
        self.written_over_at().is_some_and(|at| now < at)
    }

    /// Whether the foreign value has stayed for long enough.
    pub(in crate::cgroup) fn is_overdue(&self, now: Instant) -> bool {
        self.written_over_at().is_some_and(|at| at <= now)
    }

    /// When the foreign value is overwritten; `None` while the file holds the planned one.
    fn written_over_at(&self) -> Option<Instant> {
        match self.stage {
            Stage::Contested { due: Some(due), .. } => {
                Some(self.quiet_from().map_or(due, |quiet| quiet.min(due)))
            }
            Stage::Contested { due: None, .. } | Stage::Calm => None,
        }
    }

    /// Whether the contest goes on.
    pub(in crate::cgroup) fn is_on(&self) -> bool {
        matches!(self.stage, Stage::Contested { is_on: true, .. })
    }

    /// When to act although no event comes.
    pub(in crate::cgroup) fn due(&self) -> Option<Instant> {
        self.written_over_at().or_else(|| self.quiet_from().filter(|_| self.is_on()))
    }

    /// Whether it is old enough to be forgotten.
    pub(in crate::cgroup) fn is_forgotten(&self, now: Instant) -> bool {
        let is_old = self.written.is_none_or(|written| now.saturating_duration_since(written) >= WINDOW);
        is_old && !self.is_on() && self.written_over_at().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Verdict = Verdict::Wait { is_news: false };
    const NEWS: Verdict = Verdict::Wait { is_news: true };

    /// A file, another who writes to it, and the clock.
    struct Scene {
        contest: Contest,
        now: Instant,
        is_planned: bool,
        /// When the planned value was written back, in milliseconds from the start.
        restored_ms: Vec<u128>,
        start: Instant,
    }

    impl Scene {
        fn new() -> Self {
            let start = Instant::now();
            Self { contest: Contest::default(), now: start, is_planned: true, restored_ms: Vec::new(), start }
        }

        fn look(&mut self) {
            if !self.is_planned && self.contest.judge("79", 3, self.now) == Verdict::Restore {
                self.is_planned = true;
                self.restored_ms.push((self.now - self.start).as_millis());
            }
        }

        fn write(&mut self) {
            self.contest.wrote(self.now);
            self.is_planned = false;
            self.look();
        }

        /// Time goes by, and what is due by itself is done.
        fn wait(&mut self, duration: Duration) {
            let until = self.now + duration;
            while let Some(due) = self.contest.due().filter(|due| *due <= until) {
                assert!(due >= self.now, "what is due was done");
                self.now = due;
                self.look();
                self.contest.advance(due);
                assert_ne!(self.contest.due(), Some(due), "and is due no longer");
            }
            self.now = until;
        }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn who_stops_is_undone_a_second_later_however_long_it_wrote() {
        for seconds in [2, 60, 600] {
            let mut scene = Scene::new();
            for _ in 0..seconds * 10 {
                scene.write();
                scene.wait(ms(100));
            }
            assert!(scene.contest.is_on() && !scene.is_planned);
            scene.wait(ms(900));
            assert!(scene.is_planned, "{seconds}: {:?}", scene.contest);
            assert!(!scene.contest.is_on());
            scene.wait(Duration::from_mins(2));
            assert!(scene.contest.is_forgotten(scene.now));
        }
    }

    #[test]
    fn who_goes_on_is_undone_for_ever_and_ever_more_seldom() {
        let mut scene = Scene::new();
        for _ in 0..3600 * 5 {
            scene.write();
            scene.wait(ms(200));
        }
        let at_once = scene.restored_ms.iter().take(3).copied().collect::<Vec<_>>();
        assert_eq!(at_once, [0, 200, 400]);
        let pauses: Vec<u128> =
            scene.restored_ms.windows(2).skip(2).map(|pair| (pair[1] - pair[0]) / 1000).collect();
        assert_eq!(pauses[..7], [1, 2, 4, 8, 16, 32, 60]);
        assert!(pauses[7..].iter().all(|pause| *pause == 60), "{pauses:?}");
        assert!(pauses.len() > 60);
    }

    #[test]
    fn who_writes_now_and_then_is_no_one_who_has_stopped() {
        let mut scene = Scene::new();
        for _ in 0..600 {
            scene.write();
            scene.wait(ms(5_000));
        }
        assert!(scene.contest.is_on());
        let hours = scene.restored_ms.len();
        assert!((50..70).contains(&hours), "once a minute, not after each write: {hours}");
        scene.wait(ms(15_000));
        assert!(scene.is_planned && !scene.contest.is_on());
    }

    #[test]
    fn who_writes_seldom_is_undone_at_once() {
        let mut scene = Scene::new();
        for _ in 0..10 {
            scene.write();
            assert!(scene.is_planned);
            scene.wait(ms(21_000));
        }
    }

    #[test]
    fn the_end_of_it_is_reported_and_so_is_another_beginning() {
        let (mut contest, mut now) = (Contest::default(), Instant::now());
        for _ in 0..3 {
            assert_eq!(contest.judge("79", 3, now), Verdict::Restore);
        }
        assert_eq!(contest.judge("79", 3, now), NEWS);
        assert_eq!(contest.judge("79", 3, now + ms(500)), WAIT);
        now += ms(1_000);
        assert_eq!(contest.judge("79", 3, now), Verdict::Restore);
        contest.advance(now);
        assert!(!contest.is_on());
        assert_eq!(contest.judge("79", 3, now + ms(10)), NEWS);
        // The planned value, by whomever it was written.
        contest.settled();
        assert_eq!(contest.judge("79", 3, now + ms(20)), WAIT);
        assert_eq!(contest.judge("39", 3, now + ms(30)), Verdict::Restore, "another plan starts anew");
    }
}
