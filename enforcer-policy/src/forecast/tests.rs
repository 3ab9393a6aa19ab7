use proptest::prelude::*;

use super::*;
use crate::threshold::ThresholdValue;

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

fn threshold() -> Threshold {
    Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(100 * MIB))
}

fn trend(available_mib: u64, slope_mib: i64) -> Trend {
    Trend {
        signal: Signal::MemoryAvailable,
        available: available_mib * MIB,
        capacity: 4_096 * MIB,
        slope_per_second: Some(slope_mib << 20),
        pace_per_second: None,
    }
}

/// The same, falling right now by so much.
fn rushing(available_mib: u64, pace_mib: u64) -> Trend {
    Trend { pace_per_second: Some(pace_mib * MIB), ..trend(available_mib, -1) }
}

fn new_forecast() -> Forecast {
    let mut forecast = Forecast::default();
    forecast.configure(&[threshold()]);
    forecast
}

#[test]
fn the_time_left_is_headroom_by_rate() {
    let ahead = trend(600, -10).ahead(threshold());
    assert_eq!((ahead.amount, ahead.left_ns), (100 * MIB, Some(50 * SECOND)));
    assert_eq!(trend(600, 10).ahead(threshold()).left_ns, None);
    assert_eq!(Trend { slope_per_second: None, ..trend(600, 0) }.ahead(threshold()).left_ns, None);
    assert_eq!(trend(50, -10).ahead(threshold()).left_ns, Some(0));
    let share = Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Share(0.5));
    assert_eq!(trend(2_148, -10).ahead(share).left_ns, Some(10 * SECOND));
}

#[test]
fn a_steady_fill_is_reported_once_and_when_it_is_over() {
    let mut forecast = new_forecast();
    assert_eq!(forecast.look(0, &[trend(2_000, -10)]), []);
    assert!(!forecast.is_of_concern(&[trend(2_000, -10)]));
    assert!(forecast.is_of_concern(&[trend(600, -10)]));
    assert_eq!(forecast.look(SECOND, &[trend(600, -10)]), [], "one look says nothing");
    // An eighth of what is left must pass.
    for second in 2..7 {
        assert_eq!(forecast.look(second * SECOND, &[trend(610 - second * 10, -10)]), []);
    }
    let reported = forecast.look(7 * SECOND, &[trend(540, -10)]);
    assert!(
        matches!(reported.as_slice(), [Warning::Rising(ahead)] if ahead.left_ns == Some(44 * SECOND)),
        "{reported:?}"
    );
    for second in 8..40 {
        assert_eq!(forecast.look(second * SECOND, &[trend(610 - second * 10, -10)]), []);
    }
    // Beyond the threshold the engine reports the crossing.
    assert_eq!(forecast.look(60 * SECOND, &[trend(50, -10)]), []);
    for second in 61..76 {
        assert_eq!(forecast.look(second * SECOND, &[trend(1_000, 5)]), []);
        assert!(forecast.is_of_concern(&[trend(1_000, 5)]));
    }
    let reported = forecast.look(76 * SECOND, &[trend(1_000, 0)]);
    assert!(
        matches!(reported.as_slice(), [Warning::Cleared { lasted_ns, .. }] if *lasted_ns == 69 * SECOND),
        "{reported:?}"
    );
    assert!(!forecast.is_of_concern(&[trend(1_000, 0)]));
}

#[test]
fn what_rushes_at_the_threshold_is_reported_while_there_is_time() {
    let mut forecast = new_forecast();
    // 300 MiB/s with 5 s left: half a second is enough.
    assert_eq!(forecast.look(0, &[rushing(1_600, 300)]), []);
    assert_eq!(forecast.look(SECOND / 4, &[rushing(1_525, 300)]), []);
    let reported = forecast.look(SECOND * 3 / 4, &[rushing(1_300, 300)]);
    assert!(
        matches!(reported.as_slice(), [Warning::Rising(ahead)]
            if ahead.left_ns == Some(4 * SECOND) && ahead.falling_per_second == 300 * MIB),
        "{reported:?}"
    );
}

