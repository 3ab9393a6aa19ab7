//! Wakes the eviction thread when pods reach a memory limit of theirs.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use super::{
    EdgeSource,
    edge::{Readiness, SourceState},
    text,
    wake::{Edge, EdgeKind},
};

/// `memory.events` has about six short lines.
const BUFFER_BYTES: usize = 512;

/// A cgroup's `memory.events`: breaches of `memory.high` and `memory.max`, its own and those below it.
///
/// The kernel wakes a poller of the file directly where it counts (`cgroup_file_notify`), an inotify watch only through
/// a kernel worker. It notifies at most once in 10 ms per file, so a pod that thrashes at its own limit wakes us no
/// more than a hundred times a second.
///
/// A parent's file counts for all cgroups below it, so that of kubepods is enough: those of the classes would only wake
/// us again for the same breach.
#[derive(Debug)]
pub struct MemoryEvents {
    fd: OwnedFd,
    high: u64,
    max: u64,
}

impl MemoryEvents {
    /// Takes the open file; its current counts are no edge.
    pub fn new(fd: OwnedFd) -> rustix::io::Result<Self> {
        let mut events = Self { fd, high: 0, max: 0 };
        let mut buffer = [0; BUFFER_BYTES];
        let (high, max) = events.read(&mut buffer)?;
        (events.high, events.max) = (high, max);
        Ok(events)
    }

    /// Reads both counters, which also clears the notification.
    fn read(&self, buffer: &mut [u8; BUFFER_BYTES]) -> rustix::io::Result<(u64, u64)> {
        let text = text::read_into(&self.fd, buffer)?;
        let count = |key: &[u8]| text::keyed(text, key).unwrap_or(0);
        Ok((count(b"high"), count(b"max")))
    }
}

impl EdgeSource for MemoryEvents {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn is_priority(&self) -> bool {
        true
    }

    fn drain(&mut self, _ready: Readiness, emit: &mut dyn FnMut(Edge)) -> SourceState {
        // The kernel marks each notification as an error too (`kernfs_generic_poll`): only an unreadable file is gone.
        let mut buffer = [0; BUFFER_BYTES];
        let Ok((high, max)) = self.read(&mut buffer) else { return SourceState::Gone };
        for (kind, before, now) in
            [(EdgeKind::MemoryHigh, &mut self.high, high), (EdgeKind::MemoryMax, &mut self.max, max)]
        {
            // A counter rises by thousands in a thrashing cgroup: one notification is one edge.
            if now > *before {
                emit(Edge { kind, onset_ns: None });
            }
            *before = now;
        }
        SourceState::Live
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn drain(events: &mut MemoryEvents) -> (Vec<EdgeKind>, SourceState) {
        let mut kinds = Vec::new();
        let state = events.drain(Readiness::Ready, &mut |edge| kinds.push(edge.kind));
        (kinds, state)
    }

    #[test]
    fn what_rose_since_the_last_time_is_an_edge() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |high: u64, max: u64| {
            fs::write(file.path(), format!("low 0\nhigh {high}\nmax {max}\noom 0\noom_kill 0\n")).unwrap();
        };
        write(7, 3);
        let mut events = MemoryEvents::new(file.reopen().unwrap().into()).unwrap();
        assert_eq!(drain(&mut events), (vec![], SourceState::Live));
        write(8, 3);
        assert_eq!(drain(&mut events), (vec![EdgeKind::MemoryHigh], SourceState::Live));
        write(900, 4);
        assert_eq!(drain(&mut events), (vec![EdgeKind::MemoryHigh, EdgeKind::MemoryMax], SourceState::Live));
        assert_eq!(drain(&mut events), (vec![], SourceState::Live));
    }
}
