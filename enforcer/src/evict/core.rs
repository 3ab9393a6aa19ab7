//! The engine within the reflex: everything that it learns passes here, and nowhere else, so that what was decided can be
//! accounted for from what went in.

use crate::{
    policy::{
        engine::{Actions, Candidates, Engine, EngineSettings, Input, Past},
        threshold::Threshold,
    },
    recorder::Tap,
};

/// The engine, with the only ways to change it.
#[derive(Debug)]
pub(super) struct Core {
    engine: Engine,
    /// Where all of it is kept, if anywhere.
    tap: Option<Tap>,
}

impl Core {
    /// `past` are the evictions of earlier processes, `armed` the thresholds that were armed in them, and `seed` is the random part of the first eviction's id. What is kept
    /// begins with what the engine has made of them.
    pub(super) fn new(
        settings: &EngineSettings,
        past: &[Past],
        armed: &[Threshold],
        mut tap: Option<Tap>,
        seed: u128,
    ) -> Self {
        let mut engine = Engine::new(settings);
        engine.remember(past);
        engine.remember_armed(|threshold| armed.contains(threshold));
        if let Some(tap) = &mut tap {
            tap.begin(&engine, seed);
        }
        Self { engine, tap }
    }

    /// Takes one input in.
    pub(super) fn step(&mut self, input: Input<'_>) -> Actions {
        let actions = self.engine.step(input);
        if let Some(tap) = &mut self.tap {
            tap.step(&input, &actions, &self.engine);
        }
        actions
    }

    /// Takes new settings.
    pub(super) fn configure(&mut self, settings: &EngineSettings) {
        if let Some(tap) = &mut self.tap {
            tap.settings(settings);
        }
        self.engine.configure(settings);
    }

    /// Takes a new set of candidates, and gives back the old one, to be freed elsewhere.
    #[must_use = "the old set is returned so that it is not freed here"]
    pub(super) fn replace(&mut self, candidates: Candidates) -> Candidates {
        if let Some(tap) = &mut self.tap {
            tap.candidates(&candidates);
        }
        self.engine.replace(candidates)
    }

    /// The decision of that number is told of under that id.
    pub(super) fn called(&mut self, number: u64, id: u128) {
        if let Some(tap) = &mut self.tap {
            tap.called(number, id);
        }
    }

    /// All that was to be done is done.
    pub(super) fn rest(&mut self) {
        if let Some(tap) = &mut self.tap {
            tap.rest(&self.engine);
        }
    }

    /// The engine, to be asked.
    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }
}
