//! How long thresholds were crossed.

use std::collections::BTreeMap;

use enforcer_events::pressure::{Shortage, ShortageOver};

use super::{
    super::document::{Pressure as Reported, Shortage as Listed, UnderPressure},
    At, Range, between,
    few::Newest,
    time, whole_ms,
};

/// The pairs of crossings and their ends.
#[derive(Debug)]
pub(super) struct Pressure {
    range: Range,
    /// The crossed thresholds, and since when.
    open: BTreeMap<(String, bool), i64>,
    thresholds: BTreeMap<(String, bool), UnderPressure>,
    items: Newest<Listed>,
}

impl Pressure {
    pub(super) fn new(range: Range) -> Self {
        Self { range, open: BTreeMap::new(), thresholds: BTreeMap::new(), items: Newest::default() }
    }

    pub(super) fn crossed(&mut self, at: At, shortage: &Shortage) {
        let key = (shortage.signal.to_string(), shortage.hard);
        if let Some(since_ms) = self.open.insert(key.clone(), at.ms) {
            self.close(key, since_ms, at.ms, "unknown");
        }
    }

    pub(super) fn cleared(&mut self, at: At, over: &ShortageOver) {
        let key = (over.shortage.signal.to_string(), over.shortage.hard);
        // Without its beginning in the journal, the end says when that was.
        let lasted_ms = i64::try_from(whole_ms(over.crossed_to_cleared_ms)).unwrap_or(i64::MAX);
        let since_ms = self.open.remove(&key).unwrap_or(at.ms.saturating_sub(lasted_ms));
        self.close(key, since_ms, at.ms, "cleared");
    }

    /// Ends all that is open.
    pub(super) fn close_all(&mut self, until_ms: i64, end: &'static str) {
        for (key, since_ms) in std::mem::take(&mut self.open) {
            self.close(key, since_ms, until_ms, end);
        }
    }

    fn close(&mut self, (signal, hard): (String, bool), since_ms: i64, until_ms: i64, end: &'static str) {
        if until_ms < self.range.from_ms {
            return;
        }
        let since_ms = since_ms.max(self.range.from_ms);
        let lasted_ms = between(since_ms, until_ms);
        let key = (signal.clone(), hard);
        let entry = self.thresholds.entry(key);
        let under = entry.or_insert_with(|| UnderPressure {
            signal: signal.clone(),
            hard,
            ..UnderPressure::default()
        });
        under.shortages += 1;
        under.total_ms = under.total_ms.saturating_add(lasted_ms);
        under.longest_ms = under.longest_ms.max(lasted_ms);
        under.at_least |= end != "cleared";
        under.open |= end == "open";
        self.items.push(Listed { signal, hard, from: time(since_ms), to: time(until_ms), lasted_ms, end });
    }

    pub(super) fn finish(self) -> Reported {
        let (items, more) = self.items.finish();
        Reported { thresholds: self.thresholds.into_values().collect(), items, more }
    }
}
