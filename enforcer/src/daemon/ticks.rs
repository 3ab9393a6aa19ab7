//! One wake for all work that is done every ten seconds: a daemon at rest costs what its wakes cost.

use std::{future, io, time::Duration};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::sync::watch;

use crate::raw;

/// How often there is a tick.
pub(super) const PERIOD: Duration = Duration::from_secs(10);

/// Ticks, the first one at once. Whoever is late gets one tick for all that it missed.
#[derive(Clone, Debug)]
pub(super) struct Ticks(watch::Receiver<()>);

impl Ticks {
    /// Must be called inside a runtime. The timer is the kernel's: the runtime wakes up to three times for one of its own
    /// that is as far away.
    pub(super) fn start() -> io::Result<Self> {
        let period = Timespec { tv_sec: PERIOD.as_secs().cast_signed(), tv_nsec: 0 };
        // A first time of zero would disarm it.
        let first = Timespec { tv_sec: 0, tv_nsec: 1 };
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let setting = Itimerspec { it_interval: period, it_value: first };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &setting)?;
        let timer = raw::readable_fd(timer)?;
        let (sender, receiver) = watch::channel(());
        tokio::spawn(async move {
            while let Ok(mut ready) = timer.readable().await {
                // How often it has expired does not matter.
                let _expirations = rustix::io::read(ready.get_inner(), &mut [0_u8; 8]);
                ready.clear_ready();
                if sender.send(()).is_err() {
                    return;
                }
            }
        });
        Ok(Self(receiver))
    }

    /// Waits for the next tick. Cancel-safe.
    pub(super) async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            // The runtime ends.
            future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_have_the_first_tick_at_once_and_none_twice() {
        let mut ticks = Ticks::start().unwrap();
        let mut others = ticks.clone();
        tokio::join!(ticks.next(), others.next());
        let twice = tokio::time::timeout(PERIOD / 100, ticks.next()).await;
        assert!(twice.is_err(), "the next one is ten seconds away");
    }
}
