//! Finds the pods that a kubelet made by their cgroups, and names them.

mod unknown_pods;

use std::{
    collections::BTreeSet,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use enforcer_events::{Payload, node::SourceReported};

use self::unknown_pods::UnknownPods;
use super::{
    super::{
        kept_names::KeptNames,
        kept_specs::{self, KeptSpecs},
        naming::Names,
        ownership::{self, Latch},
        specifying::{RunningKubelet, SpecNews},
    },
    Desired, emit,
};
use crate::{
    cgroup::pod_cgroups,
    cri::CriError,
    journal::Subject,
    keeper::Keeper,
    model::{CgroupPath, PodUid, SpecOrigin},
    policy::Settings,
    serve::{PodView, ReadTime, SpecView, SpecsView},
    source::{Change, Health, Identities, PlacedPods, Provenance, SourceKnows, SourceName},
    specs::{self, KeptPod, Update},
    threads,
};

/// The `what` of events while pods' cgroups cannot be read.
const WHAT: &str = "kubepods";

/// How often the cgroups are read where inotify does not report them.
const LOOK_UNREPORTED: Duration = Duration::from_secs(1);

/// The least time between two readings: containers that come and go without end cost no more than that.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// How many pods whose specs are not valid are named.
const MOST_REPORTED: usize = 10;

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
    /// Whether a source of specs answers.
    specs: Health,
    /// Which one has answered last.
    spec_source: Option<SourceName>,
    /// When the source that answers was read last.
    specs_read: ReadTime,
    /// How many pods of the source are left out.
    left_out: u64,
    /// The node that the source was asked for; `None` if it has the pods of no other.
    spec_node: Option<String>,
    /// Whether the source knows none of the pods, or others.
    unknown: UnknownPods,
    /// What shows below which cgroup root the pods are; `None` until that is followed.
    kubelet: Option<RunningKubelet>,
    /// What is wrong with specs, as last reported.
    spec_problem: Option<String>,
    /// Keeps the specs on the disk; `None` if they cannot be kept.
    keeper: Option<Keeper<KeptSpecs>>,
    /// The same for names.
    names_keeper: Option<Keeper<KeptNames>>,
    /// Remembers the kubelet for this boot; `None` once it is remembered.
    latch: Option<Arc<Latch>>,
}

impl Placing {
    /// `settings` say where the pods' cgroups are.
    pub(super) fn new(
        settings: &Settings,
        grace: Duration,
        identities: Identities,
        is_reported: bool,
    ) -> Self {
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
            specs: Health::Unread,
            spec_source: None,
            specs_read: ReadTime::default(),
            left_out: 0,
            spec_node: None,
            unknown: UnknownPods::new(settings, grace),
            kubelet: None,
            spec_problem: None,
            keeper: None,
            names_keeper: None,
            latch: None,
        }
    }

    /// Remembers the kubelet by this when its kubepods is there.
    pub(super) fn with_latch(self, latch: Option<Latch>) -> Self {
        Self { latch: latch.map(Arc::new), ..self }
    }

    /// Takes what an earlier daemon knew of the pods' names, and keeps them from now on.
    pub(super) fn restore_names(&mut self, kept: Option<KeptNames>, keeper: Option<Keeper<KeptNames>>) {
        if let Some(kept) = kept {
            self.pods.restore_names(&kept.into_listing(), Instant::now());
        }
        self.names_keeper = keeper;
    }

    /// Takes what an earlier daemon knew of the pods' specs, and keeps them from now on.
    pub(super) fn restore_specs(&mut self, kept: Option<KeptSpecs>, keeper: Option<Keeper<KeptSpecs>>) {
        if let Some(KeptSpecs { source, read_ms, pods }) = kept
            && let Some(source) = kept_specs::source(&source)
        {
            let provenance = Provenance { source, is_from_disk: true };
            let pods = pods.iter().filter_map(KeptPod::read).collect();
            self.pods.specify(provenance, specs::Change::Whole(pods), read_ms);
        }
        self.keeper = keeper;
    }

    /// A spec from there.
    pub(super) fn spec_view(&self, origin: SpecOrigin) -> SpecView {
        let SpecOrigin { source, freshness } = origin;
        SpecView {
            source: source.to_owned(),
            provenance: freshness.as_str().to_owned(),
            read_ms: freshness.read_ms().map_or_else(|| self.specs_read.clone(), ReadTime::at),
        }
    }

    /// The source of specs.
    pub(super) fn specs_view(&self) -> SpecsView {
        SpecsView { source: self.pods.spec_source().map(|source| source.to_string()) }
    }

    /// Adds what the container runtime calls the pod's sandbox and containers.
    pub(super) fn identify(&self, uid: &PodUid, view: &mut PodView) {
        view.sandbox = self.pods.sandbox(uid).cloned();
        for container in &mut view.containers {
            container.attempt = self.pods.attempt(uid, container.cgroup.as_str());
        }
    }

    /// The cgroups of all containers, also of those without a name, as last read; `None` before they were read.
    pub(super) fn containers(&self) -> Option<BTreeSet<CgroupPath>> {
        let containers = || self.pods.cgroups().into_iter().flat_map(|pod| pod.containers);
        (self.read_ms > 0).then(|| containers().map(|container| container.path).collect())
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
        self.unknown.set_grace(grace);
        self.due = Some(Instant::now());
    }

    pub(super) fn due(&self) -> Instant {
        [self.due, self.unknown.due()].into_iter().flatten().fold(self.look_at, Instant::min)
    }

    /// What is wrong with specs now, in words.
    fn find_spec_problem(&mut self, now: Instant) -> Option<String> {
        let knows = match self.pods.source_knows() {
            // What is left out of what a source has may be these pods.
            SourceKnows::NoPod(_) if self.left_out > 0 => SourceKnows::Pods,
            // That they cannot be read, or were not yet, says nothing of them.
            SourceKnows::NoCgroup(_) if self.is_degraded || self.read_ms == 0 => SourceKnows::NoSource,
            knows => knows,
        };
        self.unknown.note(knows, now);
        let invalid = self.pods.invalid_specs();
        let count = self.left_out + u64::try_from(invalid.len()).unwrap_or(u64::MAX);
        let named: Vec<&str> = invalid.take(MOST_REPORTED).collect();
        let unusable = self.spec_source.filter(|_| count > 0).map(|source| {
            format!(
                "{source}: the specs of {count} pods cannot be used (not readable, not valid, too large, or too many); these \
                 pods are known by their cgroups and names only; among them [{}]",
                named.join("; ")
            )
        });
        let problems: Vec<_> =
            [self.unknown.problem(self.spec_node.as_deref()), unusable].into_iter().flatten().collect();
        (!problems.is_empty()).then(|| problems.join("; "))
    }
}

