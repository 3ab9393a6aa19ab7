//! The slow flow, from pods over the plan to cgroups: when it runs, and what it reports.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use enforcer_events::Payload;
use tokio::sync::Notify;

use super::{
    Ended, EngineEvent,
    emit::{self, Writers},
    ended_pods::EndedPodStore,
    foreign::Foreign,
    hierarchy::Hierarchy,
    host::Host,
    kept_names, kept_specs,
    ooms::BeingEvicted,
    ownership,
    problems::Problems,
    schedule::{Due, LOOK_UNREPORTED, Schedule},
    start::Permits,
};
use crate::{
    cgroup::{
        self, CgroupDir, DriftPolicy, Guarded, Index, Lowering, Making, Permit, Problem, Reconciler, Report,
        Systemd, SystemdDriver, Throttled, WatchEvents,
    },
    config::{Config, OomScorePolicy, Ownership},
    evict::Endings,
    journal::{Journal, Slots, Subject},
    metrics::Counts,
    model::{CgroupId, Owner, PodUid},
    policy::{self, CgroupDriver},
    serve::View,
    source::{Decisions, EndedPod, Identities, Loaded, SourceName},
};

mod alignment;
mod being_ended;
mod candidates;
mod components;
mod cpus;
mod existing;
mod guarded;
mod loading;
mod orders;
mod placing;
mod pod_set;
mod refused;
mod reports;
mod view;
mod watch_budget;

pub(crate) use self::cpus::{machine as cpu_machine, machine_of as cpu_machine_of};
use self::{
    alignment::Aligning,
    candidates::{CandidateSet, Opener},
    components::Looked,
    cpus::CpuLook,
    existing::{Existing, Going},
    guarded::Guarding,
    placing::Placing,
    pod_set::PodSet,
    watch_budget::WatchBudget,
};
pub(super) use self::{being_ended::BeingEnded, orders::Evictable};

/// The path of the desired state: pods → plan → cgroups, and the reports about them.
///
/// It runs on changes, and periodically. Blocking work is done on blocking threads.
pub(super) struct Desired {
    config: Config,
    endings: Option<Endings>,
    journal: Journal,
    counts: Counts,
    pods: PodSet,
    /// What was read of the manifests last.
    loaded: Arc<Loaded>,
    hierarchy: Option<Hierarchy>,
    permit: Option<Arc<Permit>>,
    /// The permit to align scores with the ranking, which does not require that the daemon owns the cgroups.
    scores_permit: Option<Arc<Permit>>,
    aligning: Aligning,
    /// What was reported once and need not be reported again.
    reported: BTreeSet<String>,
    view: View,
    /// What is wrong with the cgroups.
    problems: Problems,
    schedule: Schedule,
    /// When changes that the kernel reported are looked at.
    watch_budget: WatchBudget,
    /// Which scores and files of the cgroups the eBPF programs guard.
    guarding: Guarding,
    /// The scores of the node's own components.
    components: Looked,
    /// Notified when a limit that is being lowered has reached its value.
    woken: Arc<Notify>,
    /// Notified when a kubelet has come, to which the cgroups are to be given back.
    kubelet_came: Arc<Notify>,
    candidates: CandidateSet,
    existing: Existing,
    /// The pods of the kubelet that owns the cgroups; `None` without one.
    placing: Option<Placing>,
    /// When CPUs are looked at; `None` if no container has any of its own.
    cpu_look: Option<CpuLook>,
    /// What is wrong with CPUs.
    cpu_problems: Problems,
    /// The kubelet's own evictions.
    pub(super) foreign: Foreign,
}

/// The outcome of work on the cgroups.
struct Worked {
    report: Report,
    shape: Option<Shape>,
    problems: Vec<Problem>,
    due: Option<Instant>,
    contest_due: Option<Instant>,
    watches_all: bool,
}

/// What exists, which most work on single files leaves as it is.
struct Shape {
    existing: Existing,
    guarded: Guarded,
    standing: BTreeSet<PodUid>,
}

/// What work on the cgroups may change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Extent {
    /// Also which cgroups there are, what they are for, and what they should hold.
    Cgroups,
    /// What files and processes hold. To gather what exists again would cost more than the work itself.
    Values,
}

