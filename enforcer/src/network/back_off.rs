//! How long a client waits before a retry: longer each time, with jitter so that clients do not retry in step; or as long
//! as the answer asks for.

use std::time::{Duration, SystemTime};

use hyper::{HeaderMap, header};

/// The longest wait that an answer can request.
const MOST_AFTER: Duration = Duration::from_hours(1);

/// The bounds of the wait, which doubles with each failure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The first wait.
    pub(crate) least: Duration,
    /// The longest one.
    pub(crate) most: Duration,
}

/// The waits of one client.
#[derive(Debug)]
pub(crate) struct BackOff {
    bounds: Bounds,
    failures: u32,
}

impl BackOff {
    /// The first wait is the shortest.
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { bounds, failures: 0 }
    }

    /// The next wait: a random time between half of the full wait and all of it.
    pub(crate) fn next(&mut self) -> Duration {
        let doubled = self.bounds.least.saturating_mul(2_u32.saturating_pow(self.failures));
        self.failures = self.failures.saturating_add(1);
        let full = doubled.min(self.bounds.most);
        full / 2 + (full / 2).mul_f64(fraction())
    }

    /// Begins again with the shortest wait after a success.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// `Retry-After`, in seconds or as a date, an hour at most; `None` if it is neither.
pub(crate) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    let after = if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that does not fit means very long.
        text.parse().map_or(MOST_AFTER, Duration::from_secs)
    } else {
        let date = httpdate::parse_http_date(text).ok()?;
        date.duration_since(now).unwrap_or_default()
    };
    Some(after.min(MOST_AFTER))
}

/// A random number from 0 to below 1; 0.5 if the kernel has none available.
pub(crate) fn fraction() -> f64 {
    let mut bytes = [0; 4];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK) {
        Ok(4) => f64::from(u32::from_ne_bytes(bytes)) / (f64::from(u32::MAX) + 1.0),
        Ok(_) | Err(_) => 0.5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_within_their_bounds_and_differ() {
        let bounds = Bounds { least: Duration::from_secs(1), most: Duration::from_mins(1) };
        let mut back_off = BackOff::new(bounds);
        for full in [1, 2, 4, 8, 16, 32, 60, 60, 60] {
            let (wait, full) = (back_off.next(), Duration::from_secs(full));
            assert!(wait >= full / 2 && wait <= full, "{wait:?} of {full:?}");
        }
        for _ in 0..100 {
            assert!(back_off.next() <= bounds.most);
        }
        let mut waits: Vec<_> = (0..20).map(|_| back_off.next()).collect();
        waits.dedup();
        assert!(waits.len() > 10, "{waits:?}");
        back_off.reset();
        assert!(back_off.next() <= bounds.least);
    }
}
