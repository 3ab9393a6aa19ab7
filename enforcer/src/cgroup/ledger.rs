//! Remembers what was written, to distinguish a foreign write from a changed plan.

use std::collections::{BTreeMap, BTreeSet};

use super::{Mark, Write, desired::pack};
use crate::model::{CgroupFile, CgroupId, CgroupValue, OwnerLevel, SmallMap};

/// The value last written to each file, by cgroup id. So a file that a plan no longer names is restored, and a foreign
/// write is distinguished from a changed plan.
///
/// Which files they are outlives the daemon, as a [`Mark`] on each cgroup. The values do not: a file's value at the
/// first look is reported as initial, whatever it is.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    entries: BTreeMap<CgroupId, Entry>,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    /// The mark that the cgroup is to have.
    mark: Mark,
    /// Whether it has that mark.
    is_marked: bool,
    /// The values known to be in force.
    values: SmallMap<CgroupFile, CgroupValue>,
}

impl Ledger {
    /// Whether a cgroup's mark was read.
    #[must_use]
    pub fn knows(&self, id: CgroupId) -> bool {
        self.entries.contains_key(&id)
    }

    /// Takes in an existing cgroup, with its mark if it has one. If `is_ours`, it counts as made by us whatever its
    /// mark says: a kill may have come between making and marking it.
    pub fn meet(&mut self, id: CgroupId, level: Option<&OwnerLevel>, is_ours: bool, marked: Option<Mark>) {
        self.entries.entry(id).or_insert_with(|| {
            let is_marked = marked.as_ref().is_some_and(|marked| marked.made || !is_ours);
            let mut mark = marked.map_or_else(|| Mark::new(false, level), |marked| marked.sharing(level));
            mark.made |= is_ours;
            Entry { mark, is_marked, values: SmallMap::new() }
        });
    }

    /// Takes in a cgroup that was just made.
    pub fn make(&mut self, id: CgroupId, level: Option<&OwnerLevel>) {
        let mark = Mark::new(true, level);
        self.entries.insert(id, Entry { mark, is_marked: false, values: SmallMap::new() });
    }

    /// Whether a cgroup was made by us, now or before a restart.
    #[must_use]
    pub fn made(&self, id: CgroupId) -> bool {
        self.entries.get(&id).is_some_and(|entry| entry.mark.made)
    }

    /// The files of a cgroup that were written.
    pub fn files(&self, id: CgroupId) -> impl Iterator<Item = CgroupFile> {
        self.entries.get(&id).into_iter().flat_map(|entry| entry.mark.files.keys().copied())
    }

    /// The value known to be in force in a file.
    #[must_use]
    pub fn value(&self, id: CgroupId, file: CgroupFile) -> Option<CgroupValue> {
        self.entries.get(&id)?.values.get(&file).cloned()
    }

    /// What a file held before it was first written, by default the kernel's value for a new cgroup.
    #[must_use]
    pub fn original(&self, id: CgroupId, file: CgroupFile) -> CgroupValue {
        let original = self.entries.get(&id).and_then(|entry| entry.mark.files.get(&file)?.clone());
        original.unwrap_or_else(|| file.default_value())
    }

    /// Notes that a file is about to be written, or was found as planned. `original` is what it holds, if that is to be
    /// restored one day.
    pub fn claim(&mut self, id: CgroupId, file: CgroupFile, original: Option<CgroupValue>) {
        let entry = self.entries.entry(id).or_default();
        if !entry.mark.files.contains_key(&file) {
            entry.mark.files.insert(file, original);
            entry.is_marked = false;
        }
    }

    /// Notes on the mark of kubepods which foreign cgroups are written to.
    pub fn set_outside(&mut self, kubepods: CgroupId, outside: &BTreeSet<String>) {
        let entry = self.entries.entry(kubepods).or_default();
        if entry.mark.outside != *outside {
            entry.mark.outside.clone_from(outside);
            entry.is_marked = false;
        }
    }

    /// The mark that a cgroup is to have, whether it has it or not.
    #[must_use]
    pub fn mark(&self, id: CgroupId) -> Option<&Mark> {
        Some(&self.entries.get(&id)?.mark)
    }

    /// The mark that a cgroup is to get, if it does not have it.
    #[must_use]
    pub fn new_mark(&self, id: CgroupId) -> Option<&Mark> {
        let entry = self.entries.get(&id)?;
        (!entry.is_marked).then_some(&entry.mark)
    }

    /// Notes that a cgroup has its intended mark.
    pub fn marked(&mut self, id: CgroupId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.is_marked = true;
        }
    }

    /// Notes a value in force: it was written, or was found as planned.
    pub fn note(&mut self, id: CgroupId, value: CgroupValue) {
        self.claim(id, value.file(), None);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.values.insert(value.file(), value);
        }
    }

    /// Notes a completed write; a restored file is forgotten.
    pub fn note_write(&mut self, id: CgroupId, write: &Write) {
        if write.reason == super::Reason::Released {
            self.leave(id, write.file());
        } else {
            self.note(id, write.value.clone());
        }
    }

    /// Forgets a file: it was restored, or another process has taken it over.
    pub fn leave(&mut self, id: CgroupId, file: CgroupFile) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.is_marked &= entry.mark.files.remove(&file).is_none();
            entry.values.remove(&file);
        }
    }

    /// Makes it [small](pack): cgroups come in the order of their ids.
    pub fn pack(&mut self) {
        pack(&mut self.entries);
    }

    /// Forgets a cgroup that is gone.
    pub fn forget(&mut self, id: CgroupId) {
        self.entries.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_of_a_cgroup_is_small() {
        assert_eq!(size_of::<Entry>(), 128, "there is one for each cgroup");
    }
}
