use super::{
    Recording,
    record::{Given, Record},
};
use crate::policy::engine::{Candidates, Engine, NodeSample};

/// The engine as it was at the recording's end, and its last look at the node; none if the recording does not tell.
#[must_use]
pub fn latest(recording: &Recording<'_>) -> Option<(Engine, NodeSample)> {
    let (mut engine, mut last) = (None::<Engine>, None);
    for item in &recording.items {
        let Some(record) = item.record() else {
            // What is missing here may have changed it: only its whole state tells how it is.
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
