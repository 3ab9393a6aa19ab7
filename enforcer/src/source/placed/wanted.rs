//! The pods and containers in which a process was killed: their names are needed for a while longer, also of those that
//! ran for a moment and whose cgroups are gone.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use tokio::sync::watch;

use crate::{
    cri::MOST_WANTED,
    model::{ContainerId, PodUid},
};

/// How long they are held from the last kill on: longer than an OOM incident is open.
const HOLD: Duration = Duration::from_secs(15);

/// What is held, at most [`MOST_WANTED`] of it.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// The one with the latest kill last.
    held: VecDeque<Held>,
    /// The number of the one that came last.
    last: u64,
    /// The highest number that the runtime has not answered for; `None` if it has for each.
    unanswered: watch::Sender<Option<u64>>,
}

/// A pod, or one of its containers.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) number: u64,
    until: Instant,
    pub(super) pod: PodUid,
    /// `None` for the pod itself.
    pub(super) container: Option<ContainerId>,
    /// Whether the runtime has answered for it, if only that it does not know it.
    is_answered: bool,
}

impl Held {
    fn is(&self, pod: &PodUid, container: Option<&ContainerId>) -> bool {
        self.pod == *pod && self.container.as_ref() == container
    }
}

impl Wanted {
    /// Holds it from now on. The runtime is asked for one that is not `named`, once as long as it is held.
    pub(super) fn hold(&mut self, pod: PodUid, container: Option<ContainerId>, named: bool, now: Instant) {
        self.held.retain(|held| held.until > now);
        let at = self.held.iter().position(|held| held.is(&pod, container.as_ref()));
        let (number, was_answered) = if let Some(known) = at.and_then(|at| self.held.remove(at)) {
            (known.number, known.is_answered)
        } else {
            self.last += 1;
            (self.last, false)
        };
        if self.held.len() >= MOST_WANTED {
            self.held.pop_front();
        }
        let is_answered = named || was_answered;
        self.held.push_back(Held { number, until: now + HOLD, pod, container, is_answered });
        self.publish();
    }

    /// The containers that the runtime has not answered for, and the number up to which its answer counts.
    pub(super) fn question(&mut self, now: Instant) -> (Vec<ContainerId>, u64) {
        self.forget_old(now);
        let unanswered = self.held.iter().filter(|held| !held.is_answered);
        (unanswered.filter_map(|held| held.container.clone()).collect(), self.last)
    }

    /// Notes that the runtime has answered for those.
    pub(super) fn answer(&mut self, is_answered: impl Fn(&Held) -> bool) {
        for held in &mut self.held {
            held.is_answered = held.is_answered || is_answered(held);
        }
        self.publish();
    }

    /// Notes that the runtime has answered for all up to a number.
    pub(super) fn answer_up_to(&mut self, number: u64) {
        self.answer(|held| held.number <= number);
    }

    /// Forgets what was held for long enough.
    pub(super) fn forget_old(&mut self, now: Instant) {
        self.held.retain(|held| held.until > now);
        self.publish();
    }

    /// Whether the runtime has answered for it.
    pub(super) fn is_answered(&self, pod: &PodUid, container: Option<&ContainerId>) -> bool {
        self.held.iter().any(|held| held.is_answered && held.is(pod, container))
    }

    /// What is held.
    pub(super) fn held(&self) -> impl Iterator<Item = &Held> {
        self.held.iter()
    }

    /// Follows the highest number that the runtime has not answered for.
    pub(super) fn unanswered(&self) -> watch::Receiver<Option<u64>> {
        self.unanswered.subscribe()
    }

    fn publish(&self) {
        let unanswered = self.held.iter().filter(|held| !held.is_answered).map(|held| held.number).max();
        self.unanswered.send_if_modified(|before| std::mem::replace(before, unanswered) != unanswered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(number: usize) -> PodUid {
        PodUid::new(&format!("u{number}")).unwrap()
    }

    fn id(number: usize) -> ContainerId {
        ContainerId::new(&format!("{number:064x}")).unwrap()
    }

    #[test]
    fn each_is_asked_for_once_as_long_as_it_is_held() {
        let (mut wanted, now) = (Wanted::default(), Instant::now());
        let unanswered = wanted.unanswered();
        wanted.hold(uid(1), Some(id(1)), false, now);
        wanted.hold(uid(1), None, true, now);
        let (asked, through) = wanted.question(now);
        assert_eq!((asked, *unanswered.borrow()), (vec![id(1)], Some(1)));
        // It comes while the runtime is asked.
        wanted.hold(uid(2), Some(id(2)), false, now);
        wanted.answer_up_to(through);
        assert!(wanted.is_answered(&uid(1), Some(&id(1))) && wanted.is_answered(&uid(1), None));
        assert!(!wanted.is_answered(&uid(2), Some(&id(2))));
        assert_eq!(*unanswered.borrow(), Some(3));
        let (asked, through) = wanted.question(now);
        assert_eq!(asked, [id(2)]);
        wanted.answer_up_to(through);
        // Another kill in the first.
        wanted.hold(uid(1), Some(id(1)), false, now);
        assert_eq!((wanted.question(now).0, *unanswered.borrow()), (vec![], None));
        // Under the same id it is another pod's.
        assert!(!wanted.is_answered(&uid(2), Some(&id(1))));
    }

    #[test]
    fn it_is_forgotten_a_while_after_the_last_kill() {
        let (mut wanted, now) = (Wanted::default(), Instant::now());
        let unanswered = wanted.unanswered();
        wanted.hold(uid(1), Some(id(1)), false, now);
        wanted.hold(uid(2), Some(id(2)), false, now);
        wanted.hold(uid(1), Some(id(1)), false, now + HOLD / 2);
        wanted.forget_old(now + HOLD);
        assert_eq!(wanted.held().map(|held| held.pod.clone()).collect::<Vec<_>>(), [uid(1)]);
        assert_eq!(wanted.question(now + 2 * HOLD).0, []);
        assert_eq!((wanted.held().count(), *unanswered.borrow()), (0, None), "none waits any more");
    }

    #[test]
    fn of_too_many_the_oldest_is_dropped() {
        let (mut wanted, now) = (Wanted::default(), Instant::now());
        wanted.hold(uid(0), Some(id(0)), false, now);
        for number in 1..10 * MOST_WANTED {
            wanted.hold(uid(number), Some(id(number)), false, now);
            // One that is killed in again and again is not the oldest.
            wanted.hold(uid(0), Some(id(0)), false, now);
            assert!(wanted.held.len() <= MOST_WANTED && wanted.held.capacity() <= 4 * MOST_WANTED);
        }
        let (asked, _) = wanted.question(now);
        assert!(asked.len() == MOST_WANTED && asked.contains(&id(0)) && !asked.contains(&id(1)));
    }
}
