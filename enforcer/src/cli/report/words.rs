//! Numbers, times and durations of a report in words.

/// A number with its word.
pub(super) fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// A time without its fraction of a second.
pub(super) fn seconds(time: &str) -> String {
    match time.split_once('.') {
        Some((whole, _)) => format!("{whole}Z"),
        None => time.to_owned(),
    }
}

/// A duration in the largest units that say it well.
pub(super) fn duration(ms: u64) -> String {
    let seconds = ms / 1_000;
    match seconds {
        0 => format!("{ms}ms"),
        1..60 => format!("{seconds}.{}s", ms % 1_000 / 100),
        60..3_600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3_600..172_800 => format!("{}h{}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// The same of measured milliseconds.
pub(super) fn milliseconds(ms: f64) -> String {
    if ms < 1_000.0 { format!("{ms:.1}ms") } else { format!("{:.1}s", ms / 1_000.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        for (ms, shown) in [
            (0, "0ms"),
            (999, "999ms"),
            (1_061, "1.0s"),
            (61_000, "1m1s"),
            (3_600_000, "1h0m"),
            (200_000_000, "2d7h"),
        ] {
            assert_eq!(duration(ms), shown);
        }
        assert_eq!((milliseconds(34.5).as_str(), milliseconds(1_230.0).as_str()), ("34.5ms", "1.2s"));
        assert_eq!(seconds("2026-01-31T12:00:00.123Z"), "2026-01-31T12:00:00Z");
        assert_eq!(
            (counted(1, "kill", "kills").as_str(), counted(0, "kill", "kills").as_str()),
            ("1 kill", "0 kills")
        );
    }
}
