//! The times that bound a range of events, as people and programs write them.

use std::time::Duration;

use crate::policy::duration;

/// A time: an age such as `5m`, `2h` or `7d` before `now`, or a time in RFC 3339.
pub fn moment(text: &str, now: jiff::Timestamp) -> Result<jiff::Timestamp, String> {
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    let age = age(text).ok_or_else(|| {
        format!("{text:?} is not a time: write an age such as 5m, 2h or 7d, or 2026-01-31T12:00:00Z")
    })?;
    now.checked_sub(age).map_err(|_error| format!("{text} is too long ago"))
}

/// An age: a duration in Go's notation, or days.
fn age(text: &str) -> Option<Duration> {
    // Go's durations have no days, which are what an operator looks back.
    match text.strip_suffix('d') {
        Some(days) if days.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(Duration::from_secs(days.parse::<u64>().ok()?.checked_mul(86_400)?))
        }
        Some(_) => None,
        // `0` needs no unit there, and would hide that one is missing.
        None => duration::parse(text).ok().filter(|_| !text.ends_with(|last: char| last.is_ascii_digit())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_an_age_or_absolute() {
        let now: jiff::Timestamp = "2026-01-31T12:00:00Z".parse().unwrap();
        for (text, time) in [
            ("90s", "2026-01-31T11:58:30Z"),
            ("5m", "2026-01-31T11:55:00Z"),
            ("1h30m", "2026-01-31T10:30:00Z"),
            ("7d", "2026-01-24T12:00:00Z"),
            ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
            ("2026-01-01T02:00:00+02:00", "2026-01-01T00:00:00Z"),
        ] {
            assert_eq!(moment(text, now).map(|time| time.to_string()).as_deref(), Ok(time), "{text}");
        }
        for wrong in ["", "d", "h", "2", "0", "-2h", "2w", "1d2h", "9223372036854775807d", "2ü", "yesterday"]
        {
            assert!(moment(wrong, now).is_err(), "{wrong}");
        }
        assert!(moment("99999999d", now).unwrap_err().contains("too long ago"));
    }
}
