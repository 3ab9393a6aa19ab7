//! The answer to foreign writes: restore at once, restore with back-off, or only report.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use crate::model::{CgroupFile, CgroupId, CgroupPath};

mod contest;

pub(super) use self::contest::{Contest, Verdict};
use super::report::Problem;

/// A file is written back at once this many times within a minute; after that another process counts as insisting on
/// its value.
pub(super) const ROUNDS: usize = 3;

/// How long a value of a kubelet's cgroup must differ before that is reported. Its owner sets values up in steps: a
/// runtime makes a container's cgroup before it writes its limits, and the plan follows a changed pod before the kubelet
/// does, or after it.
const AUDIT_PATIENCE: Duration = Duration::from_secs(5);

/// The same of CPUs: a kubelet brings those of its containers in line every 10 s (`cpuManagerReconcilePeriod`).
const AUDIT_PATIENCE_CPUS: Duration = Duration::from_secs(20);

/// How long a value is left that a kubelet may have written that has just come. By then two looks have found it, which
/// are ten seconds apart, and one of which may be late; or it has ended.
const ARRIVAL: Duration = Duration::from_secs(30);

/// A file whose value is kept as planned.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum KeptFile {
    /// A file of the cgroup.
    Cgroup(CgroupFile),
    /// `oom_score_adj` of the processes in it.
    Score,
}

/// The name of a process's score file.
const SCORE: &str = "oom_score_adj";

impl KeptFile {
    /// The file of that name; `None` for files that are not kept.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        if name == SCORE { Some(Self::Score) } else { CgroupFile::named(name).map(Self::Cgroup) }
    }
}

impl From<CgroupFile> for KeptFile {
    fn from(file: CgroupFile) -> Self {
        Self::Cgroup(file)
    }
}

impl fmt::Display for KeptFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cgroup(file) => file.fmt(formatter),
            Self::Score => formatter.pad(SCORE),
        }
    }
}

/// What is done about a value that another process wrote.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum OnDrift {
    /// The planned value is written back.
    #[default]
    Restore,
    /// It is reported and left alone.
    Report,
}

/// What is done about one such value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DriftAction {
    /// The planned value is written back.
    Restored,
    /// The planned value is written back later, as it was written back three times within a minute already: after 1 s,
    /// then 2, 4 … up to a minute, and at once when the foreign writes end. Or a kubelet has just come that may have
    /// written the value.
    Delayed,
    /// It is only reported, as the configuration says.
    Reported,
    /// It is only reported: the kubelet owns the cgroups.
    Audited,
    /// It stays for good: a kubelet has come, whose value it may be, and everything else is given back.
    Left,
}

impl DriftAction {
    /// Its name in events.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Restored => "restored",
            Self::Delayed => "delayed",
            Self::Reported => "reported",
            Self::Audited => "audited",
            Self::Left => "left",
        }
    }
}

/// A value that another process wrote to a file of ours.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Drift {
    /// The cgroup.
    pub path: CgroupPath,
    /// Its id.
    pub cgroup: CgroupId,
    /// The file.
    pub file: KeptFile,
    /// The planned value.
    pub planned: String,
    /// The value found.
    pub found: String,
    /// What is done about it.
    pub action: DriftAction,
    /// The process that wrote last, if known.
    pub author: Option<Author>,
}

/// A process that writes to a file of ours.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Author {
    /// Its id in the machine's PID namespace.
    pub pid: u32,
    /// The name of the thread that wrote: the process chooses it.
    pub comm: String,
}

/// Decides about each value that another process wrote: it is written back at once or with back-off, or only reported.
#[derive(Debug, Default)]
pub struct DriftPolicy {
    on_drift: OnDrift,
    is_audit: bool,
    files: BTreeMap<(CgroupId, KeptFile), History>,
}

#[derive(Debug, Default)]
struct History {
    path: Option<CgroupPath>,
    contest: Contest,
    /// The process that wrote last, if the kernel named it.
    author: Option<Author>,
    /// The value that was reported and left, and the planned value at that time.
    left: Option<(String, String)>,
    /// The planned value that an audited file does not have, and since when; until that is reported.
    differing: Option<(String, Instant)>,
    hold: Hold,
}

