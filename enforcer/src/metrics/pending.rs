//! Keeps an eviction's labels from its decision to its end, as the event of the end lacks them.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use super::labels::{Method, Qos, Signal};

/// The most evictions at once: one of the engine, and those that operators order.
const MOST: usize = 64;

/// The labels of evictions that have not ended, for counting their end. Only threads that append events take its lock.
#[derive(Debug, Default)]
pub(super) struct Pending(Mutex<VecDeque<Begun>>);

/// An eviction that was decided.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Begun {
    pub(super) id: Box<str>,
    pub(super) signal: Signal,
    pub(super) qos: Qos,
    /// The signals that it was sent.
    pub(super) method: Method,
}

impl Pending {
    pub(super) fn decided(&self, begun: Begun) {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.len() == MOST {
            // Its end was never reported.
            pending.pop_front();
        }
        pending.push_back(begun);
    }

    pub(super) fn sent(&self, id: &str, signal: &str) {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(begun) = pending.iter_mut().find(|begun| &*begun.id == id) {
            begun.method = match (signal, begun.method) {
                ("SIGTERM", Method::Nothing) => Method::Term,
                ("SIGKILL", Method::Nothing) => Method::Kill,
                ("SIGKILL", Method::Term) => Method::TermThenKill,
                ("SIGKILL", Method::Request) => Method::RequestThenKill,
                (_, method) => method,
            };
        }
    }

    /// The API server has accepted to evict it.
    pub(super) fn requested(&self, id: &str) {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let unsignalled = |begun: &&mut Begun| &*begun.id == id && begun.method == Method::Nothing;
        if let Some(begun) = pending.iter_mut().find(unsignalled) {
            begun.method = Method::Request;
        }
    }

    /// Removes and returns its labels.
    pub(super) fn ended(&self, id: &str) -> Option<Begun> {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = pending.iter().position(|begun| &*begun.id == id)?;
        pending.remove(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(id: &str) -> Begun {
        Begun { id: id.into(), signal: Signal::Memory, qos: Qos::Burstable, method: Method::Nothing }
    }

    #[test]
    fn what_was_sent_is_remembered_until_the_end() {
        let pending = Pending::default();
        for (id, sent, method) in [
            ("a", &["SIGTERM", "SIGKILL"][..], Method::TermThenKill),
            ("b", &["SIGKILL"], Method::Kill),
            ("c", &["SIGTERM"], Method::Term),
            ("d", &[], Method::Nothing),
        ] {
            pending.decided(begun(id));
            for signal in sent {
                pending.sent(id, signal);
            }
            assert_eq!(pending.ended(id), Some(Begun { method, ..begun(id) }));
            assert_eq!(pending.ended(id), None);
        }
    }

    #[test]
    fn those_without_an_end_do_not_pile_up() {
        let pending = Pending::default();
        for number in 0..1_000 {
            pending.decided(begun(&number.to_string()));
        }
        assert_eq!(pending.ended("935"), None);
        assert_eq!(pending.ended("936"), Some(begun("936")));
    }
}
