//! How the kernel schedules the eviction thread.

use std::{os::unix::thread::JoinHandleExt as _, thread::JoinHandle};

use rustix::io::Errno;
use thread_priority::{
    Error, RealtimeThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
};

/// How the kernel schedules the eviction thread.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Scheduling {
    /// Like the daemon's other threads, by nice value.
    #[default]
    Normal,
    /// Real-time (`SCHED_RR`) at the lowest priority: before all normal threads, after all other real-time ones.
    RoundRobin,
}

impl Scheduling {
    /// Both by their names in the configuration.
    pub const NAMES: &'static [(&'static str, Self)] = &[("normal", Self::Normal), ("rr", Self::RoundRobin)];

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::RoundRobin => "rr",
        }
    }

    /// Applies it to a thread that was just started. Needs `CAP_SYS_NICE` or a sufficient `RLIMIT_RTPRIO`. A kernel
    /// with `RT_GROUP_SCHED` refuses it in a cgroup without real-time runtime (`__sched_setscheduler`).
    pub(super) fn apply(self, thread: &JoinHandle<()>) -> Result<(), Errno> {
        match self {
            Self::Normal => Ok(()),
            Self::RoundRobin => {
                let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::RoundRobin);
                // The policy's lowest priority, which is 1.
                set_thread_priority_and_policy(thread.as_pthread_t(), ThreadPriority::Min, policy).map_err(
                    |error| match error {
                        Error::OS(code) => Errno::from_raw_os_error(code),
                        Error::PriorityNotInRange(_) | Error::Priority(_) | Error::Ffi(_) => Errno::INVAL,
                    },
                )
            }
        }
    }
}
