//! Recognises a record that was read before.
use std::collections::HashMap;

use enforcer_common::record::{Header, KIND_MARK_VICTIM, KIND_PROCESS_EXIT, MarkVictim, ProcessExit};
use zerocopy::FromBytes as _;

/// Two versions' programs tell of one event a little apart.
const APART_NS: u64 = 5_000_000;

/// The records that were read, but were in a ring after that as well: a daemon was killed between reading one and taking
/// it out, or two versions' programs told the same while one took over from the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Again {
    /// When each was told.
    read: HashMap<What, Vec<u64>>,
}

/// Of what it tells, but for the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    Marked {
        tid: u32,
    },
    Exited {
        tgid: u32,
    },
    /// By its kind and all its bytes.
    Other {
        kind: u32,
        crc: u32,
    },
}

impl Again {
    /// Notes a record as read.
    pub fn note(&mut self, record: &[u8]) {
        if let Some((what, time_ns)) = told(record) {
            self.read.entry(what).or_default().push(time_ns);
        }
    }

    /// Whether a record tells what one that was noted told.
    #[must_use]
    pub fn is_one(&self, record: &[u8]) -> bool {
        let Some((what, time_ns)) = told(record) else { return false };
        self.read
            .get(&what)
            .is_some_and(|times| times.iter().any(|read_ns| read_ns.abs_diff(time_ns) <= APART_NS))
    }

    /// Whether none was noted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.read.is_empty()
    }
}

/// What a record tells of, and when; none if it is too short to be one.
fn told(record: &[u8]) -> Option<(What, u64)> {
    let (header, rest) = Header::read_from_prefix(record).ok()?;
    // Every record has its time right after the header.
    let (time_ns, rest) = u64::read_from_prefix(rest).ok()?;
    let what = match header.kind {
        KIND_MARK_VICTIM => What::Marked { tid: MarkVictim::read_from_prefix(record).ok()?.0.tid },
        KIND_PROCESS_EXIT => What::Exited { tgid: ProcessExit::read_from_prefix(record).ok()?.0.tgid },
        kind => What::Other { kind, crc: crc32fast::hash(rest) },
    };
    Some((what, time_ns))
}

#[cfg(test)]
mod tests {
    use enforcer_common::record::{EDGE_DIRECT_RECLAIM, Edge};
    use zerocopy::IntoBytes as _;

    use super::*;

    fn mark(tid: u32, time_ns: u64, anon_bytes: u64) -> MarkVictim {
        MarkVictim { tid, time_ns, anon_bytes, ..MarkVictim::EMPTY }
    }

    #[test]
    fn a_mark_is_known_by_its_thread_at_about_that_time() {
        let mut again = Again::default();
        assert!(again.is_empty());
        again.note(mark(7, 10_000_000, 1).as_bytes());
        again.note(mark(7, 90_000_000, 1).as_bytes());
        let is_one = |mark: MarkVictim| again.is_one(mark.as_bytes());
        assert!(is_one(mark(7, 10_000_000, 1)));
        assert!(is_one(mark(7, 10_400_000, 2)), "another program's account of it");
        assert!(is_one(mark(7, 89_999_000, 2)));
        assert!(!is_one(mark(7, 16_000_000, 1)), "marked again");
        assert!(!is_one(mark(8, 10_000_000, 1)));
        let exit = ProcessExit { tid: 7, tgid: 7, time_ns: 10_000_000, ..ProcessExit::EMPTY };
        assert!(!again.is_one(exit.as_bytes()));
        again.note(exit.as_bytes());
        assert!(again.is_one(ProcessExit { marked_ns: 5, ..exit }.as_bytes()));
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
