use std::collections::BTreeMap;

use super::{Knob, Write};
use crate::{model::CgroupId, policy::FileName};

/// What was last written to which file, by the cgroup's id, so that a plan that no longer names a file gives it back to
/// the kernel, and another's write is told from a changed plan.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    written: BTreeMap<CgroupId, BTreeMap<FileName, String>>,
}

impl Ledger {
    /// The files of a cgroup that were written.
    pub fn files(&self, id: CgroupId) -> impl Iterator<Item = &FileName> {
        self.written.get(&id).into_iter().flat_map(BTreeMap::keys)
    }

    /// The value that was last written to a file.
    #[must_use]
    pub fn value(&self, id: CgroupId, file: &str) -> Option<&str> {
        self.written.get(&id)?.get(file).map(String::as_str)
    }

    /// Notes a value that is in force: it was written, or was found as planned.
    pub fn note(&mut self, id: CgroupId, file: &FileName, value: &str) {
        let files = self.written.entry(id).or_default();
        if files.get(file).is_none_or(|known| known != value) {
            files.insert(file.clone(), value.to_owned());
        }
    }

    /// Notes a write that was carried out; a file that was given back is forgotten.
    pub fn note_write(&mut self, id: CgroupId, write: &Write) {
        let released = write.reason == super::Reason::Released
            && Knob::kernel_default(&write.file) == Some(write.value.as_str());
        if released {
            if let Some(files) = self.written.get_mut(&id) {
                files.remove(&write.file);
            }
        } else {
            self.note(id, &write.file, &write.value);
        }
    }

    /// Forgets a cgroup that is gone.
    pub fn forget(&mut self, id: CgroupId) {
        self.written.remove(&id);
    }
}
