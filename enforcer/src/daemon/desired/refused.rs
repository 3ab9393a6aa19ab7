//! Pods whose candidates cannot be opened: when each is tried again, and how that is reported.
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::super::problems::Problems;
use crate::{
    cgroup::Problem,
    journal::Journal,
    model::{CgroupId, PodUid},
    policy::PodPlan,
};

/// The first and the longest pause before a pod is tried again; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// The pods that could not be opened. The number of pods is the bound.
#[derive(Debug, Default)]
pub(super) struct Refused {
    pods: BTreeMap<PodUid, Refusal>,
    problems: Problems,
}

#[derive(Debug)]
struct Refusal {
    plan: PodPlan,
    cgroup: CgroupId,
    message: String,
    pause: Duration,
    due: Instant,
}

impl Refused {
    /// Whether a pod may be tried now: it was not refused, has changed since, or its pause is over.
    pub(super) fn may_try(&self, plan: &PodPlan, cgroup: CgroupId, now: Instant) -> bool {
        self.pods
            .get(&plan.uid)
            .is_none_or(|refusal| refusal.due <= now || refusal.cgroup != cgroup || refusal.plan != *plan)
    }

    /// Notes that a pod could not be opened.
    pub(super) fn refuse(&mut self, plan: &PodPlan, cgroup: CgroupId, message: String, now: Instant) {
        let pause = match self.pods.get(&plan.uid) {
            Some(before) => (before.pause * 2).min(LONGEST_PAUSE),
            None => FIRST_PAUSE,
        };
        let refusal = Refusal { plan: plan.clone(), cgroup, message, pause, due: now + pause };
        self.pods.insert(plan.uid.clone(), refusal);
    }

    /// Notes that a pod was opened, or has nothing to open.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
    }

    /// Forgets pods that are no longer candidates, and reports each pod when it begins and when it ceases to be refused.
    pub(super) fn settle(&mut self, is_wanted: impl Fn(&PodUid) -> bool, journal: &Journal) {
        self.pods.retain(|uid, _| is_wanted(uid));
        let problem = |refusal: &Refusal| Problem {
            what: "candidate",
            place: refusal.plan.name.to_string(),
            message: refusal.message.clone(),
        };
        self.problems.renew(self.pods.values().map(problem).collect(), journal);
    }

    /// When the next pod is to be tried again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.pods.values().map(|refusal| refusal.due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        journal::{Batch, EventType, Filter},
        policy::{Plan, Settings, admission::Admission, plan_decided},
        sample,
    };

    const CGROUP: CgroupId = CgroupId(7);

    fn plan(name: &str) -> PodPlan {
        let pod = sample::pod(name, &["a"]);
        let plan: Plan = plan_decided(&sample::node(), &Settings::default(), &[(&pod, Admission::plain())]);
        PodPlan::clone(&plan.pods[0])
    }

    fn reported(journal: &Journal) -> Vec<EventType> {
        match journal.reader(None, Filter::default()).read() {
            Some(Batch::Records(records)) => records.iter().map(|record| record.kind).collect(),
            Some(Batch::Gap { .. }) | None => Vec::new(),
        }
    }

    #[test]
    fn it_is_tried_again_after_pauses_that_grow_to_a_minute() {
        let (plan, mut refused, mut now) = (plan("p"), Refused::default(), Instant::now());
        let mut pauses_s = Vec::new();
        for _ in 0..8 {
            assert!(refused.may_try(&plan, CGROUP, now));
            refused.refuse(&plan, CGROUP, String::from("no"), now);
            assert!(!refused.may_try(&plan, CGROUP, now));
            let due = refused.due().unwrap();
            pauses_s.push((due - now).as_secs());
            now = due;
        }
        assert_eq!(pauses_s, [1, 2, 4, 8, 16, 32, 60, 60]);
        refused.forget(&plan.uid);
        assert_eq!(refused.due(), None);
        assert!(refused.may_try(&plan, CGROUP, now));
    }

    #[test]
    fn another_plan_or_cgroup_is_tried_at_once() {
        let (pod, mut refused, now) = (plan("p"), Refused::default(), Instant::now());
        refused.refuse(&pod, CGROUP, String::from("no"), now);
        assert!(refused.may_try(&pod, CgroupId(8), now));
        let other = PodPlan { critical: !pod.critical, ..pod.clone() };
        assert!(refused.may_try(&other, CGROUP, now));
        assert!(!refused.may_try(&pod, CGROUP, now));
    }

    #[test]
    fn each_is_reported_once_and_none_is_kept_without_its_pod() {
        let (journal, mut refused, now) = (Journal::new("n", "b"), Refused::default(), Instant::now());
        for number in 0..20 {
            let pod = plan(&format!("p{number}"));
            // The message differs each time, as one that names a process does.
            for attempt in 0..3 {
                refused.refuse(&pod, CGROUP, format!("process {number}{attempt}"), now);
                refused.settle(|uid| *uid == pod.uid, &journal);
            }
            assert_eq!(refused.pods.len(), 1);
        }
        refused.settle(|_| false, &journal);
        assert!(refused.pods.is_empty());
        let reported = reported(&journal);
        assert_eq!(reported.len(), 40);
        let entered = reported.iter().filter(|kind| **kind == EventType::DegradedEntered).count();
        assert_eq!(entered, 20);
    }
}
