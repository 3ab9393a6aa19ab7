//! Bounded collections: a report has the same size whatever the journal holds.

use std::collections::{BTreeMap, VecDeque};

use super::super::document::Few;

/// The longest list of a report.
pub(in super::super) const MOST_ITEMS: usize = 100;

/// How many owners a table lists.
pub(super) const MOST_OWNERS: usize = 20;

/// How many owners are counted apart.
const MOST_COUNTED: usize = 4_096;

/// The newest of a list, and how many there were before.
#[derive(Clone, Debug)]
pub(super) struct Newest<T> {
    items: VecDeque<T>,
    before: u64,
}

impl<T> Default for Newest<T> {
    fn default() -> Self {
        Self { items: VecDeque::new(), before: 0 }
    }
}

impl<T> Newest<T> {
    pub(super) fn push(&mut self, item: T) {
        if self.items.len() == MOST_ITEMS {
            self.items.pop_front();
            self.before += 1;
        }
        self.items.push_back(item);
    }

    /// The newest first, and how many are left out.
    pub(super) fn finish(self) -> (Vec<T>, u64) {
        (self.items.into_iter().rev().collect(), self.before)
    }
}

/// Counts by owner. Of more than can be kept apart, the later ones are left out and counted.
#[derive(Clone, Debug)]
pub(super) struct Owners<K, T> {
    owners: BTreeMap<K, T>,
    uncounted: u64,
}

impl<K, T> Default for Owners<K, T> {
    fn default() -> Self {
        Self { owners: BTreeMap::new(), uncounted: 0 }
    }
}

impl<K: Ord, T> Owners<K, T> {
    /// The owner's counts; `None` if there are too many owners.
    pub(super) fn of(&mut self, key: K, new: impl FnOnce() -> T) -> Option<&mut T> {
        if self.owners.len() >= MOST_COUNTED && !self.owners.contains_key(&key) {
            self.uncounted += 1;
            return None;
        }
        Some(self.owners.entry(key).or_insert_with(new))
    }

    /// What could not be counted by owner.
    pub(super) fn uncounted(&self) -> u64 {
        self.uncounted
    }

    /// The first by `weight`, and how many more owners there are.
    pub(super) fn finish<W: Ord>(self, weight: impl Fn(&T) -> W) -> Few<T> {
        let mut items: Vec<T> = self.owners.into_values().collect();
        items.sort_by_key(|item| std::cmp::Reverse(weight(item)));
        let more = items.len().saturating_sub(MOST_OWNERS);
        items.truncate(MOST_OWNERS);
        Few { items, more: u64::try_from(more).unwrap_or(u64::MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_the_newest_and_say_how_many_came_before() {
        let mut newest = Newest::default();
        (0..250).for_each(|number| newest.push(number));
        let (items, before) = newest.finish();
        assert_eq!((items.first(), items.len(), before), (Some(&249), MOST_ITEMS, 150));
    }

    #[test]
    fn the_heaviest_owners_are_listed_and_what_is_left_out_is_counted() {
        let mut owners: Owners<u64, u64> = Owners::default();
        for key in 0..10_000 {
            if let Some(count) = owners.of(key, || 0) {
                *count += key;
            }
        }
        assert_eq!(owners.uncounted(), 10_000 - 4_096);
        // One that is known is still counted.
        *owners.of(7, || 0).unwrap() += 1_000_000;
        let few = owners.finish(|count| *count);
        assert_eq!((few.items.first(), few.items.len(), few.more), (Some(&1_000_007), 20, 4_076));
    }
}
