//! Counters of one metric by label, in a table that neither locks nor grows.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters in a table of fixed size. A counter that was never shown or added to is absent.
#[derive(Debug)]
pub(super) struct Cells(
    /// The count plus one; 0 is absent.
    Box<[AtomicU64]>,
);

impl Cells {
    pub(super) fn new(count: usize) -> Self {
        Self(std::iter::repeat_with(AtomicU64::default).take(count).collect())
    }

    /// Makes it present, at 0 if it was absent.
    pub(super) fn show(&self, place: usize) {
        if let Some(cell) = self.0.get(place) {
            // Another thread has shown it if this fails.
            let _shown = cell.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    pub(super) fn add(&self, place: usize, more: u64) {
        self.show(place);
        if let Some(cell) = self.0.get(place) {
            cell.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// The count, if it is present.
    pub(super) fn get(&self, place: usize) -> Option<u64> {
        self.0.get(place)?.load(Ordering::Relaxed).checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_touched_is_absent() {
        let cells = Cells::new(3);
        cells.show(0);
        cells.add(1, 4);
        cells.show(1);
        cells.add(7, 1);
        assert_eq!((cells.get(0), cells.get(1), cells.get(2), cells.get(7)), (Some(0), Some(4), None, None));
    }
}
