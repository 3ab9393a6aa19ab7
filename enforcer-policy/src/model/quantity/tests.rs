use proptest::prelude::*;
use rstest::rstest;

use super::*;

const LARGEST: i128 = 9_223_372_036_854_775_807 * NANO;

fn quantity(text: &str) -> Quantity {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

#[rstest]
#[case("0", 0)]
#[case("-0", 0)]
#[case("+1", NANO)]
#[case("-1", -NANO)]
#[case("00012", 12 * NANO)]
#[case(".5", NANO / 2)]
#[case("5.", 5 * NANO)]
#[case("5.Mi", 5 * 1_048_576 * NANO)]
#[case("0.1", NANO / 10)]
#[case("100m", NANO / 10)]
#[case("1n", 1)]
#[case("1u", 1_000)]
#[case("1k", 1_000 * NANO)]
#[case("2E", 2_000_000_000_000_000_000 * NANO)]
#[case("7Ei", 7 * (NANO << 60))]
#[case("1.5Ki", 1_536 * NANO)]
#[case("1e3", 1_000 * NANO)]
#[case("1E3", 1_000 * NANO)]
#[case("1e+3", 1_000 * NANO)]
#[case("12.5e-1", 1_250_000_000)]
#[case("1E-9", 1)]
#[case("9223372036854775807", LARGEST)]
#[case("-9223372036854775807", -LARGEST)]
#[case("9223372036854775807000000000n", LARGEST)]
#[case("0e999999999999999999999", 0)]
#[case("0.0000000000000000001E", 100_000_000)]
// Rounded away from zero at the ninth place.
#[case("0.1n", 1)]
#[case("-0.1n", -1)]
#[case("1e-100", 1)]
#[case("-1e-999999999999999999999", -1)]
#[case("0.1234567891", 123_456_790)]
#[case("1.0000000000000000000000000000000000000000001", NANO + 1)]
#[case("0.0000000001Ki", 103)]
// 2^-60 of an Ei is exactly one unit, written out in full.
#[case("0.000000000000000000867361737988403547205962240695953369140625Ei", NANO)]
#[case("0.0000000000000000008673617379884035472059622406959533691406251Ei", NANO + 1)]
fn parses_exactly(#[case] text: &str, #[case] nano: i128) {
    assert_eq!(quantity(text).nano, nano);
}

#[rstest]
fn refuses_what_is_no_quantity(
    #[values(
        "",
        "+",
        "-",
        ".",
        "Ki",
        "m",
        "e3",
        "+-1",
        "1.1.M",
        "1+1.0M",
        "0.1mi",
        "0.1am",
        "aoeu",
        ".5i",
        "1i",
        "-3.01i",
        "-3.01e-",
        "1e",
        "1e1.5",
        "1Kib",
        "1kB",
        "1K",
        "1 ",
        " 1",
        "1_000",
        "0x10",
        "12Q",
        "1e5Mi",
        "\u{661}",
        "\u{661}\u{660}",
        "0x",
        "1E+",
        "1\u{b5}",
        "\u{221e}",
        "inf",
        "NaN"
    )]
    text: &str,
) {
    assert_eq!(text.parse::<Quantity>(), Err(ParseQuantityError::Malformed { text: text.to_owned() }));
}

#[rstest]
fn refuses_what_is_beyond_64_bits(
    #[values(
        "9223372036854775808",
        "9223372036854775807.1",
        "-9223372036854775808",
        "8Ei",
        "10E",
        "1e19",
        "1e999999999999",
        "99999999999999999999999999999999999999999999999999",
        "9999999999999999999Ei"
    )]
    text: &str,
) {
    assert_eq!(text.parse::<Quantity>(), Err(ParseQuantityError::TooLarge { text: text.to_owned() }));
}

