//! When each cgroup gets its credit of records back.
use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use super::Kept;
use crate::model::CgroupId;

/// How long after its first record a cgroup gets its credit back. What was held back until then is looked at then, so
/// this is also how late it may be noticed.
pub(super) const TURN: Duration = Duration::from_millis(50);

/// How often losses are told at most: each means a look at everything.
pub(super) const BETWEEN_LOSSES: Duration = Duration::from_millis(100);

/// The cgroups that used some of their credit, and losses that were not told yet.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// In the order of their turns, as each takes as long.
    turns: VecDeque<(Instant, Key)>,
    keys: BTreeSet<Key>,
    lost: u64,
    /// When losses may be told again.
    losses_from: Option<Instant>,
}

/// A container's scores or a cgroup's files.
pub(super) type Key = (Kept, CgroupId);

impl Pace {
    /// Takes note of a record.
    pub(super) fn saw(&mut self, key: Key, now: Instant) {
        if self.keys.insert(key) {
            self.turns.push_back((now + TURN, key));
        }
    }

    /// Takes note of losses.
    pub(super) fn lost(&mut self, events: u64) {
        self.lost += events;
    }

    /// When there is something to be done; none until something is noted.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let losses = (self.lost > 0).then(|| self.losses_from.unwrap_or(now));
        let turn = self.turns.front().map(|(due, _)| *due);
        [losses, turn].into_iter().flatten().min()
    }

    /// The next cgroup whose turn is over.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Key> {
        let (_, key) = self.turns.pop_front_if(|(due, _)| *due <= now)?;
        self.keys.remove(&key);
        Some(key)
    }

    /// The losses, if they may be told now.
    pub(super) fn pop_lost(&mut self, now: Instant) -> Option<u64> {
        if self.lost == 0 || self.losses_from.is_some_and(|from| now < from) {
            return None;
        }
        self.losses_from = Some(now + BETWEEN_LOSSES);
        Some(std::mem::take(&mut self.lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: Key = (Kept::Files, CgroupId(7));
    const SCORES: Key = (Kept::Scores, CgroupId(7));

    #[test]
    fn a_turn_begins_with_the_first_record() {
        let mut pace = Pace::default();
        let start = Instant::now();
        assert_eq!(pace.due(start), None);
        pace.saw(FILES, start);
        pace.saw(SCORES, start + TURN / 2);
        pace.saw(FILES, start + TURN / 2);
        assert_eq!(pace.due(start), Some(start + TURN));
        assert_eq!(pace.pop(start + TURN / 2), None);
        assert_eq!(pace.pop(start + TURN), Some(FILES));
        assert_eq!(pace.pop(start + TURN), None);
        assert_eq!(pace.due(start), Some(start + TURN / 2 + TURN));
        pace.saw(FILES, start + TURN);
        assert_eq!(pace.pop(start + TURN * 2), Some(SCORES));
        assert_eq!(pace.pop(start + TURN * 2), Some(FILES));
    }

    #[test]
    fn losses_are_told_at_once_and_then_slowly() {
        let mut pace = Pace::default();
        let start = Instant::now();
        pace.lost(3);
        assert_eq!(pace.due(start), Some(start));
        assert_eq!(pace.pop_lost(start), Some(3));
        assert_eq!(pace.pop_lost(start), None);
        pace.lost(4);
        pace.lost(5);
        assert_eq!(pace.pop_lost(start + BETWEEN_LOSSES / 2), None);
        assert_eq!(pace.due(start), Some(start + BETWEEN_LOSSES));
        assert_eq!(pace.pop_lost(start + BETWEEN_LOSSES), Some(9));
        assert_eq!(pace.due(start), None);
    }
}
