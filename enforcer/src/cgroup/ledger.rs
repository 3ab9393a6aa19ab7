use std::collections::{BTreeMap, BTreeSet};

use super::{Mark, Write};
use crate::{
    model::{CgroupId, OwnerLevel},
    policy::FileName,
};

/// What was last written to which file, by the cgroup's id, so that a plan that no longer names a file gives it back,
/// and another's write is told from a changed plan.
///
/// Which files they are outlives the daemon, as a [`Mark`] on each cgroup; the values do not: what a file holds at the
/// first look is told as initial, whatever it is.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    entries: BTreeMap<CgroupId, Entry>,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    /// What the cgroup's mark is to say.
    mark: Mark,
    /// What it says.
    marked: Option<Mark>,
    /// The values that are known to be in force.
    values: BTreeMap<FileName, String>,
}

impl Ledger {
    /// Whether a cgroup's mark was read.
    #[must_use]
    pub fn knows(&self, id: CgroupId) -> bool {
        self.entries.contains_key(&id)
    }

    /// Takes in a cgroup that stands, with its mark if it has one. One that is `ours` counts as made by us whatever its
    /// mark says: a kill may have come between making and marking it.
    pub fn meet(&mut self, id: CgroupId, level: Option<&OwnerLevel>, is_ours: bool, marked: Option<Mark>) {
        self.entries.entry(id).or_insert_with(|| {
            let mut mark = marked.clone().unwrap_or_else(|| Mark::new(false, level));
            mark.made |= is_ours;
            Entry { mark, marked, values: BTreeMap::new() }
        });
    }

    /// Takes in a cgroup that was made just now.
    pub fn make(&mut self, id: CgroupId, level: Option<&OwnerLevel>) {
        let mark = Mark::new(true, level);
        self.entries.insert(id, Entry { mark, marked: None, values: BTreeMap::new() });
    }

    /// Whether a cgroup was made by us, now or before a restart.
    #[must_use]
    pub fn made(&self, id: CgroupId) -> bool {
        self.entries.get(&id).is_some_and(|entry| entry.mark.made)
    }

    /// The files of a cgroup that were written.
    pub fn files(&self, id: CgroupId) -> impl Iterator<Item = &FileName> {
        self.entries.get(&id).into_iter().flat_map(|entry| entry.mark.files.keys())
    }

    /// The value that is known to be in force in a file.
    #[must_use]
    pub fn value(&self, id: CgroupId, file: &str) -> Option<&str> {
        self.entries.get(&id)?.values.get(file).map(String::as_str)
    }

    /// What a file held before it was first written; none where that is what the kernel gives a new cgroup.
    #[must_use]
    pub fn original(&self, id: CgroupId, file: &str) -> Option<&str> {
        self.entries.get(&id)?.mark.files.get(file)?.as_deref()
    }

    /// Notes that a file is about to be written, or was found as planned. `original` is what it holds, where that is to
    /// come back one day.
    pub fn claim(&mut self, id: CgroupId, file: &FileName, original: Option<&str>) {
        let entry = self.entries.entry(id).or_default();
        if !entry.mark.files.contains_key(file) {
            entry.mark.files.insert(file.clone(), original.map(str::to_owned));
        }
    }

    /// Notes which cgroups of others are written, on the mark of kubepods.
    pub fn set_outside(&mut self, kubepods: CgroupId, outside: &BTreeSet<String>) {
        let entry = self.entries.entry(kubepods).or_default();
        if entry.mark.outside != *outside {
            entry.mark.outside.clone_from(outside);
        }
    }

    /// The mark that a cgroup is to get, if it is another than it has.
    #[must_use]
    pub fn new_mark(&self, id: CgroupId) -> Option<&Mark> {
        let entry = self.entries.get(&id)?;
        (entry.marked.as_ref() != Some(&entry.mark)).then_some(&entry.mark)
    }

    /// Notes that a cgroup has the mark that it is to have.
    pub fn marked(&mut self, id: CgroupId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.marked = Some(entry.mark.clone());
        }
    }

    /// Notes a value that is in force: it was written, or was found as planned.
    pub fn note(&mut self, id: CgroupId, file: &FileName, value: &str) {
        self.claim(id, file, None);
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if entry.values.get(file).is_none_or(|known| known != value) {
            entry.values.insert(file.clone(), value.to_owned());
        }
    }

    /// Notes a write that was carried out; a file that was given back is forgotten.
    pub fn note_write(&mut self, id: CgroupId, write: &Write) {
        if write.reason == super::Reason::Released {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.mark.files.remove(&write.file);
                entry.values.remove(&write.file);
            }
        } else {
            self.note(id, &write.file, &write.value);
        }
    }

    /// Forgets a cgroup that is gone.
    pub fn forget(&mut self, id: CgroupId) {
        self.entries.remove(&id);
    }
}
