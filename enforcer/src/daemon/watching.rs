//! The kernel's reports of cgroups, scores and files while the daemon runs.

use std::future;

use crate::{
    cgroup::{Changes, WatchEvents},
    sense::{Guard, GuardEvent, Sight},
};

/// Changes of the cgroups, if inotify is available.
pub(super) struct Watched(pub(super) Option<WatchEvents>);

impl Watched {
    /// Waits for the next changes; for ever without inotify. Returns `None` once, when it ends. Safe to cancel.
    pub(super) async fn next(&mut self) -> Option<Changes> {
        let Some(events) = &mut self.0 else { return future::pending().await };
        match events.next().await {
            Ok(changes) => Some(changes),
            Err(error) => {
                tracing::warn!(%error, "changes of cgroups are no longer reported; polling instead");
                self.0 = None;
                None
            }
        }
    }
}

impl Watched {
    /// Lets changes gather for a moment.
    pub(super) fn rest(&mut self) {
        if let Some(events) = &mut self.0 {
            events.rest();
        }
    }
}

/// The guard of scores and files, if there is one.
pub(super) struct Guarded(pub(super) Option<Guard>);

impl Guarded {
    /// Waits for events and takes all that came; for ever without a guard. Empty once, when it ends. Safe to cancel.
    pub(super) async fn next(&mut self) -> Vec<GuardEvent> {
        let Some(guard) = &mut self.0 else { return future::pending().await };
        match guard.next().await {
            Ok(event) => std::iter::once(event).chain(guard.take()).collect(),
            Err(error) => {
                tracing::warn!(%error, "wrong scores and foreign writes are no longer reported; polling instead");
                self.0 = None;
                Vec::new()
            }
        }
    }

    /// Takes the events that are there now.
    pub(super) fn take(&mut self) -> Vec<GuardEvent> {
        self.0.as_mut().map(Guard::take).unwrap_or_default()
    }

    /// What the guard can see.
    pub(super) fn sight(&self) -> Sight {
        self.0.as_ref().map(Guard::sight).unwrap_or_default()
    }
}
