use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use serde_json::json;

use super::{
    host::{self, Host},
    keeper::Keeper,
    telling,
};
use crate::{
    cgroup::{
        CgroupDir, Index, Permit, PopulationEvent, PopulationEvents, Reconciler, Report, Systemd,
        SystemdDriver, UnitName, population_watch,
    },
    config::Config,
    evict::{self, Candidate, OpenError},
    journal::{Event, EventType, Journal, Subject},
    model::{CgroupId, CgroupPath, Pod, PodUid, QosClass},
    policy::{
        self, CgroupDriver, Plan, PodPlan,
        admission::{Admission, Rejection, under_conditions},
        threshold::NodeCondition,
    },
    serve::{ContainerView, PodState, PodView, View},
    source::{Change, Decisions, EndedPod, Entry, Grounds, Loaded, Roster, SourceError, State},
};

/// The street of the desired state: pods → plan → cgroups, and what is told of them.
///
/// It runs on change and once a second. What may block is done on a thread that may.
pub(super) struct Desired {
    config: Config,
    host: Host,
    journal: Journal,
    roster: Roster,
    /// Keeps who was ended for good; none where that cannot be kept.
    keeper: Option<Keeper>,
    /// The number of the latest eviction.
    eviction: u64,
    loaded: Arc<Loaded>,
    hierarchy: Option<Hierarchy>,
    permit: Option<Arc<Permit>>,
    /// The plan that is in force, and the pods that it retires.
    plan: Plan,
    retired: Vec<PodUid>,
    /// What was told once and need not be told again.
    told: BTreeSet<String>,
    view: View,
    is_loaded: bool,
    ticks: u32,
    /// The pods whose cgroup stands, wanted or not.
    standing: BTreeSet<PodUid>,
    /// Whether one of them, or of those that a pod waits for, is gone since it was last decided who may run.
    has_new_room: bool,
    candidates: BTreeMap<PodUid, Standing>,
    /// The planned cgroups that stand.
    ids: BTreeMap<CgroupPath, CgroupId>,
    /// The kubepods that is noted as ours.
    owned: Option<CgroupId>,
}

/// A candidate, and what it was opened for.
struct Standing {
    plan: PodPlan,
    candidate: Arc<Candidate>,
    /// The containers' cgroups that stood then: their brakes are open.
    containers: Vec<Option<CgroupId>>,
}

/// Drift is noticed this many ticks after it happened at the latest.
const TICKS_BETWEEN_RECONCILIATIONS: u32 = 10;

/// The cgroups, shared with the threads that may block.
#[derive(Clone)]
struct Hierarchy {
    reconciler: Arc<Mutex<Reconciler>>,
    root: Arc<CgroupDir>,
}

impl Hierarchy {
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Reconciler) -> T + Send + 'static,
    ) -> anyhow::Result<T> {
        let reconciler = Arc::clone(&self.reconciler);
        tokio::task::spawn_blocking(move || {
            // What a panic left half done is done by the next reconciliation, which starts from what it finds.
            work(&mut reconciler.lock().unwrap_or_else(PoisonError::into_inner))
        })
        .await
        .context("the reconciler panicked")
    }
}

impl Desired {
    /// Nothing is planned yet. Without cgroup v2 it knows the pods, and writes nothing. Must be called inside a tokio
    /// runtime.
    pub(super) fn new(
        config: Config,
        host: Host,
        journal: Journal,
        index: Index,
        permit: Option<Permit>,
    ) -> (Self, Option<PopulationEvents>) {
        let mount = Path::new(crate::cgroup::MOUNT);
        let mut events = None;
        let hierarchy = match Reconciler::new(mount, index)
            .map_err(anyhow::Error::from)
            .and_then(|reconciler| Ok((reconciler, CgroupDir::mount(mount)?)))
        {
            Ok((mut reconciler, root)) => {
                if config.settings.cgroup_driver == CgroupDriver::Systemd {
                    let systemd = Systemd::new().blocking(tokio::runtime::Handle::current());
                    reconciler.set_driver(Box::new(SystemdDriver::new(systemd)));
                }
                match population_watch() {
                    Ok((watch, watched)) => {
                        reconciler.set_watch(watch);
                        events = Some(watched);
                    }
                    Err(error) => telling::degraded(
                        &journal,
                        "inotify",
                        &format!("new processes get their score within a second, not at once: {error}"),
                    ),
                }
                Some(Hierarchy { reconciler: Arc::new(Mutex::new(reconciler)), root: Arc::new(root) })
            }
            // Told with everything else that the host lacks.
            Err(error) => {
                tracing::debug!("no reconciler: {error:#}");
                None
            }
        };
        let plan = policy::plan(&host.node, &config.settings, &[]);
        let view = View { mode: config.mode.to_string(), ..View::default() };
        let desired = Self {
            config,
            host,
            journal,
            roster: Roster::new(),
            keeper: None,
            eviction: 0,
            loaded: Arc::default(),
            hierarchy,
            permit: permit.map(Arc::new),
            plan,
            retired: Vec::new(),
            told: BTreeSet::new(),
            view,
            is_loaded: false,
            ticks: 0,
            standing: BTreeSet::new(),
            has_new_room: false,
            candidates: BTreeMap::new(),
            ids: BTreeMap::new(),
            owned: None,
        };
        (desired, events)
    }

