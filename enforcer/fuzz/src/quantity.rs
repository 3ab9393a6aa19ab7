//! Quantities: read as the reference reads them, shown in their one canonical form.

use enforcer::model::{ParseQuantityError, Quantity};

use super::{
    reference::{self, Reading},
    text::check_message,
};

/// The longest text that the reference is asked for, in bytes.
const MOST_BYTES: usize = 1_000;

/// The lines are quantities; each is read, and each two of them are compared and summed.
pub fn check(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let mut read = Vec::new();
    for line in text.split('\n').take(4) {
        if line.len() <= MOST_BYTES {
            read.extend(check_one(line));
        } else {
            drop(line.parse::<Quantity>());
        }
    }
    for pair in read.windows(2) {
        if let [(left, left_nano), (right, right_nano)] = *pair {
            assert_eq!(left.cmp(&right), left_nano.cmp(&right_nano), "{left} and {right}");
            check_sum(left, right, left_nano + right_nano);
        }
    }
}

/// The quantity and its billionths, if it is one.
pub fn check_one(text: &str) -> Option<(Quantity, i128)> {
    match (text.parse::<Quantity>(), reference::read(text)) {
        (Ok(quantity), Reading::Nano(nano)) => {
            check_forms(quantity, nano);
            Some((quantity, nano))
        }
        (Err(error @ ParseQuantityError::Malformed { .. }), Reading::Malformed)
        | (Err(error @ ParseQuantityError::TooLarge { .. }), Reading::TooLarge) => {
            check_message(&error.to_string());
            None
        }
        (read, expected) => panic!("{text:?} was read as {read:?}, it is {expected:?}"),
    }
}

fn check_sum(left: Quantity, right: Quantity, nano: i128) {
    let sum = left.checked_add(right).map(|sum| sum.saturating_sub(right));
    assert_eq!(sum, Some(left), "({left} + {right}) - {right}");
    let sum = left.saturating_add(right);
    if let Reading::Nano(shown) = reference::read(&sum.to_string()) {
        assert_eq!(shown, nano, "{left} + {right} is shown as {sum}");
    }
}

/// What a quantity of so many billionths shows of itself.
pub fn check_forms(quantity: Quantity, nano: i128) {
    let decimal = quantity.to_string();
    let binary = quantity.binary_si().to_string();
    for shown in [&decimal, &binary] {
        assert_eq!(reference::read(shown), Reading::Nano(nano), "shown as {shown}");
        assert_eq!(shown.parse(), Ok(quantity), "{shown} is read as another quantity");
    }
    check_canonical(&decimal, &["n", "u", "m", "", "k", "M", "G", "T", "P", "E"], 1000);
    let is_plain = nano.abs() < 1024 * 1_000_000_000 || nano % 1_000_000_000 != 0;
    if is_plain {
        assert_eq!(binary, decimal);
    } else {
        check_canonical(&binary, &["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], 1024);
    }

    let units = reference::divide_away_from_zero(nano, 1_000_000_000);
    let milli = reference::divide_away_from_zero(nano, 1_000_000);
    assert_eq!(i128::from(quantity.value_ceil()), units);
    assert_eq!(i128::from(quantity.milli_value_ceil()), milli.clamp(i64::MIN.into(), i64::MAX.into()));
    assert_eq!(i128::from(quantity.units()), units.max(0));
    assert_eq!(i128::from(quantity.milli()), milli.clamp(0, i64::MAX.into()));
    assert_eq!(
        (quantity.is_negative(), quantity.is_zero(), quantity.is_positive()),
        (nano < 0, nano == 0, nano > 0)
    );
}

/// A whole number without leading zeros, and the largest of the suffixes that leaves one.
fn check_canonical(shown: &str, suffixes: &[&str], base: i128) {
    let unsigned = shown.strip_prefix('-').unwrap_or(shown);
    let end = unsigned.find(|c: char| !c.is_ascii_digit()).unwrap_or(unsigned.len());
    let (digits, suffix) = unsigned.split_at(end);
    assert!(suffixes.contains(&suffix), "{shown:?} has another suffix");
    assert!(shown == "0" || !digits.starts_with('0'), "{shown:?} has leading zeros");
    let can_shrink = digits.parse::<i128>().is_ok_and(|number| number % base == 0);
    assert!(shown == "0" || !can_shrink || suffixes.last() == Some(&suffix), "{shown:?} is not shortened");
}
