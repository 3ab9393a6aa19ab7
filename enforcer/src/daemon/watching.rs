//! What the kernel tells of cgroups, scores and files while the daemon runs.

use std::future;

use crate::{
    cgroup::{Changes, WatchEvents},
    sense::{Guard, GuardEvent, Sight},
};

/// Changes of the cgroups, where they can be had.
pub(super) struct Watched(pub(super) Option<WatchEvents>);

impl Watched {
    /// The next changes; never, without inotify, and none once, when it ends. Safe to cancel.
    pub(super) async fn next(&mut self) -> Option<Changes> {
        let Some(events) = &mut self.0 else { return future::pending().await };
        match events.next().await {
            Ok(changes) => Some(changes),
            Err(error) => {
                tracing::warn!(%error, "changes of cgroups are told no longer; they are looked for instead");
                self.0 = None;
                None
            }
        }
    }
}

impl Watched {
    /// Leaves changes to gather for a moment.
    pub(super) fn rest(&mut self) {
        if let Some(events) = &mut self.0 {
            events.rest();
        }
    }
}

/// The guard of scores and files, where there is one.
pub(super) struct Guarded(pub(super) Option<Guard>);

impl Guarded {
    /// What it has to tell, all at once; never, without one, and nothing once, when it ends. Safe to cancel.
    pub(super) async fn next(&mut self) -> Vec<GuardEvent> {
        let Some(guard) = &mut self.0 else { return future::pending().await };
        match guard.next().await {
            Ok(event) => std::iter::once(event).chain(guard.take()).collect(),
            Err(error) => {
                tracing::warn!(%error, "wrong scores and foreign writes are told no longer; they are looked for instead");
                self.0 = None;
                Vec::new()
            }
        }
    }

    /// What has come by now.
    pub(super) fn take(&mut self) -> Vec<GuardEvent> {
        self.0.as_mut().map(Guard::take).unwrap_or_default()
    }

    /// What it sees.
    pub(super) fn sight(&self) -> Sight {
        self.0.as_ref().map(Guard::sight).unwrap_or_default()
    }
}
