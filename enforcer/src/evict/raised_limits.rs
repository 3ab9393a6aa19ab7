//! Limits that slow a victim down in a cgroup that outlives its eviction, such as one that a pod adopted. They are
//! raised so that the victim dies at full speed, and restored once it is dead.

use std::{
    borrow::Cow,
    io::Write as _,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::io::Errno;

use super::{
    candidate::{Candidate, Owner},
    intents::EvictionIntents,
    report::{Report, Stuck},
    stat,
};
use crate::{
    journal::Intent,
    model::{CgroupFile, CgroupValue, CpuMax, Limit, TemporaryValue},
    policy::engine::Few,
};

/// The most files that are raised at once; any others slow the victim down.
pub(super) const MOST: usize = 8;

/// The longest value: `cpu.max` with two numbers of 20 digits.
const VALUE_BYTES: usize = 48;

/// The raised limits of a victim until it is dead.
#[derive(Clone, Debug)]
pub(super) struct RaisedLimits {
    pub(super) victim: Arc<Candidate>,
    /// In place: nothing is allocated here.
    files: [Option<RaisedLimit>; MOST],
    /// The bits to set in `given_back` once they are restored.
    bits: u64,
    given_back: Option<Arc<AtomicU64>>,
}

/// A limit that is raised for a while.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct RaisedLimit {
    /// Its place among the candidate's brakes.
    place: usize,
    value: TemporaryValue,
}

/// Reads a file's value. Does not allocate.
fn read(fd: &OwnedFd, file: CgroupFile) -> Result<CgroupValue, Errno> {
    let mut buffer = [0_u8; 2 * VALUE_BYTES];
    let text = std::str::from_utf8(stat::read_into(fd, &mut buffer)?).map_err(|_error| Errno::INVAL)?;
    file.parse(text).ok_or(Errno::INVAL)
}

/// Writes a value to its file. Does not allocate.
fn write(fd: &OwnedFd, value: &CgroupValue) -> Result<(), Errno> {
    let mut bytes = [0_u8; VALUE_BYTES];
    let mut rest = &mut bytes[..];
    write!(rest, "{value}").map_err(|_error| Errno::OVERFLOW)?;
    let left = rest.len();
    rustix::io::pwrite(fd, bytes.get(..VALUE_BYTES - left).unwrap_or_default(), 0).map(drop)
}

/// The value that limits nothing. It keeps the period, as the kernel does.
fn unlimited(value: &CgroupValue) -> CgroupValue {
    match value {
        CgroupValue::CpuMax(max) => CgroupValue::CpuMax(CpuMax { quota_us: Limit::Max, ..*max }),
        value => value.file().default_value(),
    }
}

impl RaisedLimit {
    /// The value of that file, if it limits anything. Fails if the value cannot be read.
    fn look(place: usize, fd: &OwnedFd, file: CgroupFile) -> Result<Option<Self>, Errno> {
        let original = read(fd, file)?;
        let value = TemporaryValue::new(original.clone(), unlimited(&original));
        let value = value.filter(|value| value.original() != value.temporary());
        Ok(value.map(|value| Self { place, value }))
    }

    /// The intent for the next start, if this process is killed meanwhile.
    pub(super) fn intent<'a>(&self, owner: &'a Owner) -> Intent<'a> {
        Intent::Value {
            path: Cow::Borrowed(owner.path.as_str()),
            cgroup: owner.cgroup,
            value: self.value.clone(),
        }
    }
}

impl RaisedLimits {
    /// Raises limits that slow a victim down in cgroups that outlive it, after `intents` has recorded their values;
    /// `None` if it has none. Also returns how many could not be raised. Without `intents` nothing is recorded, as no
    /// start would read it.
    pub(super) fn raise(
        victim: &Arc<Candidate>,
        mut intents: Option<&mut EvictionIntents>,
    ) -> (Option<Self>, usize) {
        let given_back = intents.as_ref().map(|intents| intents.given_back());
        let mut limits =
            Self { victim: Arc::clone(victim), files: [const { None }; MOST], bits: 0, given_back };
        let mut failed = 0;
        for (place, brake) in victim.brakes.iter().enumerate() {
            let Some(owner) = &brake.owner else { continue };
            match RaisedLimit::look(place, &brake.fd, owner.file) {
                Ok(Some(raised)) => {
                    let temporary = raised.value.temporary().clone();
                    let is_raised = limits.take(raised, owner, intents.as_deref_mut())
                        && write(&brake.fd, &temporary).is_ok();
                    failed += usize::from(!is_raised);
                }
                Ok(None) => {}
                Err(_) => failed += 1,
            }
        }
        (limits.files.iter().any(Option::is_some).then_some(limits), failed)
    }

