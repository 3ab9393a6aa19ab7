//! The helper thread that closes files and restores limits. Freeing a victim's memory has a thread of its own, as it may be
//! stuck: until old candidates are dropped here, the reflex takes no new ones.

use std::{fmt, time::Instant};

use rustix::io::Errno;

use super::{
    queue::{Next, Receiver},
    raised_limits::{self, RaisedLimits},
    reflex::PreparedSet,
    report::Report,
};
use crate::{
    policy::engine::Few,
    retry::Retries,
    sense::{EdgeSource, PodsMemory},
};

/// A request of the reflex.
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation on the reflex thread")]
pub(super) enum Work {
    /// Restore the raised limits of a dead victim.
    GiveBack(RaisedLimits),
    /// Drop a set of candidates that is no longer used.
    Drop(Box<PreparedSet>),
    /// Close an edge source that is no longer waited on.
    Close(Box<dyn EdgeSource>),
    /// Close the files of a former kubepods.
    ClosePods(Box<PodsMemory>),
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GiveBack(limits) => f.debug_tuple("GiveBack").field(limits).finish(),
            Self::Drop(set) => f.debug_tuple("Drop").field(set).finish(),
            Self::Close(_) => f.debug_tuple("Close").finish_non_exhaustive(),
            Self::ClosePods(pods) => f.debug_tuple("ClosePods").field(pods).finish(),
        }
    }
}

/// Limits to restore, and those of them that are reported as stuck.
struct Owed {
    limits: RaisedLimits,
    stuck: Few<(usize, Errno), { raised_limits::MOST }>,
}

impl Owed {
    /// Tries again; returns itself if something is left, otherwise reports that everything is restored.
    fn give_back(self, emit: &mut impl FnMut(Report)) -> Option<Self> {
        if !self.limits.give_back().is_empty() {
            return Some(self);
        }
        self.stuck.iter().filter_map(|(place, _)| self.limits.report(*place, None)).for_each(emit);
        None
    }
}

/// Works until the reflex is gone. Reports limits that cannot be restored, and those that are restored at last.
pub(super) fn run(queue: &Receiver<Work>, mut emit: impl FnMut(Report)) {
    let mut owed: Retries<Owed> = Retries::new();
    loop {
        match queue.next_until(owed.due()) {
            Next::Value(Work::GiveBack(limits)) => {
                let stuck = limits.give_back();
                if !stuck.is_empty() {
                    let reports =
                        stuck.iter().filter_map(|(place, errno)| limits.report(*place, Some(*errno)));
                    reports.for_each(&mut emit);
                    owed.add(Owed { limits, stuck }, Instant::now());
                }
            }
            Next::Value(Work::Drop(set)) => drop(set),
            Next::Value(Work::Close(source)) => drop(source),
            Next::Value(Work::ClosePods(pods)) => drop(pods),
            Next::Late => owed.attempt(Instant::now(), |owed| owed.give_back(&mut emit)),
            Next::End => {
                for owed in owed.into_all() {
                    let _left = owed.give_back(&mut emit);
                }
                return;
            }
        }
    }
}