    /// Takes the pods that the source holds now, tells what is new, and brings the cgroups in line.
    pub(super) async fn load(&mut self, loaded: Arc<Loaded>) -> anyhow::Result<()> {
        for error in loaded.new_errors(&self.loaded) {
            tracing::warn!("{error}");
            let kind = if is_down(error) { EventType::SourceDown } else { EventType::PodRejected };
            self.tell(kind, Subject::Node, json!({"source": "static", "message": error.to_string()}));
        }
        let was_up = self.is_loaded && !self.loaded.errors.iter().any(is_down);
        if !was_up && !loaded.errors.iter().any(is_down) {
            let message = format!("{}: {} pods", self.config.static_pod_path.display(), loaded.pods.len());
            self.tell(EventType::SourceUp, Subject::Node, json!({"source": "static", "message": message}));
        }
        self.loaded = Arc::clone(&loaded);
        self.is_loaded = true;
        let changes = self.roster.apply(loaded.pods.clone());
        if !loaded.errors.iter().any(is_down) {
            self.roster.forget_the_unnamed();
        }
        let decisions = self.replan();
        for change in &changes {
            self.tell_change(change);
        }
        self.carry_out(decisions);
        self.reconcile().await
    }

    /// Takes over who was ended for good before.
    pub(super) fn remember(&mut self, ended: Vec<EndedPod>) {
        self.roster.remember(ended);
    }

    /// Has it kept from now on who was ended for good.
    pub(super) fn set_keeper(&mut self, keeper: Keeper) {
        self.keeper = Some(keeper);
    }

    /// Takes note that a pod was evicted: it stays so until its manifest changes or goes.
    pub(super) async fn evicted(&mut self, uid: &PodUid, number: u64) -> anyhow::Result<()> {
        self.eviction = number;
        if self.roster.evict(uid) {
            self.decide();
            self.reconcile().await?;
        }
        Ok(())
    }

    /// Brings the cgroups in line with the plan.
    pub(super) async fn reconcile(&mut self) -> anyhow::Result<()> {
        let (plan, retired, permit) = (self.plan.clone(), self.retired.clone(), self.permit.clone());
        self.change(move |reconciler| reconciler.reconcile(&plan, &retired, permit.as_deref())).await
    }

    /// The periodic look: scores of new processes and cgroups that have emptied; now and then everything.
    pub(super) async fn tick(&mut self) -> anyhow::Result<()> {
        self.ticks = self.ticks.wrapping_add(1);
        if self.ticks.is_multiple_of(TICKS_BETWEEN_RECONCILIATIONS) {
            return self.reconcile().await;
        }
        let Some(permit) = self.permit.clone() else { return Ok(()) };
        self.change(move |reconciler| reconciler.sweep(&permit)).await
    }

    /// Whether the source has been read.
    pub(super) fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    /// Looks at the one cgroup that the kernel told of.
    pub(super) async fn populated(&mut self, event: PopulationEvent) -> anyhow::Result<()> {
        let Some(permit) = self.permit.clone() else { return Ok(()) };
        match event {
            PopulationEvent::Changed(_) => {
                self.change(move |reconciler| reconciler.populated(&event, &permit)).await
            }
            PopulationEvent::Children(_) | PopulationEvent::Overflow => self.reconcile().await,
        }
    }

    /// The node's condition, as it is told.
    pub(super) async fn set_pressure(&mut self, pressure: bool) -> anyhow::Result<()> {
        if self.view.memory_pressure == pressure {
            return Ok(());
        }
        self.view.memory_pressure = pressure;
        // Who was kept out by it is looked at again; who runs stays.
        if self.decide() { self.reconcile().await } else { Ok(()) }
    }

    /// The roster as it is told.
    pub(super) fn view(&self) -> &View {
        &self.view
    }

