//! Finds the pods that a kubelet made by their cgroups, and names them.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use enforcer_events::{Payload, node::SourceReported};

use super::{super::ownership, Desired, emit};
use crate::{
    cgroup::pod_cgroups,
    cri::{CriError, Listing},
    journal::Subject,
    source::{Change, Health, Identities, PlacedPods, SourceName},
    threads,
};

/// The `what` of events while pods' cgroups cannot be read.
const WHAT: &str = "kubepods";

/// How often the cgroups are read although nothing was reported.
const LOOK_REPORTED: Duration = Duration::from_mins(1);

/// The same where inotify does not report them.
const LOOK_UNREPORTED: Duration = Duration::from_secs(1);

/// The least time between two readings: containers that come and go without end cost no more than that.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// A kubelet's pods.
pub(super) struct Placing {
    pods: PlacedPods,
    /// Counts the changes of the pods' cgroups.
    state: u64,
    /// When the cgroups were read, in milliseconds since 1970.
    read_ms: u64,
    /// When to read the cgroups again.
    look_at: Instant,
    /// When they were read last.
    looked_at: Instant,
    /// When the pods change although their cgroups do not.
    due: Option<Instant>,
    /// Whether new cgroups are reported.
    is_reported: bool,
    /// Whether the cgroups could not be read last.
    is_degraded: bool,
    /// Whether the container runtime answers.
    runtime: Health,
}

impl Placing {
    pub(super) fn new(grace: Duration, identities: Identities, is_reported: bool) -> Self {
        Self {
            pods: PlacedPods::new(grace, identities),
            state: 0,
            read_ms: 0,
            look_at: Instant::now(),
            looked_at: Instant::now(),
            due: None,
            is_reported,
            is_degraded: false,
            runtime: Health::Unread,
        }
    }

    /// Notes that cgroups are no longer reported.
    pub(super) fn is_unreported(&mut self) {
        self.is_reported = false;
        self.look_at = Instant::now();
    }

    /// Notes that cgroups have come or gone.
    pub(super) fn request_look(&mut self) {
        self.look_at = self.look_at.min(self.looked_at + LOOK_PAUSE);
    }

    pub(super) fn set_grace(&mut self, grace: Duration) {
        self.pods.set_grace(grace);
        self.due = Some(Instant::now());
    }

    pub(super) fn due(&self) -> Instant {
        self.due.map_or(self.look_at, |due| due.min(self.look_at))
    }
}

impl Desired {
    /// The number of the last change of the cgroups, if a pod or container has no name.
    pub(in crate::daemon) fn names_wanted(&self) -> Option<u64> {
        let placing = self.placing.as_ref()?;
        placing.pods.wants_names().then_some(placing.state)
    }

    /// Finds the kubelet's pods, if it is time to.
    pub(in crate::daemon) async fn find_pods(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        if self.placing.as_ref().is_none_or(|placing| placing.due() > now) {
            return Ok(());
        }
        let Some(root) = self.hierarchy.as_ref().map(|hierarchy| hierarchy.root().clone()) else {
            return Ok(());
        };
        let (kubepods, driver) = (self.kubepods().clone(), self.config.settings.cgroup_driver);
        let cgroup_root = self.config.settings.cgroup_root.clone();
        let read = move || match pod_cgroups(&root, Path::new("/proc"), &kubepods, driver) {
            Ok(pods) if pods.is_empty() => match ownership::kubelets_driver(&cgroup_root) {
                Some(other) if other != driver => Err(String::from(
                    "the kubelet's kubepods is of another cgroup driver than at the daemon's start: restart the daemon",
                )),
                Some(_) | None => Ok(pods),
            },
            Ok(pods) => Ok(pods),
            Err(error) => Err(crate::chain(&error)),
        };
        let found = threads::blocking(read).await;
        let is_first = self.pods.source(SourceName::CGROUPS).is_none_or(|known| known.health != Health::Up);
        let Some(placing) = self.placing.as_mut() else { return Ok(()) };
        let is_watched = placing.is_reported && found.as_ref().is_ok_and(|pods| !pods.is_empty());
        placing.looked_at = now;
        placing.look_at = now + if is_watched { LOOK_REPORTED } else { LOOK_UNREPORTED };
        match found {
            Ok(pods) => {
                let differs = placing.pods.take(pods, now);
                placing.state += u64::from(differs);
                placing.read_ms = emit::now_ms();
                self.counts.source_was_read(SourceName::CGROUPS.as_str(), placing.read_ms);
                if std::mem::take(&mut placing.is_degraded) {
                    emit::recovered(&self.journal, WHAT, "the pods' cgroups can be read again");
                }
                if is_first || differs || placing.due.is_some_and(|due| due <= now) {
                    self.show_placed(now).await?;
                }
            }
            Err(error) => {
                // What is due waits for the next reading.
                placing.due = placing.due.map(|due| due.max(placing.look_at));
                if !std::mem::replace(&mut placing.is_degraded, true) {
                    let message = format!("the kubelet's pods stay as last read: {error}");
                    emit::degraded(&self.journal, WHAT, &message);
                }
            }
        }
        Ok(())
    }

