//! The pods that the reflex may evict, and that are ended for a critical one.
mod awaited;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use self::awaited::Awaited;
use super::{
    BeingEnded, BeingEvicted, Desired, emit,
    existing::{Existing, Holders, as_held, holders},
    pod_set::PodSet,
    refused::Refused,
};
use crate::{
    cgroup::{CgroupDir, Changes, Guard},
    clock,
    daemon::forecaster::{ForecastTargets, GrowthCandidate, Kubepods},
    evict::{Candidate, EndError, Ending, Endings, OpenError},
    journal::Journal,
    model::{CgroupId, CgroupPath, Knowledge, NodeComponent, PodName, PodUid, QosClass},
    policy::{CgroupPlan, PodPlan},
};

/// The least time before a candidate is opened again, however often cgroups come and go in it.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);

/// Opens pods with the cgroups that may be killed here.
pub(super) struct Opener {
    guard: Arc<Guard>,
    open: fn(&CgroupDir, &Arc<Guard>, &PodPlan) -> Result<Candidate, OpenError>,
}

impl Opener {
    /// Where the kubelet owns the pods' cgroups, only their containers are killed.
    pub(super) fn new(kubelets: bool, components: &[NodeComponent]) -> Self {
        let guard = Arc::new(Guard::new(Path::new("/proc"), components));
        Self { guard, open: if kubelets { Candidate::open_containers } else { Candidate::open } }
    }

    /// The guard that decides which processes must never be killed.
    pub(super) fn guard(&self) -> Arc<Guard> {
        Arc::clone(&self.guard)
    }
}

/// The pods and their cgroups at present.
#[derive(Clone, Copy)]
pub(super) struct Present<'a> {
    pub(super) root: &'a CgroupDir,
    pub(super) pods: &'a PodSet,
    pub(super) existing: &'a Existing,
}

impl Present<'_> {
    fn holders(&self) -> Holders {
        holders(self.pods.plan(), self.pods.retired())
    }

    /// The plans of the pods that may be candidates.
    fn wanted(&self, holders: &Holders) -> Vec<Arc<PodPlan>> {
        let evicted_by = |pod| self.existing.evicted_by(pod, self.pods.retired(), holders);
        let planned = self.pods.plan().pods.iter().filter_map(evicted_by);
        let wanted = planned.chain(self.pods.leaving().cloned());
        wanted.filter(|plan| plan.is_known_enough()).collect()
    }

    /// The pod's plan as if it were admitted; `None` if its cgroup is another pod's.
    fn let_in(&self, plan: &PodPlan) -> Option<PodPlan> {
        let retired = self.pods.retired().iter().filter(|retired| **retired != plan.uid);
        as_held(plan, &holders(self.pods.plan(), retired))
    }
}

/// The pods that may be evicted, each with its files open.
pub(super) struct CandidateSet {
    opener: Opener,
    journal: Journal,
    open: BTreeMap<PodUid, OpenCandidate>,
    /// Whether the plan or the cgroups have changed since the candidates were opened.
    is_stale: bool,
    /// Pods that could not be opened.
    refused: Refused,
    /// Candidates in whose cgroup others were made or removed since they were opened.
    branched: BTreeSet<PodUid>,
    /// The pods that an operator has spared.
    protected: BTreeSet<PodName>,
    /// The former cgroups of pods that candidates were opened with: the reflex knows both places.
    former: BTreeMap<CgroupPath, Former>,
    /// Cgroups whose processes are not moved, because they are killed where they are.
    being_evicted: BeingEvicted,
    /// Pods that are being ended for another reason than a shortage.
    being_ended: BeingEnded,
}

/// What has changed about the candidates.
pub(super) struct Renewed {
    /// All of them, in order, if there are others than before.
    pub(super) candidates: Option<Vec<Arc<Candidate>>>,
    /// Those whose files were opened again.
    pub(super) reopened: Vec<PodUid>,
    /// Whether processes may now be moved out of former cgroups.
    pub(super) may_move: bool,
}

/// A candidate, and the state for which it was opened.
struct OpenCandidate {
    plan: Arc<PodPlan>,
    candidate: Arc<Candidate>,
    opened: Instant,
    /// The containers' cgroups that existed then: their throttle files are open.
    containers: Vec<Option<CgroupId>>,
    /// The pod's former cgroups that existed then.
    former: Vec<(CgroupPath, CgroupId)>,
    /// Whether a controller that the host has was missing in its cgroup: one may hand it on later, without which its usage
    /// would stay unknown.
    awaited: Option<Awaited>,
}

