mod rules;
mod scenarios;

use super::*;
use crate::threshold::ThresholdValue;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const S: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * S;

fn settings(thresholds: &[Threshold]) -> EvictionSettings {
    EvictionSettings { thresholds: thresholds.to_vec(), ..EvictionSettings::default() }
}

/// `memory.available` below 1 GiB, 500 MiB to be reclaimed: upstream's `hardThreshold`.
fn hard() -> Threshold {
    let min_reclaim = Some(ThresholdValue::Amount(500 * MIB));
    Threshold { min_reclaim, ..Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(GIB)) }
}

/// `memory.available` below 2 GiB for a minute: upstream's `softThreshold`.
fn soft() -> Threshold {
    let threshold = Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(2 * GIB));
    Threshold { grace_period_ms: 60_000, ..threshold }
}

fn left(entries: &[(Signal, u64, u64)]) -> Observations {
    let mut observations = Observations::default();
    for &(signal, available, capacity) in entries {
        observations.set(signal, Observation { available, capacity, measured_ns: None });
    }
    observations
}

fn memory(available: u64) -> Observations {
    left(&[(Signal::MemoryAvailable, available, 4 * GIB)])
}
