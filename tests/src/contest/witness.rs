//! What the kernel's tracepoints record of a run.

use std::collections::HashMap;

use crate::trace::{Seen, Watched};

/// What is recorded: a signal and its sender; a victim of the kernel's OOM killer; forks; and a cgroup becoming empty,
/// which is the death of the pod in it. Only the last covers a process whose exit takes long: it comes when the last
/// task is gone, with its memory.
pub const WATCHED: [Watched<'_>; 4] = [
    Watched::Event("signal/signal_generate", "sig == 9 || sig == 15"),
    Watched::Event("oom/mark_victim", ""),
    Watched::Event("sched/sched_process_fork", ""),
    Watched::Event("cgroup/cgroup_notify_populated", ""),
];

/// One thing that happened.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Event {
    /// When, in microseconds of `CLOCK_MONOTONIC`.
    pub time_us: u64,
    /// The task that ran then.
    pub by: u32,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum What {
    /// SIGTERM or SIGKILL was sent to this task.
    Signal {
        /// The task.
        pid: u32,
        /// The name of the task that ran then.
        sender: String,
    },
    /// The kernel's OOM killer chose this process.
    Marked {
        /// Which.
        pid: u32,
    },
    /// A task was forked.
    Fork {
        /// Of this one.
        parent: u32,
        /// This one.
        child: u32,
    },
    /// The last task below this cgroup has gone.
    Emptied {
        /// Its path below the mount point.
        cgroup: String,
    },
}

/// The events among the records, in their order.
#[must_use]
pub fn events(seen: &[Seen]) -> Vec<Event> {
    seen.iter()
        .filter_map(|seen| Some(Event { time_us: seen.time_us, by: seen.tid, what: what(seen)? }))
        .collect()
}

fn what(seen: &Seen) -> Option<What> {
    let fields = seen.fields.as_str();
    match seen.what.as_str() {
        // The name before it may hold anything; the text after it is the kernel's own.
        "signal_generate" => {
            Some(What::Signal { pid: last_number(fields, "pid=")?, sender: seen.comm.clone() })
        }
        // The pid comes first, before a name in later kernels.
        "mark_victim" => Some(What::Marked { pid: first_number(fields, "pid=")? }),
        // comm=%s pid=%d child_comm=%s child_pid=%d
        "sched_process_fork" => {
            let (parent, child) = fields.rsplit_once(" child_pid=")?;
            let (parent, _) = parent.rsplit_once(" child_comm=")?;
            Some(What::Fork { parent: last_number(parent, "pid=")?, child: child.trim().parse().ok()? })
        }
        // root=%d id=%llu level=%d path=%s val=%d
        "cgroup_notify_populated" => {
            let (before, value) = fields.rsplit_once(" val=")?;
            let (_, cgroup) = before.split_once(" path=")?;
            (value.trim() == "0").then(|| What::Emptied { cgroup: cgroup.to_owned() })
        }
        _ => None,
    }
}

fn last_number(fields: &str, key: &str) -> Option<u32> {
    fields.rsplit(' ').find_map(|field| field.strip_prefix(key))?.parse().ok()
}

fn first_number(fields: &str, key: &str) -> Option<u32> {
    fields.split(' ').find_map(|field| field.strip_prefix(key))?.parse().ok()
}

/// The pod of each task: the known roots and all their descendants.
#[must_use]
pub fn families(events: &[Event], roots: &[(u32, usize)]) -> HashMap<u32, usize> {
    let mut families: HashMap<u32, usize> = roots.iter().copied().collect();
    for event in events {
        if let What::Fork { parent, child } = event.what {
            match families.get(&parent).copied() {
                Some(pod) => drop(families.insert(child, pod)),
                // A reused id belongs to another process, unless it is a root's own fork.
                None if roots.iter().any(|(root, _)| *root == child) => {}
                None => drop(families.remove(&child)),
            }
        }
    }
    families
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(what: &str, fields: &str) -> Seen {
        Seen {
            comm: "earlyoom".into(),
            tid: 7,
            time_us: 5,
            what: what.into(),
            interrupts_off: true,
            fields: fields.into(),
        }
    }

    #[test]
    fn each_tracepoint_is_read() {
        let reported = events(&[
            seen("signal_generate", "sig=9 errno=0 code=0 comm=a pid=1 grp=1 pid=13 grp=1 res=0"),
            seen("mark_victim", "pid=14 comm=pid=3 total-vm=4kB anon-rss=5kB"),
            seen("mark_victim", "pid=15"),
            seen("sched_process_fork", "comm=a pid=9 b pid=16 child_comm=a child_pid=1 child_pid=17"),
            seen("cgroup_notify_populated", "root=1 id=5 level=3 path=/bench.slice/kubepods/pod val=0"),
            seen("cgroup_notify_populated", "root=1 id=5 level=3 path=/bench.slice/kubepods/pod val=1"),
            seen("sched_switch", "prev_comm=a"),
        ]);
        let what: Vec<_> = reported.into_iter().map(|event| event.what).collect();
        assert_eq!(
            what,
            [
                What::Signal { pid: 13, sender: "earlyoom".into() },
                What::Marked { pid: 14 },
                What::Marked { pid: 15 },
                What::Fork { parent: 16, child: 17 },
                What::Emptied { cgroup: "/bench.slice/kubepods/pod".into() },
            ]
        );
    }

    fn fork(parent: u32, child: u32) -> Event {
        Event { time_us: 0, by: parent, what: What::Fork { parent, child } }
    }

    #[test]
    fn descendants_belong_to_the_pod() {
        // The bench itself (1) forks both roots; 20 is reused by another process.
        let events = [fork(1, 10), fork(1, 11), fork(10, 20), fork(20, 30), fork(99, 40), fork(1, 20)];
        let families = families(&events, &[(10, 0), (11, 1)]);
        assert_eq!(families.get(&10), Some(&0));
        assert_eq!(families.get(&11), Some(&1));
        assert_eq!(families.get(&30), Some(&0), "its parent was one of the pod's then");
        assert_eq!(families.get(&20), None);
        assert_eq!(families.get(&40), None);
    }
}