impl Shape {
    fn of(reconciler: &Reconciler) -> Self {
        let going =
            |(id, owner): (CgroupId, &Owner)| (owner.path.clone(), Going { id, level: owner.level.clone() });
        Self {
            existing: Existing {
                planned: reconciler.cgroups().map(|(id, owner)| (owner.path.clone(), id)).collect(),
                going: reconciler.going().map(going).collect(),
            },
            guarded: reconciler.guarded(),
            standing: reconciler.standing().cloned().collect(),
        }
    }
}

impl Desired {
    /// Starts without a plan. Without cgroup v2 it knows the pods, and writes nothing. Must be called inside a tokio
    /// runtime.
    pub(super) fn new(
        config: Config,
        host: Host,
        (journal, counts): (Journal, Counts),
        index: Index,
        permits: Permits,
        kubelets: Option<Identities>,
    ) -> (Self, Option<WatchEvents>) {
        let Permits { all: permit, scores: scores_permit } = permits;
        let mount = Path::new(cgroup::MOUNT);
        let mut events = None;
        let opener = Opener::new(kubelets.is_some(), &config.node_components);
        let hierarchy = match Reconciler::new(mount, index)
            .map_err(anyhow::Error::from)
            .and_then(|reconciler| Ok((reconciler, CgroupDir::mount(mount)?)))
        {
            Ok((mut reconciler, root)) => {
                if config.settings.cgroup_driver == CgroupDriver::Systemd {
                    let systemd = Systemd::new().blocking(tokio::runtime::Handle::current());
                    reconciler.set_driver(Box::new(SystemdDriver::new(systemd)));
                }
                reconciler.set_guard(opener.guard());
                if kubelets.is_some() {
                    reconciler.set_audit();
                } else {
                    reconciler.set_drift(DriftPolicy::new(config.on_drift));
                    reconciler.set_former_parents(policy::name::of_other_driver(&config.settings));
                    if config.ownership == Ownership::Auto {
                        reconciler.set_arrival(ownership::running());
                    }
                }
                match cgroup::watch() {
                    Ok((watch, watched)) => {
                        reconciler.set_watch(watch);
                        events = Some(watched);
                    }
                    Err(error) => emit::degraded(
                        &journal,
                        "inotify",
                        &format!(
                            "new processes get their score within a second, not at once, and values that others write are put right within {} s: {error}",
                            LOOK_UNREPORTED.as_secs()
                        ),
                    ),
                }
                Some(Hierarchy::new(reconciler, root))
            }
            // Reported with everything else that the host lacks.
            Err(error) => {
                tracing::debug!("no reconciler: {error:#}");
                None
            }
        };
        let mut schedule = Schedule::new(events.is_some(), Instant::now());
        // A daemon that may not set scores need not sweep for them.
        schedule.scores_are_reported(permit.is_none());
        let mut pods = PodSet::new(host.node, config.settings.clone());
        let placing = kubelets.filter(|_| hierarchy.is_some()).map(|identities| {
            pods.add_kubelet();
            Placing::new(&config.settings, grace(&config), identities, events.is_some())
                .with_latch(ownership::Latch::new(&config, &host.boot_id))
        });
        let aligning = Aligning::new(placing.is_some().then_some(config.mode));
        let view = View { mode: config.mode.to_string(), ..View::default() };
        alignment::emit_hindrances(config.oom_score_policy, &journal);
        let components = Looked::new(&config.node_components, hierarchy.is_some(), &journal);
        let candidates = CandidateSet::new(opener, journal.clone());
        let desired = Self {
            config,
            endings: permit.is_some().then(|| candidates::start_endings(&journal)).flatten(),
            journal,
            counts,
            pods,
            loaded: Arc::default(),
            hierarchy,
            permit: permit.map(Arc::new),
            scores_permit: scores_permit.map(Arc::new),
            aligning,
            reported: BTreeSet::new(),
            view,
            problems: Problems::default(),
            schedule,
            watch_budget: WatchBudget::default(),
            guarding: Guarding::default(),
            components,
            woken: Arc::default(),
            kubelet_came: Arc::default(),
            candidates,
            existing: Existing::default(),
            placing,
            cpu_look: None,
            cpu_problems: Problems::default(),
            foreign: Foreign::default(),
        };
        (desired, events)
    }

    /// Takes over the pods that were ended for good before.
    pub(super) fn remember(&mut self, ended: Vec<EndedPod>) {
        self.pods.remember(ended);
    }

    /// Sets the store that keeps the pods ended for good from now on.
    pub(super) fn set_keeper(&mut self, keeper: EndedPodStore) {
        self.pods.set_keeper(keeper);
    }

