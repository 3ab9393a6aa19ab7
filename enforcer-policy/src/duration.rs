//! Durations in Go's notation, which the kubelet's configuration uses: `1m30s`, `1.5h`, `500ms` (`time.ParseDuration`).

use std::time::Duration;

/// The longest duration in Go: 2^63 - 1 nanoseconds.
const MAX_NS: u128 = i64::MAX as u128;

/// Why a text is not a duration.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DurationError {
    /// It does not consist of numbers with units.
    #[error("{text:?} is not a duration: write numbers with units (ns, us, ms, s, m, h), such as 1m30s")]
    Malformed {
        /// The text, its first 64 characters.
        text: String,
    },
    /// It is below zero.
    #[error("{text:?} is negative: a duration is zero or more")]
    Negative {
        /// The text, its first 64 characters.
        text: String,
    },
    /// It is longer than 292 years.
    #[error("{text:?} is too long: the longest duration is 2562047h47m16.854775807s")]
    TooLong {
        /// The text, its first 64 characters.
        text: String,
    },
}

/// Reads a duration of zero or more; fractions of a nanosecond are cut off, as in Go.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let shown = || text.chars().take(64).collect();
    let malformed = || DurationError::Malformed { text: shown() };
    let (negative, unsigned) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if unsigned == "0" {
        return Ok(Duration::ZERO);
    }
    if unsigned.is_empty() {
        return Err(malformed());
    }
    let mut total_ns: u128 = 0;
    let mut rest = unsigned;
    while !rest.is_empty() {
        let (whole, after) = split_digits(rest);
        let (fraction, after) = after.strip_prefix('.').map_or(("", after), split_digits);
        if whole.is_empty() && fraction.is_empty() {
            return Err(malformed());
        }
        let (unit, after) = split_unit(after);
        let unit_ns = unit_ns(unit).ok_or_else(malformed)?;
        let whole = if whole.is_empty() { Some(0) } else { whole.parse::<u64>().ok() };
        let part_ns = whole.map(|whole| u128::from(whole) * unit_ns + fraction_ns(fraction, unit_ns));
        total_ns = part_ns
            .and_then(|part| total_ns.checked_add(part))
            .filter(|total| *total <= MAX_NS)
            .ok_or_else(|| DurationError::TooLong { text: shown() })?;
        rest = after;
    }
    if negative && total_ns > 0 {
        return Err(DurationError::Negative { text: shown() });
    }
    Ok(Duration::from_nanos(u64::try_from(total_ns).unwrap_or(u64::MAX)))
}

fn unit_ns(unit: &str) -> Option<u128> {
    Some(match unit {
        "ns" => 1,
        // The micro sign, and the Greek letter.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60 * 1_000_000_000,
        "h" => 3_600 * 1_000_000_000,
        _ => return None,
    })
}

/// The fraction of a unit, from any number of digits: from the 19th on, a digit is less than a nanosecond of an hour.
fn fraction_ns(digits: &str, unit_ns: u128) -> u128 {
    let mut scale = 1;
    let mut number = 0;
    for digit in digits.bytes().take(18) {
        number = number * 10 + u128::from(digit - b'0');
        scale *= 10;
    }
    number * unit_ns / scale
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

fn split_unit(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(|byte| !byte.is_ascii_digit() && *byte != b'.').count())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    /// `src/time/time_test.go`, `parseDurationTests`.
    #[rstest]
    #[case("0", 0)]
    #[case("+0", 0)]
    #[case("-0", 0)]
    #[case("0s", 0)]
    #[case("-0s", 0)]
    #[case("5s", 5_000_000_000)]
    #[case("+5s", 5_000_000_000)]
    #[case("1478s", 1_478_000_000_000)]
    #[case("5.0s", 5_000_000_000)]
    #[case("5.6s", 5_600_000_000)]
    #[case("5.s", 5_000_000_000)]
    #[case(".5s", 500_000_000)]
    #[case("1.004s", 1_004_000_000)]
    #[case("100.00100s", 100_001_000_000)]
    #[case("10ns", 10)]
    #[case("11us", 11_000)]
    #[case("12\u{b5}s", 12_000)]
    #[case("12\u{3bc}s", 12_000)]
    #[case("13ms", 13_000_000)]
    #[case("15m", 900_000_000_000)]
    #[case("16h", 57_600_000_000_000)]
    #[case("3h30m", 12_600_000_000_000)]
    #[case("10.5s4m", 250_500_000_000)]
    #[case("1h2m3s4ms5us6ns", 3_723_004_005_006)]
    #[case("39h9m14.425s", 140_954_425_000_000)]
    #[case("52763797000ns", 52_763_797_000)]
    #[case("0.3333333333333333333h", 1_200_000_000_000 - 1)]
    #[case("0.100000000000000000000h", 360_000_000_000)]
    #[case("9223372036854775807ns", 9_223_372_036_854_775_807)]
    fn durations_are_read_as_go_does(#[case] text: &str, #[case] ns: u64) {
        assert_eq!(parse(text), Ok(Duration::from_nanos(ns)));
    }

    #[rstest]
    fn what_is_no_duration_is_refused(
        #[values(
            "",
            "3",
            "-",
            "s",
            ".",
            "-.",
            ".s",
            "+.s",
            "1d",
            "30mins",
            "\u{85}\u{85}",
            "1 s",
            " 1s",
            "1s ",
            "1e3s",
            "--1s",
            "0x1s"
        )]
        text: &str,
    ) {
        assert!(matches!(parse(text), Err(DurationError::Malformed { .. })), "{text:?}");
    }

    #[rstest]
    fn what_is_too_long_is_refused(
        #[values(
            "9223372036854775808ns",
            "9223372036854775.808us",
            "2562048h",
            "99999999999999999999999h",
            "1h9223372036854775807ns"
        )]
        text: &str,
    ) {
        assert!(matches!(parse(text), Err(DurationError::TooLong { .. })), "{text:?}");
    }

    #[test]
    fn below_zero_is_reported_as_that() {
        assert!(matches!(parse("-30s"), Err(DurationError::Negative { .. })));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*|([+-]?[0-9]{0,25}\\.?[0-9]{0,25}(ns|us|ms|s|m|h)){0,4}") {
            drop(parse(&text));
        }

        #[test]
        fn whole_nanoseconds_are_kept(h in 0..2_000_000_u64, m in any::<u16>(), ns in any::<u32>()) {
            let expected = u64::from(ns) + 60_000_000_000 * u64::from(m) + 3_600_000_000_000 * h;
            prop_assert_eq!(parse(&format!("{h}h{m}m{ns}ns")), Ok(Duration::from_nanos(expected)));
        }
    }
}