#[test]
fn a_short_rush_says_nothing_of_a_threshold_that_is_far() {
    assert!(!new_forecast().is_of_concern(&[rushing(8_000, 300)]));
    // What fell for long is believed, and the faster of both counts.
    assert!(
        new_forecast().is_of_concern(&[Trend { slope_per_second: Some(-(300 << 20)), ..rushing(8_000, 1) }])
    );
    assert_eq!(rushing(8_000, 300).ahead(threshold()).falling_per_second, MIB);
}

#[test]
fn what_hovers_is_reported_once() {
    let mut forecast = new_forecast();
    let mut reported = 0;
    for second in 0..600_u64 {
        // Now 50 s, now 100 s, and later now nothing.
        let slopes = if second < 60 { [-10, -10, -5, -6] } else { [-10, -10, -5, 3] };
        let slope = slopes[usize::try_from(second % 4).unwrap()];
        reported += forecast.look(second * SECOND, &[trend(600, slope)]).len();
    }
    assert_eq!(reported, 1);
}

#[test]
fn a_step_is_not_taken_for_a_fall() {
    // A slope over some seconds shows a step for as long: a quarter of the headroom, as fifty MiB a second at first.
    let mut forecast = new_forecast();
    let mut slope_kib = 50_i64 << 10;
    for quarter in 0..120 {
        let slope_per_second = Some(-slope_kib << 10);
        let trend = Trend { slope_per_second, ..trend(1_100, 0) };
        assert_eq!(forecast.look(quarter * SECOND / 4, &[trend]), [], "{quarter}");
        slope_kib = slope_kib * 20 / 21;
    }
}

#[test]
fn what_was_reported_outlives_other_thresholds_and_a_signal_that_cannot_be_read() {
    let mut forecast = new_forecast();
    forecast.look(0, &[trend(600, -10)]);
    assert_eq!(forecast.look(9 * SECOND, &[trend(600, -10)]).len(), 1);
    let soft = Threshold {
        grace_period_ms: 30_000,
        ..Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(300 * MIB))
    };
    forecast.configure(&[soft, threshold()]);
    assert_eq!(forecast.look(10 * SECOND, &[]), []);
    assert_eq!(forecast.look(11 * SECOND, &[trend(600, -10)]), []);
    let reported = forecast.look(15 * SECOND, &[trend(600, -10)]);
    assert!(
        matches!(reported.as_slice(), [Warning::Rising(ahead)] if ahead.threshold == soft),
        "{reported:?}"
    );
    assert_eq!(forecast.least_left_ns(&[trend(600, -10)]), Some(30 * SECOND));
}

proptest! {
    /// Of each threshold rising and cleared take turns, and a warning is never of a threshold that is crossed, far, or
    /// not approached.
    #[test]
    fn warnings_alternate_and_are_true(looks in prop::collection::vec((1_u64..20, 0_u64..2_000, -100_i64..100), 1..200)) {
        let mut forecast = new_forecast();
        let (mut now_ns, mut is_risen) = (0, false);
        for (seconds, available_mib, slope_mib) in looks {
            now_ns += seconds * SECOND;
            for warning in forecast.look(now_ns, &[trend(available_mib, slope_mib)]) {
                match warning {
                    Warning::Rising(ahead) => {
                        prop_assert!(!is_risen && slope_mib < 0 && ahead.available > ahead.amount);
                        prop_assert!(ahead.left_ns.is_some_and(|left_ns| left_ns <= WARN_NS));
                        is_risen = true;
                    }
                    Warning::Cleared { ahead, lasted_ns } => {
                        prop_assert!(is_risen && lasted_ns >= CALM_FOR_NS);
                        prop_assert!(ahead.left_ns.is_none_or(|left_ns| left_ns > WARN_NS));
                        is_risen = false;
                    }
                }
            }
        }
    }
}
