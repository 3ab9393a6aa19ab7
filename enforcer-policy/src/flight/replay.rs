//! Feeds recorded inputs to an engine, and compares its actions with the recorded ones.

use super::{
    codec::encode,
    file::{Item, Recording},
    record::{Given, Record, RecordRef, Step},
};
use crate::{
    engine::{
        Action, Candidates, Completion, Decision, Engine, EngineSettings, Failure, HookEnd, KillReason,
        Outcome, Shortage, Suppression,
    },
    threshold::Signal,
};

/// What happened, according to the recording.
#[derive(Clone, Debug, PartialEq)]
pub enum Happening {
    /// A threshold was crossed.
    Crossed(Shortage),
    /// A shortage was over.
    Cleared(Shortage),
    /// A victim was chosen.
    Decided {
        /// The decision.
        decision: Box<Decision>,
        /// The eviction's id in events; `None` if it was not recorded.
        id: Option<u128>,
    },
    /// The hook has ended, or was not started.
    HookEnded {
        /// The number of the decision.
        number: u64,
        /// How it ended.
        end: HookEnd,
    },
    /// The victim was sent SIGTERM.
    Terminated {
        /// The number of the decision.
        number: u64,
    },
    /// The API server had accepted to evict the victim.
    Requested {
        /// The number of the decision.
        number: u64,
    },
    /// The victim's grace period was over or cut short.
    CutShort {
        /// The number of the decision.
        number: u64,
        /// Why it was killed.
        reason: KillReason,
    },
    /// The victim was sent SIGKILL.
    Signalled {
        /// The number of the decision.
        number: u64,
    },
    /// The victim was dead, and its memory back or overdue.
    Completed(Completion),
    /// The victim could not be signalled, or did not die.
    Failed(Failure),
    /// No pod was evicted.
    Suppressed {
        /// The signal that was short.
        signal: Signal,
        /// Why no pod was evicted.
        reason: Suppression,
    },
    /// Other settings came into force.
    Configured(Box<EngineSettings>),
    /// The recording is incomplete here: the recorder lost so many records, or 0 if the file is damaged.
    Gap {
        /// The number of lost records.
        lost: u64,
    },
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Moment {
    /// When, in nanoseconds of `CLOCK_BOOTTIME`; without a time of its own, that of the moment before.
    pub at_ns: u64,
    /// What happened.
    pub what: Happening,
}

/// A difference between the recording and the replay.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Difference {
    /// The byte of the file where the record begins.
    pub at: usize,
    /// When it was, in nanoseconds of `CLOCK_BOOTTIME`.
    pub at_ns: u64,
    /// The recorded result.
    pub recorded: String,
    /// The result of the same inputs now.
    pub replayed: String,
}

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Account {
    /// All that happened, in order.
    pub moments: Vec<Moment>,
    /// The number of steps replayed with the same result, bit for bit.
    pub equal: u64,
    /// The number of steps that could not be replayed, as something before them is missing.
    pub unverified: u64,
    /// The first difference; `None` if all is well.
    pub difference: Option<Difference>,
    /// When the recording begins and ends, in nanoseconds of `CLOCK_BOOTTIME`; `None` without a single step.
    pub span_ns: Option<(u64, u64)>,
}

impl Account {
    /// The decisions, each with its id in events.
    pub fn decisions(&self) -> impl Iterator<Item = (&Decision, Option<u128>)> {
        self.moments.iter().filter_map(|moment| match &moment.what {
            Happening::Decided { decision, id } => Some((&**decision, *id)),
            _ => None,
        })
    }
}

/// Replays a recording, and reports what it holds and whether the engine acts as recorded.
#[must_use]
pub fn replay(recording: &Recording<'_>) -> Account {
    let mut player = Player { engine: None, now_ns: 0, account: Account::default() };
    for item in &recording.items {
        match (item, item.record()) {
            (Item::Record { at, bytes }, Some(record)) => player.play(*at, bytes, record),
            (Item::Record { .. } | Item::Damage(_), _) => player.gap(0),
        }
    }
    player.account
}

struct Player {
    /// `None` until its whole state is known, and after a gap.
    engine: Option<Engine>,
    now_ns: u64,
    account: Account,
}

