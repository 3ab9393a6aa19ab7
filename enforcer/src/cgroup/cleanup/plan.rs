//! Decides what is undone, from the facts alone.

use std::collections::BTreeSet;

use super::{Left, Marked, Survey, Temporarily, Trouble};
use crate::{
    cgroup::{
        Held, Mark, PageSize,
        diff::{depth, rank},
    },
    model::{CgroupFile, CgroupId, CgroupPath, CgroupValue, Limit},
};

/// One thing to undo.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Undo {
    /// A value that was written for a while.
    Temporary(Temporarily),
    /// The score of a process.
    Score {
        /// The container's cgroup; `None` for a process of a component.
        path: Option<CgroupPath>,
        /// The process.
        pid: u32,
        /// When it started, in clock ticks since boot.
        start_ticks: u64,
        /// What it has.
        old: i16,
        /// What it had.
        new: i16,
    },
    /// The value of a cgroup's file.
    Value {
        /// The cgroup.
        path: CgroupPath,
        /// Its id.
        id: CgroupId,
        /// What the file holds.
        old: Held,
        /// What it held, or the kernel's value for a new cgroup.
        new: CgroupValue,
    },
    /// An empty cgroup that we made, with all below it.
    Remove {
        /// The cgroup.
        path: CgroupPath,
        /// Its id.
        id: CgroupId,
    },
    /// Our mark and records on a cgroup.
    Forget {
        /// The cgroup.
        path: CgroupPath,
        /// Its id.
        id: CgroupId,
        /// Whether the mark keeps saying that we made the cgroup, which holds processes.
        stays_ours: bool,
    },
}

/// What a cleanup does to the hierarchy.
#[derive(Clone, Debug, Default)]
pub struct Cleanup {
    /// In order.
    pub steps: Vec<Undo>,
    /// What stays on purpose, or of which the value before is not known.
    pub left: Vec<Left>,
    /// What cannot be undone now.
    pub troubles: Vec<Trouble>,
}

/// Decides what to undo. Where a kubelet owns the cgroups (`is_kubelets`), only marks and scores are undone: the values there
/// and the cgroups themselves are the kubelet's.
///
/// First come temporary values, then scores, then limits: every value that gives more top down, then every one that gives
/// less bottom up. Last come the cgroups, from the bottom up, and the marks of those that stay.
#[must_use]
pub fn cleanup(survey: &Survey, is_kubelets: bool, page: PageSize) -> Cleanup {
    let mut planner = Planner::new(is_kubelets, page);
    planner.all.troubles.clone_from(&survey.troubles);
    planner.all.steps.extend(survey.temporary.iter().cloned().map(Undo::Temporary));
    let goes: BTreeSet<&CgroupPath> =
        survey.marked.iter().filter(|marked| planner.goes(marked)).map(|marked| &marked.path).collect();
    let goes_along =
        |path: &CgroupPath| goes.contains(path) || above(path).any(|above| goes.contains(&above));
    for marked in &survey.marked {
        planner.undo_scores(marked);
        if goes.contains(&marked.path) {
            planner.removes.push(Undo::Remove { path: marked.path.clone(), id: marked.id });
        } else if !goes_along(&marked.path) {
            planner.undo_marked(marked, &survey.temporary);
        }
    }
    for (record, scored) in &survey.components {
        if scored.score == record.written && record.before != record.written {
            let (pid, start_ticks) = (scored.pid, scored.start_ticks);
            let (old, new) = (scored.score, record.before);
            planner.scores.push(Undo::Score { path: None, pid, start_ticks, old, new });
        }
    }
    if let Some(id) = survey.root {
        planner.forgets.push(Undo::Forget { path: CgroupPath::root(), id, stays_ours: false });
    }
    planner.note_standing(survey);
    planner.finish()
}

/// The cgroups above one, nearest first.
fn above(path: &CgroupPath) -> impl Iterator<Item = CgroupPath> {
    std::iter::successors(path.parent(), CgroupPath::parent)
}

struct Planner {
    is_kubelets: bool,
    page: PageSize,
    all: Cleanup,
    /// The processes whose score is undone, by id and start: one may be in the list of two containers.
    scored: BTreeSet<(u32, u64)>,
    scores: Vec<Undo>,
    raises: Vec<(CgroupPath, CgroupFile, Undo)>,
    lowers: Vec<(CgroupPath, CgroupFile, Undo)>,
    removes: Vec<Undo>,
    forgets: Vec<Undo>,
}

impl Planner {
    fn new(is_kubelets: bool, page: PageSize) -> Self {
        Self {
            is_kubelets,
            page,
            all: Cleanup::default(),
            scored: BTreeSet::new(),
            scores: Vec::new(),
            raises: Vec::new(),
            lowers: Vec::new(),
            removes: Vec::new(),
            forgets: Vec::new(),
        }
    }

    /// Whether we made the cgroup, and it may still be ours.
    fn is_ours(&self, marked: &Marked) -> bool {
        marked.is_hooks || !self.is_kubelets && marked.mark.as_ref().is_some_and(|mark| mark.made)
    }

    fn goes(&self, marked: &Marked) -> bool {
        self.is_ours(marked) && !marked.is_populated
    }

