//! How long a container that has ended waits for its next start: as the kubelet computes it.

use std::time::Duration;

/// The first pause (`backOffPeriod` of containers in `pkg/kubelet/kubelet.go`).
const FIRST: Duration = Duration::from_secs(10);

/// The longest pause (`MaxContainerBackOff`).
const MOST: Duration = Duration::from_mins(5);

/// After a run of this length, the next start is the first one again: twice the longest pause (`hasExpired` in
/// `client-go/util/flowcontrol/backoff.go`).
const RESET: Duration = Duration::from_mins(10);

/// The least pause: the kubelet finds a container that has ended about a second later. A daemon that keeps up has reported
/// an eviction by then.
const LEAST: Duration = Duration::from_secs(1);

/// The pauses of one container.
#[derive(Debug, Default)]
pub(super) struct BackOff {
    next: Option<Duration>,
}

impl BackOff {
    /// How long to wait after a run that took so long.
    pub(super) fn after(&mut self, ran: Duration) -> Duration {
        let pause = self.next.filter(|_| ran < RESET);
        self.next = Some(pause.map_or(FIRST, |pause| (pause * 2).min(MOST)));
        pause.unwrap_or(LEAST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_restart_is_at_once_and_each_further_one_takes_twice_as_long() {
        let mut back_off = BackOff::default();
        let pauses: Vec<u64> = (0..8).map(|_| back_off.after(Duration::from_secs(3)).as_secs()).collect();
        assert_eq!(pauses, [1, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn a_long_run_resets_it() {
        let mut back_off = BackOff::default();
        for _ in 0..4 {
            back_off.after(Duration::ZERO);
        }
        assert_eq!(back_off.after(Duration::from_secs(599)).as_secs(), 80);
        assert_eq!(back_off.after(RESET).as_secs(), 1);
        assert_eq!(back_off.after(Duration::ZERO).as_secs(), 10);
    }
}
