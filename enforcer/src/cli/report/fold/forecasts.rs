//! Warnings, and whether what they said came true.

use std::collections::BTreeMap;

use enforcer_events::pressure::{Approach, HeadroomShrinking, Shortage};

use super::{
    super::document::{Forecast, Forecasts as Reported},
    At, between,
    few::Newest,
    time,
};

/// A warning that holds: the threshold is still near.
#[derive(Debug)]
struct Warning {
    at: At,
    forecast: Forecast,
    has_come_true: bool,
}

/// All warnings of the range, by their beginning.
#[derive(Debug, Default)]
pub(super) struct Forecasts {
    open: BTreeMap<(String, bool), Warning>,
    counts: Reported,
    items: Newest<Forecast>,
}

impl Forecasts {
    pub(super) fn warned(&mut self, at: At, shrinking: &HeadroomShrinking) {
        let Approach { signal, hard, .. } = &shrinking.approach;
        let forecast = Forecast {
            time: time(at.ms),
            signal: signal.to_string(),
            hard: *hard,
            outcome: "unknown",
            crossed_in_ms: shrinking.crossed_in_ms,
            was_crossed_in_ms: None,
            caused_by: shrinking.pods.first().map(|pod| format!("{}/{}", pod.namespace, pod.name)),
        };
        let warning = Warning { at, forecast, has_come_true: false };
        if let Some(former) = self.open.insert((signal.to_string(), *hard), warning) {
            self.close(former, "unknown");
        }
    }

    pub(super) fn crossed(&mut self, at: At, shortage: &Shortage) {
        match self.open.get_mut(&(shortage.signal.to_string(), shortage.hard)) {
            Some(warning) if warning.has_come_true => {}
            Some(warning) => {
                warning.has_come_true = true;
                warning.forecast.was_crossed_in_ms = Some(between(warning.at.ms, at.ms));
            }
            None if at.is_in_range => self.counts.unforeseen += 1,
            None => {}
        }
    }

    pub(super) fn back(&mut self, approach: &Approach) {
        if let Some(warning) = self.open.remove(&(approach.signal.to_string(), approach.hard)) {
            self.close(warning, "didNot");
        }
    }

    /// What becomes of open warnings is not known any more.
    pub(super) fn forget(&mut self) {
        for (_, warning) in std::mem::take(&mut self.open) {
            self.close(warning, "unknown");
        }
    }

    fn close(&mut self, warning: Warning, otherwise: &'static str) {
        let Warning { at, mut forecast, has_come_true } = warning;
        if !at.is_in_range {
            return;
        }
        forecast.outcome = if has_come_true { "cameTrue" } else { otherwise };
        self.counts.warnings += 1;
        match forecast.outcome {
            "cameTrue" => self.counts.came_true += 1,
            "didNot" => self.counts.did_not += 1,
            _ => self.counts.unknown += 1,
        }
        self.items.push(forecast);
    }

    pub(super) fn finish(self) -> Reported {
        let (items, more) = self.items.finish();
        Reported { items, more, ..self.counts }
    }
}
