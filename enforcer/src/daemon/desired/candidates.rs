//! The pods that the reflex may evict, and that are ended for a critical one.
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Desired, Going, emit, refused::Refused};
use crate::{
    cgroup::{self, CgroupDir, Changes, Guard},
    daemon::forecaster::{ForecastTargets, GrowthCandidate, Kubepods},
    evict::{Candidate, EndError, Ending, Endings, OpenError},
    journal::Journal,
    model::{CgroupId, CgroupPath, NodeComponent, OwnerLevel, PodUid, QosClass},
    policy::{CgroupPlan, ContainerPlan, PodPlan, admission::Rejection},
};

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

    /// Opens a pod.
    pub(super) fn open(&self, root: &CgroupDir, plan: &PodPlan) -> Result<Candidate, OpenError> {
        (self.open)(root, &self.guard, plan)
    }
}

/// The least time before a candidate is opened again, however often cgroups come and go in it.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);

/// The candidates to be opened or reopened.
#[derive(Debug, Default)]
pub(super) struct Opening {
    /// Pods that could not be opened.
    refused: Refused,
    /// Candidates in whose cgroup others were made or removed since they were opened.
    branched: BTreeSet<PodUid>,
}

impl Opening {
    fn refuse(&mut self, plan: &PodPlan, cgroup: CgroupId, error: &OpenError, now: Instant) {
        let message = format!("pod {} cannot be evicted: {}", plan.name, crate::chain(error));
        self.refused.refuse(plan, cgroup, message, now);
    }
}

/// A candidate, and the state for which it was opened.
pub(super) struct OpenCandidate {
    plan: PodPlan,
    pub(super) candidate: Arc<Candidate>,
    opened: Instant,
    /// The containers' cgroups that existed then: their throttle files are open.
    containers: Vec<Option<CgroupId>>,
    /// The pod's former cgroups that existed then.
    former: Vec<(CgroupPath, CgroupId)>,
}

/// A cgroup that a pod had by an earlier plan.
pub(super) struct Former {
    id: CgroupId,
    uid: PodUid,
}

impl OpenCandidate {
    fn may_reopen_at(&self) -> Instant {
        self.opened + REOPEN_PAUSE
    }

    /// The cgroups whose memory it reads together with that of their direct children.
    fn paths(&self) -> impl Iterator<Item = &CgroupPath> {
        let adopted = self.plan.containers.iter().filter(|container| container.adopted);
        std::iter::once(&self.plan.cgroup.path)
            .chain(adopted.map(|container| &container.cgroup.path))
            .chain(self.former.iter().map(|(path, _)| path))
    }
}

fn is_evicted(plan: &PodPlan) -> bool {
    plan.admission.rejection() == Some(&Rejection::Evicted)
}

/// Returns the plan without adopted cgroups that another pod holds; `None` if that is the pod's own cgroup. Ending the
/// pod must not end another with it.
fn as_held(plan: &PodPlan, holders: &BTreeMap<CgroupPath, PodUid>) -> Option<PodPlan> {
    let is_held = |path: &CgroupPath| holders.get(path) == Some(&plan.uid);
    let may = |adopted: bool, path: &CgroupPath| !adopted || is_held(path);
    let mut held = may(plan.adopted, &plan.cgroup.path).then(|| plan.clone())?;
    held.containers.retain(|container| may(container.adopted, &container.cgroup.path));
    Some(held)
}

