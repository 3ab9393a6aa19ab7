//! Sizes and times as people write them.
use std::time::Duration;

/// Bytes from `4096`, `256Mi`, `1G`.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let factor: u64 = match unit {
        "" => 1,
        "k" => 1000,
        "M" => 1000 * 1000,
        "G" => 1000 * 1000 * 1000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return Err(format!("{unit:?} is no unit of size; use k, M, G, Ki, Mi, Gi or Ti")),
    };
    match number.checked_mul(factor) {
        Some(0) => Err("must be more than nothing".into()),
        Some(bytes) => Ok(bytes),
        None => Err("is more than any machine has".into()),
    }
}

/// Longer than any test, and short enough that clocks can add it.
const LONGEST: Duration = Duration::from_hours(24 * 365);

/// A time from `500us`, `2ms`, `10s`, `1m`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text)?;
    let duration = match unit {
        "us" => Duration::from_micros(number),
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        "m" => Duration::from_secs(number.checked_mul(60).ok_or("is too long")?),
        _ => return Err(format!("{unit:?} is no unit of time; use us, ms, s or m")),
    };
    match duration {
        Duration::ZERO => Err("must be more than nothing".into()),
        duration if duration > LONGEST => Err("is too long".into()),
        duration => Ok(duration),
    }
}

fn split(text: &str) -> Result<(u64, &str), String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err("must begin with a whole number".into());
    }
    let number: u64 = number.parse().map_err(|error| format!("{number}: {error}"))?;
    Ok((number, unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("256Mi"), Ok(256 << 20));
        assert_eq!(parse_size("1Gi"), Ok(1 << 30));
        assert_eq!(parse_size("3k"), Ok(3000));
        assert_eq!(parse_size("2G"), Ok(2_000_000_000));
        for wrong in
            ["", "Mi", "0", "0Gi", "-1", "1.5Gi", "1 Gi", "1mi", "99999999999999999999", "17179869184Gi"]
        {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("500us"), Ok(Duration::from_micros(500)));
        assert_eq!(parse_duration("2ms"), Ok(Duration::from_millis(2)));
        assert_eq!(parse_duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_mins(2)));
        for wrong in ["", "2", "0s", "2h", "1.5s", "ms", "18446744073709551615m", "18446744073709551615s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
