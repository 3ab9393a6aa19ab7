//! The daemon's eviction thread, as the scheduler sees it.

use crate::trace::{Seen, Watched};

/// Its name.
const NAME: &str = "enforcer-reflex";

/// The tracepoints that show it waking and running.
pub const WATCHED: [Watched<'_>; 2] = [
    Watched::Event("sched/sched_waking", "comm == \"enforcer-reflex\""),
    Watched::Event("sched/sched_switch", "next_comm == \"enforcer-reflex\""),
];

/// When it ran after a task of that name had woken it, in microseconds: the first time from then on.
///
/// `None` if no task of that name woke it; it may have been awake already.
#[must_use]
pub fn ran_by(seen: &[Seen], waker: &str, from_us: u64) -> Option<u64> {
    let woken = seen.iter().position(|seen| {
        seen.time_us >= from_us
            && seen.what == "sched_waking"
            && seen.comm == waker
            && seen.fields.starts_with(&format!("comm={NAME} "))
    })?;
    seen.get(woken..)?.iter().find(|seen| is_run(seen)).map(|seen| seen.time_us)
}

/// When it first ran after that moment, whatever woke it, in microseconds.
#[must_use]
pub fn ran(seen: &[Seen], from_us: u64) -> Option<u64> {
    let after = seen.iter().find(|seen| seen.time_us >= from_us && is_run(seen));
    after.map(|seen| seen.time_us)
}

fn is_run(seen: &Seen) -> bool {
    seen.what == "sched_switch" && seen.fields.contains(&format!("next_comm={NAME} "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(comm: &str, time_us: u64, what: &str, fields: &str) -> Seen {
        Seen {
            comm: comm.into(),
            tid: 1,
            time_us,
            what: what.into(),
            interrupts_off: true,
            fields: fields.into(),
        }
    }

    #[test]
    fn only_who_woke_it_counts() {
        let waking = "comm=enforcer-reflex pid=9 prio=120 target_cpu=000";
        let switch = "prev_comm=swapper/0 ==> next_comm=enforcer-reflex next_pid=9 next_prio=120";
        let seen = [
            seen("swapper/0", 10, "sched_waking", waking),
            seen("swapper/0", 12, "sched_switch", switch),
            seen("workload", 20, "sched_waking", waking),
            seen("swapper/0", 25, "sched_switch", switch),
        ];
        assert_eq!(ran_by(&seen, "workload", 0), Some(25));
        assert_eq!(ran_by(&seen, "workload", 21), None);
        assert_eq!(ran_by(&seen, "swapper/0", 0), Some(12));
        assert_eq!(ran_by(&seen, "psimon", 0), None);
        assert_eq!((ran(&seen, 11), ran(&seen, 13), ran(&seen, 26)), (Some(12), Some(25), None));
    }
}