    fn undo_scores(&mut self, marked: &Marked) {
        let Some(record) = &marked.score else {
            let scored = marked.processes.iter().filter(|process| process.score != 0).count();
            // A cleanup before this one has left no file, and no score that was given.
            let is_written = marked.mark.as_ref().is_some_and(|mark| !mark.files.is_empty());
            if scored > 0 && is_written {
                self.all.left.push(Left {
                    path: marked.path.to_string(),
                    why: format!(
                        "the oom_score_adj of {scored} of its processes stays: what it was before is not recorded"
                    ),
                });
            }
            return;
        };
        for process in &marked.processes {
            if let Some(new) = record.undone(process.score)
                && self.scored.insert((process.pid, process.start_ticks))
            {
                self.scores.push(Undo::Score {
                    path: Some(marked.path.clone()),
                    pid: process.pid,
                    start_ticks: process.start_ticks,
                    old: process.score,
                    new,
                });
            }
        }
    }

    /// Undoes what was written to a cgroup that stays.
    fn undo_marked(&mut self, marked: &Marked, temporary: &[Temporarily]) {
        let Marked { path, id, mark, is_newer, .. } = marked;
        if *is_newer {
            return self.all.troubles.push(Trouble {
                path: path.to_string(),
                error: String::from("a newer version of enforcer has marked it"),
                remedy: String::from("run the cleanup of that version"),
            });
        }
        let mut is_whole = true;
        let written = mark.as_ref().filter(|_| !self.is_kubelets);
        for (file, before) in written.into_iter().flat_map(|mark| &mark.files) {
            let restored = temporary.iter().find(|there| there.id == *id && there.value.file() == *file);
            let restored = restored.map(|there| Held::Value(there.value.original().clone()));
            let Some(old) = restored.or_else(|| marked.files.get(file).cloned()) else { continue };
            let new = before.clone().unwrap_or_else(|| file.default_value());
            is_whole &= self.undo_value(marked, *file, old, new);
        }
        let stays_ours = self.is_ours(marked);
        let says_more = |mark: &Mark| !mark.files.is_empty() || !mark.outside.is_empty();
        let is_to_forget =
            marked.score.is_some() || mark.as_ref().is_some_and(|mark| !stays_ours || says_more(mark));
        if is_whole && is_to_forget {
            self.forgets.push(Undo::Forget { path: path.clone(), id: *id, stays_ours });
        }
    }

    /// Returns whether the value can be undone, or is as before already.
    fn undo_value(&mut self, marked: &Marked, file: CgroupFile, old: Held, new: CgroupValue) -> bool {
        if old.is(&new, self.page) {
            return true;
        }
        // Text that is no value differs from every value, and any value gives more.
        let is_raise = old.value().is_none_or(|old| self.page.held(&old).is_raised_by(&self.page.held(&new)));
        if let (CgroupValue::MemoryMax(Limit::Amount(limit_bytes)), Some(usage_bytes)) =
            (&new, marked.usage_bytes)
            && !is_raise
            && usage_bytes > *limit_bytes
        {
            self.all.troubles.push(Trouble {
                path: marked.path.to_string(),
                error: in_use(usage_bytes, *limit_bytes),
                remedy: String::from(
                    "free memory there, or end its processes, and run enforcer cleanup again",
                ),
            });
            return false;
        }
        let undo = Undo::Value { path: marked.path.clone(), id: marked.id, old, new };
        let values = if is_raise { &mut self.raises } else { &mut self.lowers };
        values.push((marked.path.clone(), file, undo));
        true
    }

    /// Notes the cgroups that we made and that hold processes: the deepest ones.
    fn note_standing(&mut self, survey: &Survey) {
        let standing: Vec<&Marked> =
            survey.marked.iter().filter(|marked| self.is_ours(marked) && marked.is_populated).collect();
        for marked in &standing {
            if standing.iter().any(|other| other.path.below(&marked.path).is_some()) {
                continue;
            }
            self.all.left.push(Left {
                path: marked.path.to_string(),
                why: String::from("the cgroup holds processes; it can be removed when they have ended"),
            });
        }
    }

    fn finish(self) -> Cleanup {
        let Self { mut all, scores, mut raises, mut lowers, mut removes, forgets, .. } = self;
        let key = |(path, file, _): &(CgroupPath, CgroupFile, Undo)| (depth(path), path.clone(), rank(*file));
        raises.sort_by_key(key);
        lowers.sort_by_key(key);
        lowers.reverse();
        removes.sort_by_key(|undo| match undo {
            Undo::Remove { path, .. } => std::cmp::Reverse((depth(path), path.clone())),
            _ => std::cmp::Reverse((0, CgroupPath::root())),
        });
        let values = raises.into_iter().chain(lowers).map(|(_, _, undo)| undo);
        all.steps.extend(scores.into_iter().chain(values).chain(removes).chain(forgets));
        all
    }
}

/// Why a limit cannot come back now.
pub(super) fn in_use(usage_bytes: u64, limit_bytes: u64) -> String {
    format!("memory.max was {limit_bytes}, and {usage_bytes} bytes are in use: the kernel would kill for it")
}
