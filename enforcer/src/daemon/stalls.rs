//! Long stalls in reclaim, reported as pressure of pods.
use std::{
    collections::HashSet,
    future,
    path::Path,
    time::{Duration, Instant},
};

use super::emit;
use crate::{
    cgroup::{Handles, Index, Sought},
    clock,
    journal::Journal,
    model::{CgroupId, CgroupPath, Owner},
    sense::{ByKind, PressureEvent, Pressures, Stall, StallRing, StallWorld, Stalls},
};

/// How often cgroups that are gone are forgotten. There is no other work at rest.
const SWEEP: Duration = Duration::from_mins(1);

/// How long a reading of the map is fresh enough for a report.
const FRESH: Duration = Duration::from_millis(500);

/// The most levels above a cgroup in which its pod is looked for: containers may make cgroups of their own.
const MAX_LEVELS: usize = 16;

/// Turns stalls into pressure events.
pub(super) struct Stalling {
    journal: Journal,
    ring: StallRing,
    pressures: Pressures,
    known: Known,
    unreported: u64,
}

impl Stalling {
    pub(super) fn new(journal: Journal, index: Index, stalls: Stalls, ring: StallRing) -> Self {
        let handles = Handles::of(Path::new(crate::cgroup::MOUNT)).ok();
        let known = Known { index, handles, stalls, read: None };
        Self { journal, ring, pressures: Pressures::default(), known, unreported: 0 }
    }

    /// Turns records into events until it is aborted.
    pub(super) async fn run(mut self) {
        let mut sweep = tokio::time::interval(SWEEP);
        loop {
            let due = self.pressures.due_ns().map(|due_ns| due_ns.saturating_sub(clock::boottime_ns()));
            tokio::select! {
                stall = self.ring.next() => match stall {
                    Ok(stall) => {
                        let event = self.pressures.stalled(clock::boottime_ns(), &stall, &mut self.known);
                        if let Some(event) = event {
                            self.emit(event);
                        }
                    }
                    Err(error) => {
                        let message = format!("stalls in reclaim are no longer reported: cannot read the ring: {error}");
                        emit::degraded(&self.journal, "stalls", &message);
                        return;
                    }
                },
                () = sleep(due.map(Duration::from_nanos)) => {
                    for event in self.pressures.quiet(clock::boottime_ns(), &mut self.known) {
                        self.emit(event);
                    }
                }
                _ = sweep.tick() => self.sweep(),
            }
        }
    }

    fn emit(&self, event: PressureEvent) {
        let subject = event.subject();
        self.journal.emit(subject, event.into_payload());
    }

    fn sweep(&mut self) {
        self.known.forget_gone();
        let unreported = self.pressures.unreported();
        if unreported > self.unreported {
            let message = format!(
                "{} stalls were not reported: too many pods are stalled at a time",
                unreported - self.unreported
            );
            emit::degraded(&self.journal, "stallsUntold", &message);
            self.unreported = unreported;
        }
    }
}

async fn sleep(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => future::pending().await,
    }
}

/// The known cgroups and their stalls.
struct Known {
    index: Index,
    handles: Option<Handles>,
    stalls: Stalls,
    read: Option<(Instant, Vec<Stall>)>,
}

impl Known {
    /// Removes the map's entries for cgroups that no longer exist.
    fn forget_gone(&mut self) {
        let Self { index, handles, stalls, read } = self;
        *read = None;
        let Some(handles) = handles else { return };
        let found = match stalls.read() {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(error = %crate::chain(&error), "cannot read stalls");
                return;
            }
        };
        let ids: HashSet<_> =
            found.iter().flat_map(|stall| [Some(stall.cgroup), stall.limit]).flatten().collect();
        let is_alive = |id: &CgroupId| index.resolve(*id).is_some_and(|resolved| resolved.alive);
        let gone: HashSet<_> =
            ids.into_iter().filter(|id| !is_alive(id) && matches!(handles.find(*id), Sought::Gone)).collect();
        if gone.is_empty() {
            return;
        }
        match stalls.forget(|id| gone.contains(&id)) {
            Ok(removed) => tracing::debug!(removed, "removed stalls of cgroups that are gone"),
            Err(error) => {
                tracing::debug!(error = %crate::chain(&error), "cannot remove stalls of cgroups that are gone");
            }
        }
    }
}

impl StallWorld for Known {
    fn owner(&mut self, cgroup: CgroupId) -> Option<Owner> {
        if let Some(resolved) = self.index.resolve(cgroup) {
            return Some(Owner::clone(&resolved.owner));
        }
        let handles = self.handles.as_ref()?;
        let above = handles.above(cgroup, MAX_LEVELS);
        above.into_iter().find_map(|id| self.index.resolve(id)).map(|resolved| Owner::clone(&resolved.owner))
    }

    fn path(&mut self, cgroup: CgroupId) -> Option<CgroupPath> {
        let of_pod = self.index.resolve(cgroup).map(|resolved| resolved.owner.path.clone());
        of_pod.or_else(|| match self.handles.as_ref()?.find(cgroup) {
            Sought::Found(path) => Some(path),
            Sought::Gone | Sought::Unknown => None,
        })
    }

    fn stalled_ns(&mut self, cgroup: CgroupId) -> ByKind {
        if self.read.as_ref().is_none_or(|(at, _)| at.elapsed() > FRESH) {
            let read = self.stalls.read().unwrap_or_else(|error| {
                tracing::debug!(error = %crate::chain(&error), "cannot read stalls");
                Vec::new()
            });
            self.read = Some((Instant::now(), read));
        }
        let read = self.read.as_ref().map_or(&[][..], |(_, read)| read);
        Stall::sum_ns(read.iter().filter(|stall| stall.cgroup == cgroup))
    }
}
