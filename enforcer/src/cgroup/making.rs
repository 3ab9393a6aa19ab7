use super::Mark;
use crate::{
    journal::{Intent, Slot, Slots},
    model::CgroupPath,
};

/// Has it outlive the daemon that a cgroup is ours, from before it is made until its [`Mark`] says so.
///
/// A kill may come between the two: the kernel takes its time to make one, and ends the system call first. The next
/// start would take such a cgroup for a stranger, unless its pod is still planned.
#[derive(Debug, Default)]
pub struct Making(Option<Slots>);

impl Making {
    /// With the slot for its intent.
    #[must_use]
    pub fn new(slots: Slots) -> Self {
        Self(Some(slots))
    }

    /// To be called before the cgroup is made. One that cannot be written down is made all the same: at worst it is left
    /// behind, empty.
    pub(super) fn begin(&mut self, path: &CgroupPath, mark: &Mark) -> Option<Slot> {
        let mark = mark.content().ok()?;
        self.0.as_mut()?.hold(&Intent::Cgroup { path: path.as_str().into(), mark: mark.into() })
    }

    /// To be called once it has its mark, or could not be made.
    pub(super) fn end(&mut self, slot: Option<Slot>) {
        if let (Some(slots), Some(slot)) = (&mut self.0, slot) {
            slots.release(slot);
        }
    }
}