    /// Takes over what a kubelet's pods and containers were called before, and keeps it on the disk from now on.
    pub(super) fn restore_names(&mut self) {
        let Some(placing) = &mut self.placing else { return };
        let kept = kept_names::read(&self.config.state_dir).unwrap_or_else(|error| {
            let message = format!(
                "containers have no names until the container runtime answers: {}",
                crate::chain(&error)
            );
            emit::degraded(&self.journal, "names", &message);
            None
        });
        let keeper = kept_names::start(&self.config.state_dir, self.journal.clone());
        if let Err(error) = &keeper {
            let message = format!("containers' names are not kept over a restart: no thread: {error}");
            emit::degraded(&self.journal, "names", &message);
        }
        placing.restore_names(kept, keeper.ok());
    }

    /// Takes over the specs of a kubelet's pods that were known before, and keeps them on the disk from now on.
    pub(super) fn restore_specs(&mut self) {
        let Some(placing) = &mut self.placing else { return };
        let kept = kept_specs::read(&self.config.state_dir).unwrap_or_else(|error| {
            let message = format!("pods' specs are unknown until a source answers: {}", crate::chain(&error));
            emit::degraded(&self.journal, "specs", &message);
            None
        });
        let keeper = kept_specs::start(&self.config.state_dir, self.journal.clone());
        if let Err(error) = &keeper {
            let message = format!("pods' specs are not kept over a restart: no thread: {error}");
            emit::degraded(&self.journal, "specs", &message);
        }
        placing.restore_specs(kept, keeper.ok());
    }

    /// Follows an event of the reflex. The view shows it at once: an evicted pod stays evicted until its manifest
    /// changes or goes, and under pressure no pod starts that may not. Its consequences are decided and carried out a
    /// moment later, or with whatever work comes before: they can wait, a victim's death cannot.
    pub(super) fn on_engine_event(&mut self, reflexion: &EngineEvent) {
        match reflexion {
            EngineEvent::Evicted { uid, number } => {
                if self.pods.evict(uid, *number) {
                    self.show_evicted(uid);
                    self.schedule.request_resync(Instant::now());
                }
            }
            EngineEvent::Conditions(conditions) => {
                if self.pods.set_conditions(*conditions) {
                    self.view.set_conditions(*conditions);
                    self.schedule.request_resync(Instant::now());
                }
            }
        }
    }

    /// Shows what the kubelet says of disk pressure. Nothing follows here: whom it admits is the kubelet's to decide.
    pub(super) fn set_disk_pressure(&mut self, pressed: Option<bool>) {
        self.view.disk_pressure = pressed;
    }

    /// Decides what follows from [reflex events](Self::on_engine_event), if that was not done yet.
    pub(super) fn settle(&mut self) {
        if self.pods.is_due() {
            self.decide();
        }
    }

    /// Applies another configuration: decides anew which pods may run, and brings the cgroups in line.
    pub(super) async fn configure(&mut self, config: &Config) -> anyhow::Result<()> {
        if let Some(hierarchy) = self.hierarchy.clone().filter(|_| config.on_drift != self.config.on_drift) {
            let on_drift = config.on_drift;
            hierarchy.run(move |reconciler| reconciler.set_on_drift(on_drift)).await?;
        }
        if let Some(placing) = &mut self.placing {
            placing.set_grace(grace(config));
        }
        self.pods.configure(&config.settings, config.pods(self.pods.node().cpu_milli));
        let policy_before = std::mem::replace(&mut self.config, config.clone()).oom_score_policy;
        self.decide();
        self.reconcile().await?;
        match (policy_before, config.oom_score_policy) {
            (OomScorePolicy::Ranked, OomScorePolicy::Static) => self.unalign().await,
            (OomScorePolicy::Static, OomScorePolicy::Ranked) => {
                alignment::emit_hindrances(config.oom_score_policy, &self.journal);
                self.aligning.renew();
                Ok(())
            }
            (OomScorePolicy::Static, OomScorePolicy::Static)
            | (OomScorePolicy::Ranked, OomScorePolicy::Ranked) => Ok(()),
        }
    }

    /// Brings the cgroups in line with the plan.
    pub(super) async fn reconcile(&mut self) -> anyhow::Result<()> {
        self.settle();
        self.schedule.looked(Instant::now());
        let (plan, retired, permit) =
            (Arc::clone(self.pods.plan()), self.pods.retired().to_vec(), self.permit.clone());
        let movable = self.candidates.movable(&self.pods);
        self.change(Extent::Cgroups, move |reconciler| {
            reconciler.set_movable(movable);
            reconciler.reconcile(&plan, &retired, permit.as_deref())
        })
        .await
    }