/// Whether a value is left because a kubelet may have written it that has just come.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Hold {
    /// It is not.
    #[default]
    Never,
    /// It is, since then.
    Since(Instant),
    /// It was for long enough, and no kubelet has come.
    Over,
}

impl Hold {
    /// When it ends.
    fn end(self) -> Option<Instant> {
        match self {
            Self::Since(since) => Some(since + ARRIVAL),
            Self::Never | Self::Over => None,
        }
    }
}

impl History {
    /// Whether an audited file differs for long enough from the planned value. Once it is, each other value that it holds
    /// is old enough too.
    fn is_old(&mut self, planned: &str, patience: Duration, now: Instant) -> bool {
        if self.left.as_ref().is_some_and(|(_, before)| before == planned) {
            return true;
        }
        self.left = None;
        match &self.differing {
            Some((before, since)) if before == planned => {
                let is_old = now.duration_since(*since) >= patience;
                if is_old {
                    self.differing = None;
                }
                is_old
            }
            _ => {
                self.differing = Some((planned.to_owned(), now));
                false
            }
        }
    }

    /// Whether an audited file may differ for long enough now.
    fn is_to_be_looked_at(&self, patience: Duration, now: Instant) -> bool {
        self.differing.as_ref().is_some_and(|(_, since)| now.duration_since(*since) >= patience)
    }

    /// When to look at the file although no event comes. What is left for a kubelet waits for nothing else meanwhile.
    fn due(&self, patience: Duration) -> Option<Instant> {
        let differing = self.differing.as_ref().map(|(_, since)| *since + patience);
        self.hold.end().or_else(|| self.contest.due().into_iter().chain(differing).min())
    }

    /// Whether it is to be looked at now, or to be written back.
    fn is_due(&self, patience: Duration, now: Instant) -> bool {
        let is_due = || self.contest.is_overdue(now) || self.is_to_be_looked_at(patience, now);
        self.hold.end().map_or_else(is_due, |end| end <= now)
    }
}

/// How long a value of a kubelet's cgroup must differ before that is reported.
fn patience(file: KeptFile) -> Duration {
    match file {
        KeptFile::Cgroup(CgroupFile::CpusetCpus) => AUDIT_PATIENCE_CPUS,
        KeptFile::Cgroup(_) | KeptFile::Score => AUDIT_PATIENCE,
    }
}

impl DriftPolicy {
    /// Applies one policy to all files.
    #[must_use]
    pub fn new(on_drift: OnDrift) -> Self {
        Self { on_drift, is_audit: false, files: BTreeMap::new() }
    }

    /// For cgroups that the kubelet owns.
    #[must_use]
    pub fn audit() -> Self {
        Self { is_audit: true, ..Self::default() }
    }

    /// Decides about a file that holds `found` instead of `planned`, and whether to report it. It is written back at
    /// once up to `rounds` times within a minute.
    pub fn judge(
        &mut self,
        (path, cgroup, file): (&CgroupPath, CgroupId, KeptFile),
        (planned, found): (&str, &str),
        rounds: usize,
        now: Instant,
    ) -> (DriftAction, bool) {
        let history = self.files.entry((cgroup, file)).or_default();
        history.path.get_or_insert_with(|| path.clone());
        let action = match self.on_drift {
            _ if self.is_audit => DriftAction::Audited,
            OnDrift::Report => DriftAction::Reported,
            OnDrift::Restore => {
                return match history.contest.judge(planned, rounds, now) {
                    Verdict::Restore => (DriftAction::Restored, true),
                    Verdict::Wait { is_news } => (DriftAction::Delayed, is_news),
                };
            }
        };
        if self.is_audit && !history.is_old(planned, patience(file), now) {
            return (action, false);
        }
        let left = Some((found.to_owned(), planned.to_owned()));
        let is_news = history.left != left;
        history.left = left;
        (action, is_news)
    }

