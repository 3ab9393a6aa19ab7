use proptest::prelude::*;
use rstest::rstest;

use super::*;

/// `pkg/kubelet/eviction/helpers_test.go`, `TestParseThresholdConfig` and `TestParsePercentage`: the rows on one value.
#[rstest]
#[case("150Mi", Some(ThresholdValue::Amount(150 << 20)))]
#[case("10%", Some(ThresholdValue::Share(0.1)))]
#[case("30%", Some(ThresholdValue::Share(0.3)))]
#[case("10.5%", Some(ThresholdValue::Share(0.105)))]
#[case("25.5%", Some(ThresholdValue::Share(0.255)))]
#[case("0%", None)]
#[case("100%", None)]
// Exactly these two are off; what is equal to them is a threshold.
#[case("0.0%", Some(ThresholdValue::Share(0.0)))]
#[case("100.0%", Some(ThresholdValue::Share(1.0)))]
#[case("1m", Some(ThresholdValue::Amount(1)))]
fn thresholds_are_read_as_the_kubelet_does(#[case] text: &str, #[case] expected: Option<ThresholdValue>) {
    assert_eq!(parse(text), Ok(expected));
}

#[rstest]
fn what_is_no_threshold_is_shown(
    #[values(
        "", "blah", "-150Mi", "0", "-15%", "150%", "100.1%", "10..5%", "foo%", "12%345", "%", "nan%", "inf%",
        " 5%", "5 %", "1e999%"
    )]
    text: &str,
) {
    let error = parse(text).unwrap_err().to_string();
    assert!(error.contains(&format!("{text:?}")), "{error}");
}

#[rstest]
#[case("0", Ok(ThresholdValue::Amount(0)))]
#[case("5%", Ok(ThresholdValue::Share(0.05)))]
#[case("500Mi", Ok(ThresholdValue::Amount(500 << 20)))]
#[case("-300Mi", Err(()))]
#[case("-15%", Err(()))]
#[case("0%", Err(()))]
#[case("10..5%", Err(()))]
#[case("", Err(()))]
fn minimum_reclaim_is_read_as_the_kubelet_does(
    #[case] text: &str,
    #[case] expected: Result<ThresholdValue, ()>,
) {
    assert_eq!(parse_minimum_reclaim(text).map_err(drop), expected);
}

#[test]
fn a_percentage_is_rounded_as_the_kubelet_does() {
    let share = parse("5%").unwrap().unwrap();
    assert_eq!(share.amount(10 << 30), 536_870_920);
    assert_eq!(ThresholdValue::Amount(7).amount(10 << 30), 7);
    assert_eq!(ThresholdValue::Share(1.0).amount(u64::MAX), u64::MAX);
}

#[test]
fn a_threshold_is_shown_as_it_was_written() {
    for text in ["100Mi", "1500Mi", "104857601", "10%", "12.5%", "15%", "20.5%", "0.0001%"] {
        assert_eq!(parse(text).unwrap().unwrap().to_string(), text);
    }
}

proptest! {
    #[test]
    fn a_share_is_no_more_than_all(text in "[0-9]{1,2}(\\.[0-9]{1,5})?%", capacity in any::<u64>()) {
        if let Some(value) = parse(&text).unwrap() {
            prop_assert!(value.amount(capacity) <= capacity);
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC*%?") {
        drop(parse(&text));
        drop(parse_minimum_reclaim(&text));
    }
}
