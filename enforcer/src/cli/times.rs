//! When something happened, for people: how long ago, as kubectl shows it, or the whole time.

/// How times are printed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Times {
    /// How long ago it was.
    Ages,
    /// RFC 3339 in UTC, as in the events.
    Absolute,
}

/// The arguments of verbs that print times.
#[derive(Clone, Copy, Debug, clap::Args)]
// A verb's own arguments are a group of the same name.
#[group(skip)]
pub(super) struct Args {
    /// Print the whole time in UTC instead of how long ago it was; so does -f
    #[arg(long, visible_alias = "utc")]
    timestamps: bool,
}

impl Args {
    /// How times are to be printed.
    pub(super) fn of(self) -> Times {
        if self.timestamps { Times::Absolute } else { Times::Ages }
    }
}

/// The columns of the longest age: `7d23h ago`.
const AGE: usize = 9;

impl Times {
    /// The time of an event as a column, at `now`. What is no time is given as it is.
    pub(super) fn column(self, time: &str, now: jiff::Timestamp) -> String {
        match self {
            Self::Ages => ago(time, now).map_or_else(|| time.to_owned(), |ago| format!("{ago:>AGE$}")),
            Self::Absolute => time.to_owned(),
        }
    }
}

/// `5m30s ago`; `None` for what is no time.
pub(super) fn ago(time: &str, now: jiff::Timestamp) -> Option<String> {
    let then: jiff::Timestamp = time.parse().ok()?;
    // A clock that was set back.
    let seconds = now.as_second().saturating_sub(then.as_second());
    Some(format!("{} ago", age(u64::try_from(seconds).unwrap_or(0))))
}

/// A duration as kubectl shows ages (`duration.HumanDuration`).
fn age(seconds: u64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3_600);
    let two = |more: u64, unit: char, less: u64, small: char| match less {
        0 => format!("{more}{unit}"),
        less => format!("{more}{unit}{less}{small}"),
    };
    match (hours, minutes) {
        (_, 0..2) => format!("{seconds}s"),
        (_, 2..10) => two(minutes, 'm', seconds % 60, 's'),
        (0..3, _) => format!("{minutes}m"),
        (3..8, _) => two(hours, 'h', minutes % 60, 'm'),
        (8..48, _) => format!("{hours}h"),
        (48..192, _) => two(hours / 24, 'd', hours % 24, 'h'),
        _ => format!("{}d", hours / 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_those_of_kubectl() {
        const HOUR: u64 = 3_600;
        for (seconds, shown) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (599, "9m59s"),
            (600, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (8 * HOUR - 1, "7h59m"),
            (47 * HOUR, "47h"),
            (48 * HOUR, "2d"),
            (191 * HOUR, "7d23h"),
            (400 * 24 * HOUR, "400d"),
        ] {
            assert_eq!(age(seconds), shown);
        }
    }

    #[test]
    fn a_column_is_an_age_or_the_time_itself() {
        let now: jiff::Timestamp = "2026-01-31T12:05:30Z".parse().unwrap();
        let time = "2026-01-31T12:00:00.123456Z";
        assert_eq!(Times::Ages.column(time, now), "5m30s ago");
        assert_eq!(Times::Ages.column("2026-01-31T12:05:29Z", now), "   1s ago");
        assert_eq!(Times::Ages.column("2026-01-31T13:00:00Z", now), "   0s ago", "the clock was set back");
        assert_eq!(Times::Ages.column("?", now), "?");
        assert_eq!(Times::Absolute.column(time, now), time);
    }
}
