//! The pods of all sources, which of them may run, and the plan that follows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{super::ended_pods::EndedPodStore, cpus::PinnedCpus};
use crate::{
    model::{Node, Placement, Pod, PodUid, ResourceList},
    policy::{
        self, Plan, PodPlan, Settings,
        admission::{Admission, Amounts},
        pressure::Conditions,
    },
    source::{
        AdmittedBy, Change, Decisions, EndedPod, Grounds, Roster, Snapshot, SourceName, Sources, State,
    },
};

/// From snapshots of sources, evictions, conditions and the cgroups that exist to the plan in force. It touches no cgroup
/// and reports nothing: what it returns is carried out and reported by others.
#[derive(Debug)]
pub(super) struct PodSet {
    node: Node,
    settings: Settings,
    sources: Sources,
    roster: Roster,
    /// Keeps the pods that were ended for good; `None` if they cannot be kept.
    keeper: Option<EndedPodStore>,
    /// The number of the latest eviction.
    eviction: u64,
    /// What is reserved for others than pods.
    reserved: ResourceList,
    /// The node's conditions, as last reported by the reflex.
    conditions: Conditions,
    /// The pods whose cgroup exists, wanted or not.
    standing: BTreeSet<PodUid>,
    /// Whether one of them, or of the pods that another waits for, is gone since the last admission.
    has_new_room: bool,
    /// Whether an eviction or a condition came after the plan was made.
    is_due: bool,
    plan: Arc<Plan>,
    /// The pods in the plan that are not to run.
    retired: Vec<PodUid>,
    /// The plans of pods that no source names any longer.
    leaving: BTreeMap<PodUid, Arc<PodPlan>>,
    /// Where a kubelet's pods are.
    placements: BTreeMap<PodUid, Placement>,
    /// The CPUs that containers have of their own; `None` if none may have any.
    cpus: Option<PinnedCpus>,
}

impl PodSet {
    /// Without pods, and with manifests as the only source.
    pub(super) fn new(node: Node, settings: Settings) -> Self {
        let plan = Arc::new(policy::plan(&node, &settings, &[]));
        Self {
            node,
            settings,
            sources: Sources::default().with(SourceName::STATIC, AdmittedBy::Roster),
            roster: Roster::new(),
            keeper: None,
            eviction: 0,
            reserved: ResourceList::new(),
            conditions: Conditions::default(),
            standing: BTreeSet::new(),
            has_new_room: false,
            is_due: false,
            plan,
            retired: Vec::new(),
            leaving: BTreeMap::new(),
            placements: BTreeMap::new(),
            cpus: None,
        }
    }

    /// Adds the cgroups of a kubelet's pods as a source, after manifests.
    pub(super) fn add_kubelet(&mut self) {
        self.sources = std::mem::take(&mut self.sources).with(SourceName::CGROUPS, AdmittedBy::Other);
    }

    /// Sets where a kubelet's pods are; the next [plan](Self::replan) accounts for it. Returns whether that is a change.
    pub(super) fn place(&mut self, placements: BTreeMap<PodUid, Placement>) -> bool {
        let differs = self.placements != placements;
        self.placements = placements;
        differs
    }

    /// Sets who has which CPUs; the next [plan](Self::replan) accounts for it.
    pub(super) fn set_cpus(&mut self, cpus: PinnedCpus) {
        self.cpus = Some(cpus);
        self.is_due = true;
    }

    /// Who has which CPUs.
    pub(super) fn cpus(&self) -> Option<&PinnedCpus> {
        self.cpus.as_ref()
    }

    /// The same, to change it.
    pub(super) fn cpus_mut(&mut self) -> Option<&mut PinnedCpus> {
        self.cpus.as_mut()
    }

    /// Notes that what is known of CPUs has changed: then a plan is due.
    pub(super) fn is_due_for_cpus(&mut self) {
        self.is_due = true;
    }

    /// Takes over the pods that were ended for good before.
    pub(super) fn remember(&mut self, ended: Vec<EndedPod>) {
        self.roster.remember(ended);
    }

    /// Sets the store that keeps the pods ended for good from now on.
    pub(super) fn set_keeper(&mut self, keeper: EndedPodStore) {
        self.keeper = Some(keeper);
    }

    /// Applies other settings with the next [plan](Self::replan).
    pub(super) fn configure(&mut self, settings: &Settings, most_pods: u64) {
        self.settings.clone_from(settings);
        self.node.pods = most_pods;
    }

