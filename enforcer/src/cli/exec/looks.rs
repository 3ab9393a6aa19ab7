//! Looks again, some time after a start, whether the pod was evicted.
//!
//! A daemon that is seconds behind shows an eviction late: a command that was started meanwhile was not there when the
//! eviction killed the pod.

use std::{
    sync::mpsc::{Receiver, TryRecvError, sync_channel},
    thread,
    time::{Duration, Instant},
};

use crate::cli::Failure;

/// When it is looked, after the start.
const AFTER: [Duration; 4] =
    [Duration::from_secs(2), Duration::from_secs(5), Duration::from_secs(15), Duration::from_secs(30)];

/// How often it is looked whether an answer has come.
const POLL: Duration = Duration::from_millis(100);

/// The looks after one start. Each is made by a thread of its own: signals are passed on meanwhile.
#[derive(Debug)]
pub(super) struct Looks<F> {
    /// Says why the pod may not run, if it was evicted.
    look: F,
    start: Instant,
    done: usize,
    answer: Option<Receiver<Option<Failure>>>,
}

impl<F: Fn() -> Option<Failure> + Clone + Send + 'static> Looks<F> {
    /// Looks with `look`, which may take seconds, from now on.
    pub(super) fn new(look: F) -> Self {
        Self { look, start: Instant::now(), done: 0, answer: None }
    }

    /// How long to wait for something else at most before the next [step](Self::step); `None` if there is none.
    pub(super) fn due_in(&self, now: Instant) -> Option<Duration> {
        if self.answer.is_some() {
            return Some(POLL);
        }
        AFTER.get(self.done).map(|after| (self.start + *after).saturating_duration_since(now))
    }

    /// Takes the answer of a look, or begins the next one, if it is time. Returns why the command must end, if it must.
    pub(super) fn step(&mut self, now: Instant) -> Option<Failure> {
        if let Some(answer) = &self.answer {
            match answer.try_recv() {
                Ok(Some(evicted)) => return Some(evicted),
                Ok(None) | Err(TryRecvError::Disconnected) => self.answer = None,
                Err(TryRecvError::Empty) => {}
            }
        } else if self.due_in(now) == Some(Duration::ZERO) {
            self.done += 1;
            let (sender, answer) = sync_channel(1);
            let look = self.look.clone();
            let look = move || {
                let _unheard = sender.send(look());
            };
            // Without a thread the next look is tried.
            self.answer =
                thread::Builder::new().name(String::from("look")).spawn(look).is_ok().then_some(answer);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use anyhow::anyhow;

    use super::*;

    /// Steps until the answer of the look at that time is taken.
    fn answer<F: Fn() -> Option<Failure> + Clone + Send + 'static>(
        looks: &mut Looks<F>,
        at: Instant,
    ) -> Option<Failure> {
        assert_eq!(looks.due_in(at), Some(Duration::ZERO));
        let mut said = looks.step(at);
        while looks.answer.is_some() && said.is_none() {
            thread::sleep(Duration::from_millis(1));
            said = looks.step(at);
        }
        said
    }

    #[test]
    fn an_eviction_that_is_shown_late_is_seen() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let look = move || {
            let is_shown = counted.fetch_add(1, Ordering::SeqCst) == 2;
            is_shown.then(|| Failure::refused(anyhow!("it was evicted")))
        };
        let mut looks = Looks::new(look);
        let start = looks.start;
        assert_eq!(looks.due_in(start), Some(AFTER[0]));
        assert!(looks.step(start).is_none() && looks.answer.is_none(), "not yet");
        let said: Vec<bool> =
            AFTER[..3].iter().map(|after| answer(&mut looks, start + *after).is_some()).collect();
        assert_eq!((&said[..], asked.load(Ordering::SeqCst)), (&[false, false, true][..], 3));
    }

    #[test]
    fn after_the_last_look_nothing_is_due() {
        let mut looks = Looks::new(|| None);
        let start = looks.start;
        for after in AFTER {
            assert!(answer(&mut looks, start + after).is_none());
        }
        assert_eq!(looks.due_in(start + Duration::from_hours(1)), None);
    }
}
