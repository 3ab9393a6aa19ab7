//! Scores aligned with the ranking, for `oomScorePolicy: ranked`.

mod undoing;

use std::{
    collections::BTreeMap,
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use self::undoing::Undoing;
use super::{Desired, Extent, emit};
use crate::{
    cgroup::{CgroupDir, Error, Permit},
    config::Mode,
    journal::Journal,
    model::{CgroupId, CgroupPath, Limit, Node, PodName, PodUid},
    policy::{
        Plan, PodPlan,
        alignment::{Aligner, Band, Contender, OomScorePolicy, Scale, Weighed},
        rank::MemoryRankKey,
    },
    sense::snapshot::{Missing, Weight, WeightFiles},
    threads,
};

/// How often pods are weighed: at rest; while weights change and for a while after that; and when pods come or go.
const AT_REST: Duration = Duration::from_secs(10);
const MOVING: Duration = Duration::from_secs(1);
const LIVELY: Duration = Duration::from_secs(15);
const SOON: Duration = Duration::from_millis(500);

/// A change of weights by more than this part of the node's memory between two looks is not rest.
const MOVING_SHARE: u64 = 100;

/// `memory.stat` has about 2 KiB.
const BUFFER_BYTES: usize = 8 * 1_024;

/// Whether the kernel kills the allocating task, whatever the scores.
const KILLS_ALLOCATING_TASK: &str = "/proc/sys/vm/oom_kill_allocating_task";

/// The state of the alignment: the pods being weighed, and the scores set.
pub(super) struct Aligning {
    aligner: Aligner<PodUid>,
    members: Vec<Member>,
    /// Whether the plan or the cgroups have changed since the members were opened.
    is_stale: bool,
    next: Instant,
    /// Until then pods are weighed often: a pod that has just come allocates its memory only now.
    fast_until: Instant,
    /// The scores that an earlier daemon has left; `None` if they are undone, or need not be.
    undoing: Option<Undoing>,
}

/// A pod that is weighed.
struct Member {
    uid: PodUid,
    cgroup: CgroupId,
    /// The files of its own cgroup, and of containers elsewhere.
    files: Vec<WeightFiles>,
    /// The last successful reading; `None` if the pod has no cgroup any more.
    weight: Option<Weight>,
}

impl Default for Aligning {
    fn default() -> Self {
        let now = Instant::now();
        let (aligner, members) = (Aligner::default(), Vec::new());
        Self { aligner, members, is_stale: true, next: now, fast_until: now, undoing: None }
    }
}

impl Aligning {
    /// No pods and no scores yet. `beside_kubelet` is the mode of a daemon beside a kubelet: it has to undo what an
    /// earlier one has left, as otherwise nothing does, and the scores that are assumed here would not be in force.
    pub(super) fn new(beside_kubelet: Option<Mode>) -> Self {
        Self { undoing: beside_kubelet.map(|mode| Undoing::new(mode, Instant::now())), ..Self::default() }
    }

    /// Notes that the plan or the cgroups have changed.
    pub(super) fn renew(&mut self) {
        self.is_stale = true;
        self.next = self.next.min(Instant::now() + SOON);
    }

    /// Notes that a pod's files are to be opened again.
    pub(super) fn reopen(&mut self, uid: &PodUid) {
        self.members.retain(|member| member.uid != *uid);
        self.renew();
    }

    /// Notes that a resource falls fast: the pod that takes it is weighed at once, however long all were at rest.
    fn boost(&mut self) {
        let now = Instant::now();
        (self.next, self.fast_until) = (now, now + LIVELY);
    }

    /// The band that limits the scores of a pod's containers, if there is one.
    pub(super) fn band(&self, uid: &PodUid) -> Option<Band> {
        self.aligner.set().get(uid).copied()
    }

    /// The scores of containers that differ from the planned ones.
    fn scores(&self, plan: &Plan) -> BTreeMap<CgroupPath, i16> {
        let mut scores = BTreeMap::new();
        for pod in &plan.pods {
            let Some(band) = self.band(&pod.uid) else { continue };
            for container in &pod.containers {
                let held = band.hold(container.oom_score_adj);
                if held != container.oom_score_adj {
                    scores.insert(container.cgroup.path.clone(), held);
                }
            }
        }
        scores
    }

    /// The pods of the plan as they were weighed last. `is_protected`: whether an operator has spared a pod.
    fn weighed(&self, plan: &Plan, is_protected: impl Fn(&PodName) -> bool) -> Vec<Weighed<PodUid>> {
        let places: BTreeMap<&PodUid, (u32, &PodPlan)> =
            (0_u32..).zip(&plan.pods).map(|(place, pod)| (&pod.uid, (place, &**pod))).collect();
        let weighed = |member: &Member| {
            let (order, pod) = *places.get(&member.uid)?;
            let weight = member.weight?;
            let scores = || pod.containers.iter().map(|container| container.oom_score_adj);
            Some(Weighed {
                key: member.uid.clone(),
                standing: MemoryRankKey {
                    usage_bytes: Some(weight.working_set_bytes),
                    request_bytes: pod.ranking_request_bytes,
                    priority: pod.eviction_priority,
                    order,
                },
                contender: Contender {
                    lowest: scores().min()?,
                    highest: scores().max()?,
                    weight_bytes: weight.process_bytes,
                    // A pod without a process cannot be killed.
                    is_spared: pod.critical || is_protected(&pod.name) || weight.process_bytes == 0,
                    set: None,
                },
            })
        };
        self.members.iter().filter_map(weighed).collect()
    }
}

impl Desired {
    /// When scores of an earlier daemon are to be undone, or else pods to be weighed next; `None` if scores are not
    /// aligned.
    pub(super) fn alignment_due(&self) -> Option<Instant> {
        if let Some(undoing) = &self.aligning.undoing {
            return Some(undoing.due());
        }
        let is_wanted = self.config.oom_score_policy == OomScorePolicy::Ranked;
        let may_be = self.scores_permit.is_some() && self.hierarchy.is_some();
        (is_wanted && may_be).then_some(self.aligning.next)
    }

    /// Weighs the pods if it is time, and realigns scores that no longer follow the ranking. Before the first time, what an
    /// earlier daemon has left is undone.
    pub(super) async fn align(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        if self.alignment_due().is_none_or(|due| now < due) {
            return Ok(());
        }
        if self.aligning.undoing.is_some() {
            return self.undo_scores(now).await;
        }
        let (Some(hierarchy), Some(permit)) = (self.hierarchy.clone(), self.scores_permit.clone()) else {
            return Ok(());
        };
        let (root, plan) = (Arc::clone(hierarchy.root()), Arc::clone(self.pods.plan()));
        let wanted = std::mem::take(&mut self.aligning.is_stale)
            .then(|| self.existing.running(&plan, self.pods.retired()));
        let others_came = wanted.is_some();
        let mut members = std::mem::take(&mut self.aligning.members);
        // The kernel may have to sum up the counters of all CPUs.
        let (members, moved_bytes) = threads::blocking(move || {
            if let Some(wanted) = wanted {
                members = reopened(members, &wanted, &root, &plan);
            }
            let moved_bytes =
                members.iter_mut().fold(0_u64, |sum, member| sum.saturating_add(member.weigh()));
            (members, moved_bytes)
        })
        .await;
        let is_moving = moved_bytes > self.pods.node().memory_bytes / MOVING_SHARE;
        if is_moving || others_came {
            self.aligning.fast_until = now + LIVELY;
        }
        self.aligning.next = now + if now < self.aligning.fast_until { MOVING } else { AT_REST };
        self.aligning.members = members;
        let is_protected = |name: &PodName| self.candidates.is_protected(name);
        let weighed = self.aligning.weighed(self.pods.plan(), is_protected);
        let differs = self.aligning.aligner.look(scale(self.pods.node(), self.pods.plan()), &weighed);
        if differs || self.permit.is_none() {
            self.apply_alignment(permit).await?;
        }
        Ok(())
    }

    /// Has the pods weighed at once, because a resource falls fast.
    pub(in crate::daemon) fn boost(&mut self) {
        self.aligning.boost();
    }

    /// Resets all containers to their planned scores.
    pub(in crate::daemon) async fn unalign(&mut self) -> anyhow::Result<()> {
        self.aligning.members.clear();
        self.aligning.is_stale = true;
        if let Some(permit) = self.scores_permit.clone()
            && self.aligning.aligner.release()
        {
            self.apply_alignment(permit).await?;
        }
        Ok(())
    }

    async fn apply_alignment(&mut self, permit: Arc<Permit>) -> anyhow::Result<()> {
        let scores = self.aligning.scores(self.pods.plan());
        self.change(Extent::Cgroups, move |reconciler| reconciler.align(scores, &permit)).await
    }
}

impl Member {
    fn open(root: &CgroupDir, pod: &PodPlan, cgroup: CgroupId) -> Result<Self, Error> {
        let dir = root.open(&pod.cgroup.path)?;
        let mut files = vec![WeightFiles::open(&dir)?];
        let below = format!("{}/", pod.cgroup.path);
        for container in pod.containers.iter().filter(|container| container.adopted) {
            let path = &container.cgroup.path;
            if *path == pod.cgroup.path || path.as_str().starts_with(&below) {
                continue;
            }
            match root.open(path).and_then(|dir| WeightFiles::open(&dir)) {
                Ok(more) => files.push(more),
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { uid: pod.uid.clone(), cgroup, files, weight: None })
    }

    /// Weighs the pod; returns by how much its weight changed.
    fn weigh(&mut self) -> u64 {
        let mut buffer = [0; BUFFER_BYTES];
        let mut whole: Option<Weight> = None;
        for files in &mut self.files {
            match files.read(&mut buffer) {
                Ok(weight) => whole = Some(whole.map_or(weight, |whole| whole.plus(weight))),
                Err(Missing::Gone) => {}
                // The previous reading remains.
                Err(Missing::Absent | Missing::Unread | Missing::Failed(_) | Missing::Malformed) => return 0,
            }
        }
        let bytes = |weight: Option<Weight>| weight.map_or(0, |weight| weight.process_bytes);
        let moved = bytes(self.weight).abs_diff(bytes(whole));
        self.weight = whole;
        moved
    }
}

/// Returns the members for these cgroups: known ones are kept, the others opened.
fn reopened(
    members: Vec<Member>,
    wanted: &BTreeMap<PodUid, CgroupId>,
    root: &CgroupDir,
    plan: &Plan,
) -> Vec<Member> {
    let mut before: BTreeMap<PodUid, Member> =
        members.into_iter().map(|member| (member.uid.clone(), member)).collect();
    let pods = plan.pods.iter().filter_map(|pod| Some((&**pod, *wanted.get(&pod.uid)?)));
    let open = |(pod, cgroup): (&PodPlan, CgroupId)| {
        if let Some(member) = before.remove(&pod.uid).filter(|member| member.cgroup == cgroup) {
            return Some(member);
        }
        Member::open(root, pod, cgroup)
            .inspect_err(|error| {
                if !error.is_gone() {
                    tracing::warn!(pod = %pod.name, error = %crate::chain(error), "its scores cannot follow the ranking");
                }
            })
            .ok()
    };
    pods.filter_map(open).collect()
}

fn scale(node: &Node, plan: &Plan) -> Scale {
    let limit_bytes = plan.node.values.memory_max.and_then(Limit::amount);
    Scale::new(node.memory_bytes, node.swap_bytes, limit_bytes, node.page_bytes)
}

/// Reports settings that make scores useless.
pub(super) fn emit_hindrances(policy: OomScorePolicy, journal: &Journal) {
    let kills_allocating =
        fs::read_to_string(KILLS_ALLOCATING_TASK).is_ok_and(|setting| setting.trim_ascii() != "0");
    if policy == OomScorePolicy::Ranked && kills_allocating {
        emit::degraded(
            journal,
            "oomScorePolicy",
            "vm.oom_kill_allocating_task is set: the kernel kills the allocating process, whatever its score; set it to 0",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stir_has_the_pods_weighed_at_once_and_often_for_a_while() {
        let start = Instant::now();
        let mut aligning =
            Aligning { next: start + AT_REST, fast_until: start, is_stale: false, ..Aligning::default() };
        aligning.boost();
        assert!(aligning.next <= Instant::now());
        assert!(aligning.fast_until >= start + LIVELY);
    }
}