    /// The pods that may be evicted, with their files open, if they are others than at the last call.
    ///
    /// A pod whose cgroup does not stand is none. One that stays is handed out as it was.
    pub(super) fn new_candidates(&mut self) -> Option<Vec<Arc<Candidate>>> {
        let root = Arc::clone(&self.hierarchy.as_ref()?.root);
        let mut before = std::mem::take(&mut self.candidates);
        let mut differs = false;
        let mut order = Vec::new();
        let wanted: Vec<_> =
            self.plan.pods.iter().filter(|pod| !self.retired.contains(&pod.uid)).cloned().collect();
        for plan in wanted {
            let id = self.ids.get(&plan.cgroup.path);
            let containers: Vec<_> = plan
                .containers
                .iter()
                .map(|container| self.ids.get(&container.cgroup.path).copied())
                .collect();
            let standing = before.remove(&plan.uid).filter(|standing| {
                standing.plan == plan
                    && Some(&standing.candidate.facts().cgroup) == id
                    && standing.containers == containers
            });
            let candidate = match standing {
                Some(standing) => Some(standing.candidate),
                None if id.is_none() => None,
                None => {
                    differs = true;
                    self.open(&root, &plan)
                }
            };
            if let Some(candidate) = candidate {
                order.push(Arc::clone(&candidate));
                self.candidates.insert(plan.uid.clone(), Standing { plan, candidate, containers });
            }
        }
        (differs || !before.is_empty()).then_some(order)
    }

    /// Opens a pod of the plan; none if it has no cgroup, and so no processes.
    fn open_planned(&mut self, uid: &PodUid) -> Option<Arc<Candidate>> {
        let root = Arc::clone(&self.hierarchy.as_ref()?.root);
        let plan = self.plan.pods.iter().find(|plan| plan.uid == *uid)?.clone();
        self.open(&root, &plan)
    }

    fn open(&mut self, root: &CgroupDir, plan: &PodPlan) -> Option<Arc<Candidate>> {
        match Candidate::open(root, plan) {
            Ok(candidate) => Some(Arc::new(candidate)),
            Err(OpenError::Cgroup(error)) if error.is_gone() => None,
            Err(error) => {
                let message = format!("pod {} cannot be evicted: {}", plan.name, telling::chain(&error));
                if self.told.insert(message.clone()) {
                    telling::degraded(&self.journal, "candidate", &message);
                }
                None
            }
        }
    }

    /// Decides who may run, plans anew, and has done what follows. Answers whether the plan is another one.
    fn decide(&mut self) -> bool {
        let before = (self.plan.clone(), self.retired.clone());
        let decisions = self.replan();
        self.carry_out(decisions);
        self.renew_view();
        before.0 != self.plan || before.1 != self.retired
    }

    /// Decides who may run, and plans anew. Pods that may not start stay in the plan, retired, so that nothing of
    /// theirs is forgotten while it stands.
    fn replan(&mut self) -> Decisions {
        let conditions: &[_] = if self.view.memory_pressure { &[NodeCondition::MemoryPressure] } else { &[] };
        let (node, settings) = (&self.host.node, &self.config.settings);
        let decisions = self.roster.admit(&Grounds { node, settings, conditions, standing: &self.standing });
        let entries = self.roster.entries();
        let pods: Vec<(&Pod, Admission)> =
            entries.iter().filter_map(|entry| Some((entry.pod.as_ref(), entry.admission()?))).collect();
        self.plan = policy::plan_decided(node, settings, &pods);
        self.retired =
            entries.iter().filter(|entry| !entry.may_start()).map(|entry| entry.pod.uid.clone()).collect();
        if self.is_loaded
            && let Some(keeper) = &mut self.keeper
        {
            keeper.keep(self.roster.ended(), std::mem::take(&mut self.eviction));
        }
        decisions
    }

    /// Tells who may not run, and ends those that a critical pod preempts.
    fn carry_out(&mut self, decisions: Decisions) {
        let Decisions { rejected, preempted } = decisions;
        for (pod, rejection) in rejected {
            let data = telling::rejected(&pod, &rejection, self.permit.is_none());
            self.tell(EventType::PodRejected, Subject::Pod(pod.name.clone()), data);
        }
        for uid in preempted {
            self.end(&uid);
        }
    }

    /// Has the cgroups changed; and as long as that makes room for pods that wait, lets them in.
    async fn change(
        &mut self,
        work: impl FnOnce(&mut Reconciler) -> Report + Send + 'static,
    ) -> anyhow::Result<()> {
        self.change_once(work).await?;
        while std::mem::take(&mut self.has_new_room) {
            if !self.decide() {
                break;
            }
            let (plan, retired, permit) = (self.plan.clone(), self.retired.clone(), self.permit.clone());
            self.change_once(move |reconciler| reconciler.reconcile(&plan, &retired, permit.as_deref()))
                .await?;
        }
        Ok(())
    }

