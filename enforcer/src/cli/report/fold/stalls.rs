//! Who waited for memory, and for whose limit.

use std::collections::BTreeMap;

use enforcer_events::pressure::{Stalling, StallsOver};

use super::{
    super::document::{Few, Stall},
    At,
    few::Owners,
    name_of,
};

/// How many cgroups are followed while they stall.
const MOST_OPEN: usize = 4_096;

/// What was reported of one kind of stall that is not over.
#[derive(Debug, Default)]
struct Kind {
    limit_owner: Option<String>,
    stalled_ms: u64,
    reports: u64,
}

/// A cgroup that stalls.
#[derive(Debug)]
struct Open {
    stalled: String,
    kinds: BTreeMap<String, Kind>,
    longest_ms: u64,
}

type Key = (String, Option<String>, String);

/// Stalls by who waited, the owner of the limit, and kind.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    open: BTreeMap<u64, Open>,
    owners: Owners<Key, Stall>,
}

impl Stalls {
    pub(super) fn stalling(&mut self, at: At, stalling: &Stalling) {
        if self.open.len() >= MOST_OPEN && !self.open.contains_key(&stalling.cgroup_id) {
            self.forget();
        }
        let new = || Open { stalled: name_of(&stalling.place), kinds: BTreeMap::new(), longest_ms: 0 };
        let open = self.open.entry(stalling.cgroup_id).or_insert_with(new);
        let kind = open.kinds.entry(stalling.kind.to_string()).or_default();
        // The machine has no limit that could be named.
        kind.limit_owner = match (&*stalling.kind, &stalling.limit_owner) {
            ("directReclaim", _) => Some(String::from("/")),
            (_, Some(owner)) => Some(owner.clone()),
            (_, None) => kind.limit_owner.take(),
        };
        if at.is_in_range {
            kind.stalled_ms = kind.stalled_ms.saturating_add(stalling.window_stall_ms);
            kind.reports += 1;
            open.longest_ms = open.longest_ms.max(stalling.stall_ms);
        }
    }

    pub(super) fn over(&mut self, at: At, over: &StallsOver) {
        let open = self.open.remove(&over.cgroup_id);
        if !at.is_in_range {
            return;
        }
        let (stalled, mut kinds) = match open {
            Some(open) => (open.stalled, open.kinds),
            None => (name_of(&over.place), BTreeMap::new()),
        };
        for (kind, stalled_ms) in over.stalled_ms.iter().filter(|(_, stalled_ms)| **stalled_ms > 0) {
            let reported = kinds.remove(&**kind).unwrap_or_default();
            let limit_owner = match &**kind {
                "directReclaim" => Some(String::from("/")),
                _ => reported.limit_owner,
            };
            let counted = Counted { stalled_ms: *stalled_ms, reports: reported.reports, is_whole: true };
            self.count(&stalled, limit_owner, kind, &counted, over.longest_stall_ms);
        }
    }

    /// The ends of what is open are not in the journal.
    pub(super) fn forget(&mut self) {
        for (_, Open { stalled, kinds, longest_ms }) in std::mem::take(&mut self.open) {
            for (kind, Kind { limit_owner, stalled_ms, reports }) in kinds {
                if reports > 0 {
                    let counted = Counted { stalled_ms, reports, is_whole: false };
                    self.count(&stalled, limit_owner, &kind, &counted, longest_ms);
                }
            }
        }
    }

    fn count(
        &mut self,
        stalled: &str,
        limit_owner: Option<String>,
        kind: &str,
        counted: &Counted,
        longest_ms: u64,
    ) {
        let key = (stalled.to_owned(), limit_owner.clone(), kind.to_owned());
        let new =
            || Stall { stalled: stalled.to_owned(), limit_owner, kind: kind.to_owned(), ..Stall::default() };
        if let Some(stall) = self.owners.of(key, new) {
            stall.stalled_ms = stall.stalled_ms.saturating_add(counted.stalled_ms);
            stall.reports += counted.reports;
            stall.at_least |= !counted.is_whole;
            stall.longest_ms = stall.longest_ms.max(longest_ms);
        }
    }

    pub(super) fn uncounted(&self) -> u64 {
        self.owners.uncounted()
    }

    pub(super) fn finish(self) -> Few<Stall> {
        self.owners.finish(|stall| stall.stalled_ms)
    }
}

/// What one report adds.
#[derive(Debug)]
struct Counted {
    stalled_ms: u64,
    reports: u64,
    is_whole: bool,
}
