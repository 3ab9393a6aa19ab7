//! How the kernel schedules the thread that evicts.

use std::{os::unix::thread::JoinHandleExt as _, thread::JoinHandle};

use rustix::io::Errno;
use thread_priority::{
    Error, RealtimeThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
};

/// How the kernel schedules the thread that evicts.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Scheduling {
    /// As the daemon's other threads, by their nice value.
    #[default]
    Normal,
    /// In real time (`SCHED_RR`), at the lowest priority there is: before everything that is not, and after everybody else
    /// who is.
    RoundRobin,
}

impl Scheduling {
    /// Both by the names that the configuration gives them.
    pub const NAMES: &'static [(&'static str, Self)] = &[("normal", Self::Normal), ("rr", Self::RoundRobin)];

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::RoundRobin => "rr",
        }
    }

    /// Has a thread that was just started scheduled so. It takes `CAP_SYS_NICE`, or a high enough `RLIMIT_RTPRIO`; a kernel
    /// with `RT_GROUP_SCHED` refuses it in a cgroup that has no time for it (`__sched_setscheduler`).
    pub(super) fn apply(self, thread: &JoinHandle<()>) -> Result<(), Errno> {
        match self {
            Self::Normal => Ok(()),
            Self::RoundRobin => {
                let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::RoundRobin);
                // The lowest of the policy's, which is 1.
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