    async fn change_once(
        &mut self,
        work: impl FnOnce(&mut Reconciler) -> Report + Send + 'static,
    ) -> anyhow::Result<()> {
        let Some(hierarchy) = self.hierarchy.clone() else {
            self.has_new_room = self.roster.awaits_other_than(&self.standing);
            self.forget_those_without_cgroup();
            self.renew_view();
            return Ok(());
        };
        let (report, ids, standing) = hierarchy
            .run(move |reconciler| {
                let report = work(reconciler);
                let ids: BTreeMap<_, _> =
                    reconciler.cgroups().map(|(id, owner)| (owner.path.clone(), id)).collect();
                let standing: BTreeSet<PodUid> = reconciler.standing().cloned().collect();
                (report, ids, standing)
            })
            .await?;
        self.tell_report(&report);
        self.has_new_room = !self.standing.is_subset(&standing) || self.roster.awaits_other_than(&standing);
        self.standing = standing;
        self.forget_those_without_cgroup();
        self.ids = ids;
        self.own_kubepods();
        self.renew_view();
        Ok(())
    }

    /// A pod that left is forgotten once its cgroup is gone; at once if it had none here.
    fn forget_those_without_cgroup(&mut self) {
        let leaving: Vec<_> = self
            .roster
            .entries()
            .into_iter()
            .filter(|entry| entry.state == State::Leaving && !self.standing.contains(&entry.pod.uid))
            .map(|entry| entry.pod.uid.clone())
            .collect();
        for uid in leaving {
            self.roster.forget(&uid);
        }
    }

    /// Notes the kubepods that was made here, so that the next start takes it for ours.
    fn own_kubepods(&mut self) {
        let kubepods = self.ids.get(&self.plan.node.path).copied();
        if self.permit.is_none() || kubepods == self.owned {
            return;
        }
        self.owned = kubepods;
        let Some(kubepods) = kubepods else { return };
        if let Err(error) = host::own(kubepods, &self.config.run_dir, &self.host.boot_id) {
            telling::degraded(
                &self.journal,
                "ownership",
                &format!(
                    "after a restart kubepods will be taken for the kubelet's, unless ownership is enforcer: {error}"
                ),
            );
        }
    }

    fn renew_view(&mut self) {
        let id_of = |path: &CgroupPath| self.ids.get(path).map(|id| id.0);
        let mut pods = Vec::new();
        for plan in &self.plan.pods {
            let Some(entry) = self.roster.get(&plan.uid) else { continue };
            let stands = || {
                let of_container = |path| UnitName::is_scope(path) || id_of(path).is_some();
                id_of(&plan.cgroup.path).is_some()
                    && plan.containers.iter().all(|container| of_container(&container.cgroup.path))
            };
            let state = match &entry.state {
                State::Waiting { .. } | State::Preempted => PodState::Rejected,
                State::Active(_) if entry.may_start() && stands() => PodState::Active,
                State::Active(_) => PodState::Pending,
                State::Evicted => PodState::Evicted,
                State::Leaving => PodState::Removed,
            };
            pods.push(pod_view(plan, state, self.reason(entry), entry, id_of));
        }
        self.view.pods = pods;
    }

    /// Why a pod is not as its source wants it, for a person.
    fn reason(&self, entry: &Entry) -> Option<String> {
        let told = |rejection: &Rejection| format!("{}: {}", rejection.reason(), rejection.message());
        match &entry.state {
            State::Waiting { rejection } => rejection.as_ref().map(told),
            State::Preempted => Some(format!(
                "{}; it stays so until its manifest changes or goes",
                told(&Rejection::Preempted)
            )),
            State::Evicted => Some(String::from(
                "the node was low on memory; `enforcer events --type eviction.decided` tells why it was this pod",
            )),
            State::Active(active) if !active.awaits.is_empty() => {
                let name = |uid: &PodUid| self.roster.get(uid).map(|entry| entry.pod.name.to_string());
                let names: Vec<_> = active.awaits.iter().filter_map(name).collect();
                Some(format!("it starts when the pods that make way for it are gone: {}", names.join(", ")))
            }
            State::Active(active) => active
                .held_back
                .as_ref()
                .and_then(|held_back| held_back.rejection.as_ref())
                .map(|rejection| format!("its changed manifest is not in force: {}", told(rejection))),
            State::Leaving => None,
        }
    }

