//! Quantities beside a second reading of them by numbers of any length, which the fuzz target uses too.

use enforcer::model::Quantity;
use enforcer_fuzz::{
    quantity::{check_forms, check_one},
    reference::{self, Reading},
};
use proptest::prelude::*;

#[path = "../fuzz/src/lib.rs"]
#[expect(clippy::panic, unreachable_pub, dead_code, reason = "it is a library of its own as well")]
mod enforcer_fuzz;

/// Numbers of every length with every suffix, and some that are none.
fn any_text() -> impl Strategy<Value = String> {
    "[+-]?[0-9]{0,30}(\\.[0-9]{0,80})?([num kMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,3}|[a-zA-Z]{2})?"
}

proptest! {
    #[test]
    fn both_readings_agree(text in any_text()) {
        check_one(&text);
    }

    #[test]
    fn order_and_sums_are_those_of_the_numbers(left in any_text(), right in any_text()) {
        let (Some((left, left_nano)), Some((right, right_nano))) = (check_one(&left), check_one(&right)) else {
            return Ok(());
        };
        prop_assert_eq!(left.cmp(&right), left_nano.cmp(&right_nano));
        let (sum, difference) = (left.checked_add(right), left.saturating_sub(right));
        let in_range = |nano: i128| matches!(reference::read(&format!("{nano}n")), Reading::Nano(_));
        if let Some(sum) = sum.filter(|_| in_range(left_nano + right_nano)) {
            check_forms(sum, left_nano + right_nano);
        }
        if in_range(left_nano - right_nano) {
            check_forms(difference, left_nano - right_nano);
        }
    }
}

/// The second reading, by hand.
#[test]
fn the_reference_reads_what_is_known() {
    for (text, nano) in [("1", 1_000_000_000), ("-0.1n", -1), ("1.5Ki", 1_536_000_000_000), ("2e-9", 2)] {
        assert_eq!(reference::read(text), Reading::Nano(nano));
    }
    assert_eq!(reference::read("8Ei"), Reading::TooLarge);
    assert_eq!(reference::read("1K"), Reading::Malformed);
    assert_eq!(Quantity::ZERO.to_string(), "0");
}