impl Desired {
    /// The number of the last change of the cgroups, if a pod or container has no name.
    pub(in crate::daemon) fn names_wanted(&self) -> Option<u64> {
        let placing = self.placing.as_ref()?;
        placing.pods.wants_names().then_some(placing.state)
    }

    /// Follows below which cgroup root that kubelet shows its pods to be.
    pub(in crate::daemon) fn follow_cgroup_root(&mut self, kubelet: RunningKubelet) {
        if let Some(placing) = &mut self.placing {
            placing.kubelet = Some(kubelet);
        }
    }

    /// The cgroup root that the kubelet has shown last, if that is another than the one that is followed, and our own file
    /// says none.
    fn other_root(&self) -> Option<CgroupPath> {
        let kubelet = self.placing.as_ref()?.kubelet.as_ref()?;
        let shown = kubelet.last_places().cgroup_root.filter(|_| self.config.cgroup_root_at.0.is_none())?;
        (shown.path != self.config.settings.cgroup_root).then_some(shown.path)
    }

    /// Finds the kubelet's pods, if it is time to.
    pub(in crate::daemon) async fn find_pods(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        self.report_spec_problem(now);
        if self.placing.as_ref().is_none_or(|placing| placing.due() > now) {
            return Ok(());
        }
        let Some(root) = self.hierarchy.as_ref().map(|hierarchy| hierarchy.root().clone()) else {
            return Ok(());
        };
        let known = self.placing.as_ref().map(|placing| placing.pods.cgroups()).unwrap_or_default();
        let (kubepods, settings) = (self.kubepods().clone(), self.config.settings.clone());
        let other_root = self.other_root();
        let latch = self.placing.as_ref().and_then(|placing| placing.latch.clone());
        let read = move || {
            let pods = pod_cgroups(&root, Path::new("/proc"), &kubepods, settings.cgroup_driver, &known);
            let is_remembered = latch.is_some_and(|latch| latch.close(&root));
            (pods, is_remembered, ownership::elsewhere(&settings, other_root.as_ref()))
        };
        let (found, is_remembered, elsewhere) = threads::blocking(read).await;
        if let Some(placing) = self.placing.as_mut().filter(|_| is_remembered) {
            placing.latch = None;
        }
        if let Some(message) = elsewhere {
            if let Some(placing) = &mut self.placing {
                placing.look_at = now + self.schedule.interval();
            }
            emit::degraded(&self.journal, WHAT, &message);
            self.kubelet_came.notify_one();
            return Ok(());
        }
        let is_first = self.pods.source(SourceName::CGROUPS).is_none_or(|known| known.health != Health::Up);
        let Some(placing) = self.placing.as_mut() else { return Ok(()) };
        let is_watched = placing.is_reported && found.as_ref().is_ok_and(|pods| !pods.is_empty());
        placing.looked_at = now;
        placing.look_at = now + if is_watched { self.schedule.interval() } else { LOOK_UNREPORTED };
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
                    let error = crate::chain(&error);
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
        names: Result<Names, CriError>,
    ) -> anyhow::Result<()> {
        let Some(placing) = self.placing.as_mut() else { return Ok(()) };
        let source = SourceName::RUNTIME.as_str();
        match names {
            Ok(Names { listing, question }) => {
                let is_news = placing.pods.learn(&listing, Instant::now());
                if let Some(question) = question {
                    placing.pods.note_names_answered(question);
                }
                if let Some(keeper) = &placing.names_keeper {
                    keeper.keep(KeptNames::of(&listing));
                }
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
                self.show_placed(Instant::now()).await?;
                if is_news {
                    self.renew_view();
                }
                Ok(())
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

    /// The number of the last change of the cgroups; `None` without a kubelet.
    pub(in crate::daemon) fn placing_state(&self) -> Option<u64> {
        self.placing.as_ref().map(|placing| placing.state)
    }

    /// Takes what a source of specs says, and reports which one that is, or that there is none.
    pub(in crate::daemon) async fn specify_pods(&mut self, news: SpecNews) -> anyhow::Result<()> {
        let Some(placing) = self.placing.as_mut() else { return Ok(()) };
        let name = SourceName::SPECS.as_str();
        let (source, node, Update { change, left_out, dropped, read_ago_ms }) = match news {
            SpecNews::Answered { source, node, update } => (source, node, update),
            SpecNews::Failed(source) => {
                // One that was only tried, as it would be a better one, says nothing of the others.
                if placing.pods.spec_source() == Some(source) {
                    self.note_silence().await?;
                }
                return Ok(());
            }
            SpecNews::NoneAnswers(message) => {
                if std::mem::replace(&mut placing.specs, Health::Down) != Health::Down {
                    tracing::warn!("requests and priorities of new pods are unknown: {message}");
                    let data = SourceReported { source: name.into(), message };
                    self.emit(Subject::Node, Payload::SourceDown(data));
                }
                return self.note_silence().await;
            }
        };
        let read_ms = emit::now_ms().saturating_sub(read_ago_ms);
        self.counts.source_was_read(name, read_ms);
        let is_up = std::mem::replace(&mut placing.specs, Health::Up) == Health::Up;
        let is_other = placing.spec_source.replace(source) != Some(source) || !is_up;
        let answered_before = placing.pods.spec_source();
        placing.left_out = dropped.unwrap_or(placing.left_out);
        // The source that is judged may be the one before.
        placing.spec_node = node.or_else(|| placing.spec_node.take());
        let is_change = change.is_some();
        if let Some((_revision, change)) = change {
            let provenance = Provenance { source, is_from_disk: false };
            let evicted = placing.pods.specify(provenance, change, read_ms);
            self.foreign.take(evicted);
            placing.pods.forget_specs(&left_out);
            if let Some(keeper) = &placing.keeper {
                let source = source.as_str().to_owned();
                keeper.keep(KeptSpecs { source, read_ms, pods: placing.pods.specs() });
            }
        } else {
            placing.pods.note_answer(source, read_ms);
        }
        let answers = placing.pods.spec_source();
        if answers.is_some() {
            placing.specs_read.set(read_ms);
        }
        if is_other {
            let message = format!("{source}: {} pods", placing.pods.spec_count());
            let data = SourceReported { source: name.into(), message };
            self.emit(Subject::Node, Payload::SourceUp(data));
        }
        self.report_spec_problem(Instant::now());
        if is_change || answers != answered_before {
            self.show_placed(Instant::now()).await?;
            self.renew_view();
        }
        Ok(())
    }

    /// Notes that the source of specs that has answered no longer does: what it gave may be different by now.
    async fn note_silence(&mut self) -> anyhow::Result<()> {
        let Some(placing) = self.placing.as_mut() else { return Ok(()) };
        if placing.pods.note_silence() {
            self.show_placed(Instant::now()).await?;
            self.renew_view();
        }
        Ok(())
    }

    /// Reports pods of a source whose specs cannot be used, and a source that knows none of the pods, and when it is over.
    fn report_spec_problem(&mut self, now: Instant) {
        let Some(placing) = self.placing.as_mut() else { return };
        let problem = placing.find_spec_problem(now);
        if placing.spec_problem == problem {
            return;
        }
        match &problem {
            Some(message) => emit::degraded(&self.journal, "specs", message),
            None => emit::recovered(&self.journal, "specs", "the specs of all pods can be used"),
        }
        placing.spec_problem = problem;
    }

    /// Takes the kubelet's pods as they are known now into the roster and the plan.
    async fn show_placed(&mut self, now: Instant) -> anyhow::Result<()> {
        self.report_spec_problem(now);
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

#[cfg(test)]
mod tests;