impl Desired {
    /// Returns the pods that may be evicted, with their files open, if they have changed since the last call.
    ///
    /// A pod without a cgroup is not a candidate. An unchanged candidate is handed out again. An evicted, rejected or
    /// unnamed pod is a candidate as long as its cgroup exists: what is left of it fills the node like any other (the
    /// kubelet counts terminating pods as active too). Without a process it is not chosen.
    pub(in crate::daemon) fn new_candidates(&mut self) -> Option<Vec<Arc<Candidate>>> {
        let now = Instant::now();
        let is_due = self.candidates_due().is_some_and(|due| due <= now);
        if !std::mem::take(&mut self.are_candidates_stale) && !is_due {
            return None;
        }
        let (root, plan) = (Arc::clone(self.hierarchy.as_ref()?.root()), Arc::clone(self.pods.plan()));
        let mut before = std::mem::take(&mut self.candidates);
        let mut differs = false;
        let mut order = Vec::new();
        let holders = cgroup::holders(&plan, &self.pods.retired().iter().collect());
        let planned = plan.pods.iter().filter_map(|pod| self.evicted_by(pod, &holders));
        let wanted: Vec<_> = planned.chain(self.pods.leaving().cloned().map(Cow::Owned)).collect();
        let uids: BTreeSet<_> = wanted.iter().map(|plan| plan.uid.clone()).collect();
        self.former.clear();
        for mut plan in wanted {
            let (id, former) = self.place(&mut plan, &holders);
            let known =
                former.iter().map(|(path, id)| (path.clone(), Former { id: *id, uid: plan.uid.clone() }));
            self.former.extend(known);
            let plan = plan.as_ref();
            let held = |path: &CgroupPath| self.held(&plan.uid, path, &holders);
            let containers: Vec<_> =
                plan.containers.iter().map(|container| held(&container.cgroup.path)).collect();
            let known = before.remove(&plan.uid);
            let was_known = known.is_some();
            let standing = known.filter(|standing| {
                standing.plan == *plan
                    && standing.candidate.facts().protected == self.protected.contains(&plan.name)
                    && Some(standing.candidate.facts().cgroup) == id
                    && standing.containers == containers
                    && standing.former == former
            });
            if let Some(mut standing) = standing {
                if !self.opening.branched.contains(&plan.uid) || now < standing.may_reopen_at() {
                    order.push(Arc::clone(&standing.candidate));
                    self.candidates.insert(plan.uid.clone(), standing);
                    continue;
                }
                standing.opened = now;
                match as_held(plan, &holders).map(|held| self.open(&root, &held, &former)) {
                    Some(Ok(candidate)) => {
                        differs = true;
                        standing.candidate = candidate;
                        self.aligning.reopen(&plan.uid);
                        self.opening.branched.remove(&plan.uid);
                    }
                    Some(Err(error @ OpenError::Forbidden { .. })) => {
                        differs = true;
                        self.opening.refuse(plan, standing.candidate.facts().cgroup, &error, now);
                        continue;
                    }
                    // The candidate opened before can still be evicted; opening is tried again.
                    Some(Err(OpenError::Cgroup(_))) | None => {}
                }
                order.push(Arc::clone(&standing.candidate));
                self.candidates.insert(plan.uid.clone(), standing);
                continue;
            }
            differs |= was_known;
            let Some((id, held)) = id.zip(as_held(plan, &holders)) else {
                self.opening.refused.forget(&plan.uid);
                continue;
            };
            if !self.opening.refused.may_try(plan, id, now) {
                continue;
            }
            match self.open(&root, &held, &former) {
                Ok(candidate) => {
                    differs = true;
                    self.opening.refused.forget(&plan.uid);
                    self.opening.branched.remove(&plan.uid);
                    order.push(Arc::clone(&candidate));
                    let standing =
                        OpenCandidate { plan: plan.clone(), candidate, opened: now, containers, former };
                    self.candidates.insert(plan.uid.clone(), standing);
                }
                // The next cgroup there has another id.
                Err(OpenError::Cgroup(error)) if error.is_gone() => self.opening.refused.forget(&plan.uid),
                Err(error) => self.opening.refuse(plan, id, &error, now),
            }
        }
        let Self { opening: Opening { refused, branched }, journal, candidates, .. } = self;
        refused.settle(|uid| uids.contains(uid), journal);
        branched.retain(|uid| candidates.contains_key(uid));
        if differs && !self.former.is_empty() {
            self.schedule.request_move(now);
        }
        (differs || !before.is_empty()).then_some(order)
    }

    /// Notes in which cgroups others were made or removed; in any, if the changes are unknown. A candidate has opened
    /// its files before that.
    pub(super) fn note_branches(&mut self, changes: Option<&Changes>) {
        let known = changes.filter(|changes| !changes.overflow);
        let is_changed = |path: &CgroupPath| known.is_none_or(|changes| changes.children.contains(path));
        let branched = self.candidates.iter().filter(|(_, standing)| standing.paths().any(is_changed));
        self.opening.branched.extend(branched.map(|(uid, _)| uid.clone()));
    }