/// A cgroup that a pod had by an earlier plan.
struct Former {
    id: CgroupId,
    uid: PodUid,
}

impl OpenCandidate {
    /// Takes what is known of its spec now. If nothing else of the plan is different, its files stay open: a source that falls
    /// silent changes this for all pods at once.
    fn follow(&mut self, plan: &Arc<PodPlan>) {
        let [after, before] = [plan, &self.plan].map(|plan| plan.placed.and_then(Knowledge::origin));
        if after == before {
            return;
        }
        let placed = before.and_then(|before| Some(plan.placed?.with_origin(before)));
        if (PodPlan { placed, ..PodPlan::clone(plan) }) == *self.plan {
            self.candidate.identity().spec.follow(plan.placed);
            self.plan = Arc::clone(plan);
        } else {
            // It keeps the rest of the spec that it was opened with, which is not that of the pod now.
            self.candidate.identity().spec.follow(None);
        }
    }

    fn may_reopen_at(&self) -> Instant {
        self.opened + REOPEN_PAUSE
    }

    /// When a controller that was missing is looked for again.
    fn counts_at(&self) -> Option<Instant> {
        self.awaited.map(|awaited| self.opened + awaited.pause())
    }

    /// The cgroups whose memory it reads together with that of their direct children.
    fn paths(&self) -> impl Iterator<Item = &CgroupPath> {
        let adopted = self.plan.containers.iter().filter(|container| container.adopted);
        std::iter::once(&self.plan.cgroup.path)
            .chain(adopted.map(|container| &container.cgroup.path))
            .chain(self.former.iter().map(|(path, _)| path))
    }
}

impl CandidateSet {
    pub(super) fn new(opener: Opener, journal: Journal) -> Self {
        Self {
            opener,
            journal,
            open: BTreeMap::new(),
            is_stale: true,
            refused: Refused::default(),
            branched: BTreeSet::new(),
            protected: BTreeSet::new(),
            former: BTreeMap::new(),
            being_evicted: BeingEvicted::default(),
            being_ended: BeingEnded::default(),
        }
    }

    /// Notes that the plan or the cgroups have changed.
    pub(super) fn note_change(&mut self) {
        self.is_stale = true;
    }

    /// Moves no process of a pod that is being evicted.
    pub(super) fn set_being_evicted(&mut self, being_evicted: BeingEvicted) {
        self.being_evicted = being_evicted;
    }

    /// Protects these pods from now on, and no others. Returns whether that is a change.
    pub(super) fn set_protected(&mut self, protected: BTreeSet<PodName>) -> bool {
        let differs = self.protected != protected;
        self.protected = protected;
        self.is_stale |= differs;
        differs
    }

    /// Whether an operator has spared that pod.
    pub(super) fn is_protected(&self, name: &PodName) -> bool {
        self.protected.contains(name)
    }

    /// The pods that are being ended for another reason than a shortage.
    pub(super) fn being_ended(&self) -> &BeingEnded {
        &self.being_ended
    }

    /// The candidate of that pod, if it is one.
    pub(super) fn get(&self, uid: &PodUid) -> Option<&Arc<Candidate>> {
        self.open.get(uid).map(|standing| &standing.candidate)
    }

    /// When a candidate is to be opened again, or a refused one tried again.
    pub(super) fn due(&self) -> Option<Instant> {
        let branched = self.branched.iter().filter_map(|uid| self.open.get(uid));
        let uncounted = self.open.values().filter_map(OpenCandidate::counts_at);
        branched.map(OpenCandidate::may_reopen_at).chain(uncounted).chain(self.refused.due()).min()
    }

    /// Notes in which cgroups others were made or removed; in any, if the changes are unknown. A candidate has opened
    /// its files before that.
    pub(super) fn note_branches(&mut self, changes: Option<&Changes>) {
        let known = changes.filter(|changes| !changes.overflow);
        let is_changed = |path: &CgroupPath| known.is_none_or(|changes| changes.children.contains(path));
        let branched = self.open.iter().filter(|(_, standing)| standing.paths().any(is_changed));
        self.branched.extend(branched.map(|(uid, _)| uid.clone()));
    }

