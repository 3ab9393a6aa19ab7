use crate::policy::{
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

/// One thing that the engine went through.
#[derive(Clone, Debug)]
pub enum Record {
    /// Its whole state at this point.
    Key(Box<Engine>),
    /// It was given other settings.
    Settings(Box<EngineSettings>),
    /// It was given another set of candidates.
    Candidates(Vec<CandidateFacts>),
    /// It was given an input.
    Step(Box<Step>),
    /// What events call a decision.
    Called {
        /// The decision's number.
        number: u64,
        /// The eviction's id, a ULID.
        id: u128,
    },
    /// Here so many records are missing: the recorder did not keep up. What follows can be used from the next
    /// [`Self::Key`] on.
    Lost(u64),
}

/// An input, and what the engine made of it.
#[derive(Clone, Debug)]
pub struct Step {
    /// What it learnt.
    pub given: Given,
    /// What it wanted.
    pub actions: Actions,
    /// The decision that it wanted carried out, if it did.
    pub decision: Option<Decision>,
}

/// An [`Input`] that was kept.
#[derive(Clone, Debug, PartialEq)]
pub enum Given {
    /// A look at the node.
    Node(NodeSample),
    /// Readings, and a look at the node after them.
    Usages {
        /// The look.
        node: NodeSample,
        /// One for each candidate.
        readings: Vec<Reading>,
    },
    /// What came of a decision.
    Outcome(Outcome),
    /// An operator's order to arm every threshold.
    Arm {
        /// When it was given.
        now_ns: u64,
    },
}

impl Given {
    /// As the engine takes it.
    #[must_use]
    pub fn input(&self) -> Input<'_> {
        match self {
            Self::Node(node) => Input::Node(*node),
            Self::Usages { node, readings } => Input::Usages { node: *node, readings },
            Self::Outcome(outcome) => Input::Outcome(*outcome),
            Self::Arm { now_ns } => Input::Arm { now_ns: *now_ns },
        }
    }

    /// When it was, in nanoseconds of `CLOCK_BOOTTIME`.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        match self {
            Self::Node(node) | Self::Usages { node, readings: _ } => node.now_ns,
            Self::Outcome(
                Outcome::Terminated { now_ns, .. }
                | Outcome::Signalled { now_ns, .. }
                | Outcome::Refused { now_ns, .. }
                | Outcome::HookEnded { now_ns, .. }
                | Outcome::Progress { now_ns, .. }
                | Outcome::Contained { now_ns, .. }
                | Outcome::Uncontained { now_ns, .. }
                | Outcome::Eased { now_ns, .. },
            )
            | Self::Arm { now_ns } => *now_ns,
        }
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

// The same bytes as above, without a copy of what is kept: the reflex thread may not allocate one.

/// Puts a [`Record::Key`].
pub fn put_key(engine: &Engine, sink: &mut impl Sink) {
    sink.put(&[KEY]);
    engine.put(sink);
}

/// Puts a [`Record::Settings`].
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

/// Puts a [`Record::Step`]: what the engine was given, what it wanted then, and the decision that it holds by now.
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

/// Puts a [`Record::Called`].
pub fn put_called(number: u64, id: u128, sink: &mut impl Sink) {
    sink.put(&[CALLED]);
    number.put(sink);
    id.put(sink);
}

/// Puts a [`Record::Lost`].
pub fn put_lost(count: u64, sink: &mut impl Sink) {
    sink.put(&[LOST]);
    count.put(sink);
}
