use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use crate::{
    model::{CgroupId, CgroupPath},
    policy::FileName,
};

/// So many times within a window a file is put right; after that another is taken to insist on its value.
pub(super) const ROUNDS: usize = 3;
/// The window.
const WINDOW: Duration = Duration::from_mins(1);

/// What is done about a value that another wrote.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum OnDrift {
    /// The planned value is written back.
    #[default]
    Restore,
    /// It is told, and left as it is.
    Report,
}

/// What is done about one such value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DriftAction {
    /// The planned value is written back.
    Restored,
    /// It is told alone, as the configuration says.
    Reported,
    /// It is told alone, as the file was put right three times within a minute already.
    Yielded,
    /// It is told alone: the cgroups are the kubelet's.
    Audited,
}

impl DriftAction {
    /// Its name in events.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Restored => "restored",
            Self::Reported => "reported",
            Self::Yielded => "yielded",
            Self::Audited => "audited",
        }
    }
}

/// A value that another wrote to a file of ours.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Drift {
    /// The cgroup.
    pub path: CgroupPath,
    /// Its id.
    pub cgroup: CgroupId,
    /// The file.
    pub file: FileName,
    /// What it is to hold.
    pub planned: String,
    /// What was found in it.
    pub found: String,
    /// What is done about it.
    pub action: DriftAction,
}

/// Remembers how often each file was put right, so that two writers do not fight for ever.
///
/// A file that was given up is taken up again once it holds what is planned, or is planned to hold something else.
#[derive(Debug, Default)]
pub struct DriftPolicy {
    on_drift: OnDrift,
    is_audit: bool,
    files: BTreeMap<(CgroupId, FileName), History>,
}

#[derive(Debug, Default)]
struct History {
    /// When it was put right, within the last window.
    rounds: VecDeque<Instant>,
    /// What was told and left, and what was planned then.
    left: Option<(String, String)>,
}

impl DriftPolicy {
    /// With a policy for all files.
    #[must_use]
    pub fn new(on_drift: OnDrift) -> Self {
        Self { on_drift, is_audit: false, files: BTreeMap::new() }
    }

    /// For cgroups that are the kubelet's.
    #[must_use]
    pub fn audit() -> Self {
        Self { is_audit: true, ..Self::default() }
    }

    /// Decides about a file that holds `found` instead of `planned`, and whether that is to be told.
    pub fn judge(
        &mut self,
        file: (CgroupId, &FileName),
        values: (&str, &str),
        now: Instant,
    ) -> (DriftAction, bool) {
        self.judge_within(file, values, ROUNDS, now)
    }

    /// The same, where the file is put right that many times within a minute.
    pub fn judge_within(
        &mut self,
        (cgroup, file): (CgroupId, &FileName),
        (planned, found): (&str, &str),
        rounds: usize,
        now: Instant,
    ) -> (DriftAction, bool) {
        let history = self.files.entry((cgroup, file.clone())).or_default();
        let is_left = history.left.as_ref().is_some_and(|(_, then)| then == planned);
        let action = match self.on_drift {
            _ if self.is_audit => DriftAction::Audited,
            OnDrift::Report => DriftAction::Reported,
            OnDrift::Restore if is_left => DriftAction::Yielded,
            OnDrift::Restore => {
                history.rounds.retain(|round| now.saturating_duration_since(*round) < WINDOW);
                if history.rounds.len() < rounds { DriftAction::Restored } else { DriftAction::Yielded }
            }
        };
        let left = (found.to_owned(), planned.to_owned());
        match action {
            DriftAction::Restored => {
                history.left = None;
                history.rounds.push_back(now);
                (action, true)
            }
            DriftAction::Reported | DriftAction::Yielded | DriftAction::Audited => {
                let is_news = history.left.as_ref() != Some(&left);
                // Told once while it is left, however often the other changes its mind.
                let is_told = is_news && (action != DriftAction::Yielded || !is_left);
                history.left = Some(left);
                (action, is_told)
            }
        }
    }

    /// Notes that a file holds what is planned without our doing: it is watched again as at first.
    pub fn settled(&mut self, cgroup: CgroupId, file: &FileName) {
        if let Some(history) = self.files.get_mut(&(cgroup, file.clone()))
            && history.left.take().is_some()
        {
            history.rounds.clear();
        }
    }

    /// Forgets a cgroup that is gone.
    pub fn forget(&mut self, cgroup: CgroupId) {
        self.files.retain(|(id, _), _| *id != cgroup);
    }

    /// The files that are left as another wrote them.
    pub fn left(&self) -> impl Iterator<Item = (CgroupId, &FileName, &str)> {
        self.files.iter().filter_map(|((id, file), history)| {
            history.left.as_ref().map(|(found, _)| (*id, file, found.as_str()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: CgroupId = CgroupId(1);
    const FILE: FileName = FileName::Borrowed("cpu.weight");

    #[test]
    fn three_rounds_within_a_minute_and_no_more() {
        let (mut policy, start) = (DriftPolicy::new(OnDrift::Restore), Instant::now());
        let mut judge = |seconds, found: &str| {
            policy.judge((ID, &FILE), ("79", found), start + Duration::from_secs(seconds))
        };
        for second in 0..3 {
            assert_eq!(judge(second, "1"), (DriftAction::Restored, true));
        }
        assert_eq!(judge(3, "1"), (DriftAction::Yielded, true));
        assert_eq!(judge(4, "1"), (DriftAction::Yielded, false), "told once");
        assert_eq!(judge(5, "2"), (DriftAction::Yielded, false));
        assert_eq!(judge(500, "2"), (DriftAction::Yielded, false), "it was given up for good");
        assert_eq!(policy.left().count(), 1);
        policy.settled(ID, &FILE);
        let now = start + Duration::from_secs(501);
        assert_eq!(policy.judge((ID, &FILE), ("79", "1"), now), (DriftAction::Restored, true));
    }

    #[test]
    fn slow_drift_is_always_put_right_and_another_plan_starts_anew() {
        let (mut policy, start) = (DriftPolicy::new(OnDrift::Restore), Instant::now());
        for round in 0..10 {
            let now = start + Duration::from_secs(round * 21);
            assert_eq!(policy.judge((ID, &FILE), ("79", "1"), now).0, DriftAction::Restored);
        }
        let now = start + Duration::from_secs(9 * 21 + 1);
        assert_eq!(policy.judge((ID, &FILE), ("79", "1"), now).0, DriftAction::Yielded);
        let later = now + WINDOW;
        assert_eq!(policy.judge((ID, &FILE), ("39", "1"), later).0, DriftAction::Restored);
    }

    #[test]
    fn what_is_only_reported_is_told_once_a_value() {
        let (mut policy, now) = (DriftPolicy::new(OnDrift::Report), Instant::now());
        let mut judge = |found: &str| policy.judge((ID, &FILE), ("79", found), now);
        assert_eq!(judge("1"), (DriftAction::Reported, true));
        assert_eq!(judge("1"), (DriftAction::Reported, false));
        assert_eq!(judge("2"), (DriftAction::Reported, true));
        policy.forget(ID);
        assert_eq!(policy.left().count(), 0);
    }
}