    /// When a candidate is to be opened again, or a refused one tried again.
    pub(super) fn candidates_due(&self) -> Option<Instant> {
        let branched = self.opening.branched.iter().filter_map(|uid| self.candidates.get(uid));
        branched.map(OpenCandidate::may_reopen_at).chain(self.opening.refused.due()).min()
    }

    /// Where a pod is opened: the id of its own cgroup, and its former ones. If its new cgroup does not exist or is not
    /// available, all of the pod is in the former one, which then takes its place in the plan.
    pub(super) fn place(
        &self,
        plan: &mut Cow<'_, PodPlan>,
        holders: &BTreeMap<CgroupPath, PodUid>,
    ) -> (Option<CgroupId>, Vec<(CgroupPath, CgroupId)>) {
        let mut former = self.former(plan, holders);
        let own = self.held(&plan.uid, &plan.cgroup.path, holders).or_else(|| self.going(plan, holders));
        if own.is_some() || former.is_empty() {
            return (own, former);
        }
        let (path, id) = former.remove(0);
        let PodPlan { uid, cgroup, adopted, containers, .. } = plan.to_mut();
        (cgroup.path, *adopted) = (path, false);
        containers.retain(|container| self.held(uid, &container.cgroup.path, holders).is_some());
        (Some(id), former)
    }

    /// The planned cgroup at that path, if it exists and is this pod's.
    fn held(
        &self,
        uid: &PodUid,
        path: &CgroupPath,
        holders: &BTreeMap<CgroupPath, PodUid>,
    ) -> Option<CgroupId> {
        self.ids.get(path).copied().filter(|_| holders.get(path) == Some(uid))
    }

    /// The former cgroups of a pod that exist, and contain no other pod meanwhile.
    fn former(&self, plan: &PodPlan, holders: &BTreeMap<CgroupPath, PodUid>) -> Vec<(CgroupPath, CgroupId)> {
        let is_within = |inner: &CgroupPath, outer: &CgroupPath| {
            let rest = inner.as_str().strip_prefix(outer.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let is_others = |path: &CgroupPath| {
            holders.iter().any(|(held, holder)| *holder != plan.uid && is_within(held, path))
        };
        let is_former = |(path, going): &(&CgroupPath, &Going)| match &going.level {
            OwnerLevel::Pod { uid, .. } => *uid == plan.uid && **path != plan.cgroup.path && !is_others(path),
            OwnerLevel::Node | OwnerLevel::Qos(_) | OwnerLevel::Container { .. } => false,
        };
        let former = self.going.iter().filter(is_former);
        former.map(|(path, going)| (path.clone(), going.id)).collect()
    }

    /// The former cgroups whose processes may be moved: the reflex has candidates that know both places, so that no
    /// process is out of its reach for a moment. Processes being evicted die where they are.
    pub(super) fn movable(&self) -> BTreeSet<CgroupPath> {
        let stays = |path: &CgroupPath, id: CgroupId| self.being_evicted.covers(id, || Some(path.clone()));
        let to = |uid: &PodUid| {
            self.pods.plan().pods.iter().find(|plan| plan.uid == *uid).map(|plan| &plan.cgroup.path)
        };
        let knows_both = |uid: &PodUid| {
            let standing = self.candidates.get(uid);
            standing.is_none_or(|standing| Some(&standing.plan.cgroup.path) == to(uid))
        };
        self.former
            .iter()
            .filter(|(path, former)| knows_both(&former.uid) && !stays(path, former.id))
            .map(|(path, _)| path.clone())
            .collect()
    }

    /// The plan by which a pod may be evicted, if it may.
    fn evicted_by<'a>(
        &self,
        plan: &'a PodPlan,
        holders: &BTreeMap<CgroupPath, PodUid>,
    ) -> Option<Cow<'a, PodPlan>> {
        let is_retired = self.pods.retired().contains(&plan.uid);
        let stands = || self.going(plan, holders).is_some() || !self.former(plan, holders).is_empty();
        if !is_retired || (plan.adopted && is_evicted(plan)) || stands() {
            return Some(Cow::Borrowed(plan));
        }
        // Its own cgroup is gone, but its containers' adopted cgroups exist.
        let stands = |container: &&ContainerPlan| {
            let path = &container.cgroup.path;
            container.adopted && self.ids.contains_key(path) && holders.get(path) == Some(&plan.uid)
        };
        let elsewhere = plan.containers.iter().find(stands).filter(|_| is_evicted(plan))?;
        Some(Cow::Owned(PodPlan { cgroup: elsewhere.cgroup.clone(), adopted: true, ..plan.clone() }))
    }

