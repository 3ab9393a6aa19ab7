//! Recognises records that were read before.
//!
//! A thread is marked once in its life (`mark_oom_victim` in `mm/oom_kill.c`), a process exits once, and records
//! identify either by number and start time: so two records of one event match however far apart they are. One version
//! may report an exit as it happens and another when the process is freed, which is when its parent waits for it.
use std::{collections::HashMap, num::NonZeroU64};

use enforcer_common::{
    incident::{KIND_SHARER, Sharer},
    record::{Header, KIND_MARK_VICTIM, KIND_PROCESS_EXIT, MarkVictim, ProcessExit},
};
use zerocopy::FromBytes as _;

/// If a record has no start time: programs of two versions see one event less than this apart, even if the machine
/// delays one of them. A number is not reused that soon, as the kernel goes through all others first.
const APART_NS: u64 = 1_000_000_000;

/// Records that were read, but may still be in a ring: a daemon was killed between reading one and removing it, or
/// programs of two versions reported the same event during a takeover.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Again {
    /// The records read of each kind and number.
    read: HashMap<What, Vec<Which>>,
}

/// The kind of a record, and its process or thread number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    Marked {
        tid: u32,
    },
    Exited {
        tgid: u32,
    },
    Shared {
        tgid: u32,
    },
    /// Identified by its kind and all its bytes except the time.
    Other {
        kind: u32,
        crc: u32,
    },
}

/// Distinguishes successive owners of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Which {
    /// When the thread or leader started.
    start_ns: Option<NonZeroU64>,
    /// When the OOM killer marked it: an exit may be reported much later.
    noticed_ns: u64,
}

impl Which {
    fn is(self, other: Self) -> bool {
        match (self.start_ns, other.start_ns) {
            (Some(one), Some(another)) => one == another,
            // From an earlier layout, or a kernel without BTF.
            (None, _) | (_, None) => self.noticed_ns.abs_diff(other.noticed_ns) <= APART_NS,
        }
    }
}

impl Again {
    /// Notes a record as read.
    pub fn note(&mut self, record: &[u8]) {
        if let Some((what, which)) = reported(record) {
            self.read.entry(what).or_default().push(which);
        }
    }

    /// Whether a record reports the same event as a noted one.
    #[must_use]
    pub fn is_one(&self, record: &[u8]) -> bool {
        let Some((what, which)) = reported(record) else { return false };
        self.read.get(&what).is_some_and(|read| read.iter().any(|read| read.is(which)))
    }

    /// Whether nothing was noted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.read.is_empty()
    }
}

/// What a record reports, and of which process; `None` if it is too short.
fn reported(record: &[u8]) -> Option<(What, Which)> {
    let (header, rest) = Header::read_from_prefix(record).ok()?;
    // Every record has its time right after the header.
    let (time_ns, rest) = u64::read_from_prefix(rest).ok()?;
    let (what, start_ns, noticed_ns) = match header.kind {
        KIND_MARK_VICTIM => {
            let mark = MarkVictim::read(record)?;
            (What::Marked { tid: mark.tid }, mark.start_boottime_ns, mark.time_ns)
        }
        KIND_PROCESS_EXIT => {
            let exit = ProcessExit::read(record)?;
            (What::Exited { tgid: exit.tgid }, exit.start_boottime_ns, exit.marked_ns)
        }
        KIND_SHARER => {
            let sharer = Sharer::read_from_prefix(record).ok()?.0;
            (What::Shared { tgid: sharer.tgid }, sharer.start_boottime_ns, sharer.marked_ns)
        }
        kind => (What::Other { kind, crc: crc32fast::hash(rest) }, 0, time_ns),
    };
    Some((what, Which { start_ns: NonZeroU64::new(start_ns), noticed_ns }))
}

#[cfg(test)]
mod tests {
    use enforcer_common::record::{EDGE_DIRECT_RECLAIM, Edge, FREED};
    use zerocopy::{Immutable, IntoBytes};

    use super::*;

    const S: u64 = 1_000_000_000;

    fn mark(tid: u32, start_boottime_ns: u64, time_ns: u64) -> MarkVictim {
        MarkVictim { tid, start_boottime_ns, time_ns, ..MarkVictim::EMPTY }
    }

    fn exit(tgid: u32, start_boottime_ns: u64, marked_ns: u64) -> ProcessExit {
        let time_ns = marked_ns + 1;
        ProcessExit { tid: tgid, tgid, start_boottime_ns, marked_ns, time_ns, ..ProcessExit::EMPTY }
    }

    fn startless(exit: ProcessExit) -> Vec<u8> {
        short(KIND_PROCESS_EXIT, &exit, ProcessExit::STARTLESS_BYTES)
    }