    /// Opens the pods that may be evicted, if they have changed since the last call.
    ///
    /// A pod without a cgroup is not a candidate. An unchanged candidate is handed out again. An evicted, rejected or
    /// unnamed pod is a candidate as long as its cgroup exists: what is left of it fills the node like any other (the
    /// kubelet counts terminating pods as active too). Without a process it is not chosen.
    pub(super) fn renew(&mut self, present: Present<'_>, now: Instant) -> Option<Renewed> {
        let is_due = self.due().is_some_and(|due| due <= now);
        if !std::mem::take(&mut self.is_stale) && !is_due {
            return None;
        }
        let Present { root, existing, .. } = present;
        let mut before = std::mem::take(&mut self.open);
        let mut differs = false;
        let (mut order, mut reopened) = (Vec::new(), Vec::new());
        let holders = present.holders();
        let wanted = present.wanted(&holders);
        let uids: BTreeSet<_> = wanted.iter().map(|plan| plan.uid.clone()).collect();
        self.former.clear();
        for mut plan in wanted {
            let (id, former) = existing.place(&mut plan, &holders);
            let known =
                former.iter().map(|(path, id)| (path.clone(), Former { id: *id, uid: plan.uid.clone() }));
            self.former.extend(known);
            let plan = &plan;
            let held = |path: &CgroupPath| existing.held(&plan.uid, path, &holders);
            let containers: Vec<_> =
                plan.containers.iter().map(|container| held(&container.cgroup.path)).collect();
            let mut known = before.remove(&plan.uid);
            if let Some(standing) = &mut known {
                standing.follow(plan);
            }
            let was_known = known.is_some();
            let standing = known.filter(|standing| {
                self.is_as_before(&standing.candidate, plan)
                    && standing.plan == *plan
                    && Some(standing.candidate.facts().cgroup) == id
                    && standing.containers == containers
                    && standing.former == former
            });
            if let Some(mut standing) = standing {
                let must_reopen = self.must_reopen(&standing, now);
                if !must_reopen && standing.counts_at().is_none_or(|due| now < due) {
                    order.push(Arc::clone(&standing.candidate));
                    self.open.insert(plan.uid.clone(), standing);
                    continue;
                }
                let before = standing.candidate.accounted();
                standing.opened = now;
                standing.awaited = standing.awaited.map(Awaited::longer);
                match as_held(plan, &holders).map(|held| self.open(root, &held, &former)) {
                    // Nothing is counted that was not before.
                    Some(Ok(candidate)) if !must_reopen && candidate.accounted() == before => {}
                    Some(Ok(candidate)) => {
                        differs = true;
                        if candidate.accounted() != before {
                            standing.awaited = Awaited::of(root, &candidate);
                        }
                        standing.candidate = candidate;
                        reopened.push(plan.uid.clone());
                        self.branched.remove(&plan.uid);
                    }
                    Some(Err(error @ OpenError::Forbidden { .. })) => {
                        differs = true;
                        self.refuse(plan, standing.candidate.facts().cgroup, &error, now);
                        continue;
                    }
                    // Its containers have ended. Others make it a candidate again.
                    Some(Err(OpenError::Unnamed { .. })) => {
                        differs = true;
                        continue;
                    }
                    // The candidate opened before can still be evicted; opening is tried again.
                    Some(Err(OpenError::Cgroup(_))) | None => {}
                }
                order.push(Arc::clone(&standing.candidate));
                self.open.insert(plan.uid.clone(), standing);
                continue;
            }
            differs |= was_known;
            let Some((id, held)) = id.zip(as_held(plan, &holders)) else {
                self.refused.forget(&plan.uid);
                continue;
            };
            if !self.refused.may_try(plan, id, now) {
                continue;
            }
            match self.open(root, &held, &former) {
                Ok(candidate) => {
                    differs = true;
                    self.refused.forget(&plan.uid);
                    self.branched.remove(&plan.uid);
                    order.push(Arc::clone(&candidate));
                    let (plan, awaited) = (Arc::clone(plan), Awaited::of(root, &candidate));
                    let uid = plan.uid.clone();
                    let standing =
                        OpenCandidate { plan, candidate, opened: now, containers, former, awaited };
                    self.open.insert(uid, standing);
                }
                // The next cgroup there has another id.
                Err(OpenError::Cgroup(error)) if error.is_gone() => self.refused.forget(&plan.uid),
                Err(OpenError::Unnamed { .. }) => self.refused.forget(&plan.uid),
                Err(error) => self.refuse(plan, id, &error, now),
            }
        }
        let Self { refused, branched, journal, open, .. } = self;
        refused.settle(|uid| uids.contains(uid), journal);
        branched.retain(|uid| open.contains_key(uid));
        let may_move = differs && !self.former.is_empty();
        let candidates = (differs || !before.is_empty()).then_some(order);
        Some(Renewed { candidates, reopened, may_move })
    }

