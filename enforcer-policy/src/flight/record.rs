//! The entries of a recording: written by the reflex without a copy, read by a replay.

use postcard_schema::Schema;
use serde::{Deserialize, Serialize, Serializer, ser::SerializeSeq as _};

use crate::engine::{
    Action, Actions, CandidateFacts, Candidates, Decision, Engine, EngineSettings, Input, NodeSample,
    Outcome, Reading,
};

/// One event in the engine's life.
#[derive(Clone, Debug, Deserialize, Schema, Serialize)]
pub enum Record {
    /// Its whole state at this point.
    Key(Box<Engine>),
    /// It got other settings.
    Settings(Box<EngineSettings>),
    /// It got another set of candidates.
    Candidates(Vec<CandidateFacts>),
    /// It got an input.
    Step(Box<Step>),
    /// The id of a decision in events.
    Called {
        /// The decision's number.
        number: u64,
        /// The eviction's id, a ULID.
        id: u128,
    },
    /// So many records are missing here: the recorder did not keep up. What follows can be used from the next
    /// [`Self::Key`] on.
    Lost(u64),
}

/// An input, and the engine's actions.
#[derive(Clone, Debug, Deserialize, Schema, Serialize)]
pub struct Step {
    /// The input.
    pub given: Given,
    /// The actions.
    pub actions: Actions,
    /// The decision to carry out, if there was one.
    pub decision: Option<Decision>,
}

/// An [`Input`] that was recorded.
#[derive(Clone, Debug, Deserialize, PartialEq, Schema, Serialize)]
pub enum Given {
    /// A sample of the node.
    Node(NodeSample),
    /// Readings, and a sample of the node after them.
    Usages {
        /// The sample.
        node: NodeSample,
        /// One per candidate.
        readings: Vec<Reading>,
    },
    /// The outcome of a decision.
    Outcome(Outcome),
    /// An operator's order to arm every threshold.
    Arm {
        /// When it was given.
        now_ns: u64,
    },
}

impl Given {
    /// The input for the engine.
    #[must_use]
    pub fn input(&self) -> Input<'_> {
        match self {
            Self::Node(node) => Input::Node(*node),
            Self::Usages { node, readings } => Input::Usages { node: *node, readings },
            Self::Outcome(outcome) => Input::Outcome(*outcome),
            Self::Arm { now_ns } => Input::Arm { now_ns: *now_ns },
        }
    }

    /// The input's time, in nanoseconds of `CLOCK_BOOTTIME`.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.input().now_ns()
    }
}

/// A [`Record`] without a copy of its data, and encoded alike: the reflex thread may not allocate one.
#[derive(Clone, Copy, Debug, Serialize)]
pub enum RecordRef<'a> {
    /// See [`Record::Key`].
    Key(&'a Engine),
    /// See [`Record::Settings`].
    Settings(&'a EngineSettings),
    /// See [`Record::Candidates`].
    Candidates(#[serde(serialize_with = "facts")] &'a Candidates),
    /// See [`Record::Step`].
    Step(StepRef<'a>),
    /// See [`Record::Called`].
    Called {
        /// The decision's number.
        number: u64,
        /// The eviction's id, a ULID.
        id: u128,
    },
    /// See [`Record::Lost`].
    Lost(u64),
}

/// A [`Step`] without a copy of its data.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct StepRef<'a> {
    given: &'a Input<'a>,
    actions: &'a Actions,
    decision: Option<&'a Decision>,
}

impl<'a> StepRef<'a> {
    /// An input, the engine's actions, and its latest decision.
    #[must_use]
    pub fn new(given: &'a Input<'a>, actions: &'a Actions, latest: Option<&'a Decision>) -> Self {
        let decision = latest.filter(|_| actions.iter().any(|action| matches!(action, Action::Evict)));
        Self { given, actions, decision }
    }
}

fn facts<S: Serializer>(candidates: &Candidates, serializer: S) -> Result<S::Ok, S::Error> {
    let mut all = serializer.serialize_seq(Some(candidates.len()))?;
    for (facts, _) in candidates.known() {
        all.serialize_element(facts)?;
    }
    all.end()
}
