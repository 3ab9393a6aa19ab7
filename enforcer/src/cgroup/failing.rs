//! Holds failed steps back: a lasting refusal costs one try a minute and delays nothing else.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{Step, report::Problem};
use crate::model::{CgroupFile, CgroupPath};

/// How long after a failure a step is tried again: at first, and at most.
const DELAY_MIN: Duration = Duration::from_secs(1);
const DELAY_MAX: Duration = Duration::from_mins(1);

/// The steps that failed and have not succeeded since, with the time of the next try.
///
/// A lasting refusal, such as that of a read-only file system, costs one try a minute and delays nothing else.
#[derive(Debug, Default)]
pub(super) struct Failing {
    entries: BTreeMap<(CgroupPath, Target), Entry>,
}

/// The operation on a cgroup that failed.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Target {
    Create,
    Enable,
    File(CgroupFile),
    /// The processes of that cgroup.
    Move(CgroupPath),
}

#[derive(Debug)]
struct Entry {
    /// The value to be written: another value is tried at once.
    value: String,
    message: String,
    delay: Duration,
    due: Instant,
}

impl Failing {
    /// Whether a step failed lately and has to wait.
    pub(super) fn holds_back(&self, step: &Step, now: Instant) -> bool {
        let (target, value) = parts(step);
        self.entries
            .get(&(step.path().clone(), target))
            .is_some_and(|entry| entry.value == value && now < entry.due)
    }

    /// Notes that a step failed. Returns whether that is news.
    pub(super) fn failed(&mut self, step: &Step, message: String, now: Instant) -> bool {
        let (target, value) = parts(step);
        let key = (step.path().clone(), target);
        let before = self.entries.get(&key);
        let again = before.filter(|entry| entry.value == value);
        let delay = again.map_or(DELAY_MIN, |entry| (entry.delay * 2).min(DELAY_MAX));
        let is_news = before.is_none_or(|entry| entry.message != message);
        self.entries.insert(key, Entry { value, message, delay, due: now + delay });
        is_news
    }

    /// Notes that a step was done.
    pub(super) fn done(&mut self, step: &Step) {
        self.entries.remove(&(step.path().clone(), parts(step).0));
    }

    /// Forgets steps that are not in `wanted`, which the whole plan leads to.
    pub(super) fn retain(&mut self, wanted: &[Step]) {
        let wanted: std::collections::BTreeSet<_> =
            wanted.iter().map(|step| (step.path().clone(), parts(step).0)).collect();
        self.entries.retain(|key, _| wanted.contains(key));
    }

    /// When the next try is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.entries.values().map(|entry| entry.due).min()
    }

    /// Everything that fails, while it does.
    pub(super) fn problems(&self) -> impl Iterator<Item = Problem> {
        self.entries.iter().map(|((path, target), entry)| Problem {
            what: "limits",
            place: match target {
                Target::Create => path.to_string(),
                Target::Enable => format!("{path}/cgroup.subtree_control"),
                Target::File(file) => format!("{path}/{file}"),
                Target::Move(from) => format!("{from}/cgroup.procs"),
            },
            message: entry.message.clone(),
        })
    }
}

fn parts(step: &Step) -> (Target, String) {
    match step {
        Step::Create(_) => (Target::Create, String::new()),
        Step::Enable { path: _, controllers } => {
            (Target::Enable, controllers.iter().map(|controller| controller.name()).collect())
        }
        Step::Write(write) => (Target::File(write.file()), write.value.to_string()),
        Step::Move { from, to: _ } => (Target::Move(from.clone()), String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::{Reason, Write};

    fn step(value: &str) -> Step {
        Step::Write(Write {
            path: CgroupPath::parse("/a").unwrap(),
            value: CgroupFile::MemoryMax.parse(value).unwrap(),
            old: None,
            reason: Reason::Initial,
        })
    }

    #[test]
    fn a_step_that_goes_on_failing_is_tried_ever_more_seldom() {
        let (mut failing, start) = (Failing::default(), Instant::now());
        assert!(!failing.holds_back(&step("1"), start));
        assert!(failing.failed(&step("1"), String::from("no"), start));
        assert!(failing.holds_back(&step("1"), start));
        assert!(!failing.holds_back(&step("2"), start), "another value is another step");
        let mut now = start;
        let mut tries = 0;
        while now < start + Duration::from_mins(10) {
            if !failing.holds_back(&step("1"), now) {
                assert!(!failing.failed(&step("1"), String::from("no"), now), "it was reported already");
                tries += 1;
            }
            now += Duration::from_secs(1);
        }
        assert_eq!(tries, 14, "after 1, 2, 4, … 32 seconds, then once a minute");
        assert!(failing.failed(&step("1"), String::from("other"), now));
        assert_eq!(failing.due(), Some(now + DELAY_MAX));
        assert!(!failing.failed(&step("2"), String::from("other"), now));
        assert_eq!(failing.due(), Some(now + DELAY_MIN), "another value starts at the shortest delay");
    }

    #[test]
    fn what_was_done_or_is_wanted_no_more_fails_no_more() {
        let (mut failing, now) = (Failing::default(), Instant::now());
        failing.failed(&step("1"), String::from("no"), now);
        assert_eq!(failing.problems().map(|problem| problem.place).collect::<Vec<_>>(), ["/a/memory.max"]);
        failing.retain(&[step("1")]);
        failing.done(&step("1"));
        assert_eq!((failing.due(), failing.problems().count()), (None, 0));
        failing.failed(&step("1"), String::from("no"), now);
        failing.retain(&[]);
        assert_eq!(failing.due(), None);
    }
}