    /// Takes what a source knows now. Returns what has changed; the next [plan](Self::replan) accounts for it.
    pub(super) fn take(&mut self, source: SourceName, snapshot: Snapshot) -> Vec<Change> {
        self.sources.take(source, snapshot);
        let changes = self.roster.apply(self.sources.pods());
        if self.sources.are_up() {
            self.roster.forget_the_unnamed();
        }
        changes
    }

    /// Notes an eviction under that number; 0 is an operator's. Returns whether the pod is evicted from now on: then a
    /// plan is due.
    pub(super) fn evict(&mut self, uid: &PodUid, number: u64) -> bool {
        self.eviction = self.eviction.max(number);
        if self.roster.evict(uid) {
            self.is_due = true;
            return true;
        }
        // The rest of a pod that is evicted or deleted already: only the eviction's number is kept.
        if !self.is_due {
            self.keep_ended();
        }
        false
    }

    /// Sets the node's conditions. Returns whether they differ: then a plan is due.
    pub(super) fn set_conditions(&mut self, conditions: Conditions) -> bool {
        let differs = std::mem::replace(&mut self.conditions, conditions) != conditions;
        self.is_due |= differs;
        differs
    }

    /// Sets what is reserved for others than pods. Returns whether that differs: then a plan is due.
    pub(super) fn set_reserved(&mut self, reserved: ResourceList) -> bool {
        let differs = self.reserved != reserved;
        self.reserved = reserved;
        self.is_due |= differs;
        differs
    }

    /// Notes which pods have a cgroup now, and forgets those that left and have none.
    pub(super) fn stand(&mut self, standing: BTreeSet<PodUid>) {
        self.has_new_room = !self.standing.is_subset(&standing) || self.roster.awaits_other_than(&standing);
        self.standing = standing;
        if let Some(cpus) = &mut self.cpus {
            cpus.stand();
        }
        self.forget_those_without_cgroup();
    }

    /// The same where there are no cgroups at all.
    pub(super) fn stand_without_cgroups(&mut self) {
        self.has_new_room = self.roster.awaits_other_than(&self.standing);
        self.forget_those_without_cgroup();
    }

    /// Whether there is room that was not there at the last admission. Asked once, it is no longer new.
    pub(super) fn take_new_room(&mut self) -> bool {
        std::mem::take(&mut self.has_new_room)
    }

    /// Whether something came after the plan was made that the plan does not account for.
    pub(super) fn is_due(&self) -> bool {
        self.is_due || self.cpus.as_ref().is_some_and(PinnedCpus::is_due)
    }

    /// Decides which pods may run, and plans anew. Returns the decisions that differ, and whether the plan does. Pods that
    /// may not start stay in the plan, retired, so that their cgroups are not forgotten while they exist.
    pub(super) fn replan(&mut self) -> (Decisions, bool) {
        self.is_due = false;
        let conditions = &self.conditions.iter().collect::<Vec<_>>()[..];
        let (node, settings, standing) = (&self.node, &self.settings, &self.standing);
        let reserved = &self.reserved;
        let is_loaded = self.sources.are_read();
        let cpus = self.cpus.as_ref().and_then(|cpus| cpus.grounds(is_loaded));
        let grounds = Grounds { node, settings, reserved, conditions, standing, cpus };
        let mut decisions = self.roster.admit(&grounds);
        let decided = decisions.cpus.take();
        let unwritten = self.cpus.as_mut().map(|cpus| cpus.take(decided)).unwrap_or_default();
        let entries = self.roster.entries();
        let pods: Vec<(&Pod, Admission)> =
            entries.iter().filter_map(|entry| Some((entry.pod.as_ref(), entry.admission()?))).collect();
        let mut plan = policy::plan_placed(node, settings, &pods, &self.placements);
        if let Some(assignments) = self.cpus.as_ref().and_then(PinnedCpus::assignments) {
            plan.pin(assignments, settings);
        }
        plan.share_with(&self.plan);
        let plan = Arc::new(plan);
        let waits = |entry: &&&crate::source::Entry| !entry.may_start() || unwritten.contains(&entry.pod.uid);
        let retired: Vec<PodUid> = entries.iter().filter(waits).map(|entry| entry.pod.uid.clone()).collect();
        let differs = self.plan != plan || self.retired != retired;
        let before = std::mem::replace(&mut self.plan, plan);
        self.retired = retired;
        self.keep_leaving(&before);
        self.keep_ended();
        (decisions, differs)
    }

