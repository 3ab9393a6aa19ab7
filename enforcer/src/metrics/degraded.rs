//! Follows which abilities are lost now, so that an alert can name the reason.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::names::Names;

/// The most reasons with their own label: more than there are words in docs/doctor.md.
const REASONS: usize = 96;

/// The most pairs of reason and place.
const PRESENT: usize = 1_024;

/// Degraded states by reason.
#[derive(Debug)]
pub(super) struct Degraded {
    reasons: Names<REASONS>,
    /// The current number of places per reason, plus one; 0 before the first report.
    counts: Vec<AtomicU64>,
    /// Reason and place. Only threads that report take this lock.
    present: Mutex<BTreeSet<(usize, Box<str>)>>,
}

impl Default for Degraded {
    fn default() -> Self {
        let counts = std::iter::repeat_with(AtomicU64::default).take(Names::<REASONS>::PLACES).collect();
        Self { reasons: Names::default(), counts, present: Mutex::default() }
    }
}

impl Degraded {
    pub(super) fn entered(&self, reason: &str, place: &str) {
        let reason = self.reasons.place(reason);
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        if present.len() < PRESENT {
            present.insert((reason, place.into()));
        }
        self.count(reason, &present);
    }

    pub(super) fn left(&self, reason: &str, place: &str) {
        let reason = self.reasons.place(reason);
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        present.remove(&(reason, Box::from(place)));
        self.count(reason, &present);
    }

    /// Each reason that was ever reported, and whether it holds now.
    pub(super) fn read(&self) -> impl Iterator<Item = (&str, bool)> {
        self.reasons.all().filter_map(|(place, reason)| {
            let count = self.counts.get(place)?.load(Ordering::Relaxed);
            (count > 0).then_some((reason, count > 1))
        })
    }

    fn count(&self, reason: usize, present: &BTreeSet<(usize, Box<str>)>) {
        let count = present.iter().filter(|(other, _)| *other == reason).count();
        if let Some(slot) = self.counts.get(reason) {
            slot.store(u64::try_from(count).unwrap_or(u64::MAX - 1) + 1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_over_when_its_last_place_is() {
        let degraded = Degraded::default();
        degraded.entered("limits", "/a");
        degraded.entered("limits", "/b");
        degraded.entered("limits", "/b");
        degraded.entered("journal", "");
        degraded.left("limits", "/a");
        degraded.left("bpffs", "");
        let read: Vec<_> = degraded.read().collect();
        assert_eq!(read, [("limits", true), ("journal", true), ("bpffs", false)]);
        degraded.left("limits", "/b");
        assert_eq!(degraded.read().next(), Some(("limits", false)));
    }

    #[test]
    fn hostile_reasons_and_places_are_bounded() {
        let degraded = Degraded::default();
        for number in 0..5_000 {
            degraded.entered(&format!("reason{number}"), &format!("place{number}"));
        }
        assert_eq!(degraded.read().count(), REASONS + 1);
        assert!(degraded.present.lock().unwrap().len() <= PRESENT);
    }
}
