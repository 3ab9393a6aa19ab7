//! Bridges the moment between making and marking a cgroup, so that a crash leaves none behind.

use super::Mark;
use crate::{
    journal::{Intent, Slot, Slots},
    model::CgroupPath,
};

/// Records that a cgroup is ours, from before it is made until its [`Mark`] says so. The record outlives the daemon.
///
/// A kill may come between the two: making a cgroup takes the kernel a while, and the system call ends before the
/// process does. The next start would take such a cgroup for a stranger's, unless its pod is still planned.
#[derive(Debug, Default)]
pub struct Making(Option<Slots>);

impl Making {
    /// Keeps the intent in these slots.
    #[must_use]
    pub fn new(slots: Slots) -> Self {
        Self(Some(slots))
    }

    /// Call it before the cgroup is made. If the intent cannot be recorded, the cgroup is made all the same: at worst
    /// it is left behind, empty.
    pub(super) fn begin(&mut self, path: &CgroupPath, mark: &Mark) -> Option<Slot> {
        let mark = mark.content().ok()?;
        self.0.as_mut()?.hold(&Intent::Cgroup { path: path.as_str().into(), mark: mark.into() })
    }

    /// Call it once the cgroup has its mark, or could not be made.
    pub(super) fn end(&mut self, slot: Option<Slot>) {
        if let (Some(slots), Some(slot)) = (&mut self.0, slot) {
            slots.release(slot);
        }
    }
}
