//! The text form: `[+-] digits [. digits] [suffix]`, as `ParseQuantity` of apimachinery and the API's schema accept it.

use super::{NANO, ParseQuantityError, Quantity};

/// The largest magnitude that parsing yields: 2^63 - 1 base units, in billionths.
const LARGEST_NANO: i128 = i64::MAX as i128 * NANO;

/// More digits before the point than any number up to 2^63 - 1 has.
const MOST_WHOLE_DIGITS: i64 = 19;

/// The number of decimal places used; of further ones only whether one is not 0.
///
/// A unit is at most 2^60 * 10^9 = 2^69 * 5^9 billionths, so the value of the first 69 places is a whole number of
/// 5^60ths: the others are less than one of those, and never raise it to the next whole number.
const MOST_DECIMALS: usize = 69;

/// The factor of a suffix: `2^binary * 10^decimal`.
struct Scale {
    binary: u32,
    decimal: i64,
}

pub(super) fn parse(text: &str) -> Result<Quantity, ParseQuantityError> {
    let malformed = || ParseQuantityError::Malformed { text: excerpt(text) };
    let too_large = || ParseQuantityError::TooLarge { text: excerpt(text) };

    let (negative, unsigned) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let (whole, rest) = split_digits(unsigned);
    let (fraction, suffix) = rest.strip_prefix('.').map_or(("", rest), split_digits);
    if whole.is_empty() && fraction.is_empty() {
        return Err(malformed());
    }
    let scale = scale(suffix).ok_or_else(malformed)?;
    let magnitude = magnitude(whole, fraction, &scale).ok_or_else(too_large)?;
    if magnitude > LARGEST_NANO {
        return Err(too_large());
    }
    Ok(Quantity { nano: if negative { -magnitude } else { magnitude } })
}

/// The number in billionths, rounded up; `None` if it is far beyond the largest.
fn magnitude(whole: &str, fraction: &str, scale: &Scale) -> Option<i128> {
    let leading_zeros = whole.bytes().chain(fraction.bytes()).take_while(|&byte| byte == b'0').count();
    let mut digits =
        whole.bytes().chain(fraction.bytes()).skip(leading_zeros).map(|byte| i128::from(byte - b'0'));
    if leading_zeros == whole.len() + fraction.len() {
        return Some(0);
    }
    // The number is 0.DIGITS * 10^point, its first digit not 0.
    let point = i64::try_from(whole.len())
        .ok()?
        .checked_sub(i64::try_from(leading_zeros).ok()?)?
        .saturating_add(scale.decimal);
    if point > MOST_WHOLE_DIGITS {
        return None;
    }
    let unit = NANO << scale.binary;
    // Below 10^-28 times 2^60 billions it is only known to be more than zero.
    if point < -28 {
        return Some(1);
    }
    let mut number: i128 = 0;
    for _ in 0..point {
        number = number * 10 + digits.next().unwrap_or(0);
    }
    let number = number.checked_mul(unit)?;

    let decimals: Vec<i128> = digits.by_ref().take(MOST_DECIMALS).collect();
    let mut inexact = digits.any(|digit| digit != 0);
    // From the last digit up, so that each step needs only the whole part of the step before and whether there was a
    // remainder: floor((n + x) / 10) = floor((n + floor(x)) / 10).
    let mut below: i128 = 0;
    for digit in decimals.iter().rev() {
        let step = digit * unit + below;
        inexact |= step % 10 != 0;
        below = step / 10;
    }
    for _ in point..0 {
        inexact |= below % 10 != 0;
        below /= 10;
    }
    number.checked_add(below)?.checked_add(i128::from(inexact))
}

fn scale(suffix: &str) -> Option<Scale> {
    let binary = |binary| Some(Scale { binary, decimal: 0 });
    let decimal = |decimal| Some(Scale { binary: 0, decimal });
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => decimal(exponent(suffix.strip_prefix(['e', 'E'])?)?),
    }
}

/// A signed whole number; beyond an `i32` it saturates, and means "too large" or "too small".
fn exponent(text: &str) -> Option<i64> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let magnitude = digits.parse().unwrap_or(i32::MAX);
    Some(i64::from(if negative { -magnitude } else { magnitude }))
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

/// The part of the text that an error quotes: enough to find it, and at most a line.
fn excerpt(text: &str) -> String {
    text.chars().take(64).collect()
}