    /// Whether the value that another process wrote to a file is left for now, as a kubelet may have written it: one
    /// `runs`, and was not there for long enough to count. `Some(true)` if that is news; `None` once it was left for
    /// [`ARRIVAL`], until the file holds the planned value.
    pub(super) fn hold_back(
        &mut self,
        (path, cgroup, file): (&CgroupPath, CgroupId, KeptFile),
        runs: bool,
        now: Instant,
    ) -> Option<bool> {
        if !runs {
            if let Some(history) = self.files.get_mut(&(cgroup, file)) {
                history.hold = Hold::Never;
            }
            return None;
        }
        let history = self.files.entry((cgroup, file)).or_default();
        history.path.get_or_insert_with(|| path.clone());
        match history.hold {
            Hold::Never => {
                history.hold = Hold::Since(now);
                Some(true)
            }
            Hold::Since(since) if now.saturating_duration_since(since) < ARRIVAL => Some(false),
            Hold::Since(_) | Hold::Over => {
                history.hold = Hold::Over;
                None
            }
        }
    }

    /// The process that wrote to a file last, if known.
    #[must_use]
    pub fn author(&self, cgroup: CgroupId, file: KeptFile) -> Option<Author> {
        self.files.get(&(cgroup, file))?.author.clone()
    }

    /// Notes that another process wrote to a file, and which one, if known.
    pub fn wrote(&mut self, cgroup: CgroupId, file: KeptFile, author: Option<Author>, now: Instant) {
        // The first write to a file is noticed by the value that it leaves.
        if let Some(history) = self.files.get_mut(&(cgroup, file)) {
            history.contest.wrote(now);
            history.author = author.or_else(|| history.author.take());
        } else if author.is_some() {
            self.files.insert((cgroup, file), History { author, ..History::default() });
        }
    }

    /// Notes that a file holds the planned value without our doing.
    pub fn settled(&mut self, cgroup: CgroupId, file: KeptFile) {
        if let Some(history) = self.files.get_mut(&(cgroup, file)) {
            history.left = None;
            history.differing = None;
            history.hold = Hold::Never;
            history.contest.settled();
        }
    }

    /// Ends the time for which a file is left for a kubelet, if it is over: also of one that must not be written now.
    pub(super) fn end_hold_if_over(&mut self, cgroup: CgroupId, file: KeptFile, now: Instant) {
        if let Some(history) = self.files.get_mut(&(cgroup, file))
            && history.hold.end().is_some_and(|end| end <= now)
        {
            history.hold = Hold::Over;
        }
    }

    /// Notes the same of a file that was due to be written back and did not need it.
    pub fn settled_if_overdue(&mut self, cgroup: CgroupId, file: KeptFile, now: Instant) {
        if let Some(history) = self.files.get_mut(&(cgroup, file)) {
            if history.contest.is_overdue(now) {
                history.contest.settled();
            }
            if history.is_to_be_looked_at(patience(file), now) {
                history.differing = None;
            }
            if history.hold.end().is_some_and(|end| end <= now) {
                history.hold = Hold::Never;
            }
        }
    }

    /// Whether a file is contested and must not be written yet.
    #[must_use]
    pub fn waits(&self, cgroup: CgroupId, file: KeptFile, now: Instant) -> bool {
        self.files.get(&(cgroup, file)).is_some_and(|history| history.contest.waits(now))
    }

    /// Forgets a cgroup that is gone.
    pub fn forget(&mut self, cgroup: CgroupId) {
        self.files.retain(|(id, _), _| *id != cgroup);
    }

    /// Ends the contests whose writers have stopped; returns the files that are due to be written back.
    pub fn advance(&mut self, now: Instant) -> Vec<(CgroupPath, CgroupId, KeptFile)> {
        self.files.retain(|_, history| {
            history.contest.advance(now);
            history.left.is_some()
                || history.differing.is_some()
                || history.hold != Hold::Never
                || !history.contest.is_forgotten(now)
        });
        let due = self.files.iter().filter(|((_, file), history)| history.is_due(patience(*file), now));
        due.filter_map(|((id, file), history)| Some((history.path.clone()?, *id, *file))).collect()
    }