    /// The first bytes of a record, as builds before wrote it.
    fn short(kind: u32, record: &(impl IntoBytes + Immutable), size_bytes: u16) -> Vec<u8> {
        let mut bytes = record.as_bytes()[..usize::from(size_bytes)].to_vec();
        Header::new(kind, size_bytes).write_to_prefix(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_mark_of_the_build_before_is_known_to_this_one() {
        let mut again = Again::default();
        let before = short(KIND_MARK_VICTIM, &mark(7, 5, 10 * S), MarkVictim::BYTES_WITHOUT_COUNTERS);
        again.note(&before);
        assert!(again.is_one(&before));
        assert!(again.is_one(mark(7, 5, 10 * S).as_bytes()));
        assert!(!again.is_one(mark(8, 5, 10 * S).as_bytes()));
    }

    #[test]
    fn a_mark_is_known_by_its_thread_however_late_it_is_reported() {
        let mut again = Again::default();
        assert!(again.is_empty());
        again.note(mark(7, 5, 10 * S).as_bytes());
        let is_one = |mark: MarkVictim| again.is_one(mark.as_bytes());
        assert!(is_one(mark(7, 5, 10 * S)));
        assert!(
            is_one(MarkVictim { anon_bytes: 2, ..mark(7, 5, 99 * S) }),
            "another program's account of it"
        );
        assert!(!is_one(mark(7, 6, 10 * S)), "another thread of the same number");
        assert!(!is_one(mark(8, 5, 10 * S)));
    }

    #[test]
    fn an_exit_is_known_by_its_process_though_it_is_reported_when_that_is_freed() {
        let mut again = Again::default();
        again.note(mark(7, 5, 10 * S).as_bytes());
        assert!(!again.is_one(exit(7, 5, 10 * S).as_bytes()), "a mark is no exit");
        again.note(exit(7, 5, 10 * S).as_bytes());
        let freed = ProcessExit { time_ns: 99 * S, flags: FREED, ..exit(7, 5, 10 * S) };
        assert!(again.is_one(freed.as_bytes()));
        let of_another_thread = ProcessExit { tid: 9, ..exit(7, 5, 10 * S) };
        assert!(again.is_one(of_another_thread.as_bytes()));
        assert!(!again.is_one(exit(7, 6, 10 * S).as_bytes()), "another process of the same number");
    }

    #[test]
    fn without_a_start_it_is_one_that_was_marked_at_about_that_time() {
        let mut again = Again::default();
        again.note(mark(7, 0, 10 * S).as_bytes());
        again.note(&startless(exit(7, 0, 10 * S)));
        again.note(&startless(exit(7, 0, 90 * S)));
        assert!(again.is_one(mark(7, 0, 10 * S + S / 2).as_bytes()), "a program that was kept waiting");
        assert!(!again.is_one(mark(7, 0, 12 * S).as_bytes()), "marked again");
        for marked_ns in [10 * S, 10 * S + S / 2, 90 * S] {
            let late = ProcessExit { time_ns: 200 * S, ..exit(7, 5, marked_ns) };
            assert!(again.is_one(late.as_bytes()), "{marked_ns}: reported by the next build");
            assert!(again.is_one(&startless(late)));
        }
        assert!(!again.is_one(exit(7, 5, 12 * S).as_bytes()));
        assert!(!again.is_one(&exit(7, 5, 10 * S).as_bytes()[..40]), "it is none");
    }

    #[test]
    fn who_dies_with_a_victim_is_reported_once() {
        let sharer = Sharer { tgid: 7, start_boottime_ns: 5, marked_ns: S, time_ns: S, ..Sharer::EMPTY };
        let mut again = Again::default();
        again.note(sharer.as_bytes());
        assert!(again.is_one(Sharer { marked_ns: S + 9, time_ns: 3 * S, ..sharer }.as_bytes()));
        assert!(!again.is_one(Sharer { start_boottime_ns: 6, ..sharer }.as_bytes()));
        assert!(!again.is_one(exit(7, 5, S).as_bytes()));
    }

    #[test]
    fn what_is_not_known_must_be_the_same_to_the_byte() {
        let mut again = Again::default();
        again.note(Edge::new(EDGE_DIRECT_RECLAIM, 3, 50).as_bytes());
        assert!(again.is_one(Edge::new(EDGE_DIRECT_RECLAIM, 3, 60).as_bytes()));
        assert!(!again.is_one(Edge::new(EDGE_DIRECT_RECLAIM, 4, 50).as_bytes()));
        again.note(b"short");
        assert!(!again.is_one(b"short"));
    }
}