    /// Takes what the container runtime lists, and reports whether it answers.
    pub(in crate::daemon) async fn name_pods(
        &mut self,
        listing: Result<Listing, CriError>,
    ) -> anyhow::Result<()> {
        let Some(placing) = self.placing.as_mut() else { return Ok(()) };
        let source = SourceName::RUNTIME.as_str();
        match listing {
            Ok(listing) => {
                placing.pods.learn(&listing, Instant::now());
                if listing.dropped > 0 {
                    tracing::warn!(
                        dropped = listing.dropped,
                        "left out entries of the container runtime's listing: an id or a name is invalid, or there are too many"
                    );
                }
                self.counts.source_was_read(source, emit::now_ms());
                if std::mem::replace(&mut placing.runtime, Health::Up) != Health::Up {
                    let message = format!("{}: {} containers", listing.runtime, listing.containers.len());
                    let data = SourceReported { source: source.into(), message };
                    self.emit(Subject::Node, Payload::SourceUp(data));
                }
                self.show_placed(Instant::now()).await
            }
            Err(error) => {
                if std::mem::replace(&mut placing.runtime, Health::Down) != Health::Down {
                    let message = crate::chain(&error);
                    tracing::warn!("new pods and containers get no names: {message}");
                    let data = SourceReported { source: source.into(), message };
                    self.emit(Subject::Node, Payload::SourceDown(data));
                }
                Ok(())
            }
        }
    }

    /// Takes the kubelet's pods as they are known now into the roster and the plan.
    async fn show_placed(&mut self, now: Instant) -> anyhow::Result<()> {
        let Some(placing) = self.placing.as_mut() else { return Ok(()) };
        placing.due = placing.pods.due(now);
        let (snapshot, placements) = placing.pods.snapshot(now, placing.read_ms);
        if self.pods.source(SourceName::CGROUPS).is_none_or(|known| known.health != Health::Up) {
            let message = format!("{}: {} pods", self.kubepods(), placements.len());
            let data = SourceReported { source: SourceName::CGROUPS.as_str().into(), message };
            self.emit(Subject::Node, Payload::SourceUp(data));
        }
        let is_moved = self.pods.place(placements);
        let changes = self.pods.take(SourceName::CGROUPS, snapshot);
        if changes.is_empty() && !is_moved {
            return Ok(());
        }
        let (decisions, _differs) = self.replan();
        for change in &changes {
            self.emit_change(change);
        }
        self.carry_out(decisions);
        self.reconcile().await?;
        // A pod's cgroup is watched from now on: what came below it before has no event.
        if changes.iter().any(|change| matches!(change, Change::Added(_)))
            && let Some(placing) = &mut self.placing
        {
            placing.request_look();
        }
        Ok(())
    }
}