    fn take(&mut self, raised: RaisedLimit, owner: &Owner, intents: Option<&mut EvictionIntents>) -> bool {
        let Some(free) = self.files.iter_mut().find(|file| file.is_none()) else { return false };
        if let Some(intents) = intents {
            let Some(bit) = intents.note_raised(&raised, owner) else { return false };
            self.bits |= bit;
        }
        *free = Some(raised);
        true
    }

    /// Restores every limit that was not changed since. Returns those that failed, with the error; they must be
    /// retried, and stay on the intent page for the next start.
    #[must_use = "the failed ones must be retried"]
    pub(super) fn give_back(&self) -> Few<(usize, Errno), MOST> {
        let mut left = Few::new();
        for raised in self.files.iter().flatten() {
            let Some(brake) = self.victim.brakes.get(raised.place) else { continue };
            let given = match read(&brake.fd, raised.value.file()) {
                Ok(present) if present != unlimited(&present) => continue,
                Ok(_) => write(&brake.fd, raised.value.original()),
                Err(errno) => Err(errno),
            };
            match given {
                // Its owner may have removed it.
                Ok(()) | Err(Errno::NODEV | Errno::NOENT) => {}
                Err(errno) => {
                    let fits = left.push((raised.place, errno));
                    debug_assert!(fits, "no more files than are raised");
                }
            }
        }
        if let Some(given_back) = self.given_back.as_ref().filter(|_| left.is_empty()) {
            given_back.fetch_or(self.bits, Ordering::AcqRel);
        }
        left
    }

    /// The report that this file cannot be restored, or with `None` that it is restored at last; for a helper thread.
    pub(super) fn report(&self, place: usize, error: Option<Errno>) -> Option<Report> {
        let owner = self.victim.brakes.get(place)?.owner.as_ref()?;
        let raised = self.files.iter().flatten().find(|raised| raised.place == place)?;
        Some(Report::Stuck(Box::new(Stuck {
            candidate: Arc::clone(&self.victim),
            cgroup: owner.path.clone(),
            value: raised.value.original().clone(),
            error: error.map(|errno| errno.to_string()),
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(file: CgroupFile, text: &str) -> Result<Option<(String, String)>, Errno> {
        let content = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(content.path(), text).unwrap();
        let raised = RaisedLimit::look(0, &content.reopen().unwrap().into(), file)?;
        Ok(raised.map(|raised| (raised.value.original().to_string(), raised.value.temporary().to_string())))
    }

    #[test]
    fn a_file_without_a_limit_is_left_alone_and_the_value_of_another_is_remembered() {
        let (cpu, high) = (CgroupFile::CpuMax, CgroupFile::MemoryHigh);
        assert_eq!(look(high, "max\n").unwrap(), None);
        assert_eq!(look(cpu, "max 100000\n").unwrap(), None);
        let expected = |old: &str, new: &str| Some((old.to_owned(), new.to_owned()));
        assert_eq!(look(high, "1048576\n").unwrap(), expected("1048576", "max"));
        assert_eq!(look(cpu, "20000 50000\n").unwrap(), expected("20000 50000", "max 50000"));
        assert!(look(cpu, &"9".repeat(VALUE_BYTES + 1)).is_err());
    }

    #[test]
    fn the_longest_value_has_room() {
        let longest = CgroupValue::CpuMax(CpuMax { quota_us: Limit::Amount(u64::MAX), period_us: u64::MAX });
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        write(&file, &longest).unwrap();
        assert_eq!(read(&file, CgroupFile::CpuMax), Ok(longest));
    }
}