#[test]
fn whole_numbers_are_rounded_away_from_zero() {
    assert_eq!(quantity("100m").value_ceil(), 1);
    assert_eq!(quantity("-100m").value_ceil(), -1);
    assert_eq!(quantity("1n").milli_value_ceil(), 1);
    assert_eq!(quantity("2").milli_value_ceil(), 2_000);
    assert_eq!(quantity("9223372036854775807").milli_value_ceil(), i64::MAX);
    assert_eq!(quantity("-5").units(), 0);
}

#[rstest]
#[case("1500Mi", "1500Mi")]
#[case("100Mi", "100Mi")]
#[case("104857600", "100Mi")]
#[case("104857601", "104857601")]
#[case("1024", "1Ki")]
#[case("1023", "1023")]
#[case("1000", "1k")]
#[case("1500m", "1500m")]
#[case("0", "0")]
#[case("-2Gi", "-2Gi")]
#[case("1025.5", "1025500m")]
fn bytes_are_shown_as_kubernetes_shows_them(#[case] text: &str, #[case] shown: &str) {
    assert_eq!(quantity(text).binary_si().to_string(), shown);
}

#[rstest]
#[case("0.1", "100m")]
#[case("1500", "1500")]
#[case("4e9", "4G")]
#[case("0.000001", "1u")]
#[case("-1000000", "-1M")]
#[case("9000000000000000000", "9E")]
fn numbers_are_shown_as_kubernetes_shows_them(#[case] text: &str, #[case] shown: &str) {
    assert_eq!(quantity(text).to_string(), shown);
}

/// Ten megabytes are read once, and nothing is kept of them.
#[rstest]
#[case("9", "", None)]
#[case("0", "7", Some(7 * NANO))]
#[case("0.", "1", Some(1))]
#[case("1.", "1Ei", Some((NANO << 60) + 1))]
#[case("0.1", "Ki", Some(102 * NANO + 400_000_000))]
fn length_costs_no_more_than_reading(#[case] before: &str, #[case] after: &str, #[case] nano: Option<i128>) {
    let fill = if before == "9" { "9" } else { "0" };
    let text = format!("{before}{}{after}", fill.repeat(10_000_000));
    let begin = std::time::Instant::now();
    let read = text.parse::<Quantity>().ok().map(|quantity| quantity.nano);
    assert_eq!(read, nano);
    // A second for what takes milliseconds, in a build without optimisation on a busy machine.
    assert!(begin.elapsed().as_millis() < 5_000, "{:?}", begin.elapsed());
}

proptest! {
    #[test]
    fn print_and_parse_are_inverse(nano in -LARGEST..=LARGEST) {
        let quantity = Quantity { nano };
        prop_assert_eq!(quantity.to_string().parse(), Ok(quantity));
        prop_assert_eq!(quantity.binary_si().to_string().parse(), Ok(quantity));
    }

    #[test]
    fn whole_bytes_survive_in_binary(units in 0..=i64::MAX.unsigned_abs()) {
        let quantity = Quantity::from_units(units);
        prop_assert_eq!(quantity.units(), units);
        prop_assert_eq!(quantity.binary_si().to_string().parse(), Ok(quantity));
    }

    #[test]
    fn order_is_that_of_the_numbers(left in any::<u32>(), right in any::<u32>(), places in 0_usize..9) {
        // The same number of decimal places on both sides: the order is that of the digits.
        let write = |digits: u32| format!("{digits}e-{places}");
        prop_assert_eq!(quantity(&write(left)).cmp(&quantity(&write(right))), left.cmp(&right));
    }

    #[test]
    fn rounding_keeps_the_order(left in any::<i64>(), right in any::<i64>()) {
        let (left, right) = (Quantity { nano: left.into() }, Quantity { nano: right.into() });
        if left <= right {
            prop_assert!(left.value_ceil() <= right.value_ceil());
            prop_assert!(left.milli_value_ceil() <= right.milli_value_ceil());
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[-+.0-9a-zA-Z]{0,80}|\\PC*") {
        if let Ok(quantity) = text.parse::<Quantity>() {
            prop_assert_eq!(quantity.to_string().parse(), Ok(quantity));
        }
    }
}