    /// Whether a candidate is still protected, and ending, as it was when it was opened.
    fn is_as_before(&self, candidate: &Candidate, plan: &PodPlan) -> bool {
        let facts = candidate.facts();
        facts.protected == self.is_protected(&plan.name) && facts.terminating == self.is_ending(plan)
    }

    /// Whether a candidate is opened again: cgroups came or went in its own, or it holds what must never be killed.
    fn must_reopen(&self, standing: &OpenCandidate, now: Instant) -> bool {
        let is_branched = self.branched.contains(&standing.plan.uid) && standing.may_reopen_at() <= now;
        is_branched || standing.candidate.is_forbidden()
    }

    fn refuse(&mut self, plan: &PodPlan, cgroup: CgroupId, error: &OpenError, now: Instant) {
        let message = format!("pod {} cannot be evicted: {}", plan.name, crate::chain(error));
        self.refused.refuse(plan, cgroup, message, now);
    }

    /// The former cgroups whose processes may be moved: the reflex has candidates that know both places, so that no
    /// process is out of its reach for a moment. Processes being evicted die where they are.
    pub(super) fn movable(&self, pods: &PodSet) -> BTreeSet<CgroupPath> {
        let now_ns = clock::boottime_ns();
        let stays =
            |path: &CgroupPath, id: CgroupId| self.being_evicted.lasts(id, now_ns, || Some(path.clone()));
        let to = |uid: &PodUid| {
            pods.plan().pods.iter().find(|plan| plan.uid == *uid).map(|plan| &plan.cgroup.path)
        };
        let knows_both = |uid: &PodUid| {
            let standing = self.open.get(uid);
            standing.is_none_or(|standing| Some(&standing.plan.cgroup.path) == to(uid))
        };
        self.former
            .iter()
            .filter(|(path, former)| knows_both(&former.uid) && !stays(path, former.id))
            .map(|(path, _)| path.clone())
            .collect()
    }

    /// Where to look for the cause when the node fills: at the pods that may be evicted now.
    pub(super) fn suspects(&self) -> Vec<GrowthCandidate> {
        let suspect = |standing: &OpenCandidate, cgroup: CgroupId, path: &CgroupPath| GrowthCandidate {
            plan: Arc::clone(&standing.plan),
            cgroup,
            path: path.clone(),
        };
        self.open
            .values()
            .flat_map(|standing| {
                let own = (&standing.plan.cgroup.path, standing.candidate.facts().cgroup);
                let former = standing.former.iter().map(|(path, id)| (path, *id));
                std::iter::once(own).chain(former).map(|(path, id)| suspect(standing, id, path))
            })
            .collect()
    }

    /// Opens a planned pod apart from the candidates, as if it were admitted, with its former cgroups. Returns `None` if
    /// its cgroup is another pod's.
    pub(super) fn open_apart(
        &self,
        present: Present<'_>,
        plan: &PodPlan,
    ) -> Option<Result<Arc<Candidate>, OpenError>> {
        let mut plan = Arc::new(present.let_in(plan)?);
        let (_, former) = present.existing.place(&mut plan, &present.holders());
        Some(self.open(present.root, &plan, &former))
    }

    fn open(
        &self,
        root: &CgroupDir,
        plan: &PodPlan,
        former: &[(CgroupPath, CgroupId)],
    ) -> Result<Arc<Candidate>, OpenError> {
        let candidate = (self.opener.open)(root, &self.opener.guard, plan)?.with_former(root, former)?;
        let candidate = candidate.protected(self.is_protected(&plan.name));
        Ok(Arc::new(candidate.ending(self.is_ending(plan))))
    }

    /// Whether the pod ends by itself, or is being ended here.
    fn is_ending(&self, plan: &PodPlan) -> bool {
        plan.is_terminating() || self.being_ended.contains(&plan.uid)
    }

