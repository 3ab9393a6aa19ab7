//! The engine within the reflex. All its input passes here, so that every decision can be explained by the recorded
//! input.

use crate::{
    policy::{
        engine::{Actions, Candidates, Engine, EngineSettings, Inherited, Input, Past},
        threshold::Threshold,
    },
    recorder::Tap,
};

/// The engine, with the only methods that change it.
#[derive(Debug)]
pub(super) struct Core {
    engine: Engine,
    /// Records all input, if a flight recorder runs.
    tap: Option<Tap>,
}

impl Core {
    /// `past` are the evictions of earlier processes, `armed` the thresholds that were armed in them, and `seed` the
    /// random part of the first eviction's id. `inherited` is the eviction to go on with, at the time. The recording begins
    /// with the engine's state after these.
    pub(super) fn new(
        settings: &EngineSettings,
        past: &[Past],
        armed: &[Threshold],
        inherited: Option<(&Inherited, u64)>,
        mut tap: Option<Tap>,
        seed: u128,
    ) -> Self {
        let mut engine = Engine::new(settings);
        engine.remember(past);
        engine.remember_armed(|threshold| armed.contains(threshold));
        if let Some((inherited, now_ns)) = inherited {
            engine.inherit(inherited, now_ns);
        }
        if let Some(tap) = &mut tap {
            tap.begin(&engine, seed);
        }
        Self { engine, tap }
    }

    /// Passes one input to the engine.
    pub(super) fn step(&mut self, input: Input<'_>) -> Actions {
        let actions = self.engine.step(input);
        if let Some(tap) = &mut self.tap {
            tap.step(&input, &actions, &self.engine);
        }
        actions
    }

    /// Applies new settings.
    pub(super) fn configure(&mut self, settings: &EngineSettings) {
        if let Some(tap) = &mut self.tap {
            tap.settings(settings);
        }
        self.engine.configure(settings);
    }

    /// Installs a new set of candidates and returns the old one, to be freed elsewhere.
    #[must_use = "the old set is returned so that it is not freed here"]
    pub(super) fn replace(&mut self, candidates: Candidates) -> Candidates {
        if let Some(tap) = &mut self.tap {
            tap.candidates(&candidates);
        }
        self.engine.replace(candidates)
    }

    /// Records the id under which the decision `number` is reported.
    pub(super) fn called(&mut self, number: u64, id: u128) {
        if let Some(tap) = &mut self.tap {
            tap.called(number, id);
        }
    }

    /// Records that all actions are done.
    pub(super) fn rest(&mut self) {
        if let Some(tap) = &mut self.tap {
            tap.rest(&self.engine);
        }
    }

    /// The engine, for queries.
    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }
}
