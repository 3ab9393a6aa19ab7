//! The engine within the reflex: everything that it learns passes here, and nowhere else, so that what was decided can be
//! accounted for from what went in.

use crate::policy::engine::{Actions, Candidates, Engine, EngineSettings, Input};

/// The engine, with the only ways to change it.
#[derive(Debug)]
pub(super) struct Core {
    engine: Engine,
}

impl Core {
    pub(super) fn new(settings: &EngineSettings) -> Self {
        Self { engine: Engine::new(settings) }
    }

    /// Takes one input in.
    pub(super) fn step(&mut self, input: Input<'_>) -> Actions {
        self.engine.step(input)
    }

    /// Takes new settings.
    pub(super) fn configure(&mut self, settings: &EngineSettings) {
        self.engine.configure(settings);
    }

    /// Takes a new set of candidates, and gives back the old one, to be freed elsewhere.
    #[must_use = "the old set is returned so that it is not freed here"]
    pub(super) fn replace(&mut self, candidates: Candidates) -> Candidates {
        self.engine.replace(candidates)
    }

    /// The engine, to be asked.
    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }
}