    /// The pod's own cgroup, if it is removed once it holds no process, and is not another pod's meanwhile.
    fn going(&self, plan: &PodPlan, holders: &BTreeMap<CgroupPath, PodUid>) -> Option<CgroupId> {
        let path = &plan.cgroup.path;
        let is_own = !plan.adopted && holders.get(path).is_none_or(|holder| *holder == plan.uid);
        self.going.get(path).map(|going| going.id).filter(|_| is_own)
    }

    /// Where to look for the cause when the node fills: at the pods that may be evicted now.
    pub(in crate::daemon) fn targets(&self) -> Option<ForecastTargets> {
        let root = Arc::clone(self.hierarchy.as_ref()?.root());
        let suspect = |standing: &OpenCandidate, cgroup: CgroupId, path: &CgroupPath| GrowthCandidate {
            pod: standing.plan.name.clone(),
            uid: standing.plan.uid.clone(),
            cgroup,
            path: path.clone(),
            request_bytes: standing.plan.ranking_request_bytes,
        };
        let suspects = self
            .candidates
            .values()
            .flat_map(|standing| {
                let own = (&standing.plan.cgroup.path, standing.candidate.facts().cgroup);
                let former = standing.former.iter().map(|(path, id)| (path, *id));
                std::iter::once(own).chain(former).map(|(path, id)| suspect(standing, id, path))
            })
            .collect();
        let class = |(class, cgroup): &(QosClass, CgroupPlan)| {
            let name = match class {
                QosClass::Guaranteed => "guaranteed",
                QosClass::Burstable => "burstable",
                QosClass::BestEffort => "besteffort",
            };
            (name, cgroup.path.clone())
        };
        let node = std::iter::once(("kubepods", self.pods.plan().node.path.clone()));
        let slices = node.chain(self.pods.plan().qos.iter().map(class)).collect();
        Some(ForecastTargets { root, suspects, kubepods: Kubepods::of(self.pods.plan()), slices })
    }

    /// Opens a planned pod that is to make way; `None` if it has no cgroup, and so no processes.
    fn open_planned(&self, uid: &PodUid) -> Option<Arc<Candidate>> {
        let root = Arc::clone(self.hierarchy.as_ref()?.root());
        let plan = self.pods.plan().pods.iter().find(|plan| plan.uid == *uid)?;
        let plan = self.let_in(plan)?;
        let name = plan.name.clone();
        match self.open_wherever(&root, plan) {
            Ok(candidate) => Some(candidate),
            Err(OpenError::Cgroup(error)) if error.is_gone() => None,
            Err(error) => {
                let message =
                    format!("pod {} does not make way for a critical one: {}", name, crate::chain(&error));
                emit::degraded(&self.journal, "preemption", &message);
                None
            }
        }
    }

    /// The pod's plan as if it were admitted; `None` if its cgroup is another pod's.
    pub(super) fn let_in(&self, plan: &PodPlan) -> Option<PodPlan> {
        let retired = self.pods.retired().iter().filter(|retired| **retired != plan.uid).collect();
        as_held(plan, &cgroup::holders(self.pods.plan(), &retired))
    }

