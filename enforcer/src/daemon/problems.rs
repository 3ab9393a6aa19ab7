//! Makes two events of a lasting problem: one when it begins, one when it ends.

use std::collections::BTreeMap;

use super::emit;
use crate::{cgroup::Problem, journal::Journal};

/// The present problems of the hierarchy: each is reported when it begins and when it ends.
#[derive(Debug, Default)]
pub(super) struct Problems {
    /// The messages, by `what` and place.
    present: BTreeMap<(&'static str, String), String>,
}

impl Problems {
    /// Takes the present problems, and reports the differences.
    pub(super) fn renew(&mut self, problems: Vec<Problem>, journal: &Journal) {
        let mut before = std::mem::take(&mut self.present);
        for Problem { what, place, message } in problems {
            let key = (what, place);
            // The wording may change, for instance the bytes in use: that is not reported again.
            let message = if let Some(reported) = before.remove(&key) {
                reported
            } else if self.present.contains_key(&key) {
                continue;
            } else {
                emit::degraded_at(journal, what, Some(&key.1), &message);
                message
            };
            self.present.insert(key, message);
        }
        for ((what, place), message) in before {
            tracing::info!(what, place, "no longer so: {message}");
            emit::recovered_at(journal, what, Some(&place), &format!("no longer so: {message}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{Batch, EventType, Filter};

    fn problem(place: &str, message: &str) -> Problem {
        Problem { what: "limits", place: place.to_owned(), message: message.to_owned() }
    }

    #[test]
    fn a_problem_is_reported_when_it_comes_and_when_it_goes() {
        let journal = Journal::new("n", "b");
        let mut problems = Problems::default();
        problems.renew(vec![problem("/a", "1 byte"), problem("/a", "again"), problem("/b", "no")], &journal);
        problems.renew(vec![problem("/a", "2 bytes"), problem("/b", "no")], &journal);
        problems.renew(vec![problem("/b", "no")], &journal);
        let mut reader = journal.reader(None, Filter::default());
        let Some(Batch::Records(records)) = reader.read() else { panic!() };
        let reported: Vec<_> = records
            .iter()
            .map(|record| {
                let event: serde_json::Value = serde_json::from_slice(&record.line).unwrap();
                assert!(event["data"]["place"].is_string(), "what ends it finds it by its place: {event}");
                (record.kind, event["data"]["message"].as_str().unwrap().to_owned())
            })
            .collect();
        let entered = |message: &str| (EventType::DegradedEntered, message.to_owned());
        let left = (EventType::DegradedLeft, String::from("no longer so: 1 byte"));
        assert_eq!(reported, [entered("1 byte"), entered("no"), left]);
    }
}
