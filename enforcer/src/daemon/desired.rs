use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context as _;
use serde_json::json;

use super::{
    host::{self, Host},
    telling,
};
use crate::{
    cgroup::{
        CgroupDir, Index, Permit, PopulationEvent, PopulationEvents, Reconciler, Report, population_watch,
    },
    config::Config,
    evict::{Candidate, OpenError},
    journal::{Event, EventType, Journal, Subject},
    model::{CgroupId, CgroupPath, OwnerLevel, Pod, PodUid, QosClass},
    policy::{self, Plan, PodPlan},
    serve::{ContainerView, PodState, PodView, View},
    source::{Change, Loaded, Roster, SourceError, State},
};

/// The street of the desired state: pods → plan → cgroups, and what is told of them.
///
/// It runs on change and once a second. What may block is done on a thread that may.
pub(super) struct Desired {
    config: Config,
    host: Host,
    journal: Journal,
    roster: Roster,
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
    /// Nothing is planned yet. Without cgroup v2 it knows the pods, and writes nothing.
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
            loaded: Arc::default(),
            hierarchy,
            permit: permit.map(Arc::new),
            plan,
            retired: Vec::new(),
            told: BTreeSet::new(),
            view,
            is_loaded: false,
            ticks: 0,
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
        self.replan();
        for change in &changes {
            self.tell_change(change);
        }
        self.reconcile().await
    }

    /// Takes note that a pod was evicted: it stays so until its manifest changes or goes.
    pub(super) async fn evicted(&mut self, uid: &PodUid) -> anyhow::Result<()> {
        if self.roster.evict(uid) {
            self.replan();
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
        self.change(move |reconciler| reconciler.populated(&event, &permit)).await
    }

    /// The node's condition, as it is told.
    pub(super) fn set_pressure(&mut self, pressure: bool) {
        self.view.memory_pressure = pressure;
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
            let standing = before
                .remove(&plan.uid)
                .filter(|standing| standing.plan == plan && Some(&standing.candidate.facts().cgroup) == id);
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
                self.candidates.insert(plan.uid.clone(), Standing { plan, candidate });
            }
        }
        (differs || !before.is_empty()).then_some(order)
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

    /// Plans anew: evicted pods stay in the plan, retired, so that nothing of theirs is forgotten while it stands.
    fn replan(&mut self) {
        let active = self.roster.in_state(State::Active);
        let evicted = self.roster.in_state(State::Evicted);
        let pods: Vec<Pod> =
            active.into_iter().chain(evicted.iter().copied()).map(|pod| Pod::clone(pod)).collect();
        self.retired = evicted.iter().map(|pod| pod.uid.clone()).collect();
        self.plan = policy::plan(&self.host.node, &self.config.settings, &pods);
    }

    async fn change(
        &mut self,
        work: impl FnOnce(&mut Reconciler) -> Report + Send + 'static,
    ) -> anyhow::Result<()> {
        let Some(hierarchy) = self.hierarchy.clone() else {
            self.renew_view();
            return Ok(());
        };
        let (report, ids) = hierarchy
            .run(move |reconciler| {
                let report = work(reconciler);
                let ids: BTreeMap<_, _> =
                    reconciler.cgroups().map(|(id, owner)| (owner.path.clone(), id)).collect();
                (report, ids)
            })
            .await?;
        self.tell_report(&report);
        let gone = report.removed.iter().filter_map(|owner| match &owner.level {
            OwnerLevel::Pod { uid, .. } => Some(uid),
            OwnerLevel::Node | OwnerLevel::Qos(_) | OwnerLevel::Container { .. } => None,
        });
        for uid in gone {
            self.roster.forget(uid);
        }
        self.forget_those_without_cgroup(&report);
        self.ids = ids;
        self.own_kubepods();
        self.renew_view();
        Ok(())
    }

    /// A pod that left and holds no cgroup, because it never had one here, is forgotten at once.
    fn forget_those_without_cgroup(&mut self, report: &Report) {
        let draining: BTreeSet<_> = report.draining.iter().filter_map(|owner| owner.level.pod()).collect();
        let leaving: Vec<_> = self
            .roster
            .in_state(State::Leaving)
            .into_iter()
            .filter(|pod| !draining.contains(&pod.name))
            .map(|pod| pod.uid.clone())
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
            let state = match self.roster.get(&plan.uid).map(|entry| entry.state) {
                Some(State::Evicted) => PodState::Evicted,
                Some(State::Leaving) | None => PodState::Removed,
                Some(State::Active)
                    if plan.containers.iter().all(|container| id_of(&container.cgroup.path).is_some()) =>
                {
                    PodState::Active
                }
                Some(State::Active) => PodState::Pending,
            };
            pods.push(pod_view(plan, state, id_of));
        }
        self.view.pods = pods;
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
        let plan = self.plan.pods.iter().find(|plan| plan.uid == pod.uid);
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

fn pod_view(plan: &PodPlan, state: PodState, id_of: impl Fn(&CgroupPath) -> Option<u64>) -> PodView {
    let reason = match state {
        PodState::Evicted => Some(String::from(
            "the node was low on memory; `enforcer events --type eviction.decided` tells why it was this pod",
        )),
        PodState::Pending | PodState::Active | PodState::Rejected | PodState::Removed => None,
    };
    PodView {
        namespace: plan.name.namespace.clone(),
        name: plan.name.name.clone(),
        uid: plan.uid.to_string(),
        qos_class: QosClass::as_str(plan.qos_class).to_owned(),
        priority: plan.priority,
        state,
        reason,
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
