//! A file that holds another value for a while. The intent page says so meanwhile: if this process is killed, the next
//! start restores the file.

use super::{CgroupDir, Error, Held, PageSize};
use crate::{
    journal::{Intent, Slot, Slots},
    model::{CgroupValue, TemporaryValue},
};

/// A file that holds a temporary value, until it is [restored](Self::restore).
#[derive(Debug)]
#[must_use = "a file that is never restored is restored by the next start"]
pub struct Temporary {
    value: TemporaryValue,
    slot: Slot,
}

impl Temporary {
    /// What the file of `value` would hold again after holding that for a while; `None` if it holds no value now.
    pub fn instead_of_present(dir: &CgroupDir, value: CgroupValue) -> Result<Option<TemporaryValue>, Error> {
        let present = Held::read(value.file(), &dir.read(&value.file().name())?).value();
        Ok(present.and_then(|present| TemporaryValue::new(present, value)))
    }

    /// Records a value in the intent page. Call it before the value is written. Returns `None` if the page is full; the
    /// value must not be written then.
    pub fn record(dir: &CgroupDir, value: TemporaryValue, slots: &mut Slots) -> Option<Self> {
        let slot = slots.hold(&Intent::Value {
            path: dir.path().as_str().into(),
            cgroup: dir.id(),
            value: value.clone(),
        })?;
        Some(Self { value, slot })
    }

    /// The two values.
    #[must_use]
    pub fn value(&self) -> &TemporaryValue {
        &self.value
    }

    /// Whether another has written the original value meanwhile, as systemd does with what it knows when it reloads its units.
    pub fn is_undone(&self, dir: &CgroupDir) -> Result<bool, Error> {
        let file = self.value.file();
        let present = Held::read(file, &dir.read(&file.name())?);
        Ok(present.is(self.value.original(), PageSize::of_this_machine()))
    }

    /// Removes the record of a value that was not written, or of one that was [written back](Self::write_back).
    pub fn forget(self, slots: &mut Slots) {
        slots.release(self.slot);
    }

    /// Writes the original value again, and removes the record. What is returned with the error must be tried again; the
    /// record stays until then. A cgroup that is gone needs nothing.
    #[must_use = "it must be tried again"]
    pub fn restore(self, dir: &CgroupDir, slots: &mut Slots) -> Option<(Self, Error)> {
        if let Err(error) = self.write_back(dir) {
            return Some((self, error));
        }
        self.forget(slots);
        None
    }

    /// The first half of [`restore`](Self::restore): writes the original value again, and leaves the record.
    pub fn write_back(&self, dir: &CgroupDir) -> Result<(), Error> {
        match restore(dir, &self.value) {
            Err(error) if !error.is_gone() => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

/// Writes the original value if the file still holds the temporary one: any other was written on purpose since. Returns
/// whether it did.
pub fn restore(dir: &CgroupDir, value: &TemporaryValue) -> Result<bool, Error> {
    let file = value.file();
    let present = Held::read(file, &dir.read(&file.name())?);
    if !present.is(value.temporary(), PageSize::of_this_machine()) {
        return Ok(false);
    }
    dir.write(&file.name(), &value.original().to_string())?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::{
        journal::Intents,
        model::{CgroupFile, Limit},
    };

    /// A cgroup whose `memory.high` is 1 MiB for a while, which the intent page records.
    fn limited(cgroup: &Path, run_dir: &Path) -> (CgroupDir, Slots, Temporary) {
        fs::write(cgroup.join("memory.high"), "max\n").unwrap();
        let dir = CgroupDir::unchecked(cgroup).unwrap();
        let mut slots = Intents::open_lasting(run_dir, "b").unwrap().limits;
        let high = CgroupValue::MemoryHigh(Limit::Amount(1 << 20));
        let value = Temporary::instead_of_present(&dir, high).unwrap().unwrap();
        assert_eq!(
            (value.file(), value.original()),
            (CgroupFile::MemoryHigh, &CgroupValue::MemoryHigh(Limit::Max))
        );
        let temporary = Temporary::record(&dir, value, &mut slots).unwrap();
        assert_eq!(Intents::open_lasting(run_dir, "b").unwrap().left.len(), 1);
        (dir, slots, temporary)
    }

    /// A file that holds `present` when a limit of 1 MiB for a while ends; returns what it holds then.
    fn restored_from(present: &str) -> String {
        let (temp, run_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = temp.path().join("memory.high");
        let (dir, mut slots, temporary) = limited(temp.path(), run_dir.path());
        fs::write(&file, present).unwrap();
        assert!(temporary.restore(&dir, &mut slots).is_none());
        assert_eq!(Intents::open_lasting(run_dir.path(), "b").unwrap().left, []);
        fs::read_to_string(&file).unwrap()
    }

    #[test]
    fn the_original_value_comes_back_unless_another_was_written_meanwhile() {
        assert!(restored_from("1048576\n").starts_with("max"));
        assert_eq!(restored_from("2097152\n"), "2097152\n");
    }

    #[test]
    fn a_file_that_cannot_be_written_stays_recorded_and_one_that_is_gone_does_not() {
        let (temp, run_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = temp.path().join("memory.high");
        let (dir, mut slots, temporary) = limited(temp.path(), run_dir.path());
        // A directory cannot be read as a file, by root neither.
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        let (temporary, error) = temporary.restore(&dir, &mut slots).unwrap();
        assert!(!error.is_gone(), "{error}");
        assert_eq!(Intents::open_lasting(run_dir.path(), "b").unwrap().left.len(), 1);
        fs::remove_dir(&file).unwrap();
        assert!(temporary.restore(&dir, &mut slots).is_none());
        assert_eq!(Intents::open_lasting(run_dir.path(), "b").unwrap().left, []);
    }

    #[test]
    fn text_that_is_no_value_is_not_replaced() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("memory.high"), "much\n").unwrap();
        let dir = CgroupDir::unchecked(temp.path()).unwrap();
        let high = CgroupValue::MemoryHigh(Limit::Max);
        assert_eq!(Temporary::instead_of_present(&dir, high).unwrap(), None);
    }
}
