use crate::{
    engine::{
        Action, Actions, CandidateFacts, Candidates, Decision, Engine, EngineSettings, Input, NodeSample,
        Outcome, Reading,
    },
    wire::{Malformed, Sink, Source, Wire, put_slice, wire},
};

const KEY: u8 = 0;
const SETTINGS: u8 = 1;
const CANDIDATES: u8 = 2;
const STEP: u8 = 3;
const CALLED: u8 = 4;
const LOST: u8 = 5;

/// One event in the engine's life.
#[derive(Clone, Debug)]
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
#[derive(Clone, Debug)]
pub struct Step {
    /// The input.
    pub given: Given,
    /// The actions.
    pub actions: Actions,
    /// The decision to carry out, if there was one.
    pub decision: Option<Decision>,
}

/// An [`Input`] that was recorded.
#[derive(Clone, Debug, PartialEq)]
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

wire!(enum Given {
    0 => Node(node: NodeSample),
    1 => Usages { node: NodeSample, readings: Vec<Reading> },
    2 => Outcome(outcome: Outcome),
    3 => Arm { now_ns: u64 },
});
wire!(struct Step { given, actions, decision });
wire!(enum Record {
    0 => Key(engine: Box<Engine>),
    1 => Settings(settings: Box<EngineSettings>),
    2 => Candidates(facts: Vec<CandidateFacts>),
    3 => Step(step: Box<Step>),
    4 => Called { number: u64, id: u128 },
    5 => Lost(count: u64),
});

impl<T: Wire> Wire for Box<T> {
    fn put(&self, sink: &mut impl Sink) {
        T::put(self, sink);
    }

    fn take(source: &mut Source<'_>) -> Result<Self, Malformed> {
        T::take(source).map(Self::new)
    }

    fn shape(out: &mut String) {
        T::shape(out);
    }
}

// The same bytes as above, without a copy of the data: the reflex thread may not allocate one.

/// Encodes a [`Record::Key`].
pub fn put_key(engine: &Engine, sink: &mut impl Sink) {
    sink.put(&[KEY]);
    engine.put(sink);
}

/// Encodes a [`Record::Settings`].
pub fn put_settings(settings: &EngineSettings, sink: &mut impl Sink) {
    sink.put(&[SETTINGS]);
    settings.put(sink);
}

/// Puts a [`Record::Candidates`].
pub fn put_candidates(candidates: &Candidates, sink: &mut impl Sink) {
    sink.put(&[CANDIDATES]);
    candidates.len().put(sink);
    for (facts, _) in candidates.known() {
        facts.put(sink);
    }
}

/// Encodes a [`Record::Step`]: the input, the actions, and the engine's latest decision.
pub fn put_step(input: &Input<'_>, actions: &Actions, latest: Option<&Decision>, sink: &mut impl Sink) {
    sink.put(&[STEP]);
    match input {
        Input::Node(node) => {
            sink.put(&[0]);
            node.put(sink);
        }
        Input::Usages { node, readings } => {
            sink.put(&[1]);
            node.put(sink);
            put_slice(readings, sink);
        }
        Input::Outcome(outcome) => {
            sink.put(&[2]);
            outcome.put(sink);
        }
        Input::Arm { now_ns } => {
            sink.put(&[3]);
            now_ns.put(sink);
        }
    }
    actions.put(sink);
    let wanted = latest.filter(|_| actions.iter().any(|action| matches!(action, Action::Evict)));
    wanted.is_some().put(sink);
    if let Some(decision) = wanted {
        decision.put(sink);
    }
}

/// Encodes a [`Record::Called`].
pub fn put_called(number: u64, id: u128, sink: &mut impl Sink) {
    sink.put(&[CALLED]);
    number.put(sink);
    id.put(sink);
}

/// Encodes a [`Record::Lost`].
pub fn put_lost(count: u64, sink: &mut impl Sink) {
    sink.put(&[LOST]);
    count.put(sink);
}
