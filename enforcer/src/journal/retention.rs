//! How much of the log is kept. Whole segments are removed, the oldest first, and never the newest.

use std::{fmt, sync::Arc};

use super::segment::Header;
use crate::clock;

/// The limits of what is kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// The log's size on the disk in bytes, at least 4 MiB. It takes up to 2 MiB more while a batch is written.
    pub max_bytes: u64,
    /// How long events are kept, in milliseconds. Up to an eighth longer, because whole segments are removed.
    pub max_age_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_bytes: 64 << 20, max_age_ms: 7 * DAY_MS }
    }
}

/// A segment above this share of all is closed and the next one begun, within these bounds.
const SEGMENT_SHARE: u64 = 8;
const MIN_SEGMENT_BYTES: u64 = 256 << 10;
const MAX_SEGMENT_BYTES: u64 = 8 << 20;

/// Each segment has two open files.
pub(super) const MAX_SEGMENTS: usize = 192;

const DAY_MS: u64 = 86_400_000;

impl Limits {
    /// The size at which a segment is closed and the next one begun.
    pub(super) fn segment_bytes(&self) -> u64 {
        (self.max_bytes / SEGMENT_SHARE).clamp(MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES)
    }

    /// The age at which a segment is closed and the next one begun.
    pub(super) fn segment_age_ms(&self) -> u64 {
        self.max_age_ms / SEGMENT_SHARE
    }
}

/// The time by two clocks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Now {
    /// The wall clock, in milliseconds since 1970.
    pub(super) wall_ms: i64,
    /// Milliseconds since boot, including suspend.
    pub(super) boot_ms: u64,
}

/// The source of the time.
#[derive(Clone)]
pub(super) struct Clock(Arc<dyn Fn() -> Now + Send + Sync>);

impl Clock {
    /// The system's clocks.
    pub(super) fn system() -> Self {
        Self::new(|| Now { wall_ms: jiff::Timestamp::now().as_millisecond(), boot_ms: clock::boottime_ms() })
    }

    pub(super) fn new(now: impl Fn() -> Now + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub(super) fn now(&self) -> Now {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Clock").field(&self.now()).finish()
    }
}

/// How long ago each segment was begun, in milliseconds. The last event of a segment is about as old as the start of
/// the next one.
///
/// The wall clock is not trusted: it shows 1970 until it is set, and jumps. Within a boot the time since that boot
/// counts. Between boots the wall clock counts, but for no more than a day.
pub(super) fn ages_ms<'a>(
    headers: impl DoubleEndedIterator<Item = &'a Header>,
    boot_id: &str,
    now: Now,
) -> Vec<u64> {
    let (mut boot_id, mut next) = (boot_id, now);
    let mut age_ms = 0_u64;
    let mut ages: Vec<u64> = headers
        .rev()
        .map(|header| {
            let begun = Now { wall_ms: header.begun_ms, boot_ms: header.begun_boot_ms };
            let is_known = header.boot_id == boot_id && begun.boot_ms > 0;
            age_ms = age_ms.saturating_add(if is_known {
                next.boot_ms.saturating_sub(begun.boot_ms)
            } else {
                let wall_ms = next.wall_ms.saturating_sub(begun.wall_ms);
                u64::try_from(wall_ms).unwrap_or(0).min(DAY_MS)
            });
            (boot_id, next) = (&header.boot_id, begun);
            age_ms
        })
        .collect();
    ages.reverse();
    ages
}

#[cfg(test)]
mod tests {
    use ulid::Ulid;

    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn header(boot_id: &str, boot_hours: u64, wall_ms: i64) -> Header {
        Header {
            epoch: Ulid::nil(),
            first: 1,
            boot_id: boot_id.to_owned(),
            begun_boot_ms: boot_hours * HOUR_MS,
            begun_ms: wall_ms,
        }
    }

    fn hours(headers: &[Header], boot_id: &str, now: Now) -> Vec<u64> {
        ages_ms(headers.iter(), boot_id, now).iter().map(|age_ms| age_ms / HOUR_MS).collect()
    }

    #[test]
    fn within_a_boot_the_clock_may_jump_as_it_likes() {
        let headers = [header("b", 1, 0), header("b", 30, 1_900_000_000_000), header("b", 40, -7)];
        let now = Now { wall_ms: 4_000_000_000_000, boot_ms: 50 * HOUR_MS };
        assert_eq!(hours(&headers, "b", now), [49, 20, 10]);
    }

    #[test]
    fn from_boot_to_boot_no_more_than_a_day_is_believed() {
        let hour = i64::try_from(HOUR_MS).unwrap();
        let headers =
            [header("a", 1, 0), header("b", 5, 10 * hour), header("c", 1, 900 * hour), header("d", 1, 0)];
        let now = Now { wall_ms: 3 * hour, boot_ms: 7 * HOUR_MS };
        assert_eq!(hours(&headers, "d", now), [6 + 24 + 10, 6 + 24, 6, 6]);
        // Segments of versions that did not record these times have zeros.
        let old = [header("d", 0, 0)];
        assert_eq!(hours(&old, "d", Now { wall_ms: 1_900_000_000_000, boot_ms: HOUR_MS }), [24]);
    }
}
