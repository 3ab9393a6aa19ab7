//! Where a candidate's spec is from.

use std::sync::{Arc, Mutex, PoisonError};

use crate::model::{Knowledge, SpecOrigin};

/// Where a candidate's spec is from; `None` without one. Clones share it. It changes while the candidate stays open: a source
/// that falls silent for a moment must not have the files of all pods opened anew. The reflex does not read it.
#[derive(Clone, Debug, Default)]
pub struct SpecState(Arc<Mutex<Option<SpecOrigin>>>);

impl SpecState {
    /// That of a pod of which this is known.
    #[must_use]
    pub fn of(placed: Option<Knowledge>) -> Self {
        Self(Arc::new(Mutex::new(placed.and_then(Knowledge::origin))))
    }

    /// Takes what is known of the pod now.
    pub fn follow(&self, placed: Option<Knowledge>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = placed.and_then(Knowledge::origin);
    }

    /// It.
    #[must_use]
    pub fn get(&self) -> Option<SpecOrigin> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the pod's spec holds now.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.get().is_some_and(|origin| origin.freshness.is_live())
    }
}

impl Eq for SpecState {}

impl PartialEq for SpecState {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Freshness;

    #[test]
    fn a_clone_has_what_is_known_now() {
        let of = |freshness| {
            let origin = SpecOrigin { source: "kubelet", freshness };
            Some(Knowledge::Spec { is_settled: true, origin, is_terminating: false })
        };
        let state = SpecState::of(of(Freshness::Live));
        let handed_out = state.clone();
        assert!(handed_out.is_live());
        state.follow(of(Freshness::Stale { read_ms: 1 }));
        assert!(!handed_out.is_live() && handed_out.get().is_some());
        state.follow(Some(Knowledge::Names { is_settled: true }));
        assert_eq!(handed_out.get(), None);
    }
}
