//! Whether the API server can be asked for evictions, as it is reported (`degraded`).

use enforcer_events::{Payload, node::Degraded};

use super::message::Outcome;
use crate::journal::{Journal, Subject};

/// The `what` of the degradation while the API server cannot be asked.
const WHAT: &str = "apiServer";

/// Whether the server can be asked, as it is reported.
pub(super) struct Trouble {
    journal: Journal,
    /// Why it is reported that it cannot.
    reported: Option<Cause>,
    /// Whether the last question was answered.
    is_heard: bool,
}

/// Why the server cannot be asked, in the order of what it takes to clear it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Cause {
    /// A question that changes nothing was not answered. Any later answer shows that the server is back.
    Silence,
    /// A request was not answered, or failed in the server: another one must be answered, or none be left to be made.
    Request,
    /// The right to change something is missing: a request must be accepted.
    Right,
}

impl Trouble {
    pub(super) fn new(journal: &Journal) -> Self {
        Self { journal: journal.clone(), reported: None, is_heard: false }
    }

    /// Takes the answer to a question, which may have been one for a change.
    pub(super) fn note(&mut self, changes: bool, answer: &Result<Outcome, String>) {
        let answer = match answer {
            Ok(Outcome::Resent(outcome)) => Ok(&**outcome),
            once => once.as_ref(),
        };
        self.is_heard = false;
        let of_this = if changes { Cause::Request } else { Cause::Silence };
        match answer {
            Err(why) | Ok(Outcome::Failed(why)) => return self.enter(why, of_this),
            Ok(Outcome::Refused { status: status @ (401 | 403 | 429 | 500..), words, .. }) => {
                let is_right_missing = changes && matches!(status, 401 | 403);
                let cause = if is_right_missing { Cause::Right } else { of_this };
                return self.enter(&format!("status {status}: {words}"), cause);
            }
            // It was not asked.
            Ok(Outcome::Known(_)) => return,
            // In place of the answer to a request that changes something, as after it.
            Ok(Outcome::Found(_)) => self.leave(Cause::Silence),
            Ok(Outcome::Done { .. }) if changes => self.leave(Cause::Right),
            Ok(_) => self.leave(of_this),
        }
        self.is_heard = true;
    }

    /// No request is left to be made: an answer shows that the server is back.
    pub(super) fn settle(&mut self) {
        if self.is_heard {
            self.leave(Cause::Request);
        }
    }

    fn enter(&mut self, why: &str, cause: Cause) {
        // One report, whichever pod the words name.
        if let Some(before) = &mut self.reported {
            *before = cause.max(*before);
            return;
        }
        self.reported = Some(cause);
        let message = format!(
            "cannot evict pods at the API server; the kubelet restarts the containers that are killed here: {why}"
        );
        tracing::warn!("{message}");
        let data = Degraded { message: Some(message), ..Degraded::of(WHAT) };
        self.journal.emit(Subject::Node, Payload::DegradedEntered(data));
    }

    /// Reports that it can be asked again, if that was reported for this cause or a lesser one.
    fn leave(&mut self, up_to: Cause) {
        if self.reported.take_if(|cause| *cause <= up_to).is_some() {
            let message = Some(String::from("pods can be evicted at the API server"));
            let data = Degraded { message, ..Degraded::of(WHAT) };
            self.journal.emit(Subject::Node, Payload::DegradedLeft(data));
        }
    }
}

#[cfg(test)]
mod tests {
    use enforcer_events::EventType;

    use super::*;
    use crate::{
        journal::{Batch, Filter},
        kube::message::FoundPod,
    };

    #[test]
    fn only_an_answer_of_the_server_shows_that_it_is_back() {
        let journal = Journal::new("n", "b");
        let mut trouble = Trouble::new(&journal);
        let reported = || {
            let mut reader = journal.reader(Some(0), Filter::default());
            let mut kinds = Vec::new();
            while let Some(Batch::Records(records)) = reader.read() {
                kinds.extend(records.into_iter().map(|record| record.kind));
            }
            kinds
        };
        trouble.note(true, &Err(String::from("refused")));
        assert_eq!(reported(), [EventType::DegradedEntered]);
        // What an open connection's server has said before.
        trouble.note(false, &Ok(Outcome::Known(String::from("policy/v1"))));
        assert_eq!(reported(), [EventType::DegradedEntered]);
        let discovered = Ok(Outcome::Discovered(Some(String::from("policy/v1"))));
        trouble.note(false, &discovered);
        // The request may fail again.
        assert_eq!(reported(), [EventType::DegradedEntered]);
        trouble.settle();
        assert_eq!(reported(), [EventType::DegradedEntered, EventType::DegradedLeft]);
        trouble.note(false, &Err(String::from("refused")));
        trouble.note(false, &discovered);
        let entered_and_left = [EventType::DegradedEntered, EventType::DegradedLeft];
        assert_eq!(reported(), [entered_and_left, entered_and_left].concat());
    }

    /// A webhook that fails each request, while looks are answered; a server that has too much to do; a role without the right
    /// to delete, under a budget.
    #[test]
    fn what_fails_at_each_request_is_reported_once() {
        let refused = |status| Ok(Outcome::Refused { status, words: String::new(), after_ms: None });
        let found = || Ok(Outcome::Found(FoundPod::default()));
        let budget = || Ok(Outcome::Budget { words: String::new(), after_ms: None });
        let done = || Ok(Outcome::Done { sent_boot_ms: 1 });
        for round in [
            vec![(true, refused(500)), (false, found())],
            vec![(true, refused(429))],
            vec![(true, budget()), (true, refused(403))],
        ] {
            let journal = Journal::new("n", "b");
            let mut trouble = Trouble::new(&journal);
            for (changes, answer) in round.iter().cycle().take(100) {
                trouble.note(*changes, answer);
            }
            assert_eq!(journal.range().newest, 1, "{round:?}");
            trouble.note(true, &done());
            assert_eq!(journal.range().newest, 2, "{round:?}");
        }
    }

    #[test]
    fn a_right_that_is_missing_is_so_until_a_request_is_accepted() {
        let journal = Journal::new("n", "b");
        let mut trouble = Trouble::new(&journal);
        trouble.note(true, &Ok(Outcome::Refused { status: 403, words: String::new(), after_ms: None }));
        trouble.note(false, &Ok(Outcome::Missing));
        trouble.settle();
        assert_eq!(journal.range().newest, 1);
    }
}