    /// The plan in force.
    pub(super) fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// The pods in the plan that are not to run.
    pub(super) fn retired(&self) -> &[PodUid] {
        &self.retired
    }

    /// The plans of pods that no source names any longer, for the cgroups that they own.
    pub(super) fn leaving(&self) -> impl Iterator<Item = &Arc<PodPlan>> {
        self.leaving.values()
    }

    /// Every pod and its state.
    pub(super) fn roster(&self) -> &Roster {
        &self.roster
    }

    /// What a source knew last.
    pub(super) fn source(&self, name: SourceName) -> Option<&Snapshot> {
        self.sources.get(name)
    }

    /// Whether every source has been read.
    pub(super) fn is_loaded(&self) -> bool {
        self.sources.are_read()
    }

    /// What is allocated by: the node, the settings in force, and what pods request.
    pub(super) fn allocation(&self) -> (&Node, &Settings, &Amounts) {
        (&self.node, &self.settings, self.roster.requested())
    }

    /// The node.
    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    /// Stores the pods that were ended for good.
    fn keep_ended(&mut self) {
        if self.sources.are_read()
            && let Some(keeper) = &mut self.keeper
        {
            keeper.keep(self.roster.ended(), std::mem::take(&mut self.eviction));
        }
    }

    /// Keeps the plans of pods that no source names any longer; `before` is the plan that named them last.
    fn keep_leaving(&mut self, before: &Plan) {
        let entries = self.roster.entries();
        let leaving = entries.iter().filter(|entry| entry.state == State::Leaving);
        keep_leaving(&mut self.leaving, before, &leaving.map(|entry| &entry.pod.uid).collect());
    }

    /// Forgets a pod that left once its cgroup is gone; at once if it had none here.
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
}