    /// Ends a pod that a critical one preempts, on a thread of its own; told by the emptying of its cgroup.
    fn end(&mut self, uid: &PodUid) {
        if self.permit.is_none() {
            return;
        }
        // One that this daemon never let in may run since another one did.
        let Some(candidate) = self
            .candidates
            .get(uid)
            .map(|standing| Arc::clone(&standing.candidate))
            .or_else(|| self.open_planned(uid))
        else {
            return;
        };
        let Some(entry) = self.roster.get(uid) else { return };
        let grace = Duration::from_secs(entry.pod.termination_grace_period_seconds);
        let (name, journal) = (entry.pod.name.clone(), self.journal.clone());
        let work = move || match evict::end(&candidate, grace) {
            Ok(ending) => tracing::info!(pod = %name, ?ending, "made way for a critical pod"),
            Err(error) => {
                let message =
                    format!("pod {name} does not make way for a critical one: {}", telling::chain(&error));
                telling::degraded(&journal, "preemption", &message);
            }
        };
        if let Err(error) = thread::Builder::new().name(String::from("preemption")).spawn(work) {
            let message =
                format!("pod {} does not make way for a critical one: no thread: {error}", entry.pod.name);
            telling::degraded(&self.journal, "preemption", &message);
        }
    }

    fn tell(&self, kind: EventType, subject: Subject, data: serde_json::Value) {
        self.journal.append(Event { kind, subject, data });
    }

    fn tell_change(&self, change: &Change) {
        let (kind, pod) = match change {
            Change::Added(pod) => (EventType::PodAdded, pod),
            Change::Changed { old: _, new } => (EventType::PodChanged, new),
            Change::Removed(pod) => (EventType::PodRemoved, pod),
        };
        // A changed manifest that is not in force has no plan.
        let in_force = self.roster.get(&pod.uid).is_some_and(|entry| entry.pod == *pod);
        let plan = self.plan.pods.iter().find(|plan| in_force && plan.uid == pod.uid);
        self.tell(kind, Subject::Pod(pod.name.clone()), telling::pod(pod, plan));
    }

    fn tell_report(&mut self, report: &Report) {
        for applied in report.limits_applied() {
            let (subject, data) = telling::limits(&applied, &self.plan);
            self.tell(EventType::LimitsApplied, subject, data);
        }
        let failures = report.failed.iter().filter(|failure| !failure.repeated);
        let mut problems: Vec<(&'static str, String)> =
            failures.map(|failure| ("limits", telling::chain(&failure.error))).collect();
        problems.extend(report.withheld.iter().map(|withheld| ("limits", withheld.to_string())));
        problems.extend(report.missing.iter().map(|missing| ("limits", missing.to_string())));
        problems.extend(
            report
                .strangers
                .iter()
                .map(|path| ("stranger", format!("cgroup {path} belongs to no pod: it is left alone"))),
        );
        problems.extend(report.errors.iter().map(|error| ("cgroup", telling::chain(error))));
        problems.extend(report.scores.errors.iter().map(|error| ("scores", telling::chain(error))));
        if report.scores.refused > 0 {
            problems.push((
                "scores",
                String::from("some processes keep a lower score than planned to: no CAP_SYS_RESOURCE"),
            ));
        }
        for (what, message) in problems {
            if self.told.insert(message.clone()) {
                telling::degraded(&self.journal, what, &message);
            }
        }
    }
}

/// Whether the source as a whole does not work, and not a manifest in it.
fn is_down(error: &SourceError) -> bool {
    matches!(error, SourceError::Directory { .. })
}

fn pod_view(
    plan: &PodPlan,
    state: PodState,
    reason: Option<String>,
    entry: &Entry,
    id_of: impl Fn(&CgroupPath) -> Option<u64>,
) -> PodView {
    PodView {
        namespace: plan.name.namespace.clone(),
        name: plan.name.name.clone(),
        uid: plan.uid.to_string(),
        qos_class: QosClass::as_str(plan.qos_class).to_owned(),
        priority: plan.priority,
        state,
        reason,
        starts_under_memory_pressure: under_conditions(&entry.pod, &[NodeCondition::MemoryPressure]).is_ok(),
        cgroup: plan.cgroup.path.to_string(),
        containers: plan
            .containers
            .iter()
            .map(|container| ContainerView {
                name: container.name.clone(),
                kind: telling::kind(container.kind).to_owned(),
                oom_score_adj: container.oom_score_adj,
                cgroup: container.cgroup.path.to_string(),
                cgroup_id: id_of(&container.cgroup.path),
            })
            .collect(),
    }
}