    /// The candidate that makes way for a critical pod: one of these, or another planned pod. A pod that this daemon never
    /// admitted may run since an earlier daemon admitted it. Returns `None` if it has no cgroup, and so no processes.
    fn making_way(&self, present: Option<Present<'_>>, uid: &PodUid) -> Option<Arc<Candidate>> {
        if let Some(candidate) = self.get(uid) {
            return Some(Arc::clone(candidate));
        }
        let present = present?;
        let plan = present.pods.plan().pods.iter().find(|plan| plan.uid == *uid)?;
        match self.open_apart(present, plan)? {
            Ok(candidate) => Some(candidate),
            Err(OpenError::Cgroup(error)) if error.is_gone() => None,
            Err(error) => {
                let message = format!(
                    "pod {} does not make way for a critical one: {}",
                    plan.name,
                    crate::chain(&error)
                );
                emit::degraded(&self.journal, "preemption", &message);
                None
            }
        }
    }
}

impl Desired {
    /// The pods and their cgroups at present; `None` without cgroup v2.
    pub(super) fn present(&self) -> Option<Present<'_>> {
        let root = self.hierarchy.as_ref()?.root();
        Some(Present { root, pods: &self.pods, existing: &self.existing })
    }

    /// Returns the pods that may be evicted, with their files open, if they have changed since the last call.
    pub(in crate::daemon) fn new_candidates(&mut self) -> Option<Vec<Arc<Candidate>>> {
        let now = Instant::now();
        let root = Arc::clone(self.hierarchy.as_ref()?.root());
        let present = Present { root: &root, pods: &self.pods, existing: &self.existing };
        let Renewed { candidates, reopened, may_move } = self.candidates.renew(present, now)?;
        for uid in &reopened {
            self.aligning.reopen(uid);
        }
        if may_move {
            self.schedule.request_move(now);
        }
        candidates
    }

    /// Has those candidates opened again that must not be killed any more: that reports them, and ranks them no longer.
    pub(in crate::daemon) fn reopen_candidates(&mut self) {
        self.candidates.note_change();
    }

    /// Where to look for the cause when the node fills.
    pub(in crate::daemon) fn targets(&self) -> Option<ForecastTargets> {
        let root = Arc::clone(self.hierarchy.as_ref()?.root());
        let plan = self.pods.plan();
        let class = |(class, cgroup): &(QosClass, CgroupPlan)| {
            let name = match class {
                QosClass::Guaranteed => "guaranteed",
                QosClass::Burstable => "burstable",
                QosClass::BestEffort => "besteffort",
            };
            (name, cgroup.path.clone())
        };
        let node = std::iter::once(("kubepods", plan.node.path.clone()));
        let slices = node.chain(plan.qos.iter().map(class)).collect();
        let suspects = self.candidates.suspects();
        Some(ForecastTargets { root, suspects, kubepods: Kubepods::of(plan), slices })
    }

    /// Ends a pod that a critical one preempts, on a thread for that; the emptying of its cgroup reports the end.
    pub(super) fn end(&mut self, uid: &PodUid) {
        if self.permit.is_none() {
            return;
        }
        let Some(candidate) = self.candidates.making_way(self.present(), uid) else { return };
        let Some(entry) = self.pods.roster().get(uid) else { return };
        let grace = Duration::from_secs(entry.pod.termination_grace_period_seconds);
        let (name, journal) = (entry.pod.name.clone(), self.journal.clone());
        let being_ended = self.candidates.being_ended().begin(uid.clone());
        let done = move |ended: Result<Ending, EndError>| {
            drop(being_ended);
            match ended {
                Ok(ending) => {
                    let how = match ending {
                        Ending::OnTerm => "by itself",
                        Ending::OnKill => "killed after its grace period",
                    };
                    tracing::info!("pod {name} made way for a critical pod: {how}");
                }
                Err(error) => {
                    let message =
                        format!("pod {name} does not make way for a critical one: {}", crate::chain(&error));
                    emit::degraded(&journal, "preemption", &message);
                }
            }
        };
        if let Some(endings) = &self.endings {
            endings.end(candidate, grace, done);
        } else {
            let message = format!("pod {} does not make way for a critical one: no thread", entry.pod.name);
            emit::degraded(&self.journal, "preemption", &message);
        }
    }
}

/// Starts the threads that end preempted pods, at the start: none may be available when a pod has to make way.
pub(super) fn start_endings(journal: &Journal) -> Option<Endings> {
    let started = Endings::start();
    started
        .inspect_err(|error| {
            let message = format!("no pod makes way for a critical one: cannot start a thread: {error}");
            emit::degraded(journal, "preemption", &message);
        })
        .ok()
}

#[cfg(test)]
mod tests;