    /// Does the work that is due: a look at everything, or at the scores of new processes alone.
    pub(super) async fn look(&mut self) -> anyhow::Result<()> {
        self.look_at_cpus();
        self.find_pods().await?;
        self.align().await?;
        let now = Instant::now();
        self.watch_budget.forget_ended(now);
        if let Some((changes, writers)) = self.watch_budget.take(now) {
            self.look_at(changes, &writers).await?;
        }
        match self.schedule.due(now) {
            Some(Due::Look) => self.reconcile().await,
            Some(Due::WriteBack) => {
                let permit = self.permit.clone();
                self.change(Extent::Values, move |reconciler| reconciler.write_back(permit.as_deref())).await
            }
            Some(Due::Sweep) => {
                self.schedule.swept(now);
                let Some(permit) = self.permit.clone() else { return Ok(()) };
                self.change(Extent::Cgroups, move |reconciler| reconciler.sweep(&permit)).await
            }
            None => Ok(()),
        }
    }

    /// When [`look`](Self::look) must be called.
    pub(super) fn due(&self) -> Instant {
        let placing = self.placing.as_ref().map(Placing::due);
        let others =
            [self.alignment_due(), self.candidates.due(), self.watch_budget.due(), self.cpus_due(), placing];
        others.into_iter().flatten().fold(self.schedule.next(), Instant::min)
    }

    /// Lowers limits that are below usage step by step. The intent page records the limits being lowered and the cgroup
    /// being made.
    pub(super) fn set_intents(&mut self, limits: Slots, making: Slots) {
        let Some(hierarchy) = &self.hierarchy else { return };
        let woken = Arc::clone(&self.woken);
        let lowering = Lowering::new(limits, move || woken.notify_one());
        hierarchy.set_up(|reconciler| {
            reconciler.set_lowering(lowering);
            reconciler.set_making(Making::new(making));
        });
    }

    /// Leaves cgroups alone that the reflex throttles.
    pub(super) fn set_throttled(&mut self, throttled: Throttled) {
        let Some(hierarchy) = &self.hierarchy else { return };
        hierarchy.set_up(|reconciler| reconciler.set_throttled(throttled));
    }

    /// Moves no process of a pod that is being evicted.
    pub(super) fn set_being_evicted(&mut self, being_evicted: BeingEvicted) {
        self.candidates.set_being_evicted(being_evicted);
    }

    /// The pods that are being ended by order or to make way.
    pub(super) fn being_ended(&self) -> BeingEnded {
        self.candidates.being_ended().clone()
    }

    /// Follows a change of these: the reflex counts on what they release.
    pub(super) fn note_being_ended(&mut self) {
        self.candidates.note_change();
    }

    /// Notified when a reconciliation is due that nothing else announces.
    pub(super) fn woken(&self) -> Arc<Notify> {
        Arc::clone(&self.woken)
    }

    /// Returns what is notified when a kubelet has come although this daemon owns the cgroups.
    pub(super) fn kubelet_came(&self) -> Arc<Notify> {
        Arc::clone(&self.kubelet_came)
    }

    /// Restores everything that was written, except for what a kubelet that has come has written since. Must be called
    /// last.
    pub(super) async fn release(&mut self, ended: Ended) -> anyhow::Result<()> {
        let (Some(hierarchy), Some(permit)) = (self.hierarchy.clone(), self.permit.clone()) else {
            return Ok(());
        };
        let release = move |reconciler: &mut Reconciler| match ended {
            Ended::Stopped => reconciler.release(&permit),
            Ended::KubeletCame => reconciler.hand_over(&permit),
        };
        let report = hierarchy.run(release).await?;
        self.emit_report(&report, &Writers::default());
        for error in &report.errors {
            emit::degraded(&self.journal, "limits", &crate::chain(error));
        }
        for failure in &report.failed {
            emit::degraded(&self.journal, "limits", &crate::chain(&failure.error));
        }
        for owner in &report.draining {
            tracing::info!(cgroup = %owner.path, "the cgroup stays: it holds processes");
        }
        Ok(())
    }

    /// Whether the pods of the manifests are known: they were read, if not now then by an earlier process.
    pub(super) fn knows_manifests(&self) -> bool {
        self.is_loaded() && self.loaded.are_known
    }