fn keep_leaving(kept: &mut BTreeMap<PodUid, Arc<PodPlan>>, before: &Plan, leaving: &BTreeSet<&PodUid>) {
    kept.retain(|uid, _| leaving.contains(uid));
    for plan in before.pods.iter().filter(|plan| !plan.adopted && leaving.contains(&plan.uid)) {
        // Adopted cgroups live on without the daemon.
        let mut left = PodPlan::clone(plan);
        left.containers.retain(|container| !container.adopted);
        kept.insert(plan.uid.clone(), Arc::new(left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{Quantity, Requirements, ResourceName},
        policy::{admission::Rejection, threshold::NodeCondition},
        sample,
        source::Health,
    };

    fn snapshot(pods: &[Pod], health: Health) -> Snapshot {
        Snapshot { pods: pods.iter().cloned().map(Arc::new).collect(), health, read_ms: Some(1) }
    }

    fn pod_set() -> PodSet {
        PodSet::new(sample::node(), Settings::default())
    }

    /// Takes the pods of manifests, and plans.
    fn take(pods: &mut PodSet, of: &[Pod], health: Health) -> (Vec<Change>, Decisions, bool) {
        let changes = pods.take(SourceName::STATIC, snapshot(of, health));
        let (decisions, differs) = pods.replan();
        (changes, decisions, differs)
    }

    fn planned(pods: &PodSet) -> Vec<&str> {
        pods.plan().pods.iter().map(|plan| plan.name.name.as_str()).collect()
    }

    #[test]
    fn pods_come_into_the_plan_and_leave_it_when_their_cgroup_has_gone() {
        let mut pods = pod_set();
        assert!(!pods.is_loaded());
        let (a, b) = (sample::pod("a", &["c"]), sample::pod("b", &["c"]));
        let (changes, decisions, differs) = take(&mut pods, &[a.clone(), b.clone()], Health::Up);
        assert_eq!((changes.len(), decisions, differs), (2, Decisions::default(), true));
        assert_eq!(planned(&pods), ["a", "b"]);
        assert!(pods.is_loaded() && pods.retired().is_empty());
        assert!(!pods.replan().1, "nothing has happened since");
        pods.stand([a.uid.clone(), b.uid.clone()].into());

        let (changes, ..) = take(&mut pods, std::slice::from_ref(&a), Health::Up);
        assert_eq!(changes, [Change::Removed(Arc::new(b.clone()))]);
        assert_eq!(planned(&pods), ["a"]);
        assert_eq!(pods.leaving().map(|plan| &plan.uid).collect::<Vec<_>>(), [&b.uid]);
        assert!(pods.roster().get(&b.uid).is_some(), "its cgroup stands");
        pods.stand([a.uid].into());
        assert!(pods.roster().get(&b.uid).is_none());
        assert!(pods.take_new_room() && !pods.take_new_room());
    }

    #[test]
    fn an_evicted_pod_is_retired_with_the_next_plan() {
        let mut pods = pod_set();
        let pod = sample::pod("a", &["c"]);
        take(&mut pods, std::slice::from_ref(&pod), Health::Up);
        assert!(pods.evict(&pod.uid, 1) && pods.is_due());
        assert!(!pods.evict(&pod.uid, 2), "it is already");
        assert!(pods.replan().1);
        assert_eq!((pods.retired(), pods.is_due()), (&[pod.uid.clone()][..], false));
        assert_eq!(pods.plan().pods[0].admission.rejection(), Some(&Rejection::Evicted));
    }

    #[test]
    fn what_is_reserved_no_pod_gets_and_a_pod_comes_in_when_it_is_released() {
        let mut pods = pod_set();
        let all = [(ResourceName::new("cpu"), Quantity::from_milli(4_000))].into();
        assert!(pods.set_reserved(all) && pods.is_due());
        let asking = requesting("a", "1");
        let (_, decisions, _) = take(&mut pods, std::slice::from_ref(&asking), Health::Up);
        assert_eq!(decisions.rejected.len(), 1);
        assert_eq!(pods.allocation().2.get("cpu"), 0, "a pod that does not run requests nothing");
        assert!(pods.set_reserved(ResourceList::new()) && !pods.set_reserved(ResourceList::new()));
        pods.replan();
        assert!(pods.retired().is_empty());
        assert_eq!(pods.allocation().2.get("cpu"), 1_000);
    }

    fn requesting(name: &str, cpu: &str) -> Pod {
        let mut pod = sample::pod(name, &["c"]);
        let requests = [(ResourceName::new("cpu"), cpu.parse().unwrap())].into();
        pod.containers[0].resources = Requirements { requests, ..Requirements::default() };
        pod
    }

    #[test]
    fn under_a_condition_no_pod_comes_in_that_may_not() {
        let mut pods = pod_set();
        let pressure: Conditions = [NodeCondition::MemoryPressure].into_iter().collect();
        assert!(pods.set_conditions(pressure) && pods.is_due());
        assert!(!pods.set_conditions(pressure), "it is known");
        let (_, decisions, _) = take(&mut pods, &[sample::pod("a", &["c"])], Health::Up);
        assert_eq!(decisions.rejected.len(), 1);
        assert_eq!(pods.retired().len(), 1);
        assert!(pods.set_conditions(Conditions::default()));
        pods.replan();
        assert!(pods.retired().is_empty());
    }

    #[test]
    fn a_source_that_is_down_takes_no_pod_away() {
        let mut pods = pod_set();
        let pod = sample::pod("a", &["c"]);
        pods.remember(vec![EndedPod {
            uid: String::from("other"),
            fingerprint: None,
            why: crate::source::Why::Evicted,
        }]);
        take(&mut pods, std::slice::from_ref(&pod), Health::Down);
        assert!(pods.is_loaded());
        assert_eq!(pods.roster().ended().len(), 1, "it may be in what cannot be read");
        take(&mut pods, std::slice::from_ref(&pod), Health::Up);
        assert!(pods.roster().ended().is_empty());
    }

    #[test]
    fn a_leaving_pod_is_known_by_its_last_plan_until_it_is_back_or_gone() {
        let app = ["a", "b"];
        let took = sample::adopting("took", None, &[("a", "/system.slice/a.service")]);
        let lent = sample::adopting("lent", Some("/x"), &[]);
        let mut pods = pod_set();
        let all = [sample::pod("left", &app), took, lent, sample::pod("stays", &app)];
        take(&mut pods, &all, Health::Up);
        pods.stand(all.iter().map(|pod| pod.uid.clone()).collect());
        let known = |pods: &PodSet| {
            let of = |plan: &Arc<PodPlan>| (plan.name.name.clone(), plan.containers.len());
            let mut known: Vec<_> = pods.leaving().map(of).collect();
            known.sort();
            known
        };
        take(&mut pods, &all[3..], Health::Up);
        // One that is another's wholly is not ours to end any more.
        assert_eq!(known(&pods), [(String::from("left"), 2), (String::from("took"), 1)]);
        pods.replan();
        assert_eq!(known(&pods).len(), 2, "the plans after that do not name them");
        pods.stand([all[1].uid.clone(), all[3].uid.clone()].into());
        pods.replan();
        assert_eq!(known(&pods), [(String::from("took"), 1)]);
    }
}