    /// Opens a pod apart from the candidates, with its former cgroups.
    pub(super) fn open_wherever(&self, root: &CgroupDir, plan: PodPlan) -> Result<Arc<Candidate>, OpenError> {
        let mut plan = Cow::Owned(plan);
        let holders = cgroup::holders(self.pods.plan(), &self.pods.retired().iter().collect());
        let (_, former) = self.place(&mut plan, &holders);
        self.open(root, &plan, &former)
    }

    fn open(
        &self,
        root: &CgroupDir,
        plan: &PodPlan,
        former: &[(CgroupPath, CgroupId)],
    ) -> Result<Arc<Candidate>, OpenError> {
        let candidate = self.opener.open(root, plan)?.with_former(root, former)?;
        Ok(Arc::new(candidate.protected(self.protected.contains(&plan.name))))
    }

    /// Ends a pod that a critical one preempts, on a thread for that; the emptying of its cgroup reports the end.
    pub(super) fn end(&mut self, uid: &PodUid) {
        if self.permit.is_none() {
            return;
        }
        // A pod that this daemon never admitted may run since an earlier daemon admitted it.
        let Some(candidate) = self
            .candidates
            .get(uid)
            .map(|standing| Arc::clone(&standing.candidate))
            .or_else(|| self.open_planned(uid))
        else {
            return;
        };
        let Some(entry) = self.pods.roster().get(uid) else { return };
        let grace = Duration::from_secs(entry.pod.termination_grace_period_seconds);
        let (name, journal) = (entry.pod.name.clone(), self.journal.clone());
        let done = move |ended: Result<Ending, EndError>| match ended {
            Ok(ending) => tracing::info!(pod = %name, ?ending, "made way for a critical pod"),
            Err(error) => {
                let message =
                    format!("pod {name} does not make way for a critical one: {}", crate::chain(&error));
                emit::degraded(&journal, "preemption", &message);
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
mod tests {
    use super::*;
    use crate::{
        model::{Adoption, Pod},
        policy::{Plan, Settings, admission::Admission, plan_decided},
        sample,
    };

    /// A pod that adopts that cgroup, and those containers'.
    fn adopting(name: &str, own: Option<&str>, containers: &[(&str, &str)]) -> Pod {
        let path = |text: &str| CgroupPath::parse(text).unwrap();
        let adopts = Adoption {
            pod: own.map(path),
            containers: containers.iter().map(|(name, text)| ((*name).to_owned(), path(text))).collect(),
        };
        let of = ["a", "b"];
        Pod { adopts: Some(adopts), ..sample::pod(name, &of) }
    }

    fn planned(pods: &[Pod]) -> Plan {
        let decided: Vec<_> = pods.iter().map(|pod| (pod, Admission::plain())).collect();
        plan_decided(&sample::node(), &Settings::default(), &decided)
    }

    /// The containers with which the last of these pods may be ended; none if it may not.
    fn ended_with(pods: &[Pod]) -> Option<Vec<String>> {
        let plan = planned(pods);
        let held = as_held(plan.pods.last()?, &cgroup::holders(&plan, &[].into()))?;
        Some(held.containers.into_iter().map(|container| container.name).collect())
    }

    #[test]
    fn nobody_is_ended_with_what_it_names_and_is_not_its_own() {
        let other = sample::pod("other", &["a"]);
        let of_other = planned(std::slice::from_ref(&other)).pods.remove(0);
        let (pods_cgroup, containers_cgroup) =
            (of_other.cgroup.path.as_str(), of_other.containers[0].cgroup.path.as_str());
        let within = format!("{containers_cgroup}/inner");
        for others in ["/kubepods", "/kubepods/besteffort", pods_cgroup, containers_cgroup, &within] {
            let with = |thief: Pod| ended_with(&[other.clone(), thief]);
            assert_eq!(with(adopting("thief", Some(others), &[])), None, "{others}");
            let containers = [("a", others), ("b", "/system.slice/b.service")];
            assert_eq!(with(adopting("thief", None, &containers)).unwrap(), ["b"], "{others}");
        }
        assert_eq!(ended_with(&[adopting("p", Some("/x"), &[("a", "/x/y")])]).unwrap(), ["a", "b"]);
        assert_eq!(ended_with(&[other, sample::pod("p", &["c"])]).unwrap(), ["c"]);
    }
}
