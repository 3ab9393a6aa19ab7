//! Limits that slow a victim down in a cgroup that outlives its eviction, such as one that a pod adopted. They are
//! raised so that the victim dies at full speed, and restored once it is dead.

use std::{
    borrow::Cow,
    io::{self, Write as _},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::io::Errno;

use super::{
    candidate::{Brake, Candidate, Owner},
    intents::EvictionIntents,
    report::{Report, Stuck},
    stat,
};
use crate::{journal::Intent, policy::engine::Few};

/// The most files that are raised at once; any others slow the victim down.
pub(super) const MOST: usize = 8;

/// The longest content: `cpu.max` with two numbers of 20 digits.
const CONTENT_BYTES: usize = 48;

/// The raised limits of a victim until it is dead.
#[derive(Clone, Debug)]
pub(super) struct RaisedLimits {
    pub(super) victim: Arc<Candidate>,
    files: Few<RaisedLimit, MOST>,
    /// The bits to set in `given_back` once they are restored.
    bits: u64,
    given_back: Option<Arc<AtomicU64>>,
}

/// A limit that is raised for a while.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct RaisedLimit {
    /// Its place among the candidate's brakes.
    place: usize,
    old: Content,
    new: Content,
}

/// A line of a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Content {
    bytes: [u8; CONTENT_BYTES],
    length: usize,
}

impl Content {
    /// These words as a line; `None` if it is too long.
    fn of(words: &[&[u8]]) -> Option<Self> {
        let mut content = Self { bytes: [0; CONTENT_BYTES], length: 0 };
        let mut rest = &mut content.bytes[..];
        for word in words {
            rest.write_all(word).ok()?;
        }
        let left = rest.len();
        content.length = CONTENT_BYTES - left;
        Some(content)
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    fn text(&self) -> &str {
        std::str::from_utf8(self.bytes()).unwrap_or_default()
    }
}

impl RaisedLimit {
    /// The value of that file, if it limits anything. Fails if the value cannot be read or is too long.
    pub(super) fn look(place: usize, brake: &Brake) -> io::Result<Option<Self>> {
        let mut buffer = [0_u8; 2 * CONTENT_BYTES];
        let text = stat::read_into(&brake.fd, &mut buffer)?.trim_ascii();
        let mut words = text.split(|byte| *byte == b' ');
        let (limit, period) = (words.next().unwrap_or_default(), words.next());
        if limit == b"max" {
            return Ok(None);
        }
        let too_long = || io::Error::from(io::ErrorKind::InvalidData);
        let old = Content::of(&[text]).ok_or_else(too_long)?;
        // Writing the period back makes the new value equal to what the kernel shows.
        let new = match period {
            Some(period) => Content::of(&[b"max ", period]),
            None => Content::of(&[b"max"]),
        };
        Ok(Some(Self { place, old, new: new.ok_or_else(too_long)? }))
    }

    /// The intent for the next start, if this process is killed meanwhile.
    pub(super) fn intent<'a>(&'a self, owner: &'a Owner) -> Intent<'a> {
        Intent::Knob {
            path: Cow::Borrowed(owner.path.as_str()),
            cgroup: owner.cgroup,
            file: Cow::Borrowed(owner.file),
            old: Cow::Borrowed(self.old.text()),
            new: Cow::Borrowed(self.new.text()),
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
        let mut limits = Self { victim: Arc::clone(victim), files: Few::new(), bits: 0, given_back };
        let mut failed = 0;
        for (place, brake) in victim.brakes.iter().enumerate() {
            let Some(owner) = &brake.owner else { continue };
            match RaisedLimit::look(place, brake) {
                Ok(Some(raised)) => {
                    let is_raised = limits.take(&raised, owner, intents.as_deref_mut())
                        && rustix::io::pwrite(&brake.fd, raised.new.bytes(), 0).is_ok();
                    failed += usize::from(!is_raised);
                }
                Ok(None) => {}
                Err(_) => failed += 1,
            }
        }
        ((!limits.files.is_empty()).then_some(limits), failed)
    }

    fn take(&mut self, raised: &RaisedLimit, owner: &Owner, intents: Option<&mut EvictionIntents>) -> bool {
        if self.files.len() == MOST {
            return false;
        }
        if let Some(intents) = intents {
            let Some(bit) = intents.note_raised(raised, owner) else { return false };
            self.bits |= bit;
        }
        self.files.push(*raised)
    }

    /// Restores every limit that was not changed since. Returns those that failed, with the error; they must be
    /// retried, and stay on the intent page for the next start.
    #[must_use = "the failed ones must be retried"]
    pub(super) fn give_back(&self) -> Few<(usize, Errno), MOST> {
        let mut left = Few::new();
        for raised in self.files.iter() {
            let Some(brake) = self.victim.brakes.get(raised.place) else { continue };
            let mut buffer = [0_u8; 2 * CONTENT_BYTES];
            let given = match stat::read_into(&brake.fd, &mut buffer) {
                Ok(text) if !text.starts_with(b"max") => continue,
                Ok(_) => rustix::io::pwrite(&brake.fd, raised.old.bytes(), 0).map(drop),
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
        let raised = self.files.iter().find(|raised| raised.place == place)?;
        Some(Report::Stuck(Box::new(Stuck {
            candidate: Arc::clone(&self.victim),
            cgroup: owner.path.clone(),
            file: owner.file,
            value: raised.old.text().to_owned(),
            error: error.map(|errno| errno.to_string()),
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(text: &str) -> io::Result<Option<(String, String)>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let brake = Brake { fd: file.reopen().unwrap().into(), owner: None };
        let lent = RaisedLimit::look(0, &brake)?;
        Ok(lent.map(|lent| (lent.old.text().to_owned(), lent.new.text().to_owned())))
    }

    #[test]
    fn what_holds_nobody_back_is_not_touched_and_what_does_is_kept_in_mind() {
        assert_eq!(look("max\n").unwrap(), None);
        assert_eq!(look("max 100000\n").unwrap(), None);
        let expected = |old: &str, new: &str| Some((old.to_owned(), new.to_owned()));
        assert_eq!(look("1048576\n").unwrap(), expected("1048576", "max"));
        assert_eq!(look("20000 50000\n").unwrap(), expected("20000 50000", "max 50000"));
        assert!(look(&"9".repeat(CONTENT_BYTES + 1)).is_err());
    }
}
