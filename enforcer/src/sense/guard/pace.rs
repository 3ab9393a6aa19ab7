//! When the credit of records of each cgroup is restored.
use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    time::Duration,
};

use enforcer_common::guard::CREDIT;
use tokio::time::Instant;

use super::Kept;
use crate::model::CgroupId;

/// How long after its first record a cgroup's credit is restored. Events held back until then are checked for then, so
/// this is also the delay of noticing them.
pub(super) const TURN: Duration = Duration::from_millis(50);

/// How often the interval of a cgroup is doubled that uses up one after the other: an endless writer is checked a few
/// times a second, and costs the daemon no more than that.
const MOST_DOUBLINGS: u32 = 3;

/// The credit of a cgroup whose files are written without end: enough to name the writer, while each record costs the
/// daemon a pass of its loop. Scores keep the whole of it, since a record leads to the one process that is wrong.
pub(super) const FLOOD_CREDIT: u32 = 8;

/// The shortest time between reports of losses: each means a check of everything.
pub(super) const BETWEEN_LOSSES: Duration = Duration::from_millis(100);

/// The cgroups that used some of their credit, and losses not reported yet.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the interval of each ends.
    turns: BTreeSet<(Instant, Key)>,
    /// How many intervals in a row each has used up before its current one.
    used_up: BTreeMap<Key, u32>,
    lost: u64,
    /// When losses may be reported again.
    losses_from: Option<Instant>,
}

/// A container's scores or a cgroup's files.
pub(super) type Key = (Kept, CgroupId);

impl Pace {
    /// Notes a record.
    pub(super) fn saw(&mut self, key: Key, now: Instant) {
        if let Entry::Vacant(vacant) = self.used_up.entry(key) {
            vacant.insert(0);
            self.turns.insert((now + TURN, key));
        }
    }

    /// Notes losses.
    pub(super) fn lost(&mut self, events: u64) {
        self.lost += events;
    }

    /// When the next action is due; `None` if nothing is noted.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let losses = (self.lost > 0).then(|| self.losses_from.unwrap_or(now));
        let turn = self.turns.first().map(|(due, _)| *due);
        [losses, turn].into_iter().flatten().min()
    }

    /// The next cgroup whose interval is over: report the result to [`Self::ended`].
    pub(super) fn pop(&mut self, now: Instant) -> Option<Key> {
        let first = self.turns.first().filter(|(due, _)| *due <= now).copied()?;
        self.turns.remove(&first);
        Some(first.1)
    }

    /// Whether a cgroup has used up its credit in the ended interval: then the next begins at once.
    pub(super) fn ended(&mut self, key: Key, is_used_up: bool, now: Instant) {
        let Some(before) = self.used_up.remove(&key) else { return };
        if is_used_up {
            let doublings = (before + 1).min(MOST_DOUBLINGS);
            self.used_up.insert(key, doublings);
            self.turns.insert((now + TURN * (1 << doublings), key));
        }
    }

    /// How many records a cgroup may emit in its current interval, at most [`CREDIT`].
    pub(super) fn credit(&self, key: Key) -> u32 {
        match (key.0, self.used_up.get(&key)) {
            (Kept::Files, Some(used_up)) if *used_up > 0 => FLOOD_CREDIT,
            (Kept::Files | Kept::Scores, _) => CREDIT,
        }
    }

    /// The losses, if they may be reported now.
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
        pace.ended(FILES, false, start + TURN);
        assert_eq!(pace.pop(start + TURN), None);
        assert_eq!(pace.due(start), Some(start + TURN / 2 + TURN));
        pace.saw(FILES, start + TURN);
        assert_eq!(pace.pop(start + TURN * 2), Some(SCORES));
        pace.ended(SCORES, false, start + TURN * 2);
        assert_eq!(pace.pop(start + TURN * 2), Some(FILES));
    }

    #[test]
    fn who_uses_up_turn_after_turn_gets_longer_ones_until_it_rests() {
        let mut pace = Pace::default();
        let mut now = Instant::now();
        pace.saw(SCORES, now);
        now += TURN;
        for doubled in [2, 4, 8, 8] {
            assert_eq!(pace.pop(now), Some(SCORES));
            pace.ended(SCORES, true, now);
            // What comes meanwhile is of that turn.
            pace.saw(SCORES, now + TURN / 2);
            assert_eq!(pace.due(now), Some(now + TURN * doubled));
            now += TURN * doubled;
        }
        assert_eq!(pace.pop(now), Some(SCORES));
        pace.ended(SCORES, false, now);
        assert_eq!(pace.due(now), None, "and nothing is kept of it");
        pace.saw(SCORES, now);
        assert_eq!(pace.due(now), Some(now + TURN));
    }

    #[test]
    fn who_writes_without_end_is_reported_a_few_times_an_interval() {
        let mut pace = Pace::default();
        let mut now = Instant::now();
        for key in [FILES, SCORES] {
            assert_eq!(pace.credit(key), CREDIT);
            pace.saw(key, now);
        }
        now += TURN;
        for (key, credit) in [(SCORES, CREDIT), (FILES, FLOOD_CREDIT)] {
            assert_eq!(pace.pop(now), Some(key));
            pace.ended(key, true, now);
            assert_eq!(pace.credit(key), credit);
        }
        now += TURN * 2;
        for key in [SCORES, FILES] {
            assert_eq!(pace.pop(now), Some(key));
            pace.ended(key, false, now);
            assert_eq!(pace.credit(key), CREDIT, "it has stopped");
        }
    }

    #[test]
    fn losses_are_reported_at_once_and_then_slowly() {
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