    /// Whether every source has been read.
    pub(super) fn is_loaded(&self) -> bool {
        self.pods.is_loaded()
    }

    /// Decides which pods may run, plans anew, and carries out the consequences. Returns whether the plan has changed.
    fn decide(&mut self) -> bool {
        let (decisions, differs) = self.replan();
        self.carry_out(decisions);
        self.renew_view();
        differs
    }

    /// Decides which pods may run, and plans anew. Returns the decisions, and whether the plan has changed.
    fn replan(&mut self) -> (Decisions, bool) {
        self.candidates.note_change();
        self.aligning.renew();
        self.pods.replan()
    }

    /// Reports the pods that may not run, and ends those that a critical pod preempts.
    fn carry_out(&mut self, decisions: Decisions) {
        let Decisions { rejected, preempted, in_force, cpus: _ } = decisions;
        for change in &in_force {
            self.emit_change(change);
        }
        for (pod, rejection) in rejected {
            let source = self.pods.roster().get(&pod.uid).map_or(SourceName::STATIC, |entry| entry.source);
            let data = emit::rejected(&pod, source, &rejection, self.permit.is_none());
            self.emit(Subject::Pod(pod.name.clone()), Payload::PodRejected(data));
        }
        for uid in preempted {
            self.end(&uid);
        }
    }

    /// Changes the cgroups, and admits waiting pods as long as that makes room.
    async fn change(
        &mut self,
        extent: Extent,
        work: impl FnOnce(&mut Reconciler) -> Report + Send + 'static,
    ) -> anyhow::Result<()> {
        self.change_by(extent, &Writers::default(), work).await?;
        self.fill_room().await
    }

    /// Admits waiting pods as long as there is room for them.
    async fn fill_room(&mut self) -> anyhow::Result<()> {
        while self.pods.take_new_room() {
            if !self.decide() {
                break;
            }
            let (plan, retired, permit) =
                (Arc::clone(self.pods.plan()), self.pods.retired().to_vec(), self.permit.clone());
            self.change_by(Extent::Cgroups, &Writers::default(), move |reconciler| {
                reconciler.reconcile(&plan, &retired, permit.as_deref())
            })
            .await?;
        }
        Ok(())
    }

    /// Changes the cgroups after foreign writes to them.
    async fn change_by(
        &mut self,
        extent: Extent,
        writers: &Writers,
        work: impl FnOnce(&mut Reconciler) -> Report + Send + 'static,
    ) -> anyhow::Result<()> {
        let Some(hierarchy) = self.hierarchy.clone() else {
            self.pods.stand_without_cgroups();
            self.renew_view();
            return Ok(());
        };
        let Worked { report, shape, problems, due, contest_due, watches_all } = hierarchy
            .run(move |reconciler| {
                let report = work(reconciler);
                let is_changed = reconciler.take_change() || extent == Extent::Cgroups;
                Worked {
                    report,
                    shape: is_changed.then(|| Shape::of(reconciler)),
                    problems: reconciler.problems(),
                    due: reconciler.due(),
                    contest_due: reconciler.contest_due(),
                    watches_all: reconciler.watches_all(),
                }
            })
            .await?;
        match shape {
            Some(shape) => self.take_shape(shape, &report, writers),
            None => self.emit_report(&report, writers),
        }
        self.problems.renew(problems, &self.journal);
        self.schedule.retry_at(due, Instant::now());
        self.schedule.write_back_at(contest_due, Instant::now());
        let interval = self.schedule.interval();
        self.schedule.all_are_watched(watches_all);
        if let Some(placing) = &mut self.placing
            && self.schedule.interval() < interval
        {
            placing.request_look();
        }
        Ok(())
    }

    /// Follows what exists, and reports the work that led there.
    fn take_shape(&mut self, shape: Shape, report: &Report, writers: &Writers) {
        let Shape { existing, guarded, standing } = shape;
        if self.existing != existing {
            self.candidates.note_change();
        }
        if self.existing.planned != existing.planned {
            self.aligning.renew();
        }
        // Cgroups that are gone by now may have been written to before.
        self.existing.going.extend(existing.going.clone());
        self.emit_report(report, writers);
        self.existing = existing;
        self.guarding.wish(guarded, self.permit.is_some());
        self.pods.stand(standing);
        self.renew_view();
    }
}

/// How long a kubelet's pod must be known before it may be evicted without its spec.
fn grace(config: &Config) -> Duration {
    Duration::from_millis(config.unknown_pod_grace_ms)
}
