//! Restores an engine from a recording, so that `what-if` can start from the present state.

use super::{
    Recording,
    record::{Given, Record},
};
use crate::engine::{Candidates, Engine, NodeSample};

/// The engine at the recording's end, and its latest sample of the node; `None` if the recording does not show them.
#[must_use]
pub fn latest(recording: &Recording<'_>) -> Option<(Engine, NodeSample)> {
    let (mut engine, mut last) = (None::<Engine>, None);
    for item in &recording.items {
        let Some(record) = item.record() else {
            // The missing records may have changed it: only its whole state shows it again.
            engine = None;
            continue;
        };
        match (record, &mut engine) {
            (Record::Key(key), engine) => *engine = Some(*key),
            (Record::Settings(settings), Some(engine)) => engine.configure(&settings),
            (Record::Candidates(facts), Some(engine)) => drop(engine.replace(Candidates::new(&facts))),
            (Record::Step(step), engine) => {
                match &step.given {
                    Given::Node(node) | Given::Usages { node, readings: _ } => last = Some(*node),
                    Given::Outcome(_) | Given::Arm { .. } => {}
                }
                if let Some(engine) = engine {
                    let _done_then = engine.step(step.given.input());
                }
            }
            (Record::Lost(_), engine) => *engine = None,
            (Record::Settings(_) | Record::Candidates(_) | Record::Called { .. }, _) => {}
        }
    }
    Some((engine?, last?))
}