impl Player {
    fn play(&mut self, at: usize, bytes: &[u8], record: Record) {
        match record {
            Record::Key(engine) => {
                // The recorded state must equal the replayed one: then no input is missing.
                if let Some(running) = &self.engine {
                    let mut state = Vec::with_capacity(bytes.len());
                    encode(&RecordRef::Key(running), &mut state);
                    if state != bytes {
                        self.differs(at, format!("{engine:?}"), format!("{running:?}"));
                    }
                }
                self.engine = Some(*engine);
            }
            Record::Settings(settings) => {
                if let Some(engine) = &mut self.engine {
                    engine.configure(&settings);
                }
                self.emit(Happening::Configured(settings));
            }
            Record::Candidates(facts) => {
                if let Some(engine) = &mut self.engine {
                    drop(engine.replace(Candidates::new(&facts)));
                }
            }
            Record::Step(step) => self.step(at, &step),
            Record::Called { number, id: called } => {
                for moment in self.account.moments.iter_mut().rev() {
                    if let Happening::Decided { decision, id } = &mut moment.what
                        && decision.number == number
                    {
                        *id = Some(called);
                        break;
                    }
                }
            }
            Record::Lost(count) => self.gap(count),
        }
    }

    fn step(&mut self, at: usize, step: &Step) {
        self.now_ns = step.given.now_ns();
        let span = self.account.span_ns.get_or_insert((self.now_ns, self.now_ns));
        span.1 = self.now_ns;
        match &mut self.engine {
            None => self.account.unverified += 1,
            Some(engine) => {
                let actions = engine.step(step.given.input());
                let evicts = actions.iter().any(|action| matches!(action, Action::Evict));
                let decision = engine.decision().filter(|_| evicts).copied();
                if (actions, decision) == (step.actions, step.decision) {
                    self.account.equal += 1;
                } else {
                    let acts = |actions: &crate::engine::Actions, decision: &Option<Decision>| {
                        let actions: Vec<_> = actions.iter().collect();
                        format!("{actions:?}, decision {decision:?}")
                    };
                    self.differs(at, acts(&step.actions, &step.decision), acts(&actions, &decision));
                }
            }
        }
        self.emit_step(step);
    }

    fn emit_step(&mut self, step: &Step) {
        match step.given {
            Given::Outcome(Outcome::Terminated { number, .. }) => self.emit(Happening::Terminated { number }),
            Given::Outcome(Outcome::Requested { number, .. }) => self.emit(Happening::Requested { number }),
            Given::Outcome(Outcome::Signalled { number, .. }) => self.emit(Happening::Signalled { number }),
            Given::Outcome(Outcome::HookEnded { number, end, .. }) => {
                self.emit(Happening::HookEnded { number, end });
            }
            Given::Outcome(
                Outcome::Refused { .. }
                | Outcome::Unrequested { .. }
                | Outcome::Progress { .. }
                | Outcome::Contained { .. }
                | Outcome::Uncontained { .. }
                | Outcome::Eased { .. },
            )
            | Given::Node(_)
            | Given::Usages { .. }
            | Given::Arm { .. } => {}
        }
        for action in step.actions.iter() {
            let what = match *action {
                Action::Crossed { now_ns: _, shortage } => Happening::Crossed(shortage),
                Action::Cleared { now_ns: _, shortage, crossed_ns: _ } => Happening::Cleared(shortage),
                Action::Evict => match step.decision {
                    Some(decision) => Happening::Decided { decision: Box::new(decision), id: None },
                    None => continue,
                },
                Action::Kill { number, reason } => Happening::CutShort { number, reason },
                Action::Completed(completion) => Happening::Completed(completion),
                Action::Failed(failure) => Happening::Failed(failure),
                Action::Suppressed { now_ns: _, signal, reason } => Happening::Suppressed { signal, reason },
                Action::Conditions(_)
                | Action::Arming
                | Action::Ask { .. }
                | Action::ReadUsages(_)
                | Action::SharedMemoryHeld { .. }
                | Action::SharedMemoryFreed { .. }
                | Action::LookAgainWithin(_)
                | Action::Contain(_)
                | Action::Ease { .. }
                | Action::Contained { .. }
                | Action::Uncontained { .. }
                | Action::Eased { .. } => continue,
            };
            self.emit(what);
        }
    }

    fn gap(&mut self, lost: u64) {
        self.engine = None;
        self.emit(Happening::Gap { lost });
    }

    fn emit(&mut self, what: Happening) {
        self.account.moments.push(Moment { at_ns: self.now_ns, what });
    }

    /// Records a difference. The engine's state is wrong from here on: the replay resumes at the next whole state.
    fn differs(&mut self, at: usize, recorded: String, replayed: String) {
        let at_ns = self.now_ns;
        self.account.difference.get_or_insert(Difference { at, at_ns, recorded, replayed });
        self.engine = None;
    }
}
