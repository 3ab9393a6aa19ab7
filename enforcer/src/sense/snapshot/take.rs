//! Takes snapshots in place: two alternate, and nothing is allocated.

use std::collections::HashMap;

use super::{CgroupView, Guarded, NodeFiles, NodeView};
use crate::model::CgroupId;

/// The node and its guarded cgroups at one moment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Snapshot {
    /// When it was started, in nanoseconds of `CLOCK_BOOTTIME`.
    pub at_ns: u64,
    /// The node.
    pub node: NodeView,
    /// The cgroups, in the order of the guarded ones.
    pub cgroups: Vec<CgroupView>,
}

impl Snapshot {
    fn empty() -> Self {
        Self { at_ns: 0, node: NodeView::unread(), cgroups: Vec::new() }
    }

    /// The reading of that cgroup.
    #[must_use]
    pub fn cgroup(&self, id: CgroupId) -> Option<&CgroupView> {
        self.cgroups.iter().find(|view| view.id == id)
    }
}

/// Takes snapshots: one system call a file, two for the zones, and no allocation.
#[derive(Debug)]
pub struct Snapshots {
    node: NodeFiles,
    guarded: Vec<Guarded>,
    latest: Snapshot,
    previous: Snapshot,
    buffer: Box<[u8]>,
}

impl Snapshots {
    /// Of that node, and of no cgroups yet.
    #[must_use]
    pub fn new(node: NodeFiles) -> Self {
        let buffer = vec![0; node.buffer_bytes()].into_boxed_slice();
        Self { node, guarded: Vec::new(), latest: Snapshot::empty(), previous: Snapshot::empty(), buffer }
    }

    /// Guards these cgroups from now on. One with the id of a guarded one keeps its history: a cgroup that was
    /// recreated under an old name has another id, and starts anew.
    pub fn guard(&mut self, mut guarded: Vec<Guarded>) {
        let before: HashMap<CgroupId, &Guarded> = self.guarded.iter().map(|one| (one.id(), one)).collect();
        for one in &mut guarded {
            if let Some(before) = before.get(&one.id()) {
                one.inherit(before);
            }
        }
        self.guarded = guarded;
        for snapshot in [&mut self.latest, &mut self.previous] {
            snapshot.cgroups.reserve(self.guarded.len().saturating_sub(snapshot.cgroups.len()));
        }
    }

    /// Takes one at that time, in nanoseconds of `CLOCK_BOOTTIME`.
    pub fn take(&mut self, now_ns: u64) -> &Snapshot {
        std::mem::swap(&mut self.latest, &mut self.previous);
        let Self { node, guarded, latest, previous: _, buffer } = self;
        latest.at_ns = now_ns;
        node.look(now_ns, buffer, &mut latest.node);
        // If it is unknown whether there is swap, swap is read.
        let has_swap =
            latest.node.memory.is_ok_and(|memory| memory.swap_total_bytes > 0) || latest.node.memory.is_err();
        latest.cgroups.clear();
        latest.cgroups.extend(guarded.iter_mut().map(|one| one.look(now_ns, has_swap, buffer)));
        latest
    }

    /// The memory available now by the kernel's own estimate, in bytes, and how fast it changes; reads nothing else.
    pub fn available(&mut self, now_ns: u64) -> (Option<u64>, Option<i64>) {
        self.node.available(now_ns)
    }

    /// The latest snapshot.
    #[must_use]
    pub fn latest(&self) -> &Snapshot {
        &self.latest
    }

    /// The snapshot before the latest.
    #[must_use]
    pub fn previous(&self) -> &Snapshot {
        &self.previous
    }
}

#[cfg(test)]
mod tests;