    /// When to call [`advance`](Self::advance).
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.files.iter().filter_map(|((_, file), history)| history.due(patience(*file))).min()
    }

    /// The files that another process insists on, while it does.
    pub(super) fn problems(&self) -> impl Iterator<Item = Problem> {
        let contested = self.files.iter().filter(|(_, history)| history.contest.is_on());
        contested.filter_map(|((_, file), History { path, author, .. })| {
            let place = format!("{}/{file}", path.as_ref()?);
            let author = match author {
                Some(Author { pid, comm }) => format!("process {pid} ({})", comm.escape_debug()),
                None => String::from("a process that the kernel did not name"),
            };
            let message = format!(
                "{author} writes {place} again and again: the planned value is written back after 1, 2, 4 … s, at most a \
                 minute apart, and at once when the writes end"
            );
            Some(Problem { what: "drift", place, message })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: CgroupId = CgroupId(1);
    const FILE: KeptFile = KeptFile::Cgroup(CgroupFile::CpuWeight);

    fn judge(policy: &mut DriftPolicy, found: &str, now: Instant) -> (DriftAction, bool) {
        let path = CgroupPath::parse("/kubepods/pod1").unwrap();
        policy.judge((&path, ID, FILE), ("79", found), ROUNDS, now)
    }

    #[test]
    fn what_another_insists_on_is_a_problem_that_names_it_until_it_ends() {
        let (mut policy, start) = (DriftPolicy::new(OnDrift::Restore), Instant::now());
        let sh = Author { pid: 7, comm: String::from("s\u{1b}h") };
        for _ in 0..ROUNDS {
            policy.wrote(ID, FILE, Some(sh.clone()), start);
            assert_eq!(judge(&mut policy, "1", start), (DriftAction::Restored, true));
        }
        assert_eq!(policy.problems().count(), 0);
        assert_eq!(judge(&mut policy, "1", start), (DriftAction::Delayed, true));
        assert_eq!(judge(&mut policy, "1", start), (DriftAction::Delayed, false), "reported once");
        let problems: Vec<Problem> = policy.problems().collect();
        let [Problem { what: "drift", place, message }] = &problems[..] else { panic!("{problems:?}") };
        assert_eq!(place, "/kubepods/pod1/cpu.weight");
        assert!(message.contains(r"process 7 (s\u{1b}h)"), "{message}");

        let due = policy.due().unwrap();
        assert_eq!(policy.advance(start), []);
        let path = CgroupPath::parse("/kubepods/pod1").unwrap();
        assert_eq!(policy.advance(due), [(path, ID, FILE)]);
        assert_eq!(judge(&mut policy, "1", due), (DriftAction::Restored, true));
        assert_eq!(policy.advance(due), []);
        assert_eq!(policy.problems().count(), 0, "the writer has stopped");
        assert_eq!(policy.due(), None);
        assert_eq!(policy.advance(due + Duration::from_mins(2)), []);
        assert!(policy.files.is_empty(), "{policy:?}");
    }

    #[test]
    fn what_is_only_reported_is_reported_once_a_value() {
        let (mut policy, now) = (DriftPolicy::new(OnDrift::Report), Instant::now());
        assert_eq!(judge(&mut policy, "1", now), (DriftAction::Reported, true));
        assert_eq!(judge(&mut policy, "1", now), (DriftAction::Reported, false));
        assert_eq!(judge(&mut policy, "2", now), (DriftAction::Reported, true));
        policy.settled(ID, FILE);
        assert_eq!(judge(&mut policy, "2", now), (DriftAction::Reported, true));
        assert_eq!((policy.due(), policy.problems().count()), (None, 0));
        policy.forget(ID);
        assert!(policy.files.is_empty());
    }

    #[test]
    fn what_a_kubelet_sets_up_in_steps_is_not_reported_and_what_stays_is_once() {
        let (mut policy, start) = (DriftPolicy::audit(), Instant::now());
        let path = CgroupPath::parse("/kubepods/pod1").unwrap();
        let judge = |policy: &mut DriftPolicy, planned: &str, found: &str, now: Instant| {
            policy.judge((&path, ID, FILE), (planned, found), ROUNDS, now).1
        };
        // A container is made, and gets its value a moment later.
        assert!(!judge(&mut policy, "79", "100", start));
        policy.settled(ID, FILE);
        assert_eq!(policy.due(), None);
        // The plan changes, and the kubelet follows it.
        let mut now = start + AUDIT_PATIENCE;
        assert!(!judge(&mut policy, "79", "100", now));
        now += AUDIT_PATIENCE / 2;
        assert!(!judge(&mut policy, "40", "100", now));
        now += AUDIT_PATIENCE / 2;
        assert!(!judge(&mut policy, "40", "100", now));
        // It stays, also while it changes; nothing but the look that is due sees that.
        let due = policy.due().unwrap();
        assert_eq!(policy.advance(due).len(), 1);
        assert!(judge(&mut policy, "40", "99", due));
        assert!(!judge(&mut policy, "40", "99", due));
        assert!(judge(&mut policy, "40", "98", due), "another value");
        assert_eq!(policy.due(), None);
        // The file that was to be looked at is gone.
        assert!(!judge(&mut policy, "30", "98", due));
        let later = due + AUDIT_PATIENCE;
        policy.settled_if_overdue(ID, FILE, later);
        assert_eq!((policy.due(), policy.advance(later)), (None, vec![]));
    }

    #[test]
    fn what_a_kubelet_may_have_written_is_left_for_a_while_and_no_longer() {
        let (mut policy, start) = (DriftPolicy::new(OnDrift::Restore), Instant::now());
        let path = CgroupPath::parse("/kubepods").unwrap();
        let hold = |policy: &mut DriftPolicy, runs: bool, now: Instant| {
            policy.hold_back((&path, ID, FILE), runs, now)
        };
        assert_eq!((hold(&mut policy, false, start), policy.due()), (None, None), "no kubelet runs");
        assert_eq!(hold(&mut policy, true, start), Some(true));
        let (half, end) = (start + ARRIVAL / 2, start + ARRIVAL);
        assert_eq!(hold(&mut policy, true, half), Some(false), "reported once");
        assert_eq!((policy.due(), policy.advance(half)), (Some(end), vec![]));
        assert_eq!(policy.advance(end), [(path.clone(), ID, FILE)]);
        assert_eq!(hold(&mut policy, true, end), None);
        assert_eq!(hold(&mut policy, true, end + ARRIVAL), None, "it is not left again");
        assert_eq!(policy.due(), None);
        policy.settled(ID, FILE);
        assert_eq!(policy.advance(end), []);
        assert!(policy.files.is_empty(), "{policy:?}");

        assert_eq!(hold(&mut policy, true, end), Some(true), "it held the planned value meanwhile");
        assert_eq!((hold(&mut policy, false, end), policy.due()), (None, None), "the kubelet has ended");
    }

    #[test]
    fn what_is_contested_is_not_due_while_it_is_left_for_a_kubelet() {
        let (mut policy, start) = (DriftPolicy::new(OnDrift::Restore), Instant::now());
        for _ in 0..=ROUNDS {
            judge(&mut policy, "1", start);
        }
        let due = policy.due().unwrap();
        let path = CgroupPath::parse("/kubepods/pod1").unwrap();
        assert_eq!(policy.hold_back((&path, ID, FILE), true, start), Some(true));
        assert_eq!((policy.due(), policy.advance(due)), (Some(start + ARRIVAL), vec![]));
        assert_eq!(policy.advance(start + ARRIVAL), [(path.clone(), ID, FILE)]);
        assert_eq!(policy.hold_back((&path, ID, FILE), true, start + ARRIVAL), None);
        assert_eq!(judge(&mut policy, "1", start + ARRIVAL), (DriftAction::Restored, true));
    }
}
