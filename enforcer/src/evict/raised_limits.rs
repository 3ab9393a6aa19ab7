//! What slowed a victim down in a cgroup that outlives its eviction, as one that a pod adopted does: raised so that it dies
//! at full speed, and put back as it was once it is dead.

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

/// So many files of victims are lent at once; of more the others slow it down.
pub(super) const MOST: usize = 8;

/// The longest content: `cpu.max` with two numbers of 20 digits.
const CONTENT_BYTES: usize = 48;

/// The files of a victim that hold another value until it is dead.
#[derive(Clone, Debug)]
pub(super) struct RaisedLimits {
    pub(super) victim: Arc<Candidate>,
    files: Few<RaisedLimit, MOST>,
    /// What says that they are given back, and where.
    bits: u64,
    given_back: Option<Arc<AtomicU64>>,
}

/// A file that holds another value for a while.
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
    /// These words as a line; none if it is too long.
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
    /// What that brake holds, if it holds anybody back; the error is that it cannot be read, or kept in mind.
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
        // The kernel keeps the period, and shows it.
        let new = match period {
            Some(period) => Content::of(&[b"max ", period]),
            None => Content::of(&[b"max"]),
        };
        Ok(Some(Self { place, old, new: new.ok_or_else(too_long)? }))
    }

    /// For a start that finds us killed meanwhile.
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
    /// Raises what slows a victim down in cgroups that outlive it, once `intents` has written down what they held; and how
    /// many could not be raised. Without intents nobody would take up what is written down. None if it has no such files.
    pub(super) fn raise(
        victim: &Arc<Candidate>,
        mut intents: Option<&mut EvictionIntents>,
    ) -> (Option<Self>, usize) {
        let given_back = intents.as_ref().map(|intents| intents.given_back());
        let mut loan = Self { victim: Arc::clone(victim), files: Few::new(), bits: 0, given_back };
        let mut failed = 0;
        for (place, brake) in victim.brakes.iter().enumerate() {
            let Some(owner) = &brake.owner else { continue };
            match RaisedLimit::look(place, brake) {
                Ok(Some(lent)) => {
                    let is_raised = loan.take(&lent, owner, intents.as_deref_mut())
                        && rustix::io::pwrite(&brake.fd, lent.new.bytes(), 0).is_ok();
                    failed += usize::from(!is_raised);
                }
                Ok(None) => {}
                Err(_) => failed += 1,
            }
        }
        ((!loan.files.is_empty()).then_some(loan), failed)
    }

    fn take(&mut self, lent: &RaisedLimit, owner: &Owner, intents: Option<&mut EvictionIntents>) -> bool {
        if self.files.len() == MOST {
            return false;
        }
        if let Some(intents) = intents {
            let Some(bit) = intents.lend(lent, owner) else { return false };
            self.bits |= bit;
        }
        self.files.push(*lent)
    }

    /// Puts everything back that nobody has changed since. What cannot be is the answer, each with the reason: it is to be
    /// tried again, and stays on the intent page for the next start.
    #[must_use = "what is left is to be tried again"]
    pub(super) fn give_back(&self) -> Few<(usize, Errno), MOST> {
        let mut left = Few::new();
        for lent in self.files.iter() {
            let Some(brake) = self.victim.brakes.get(lent.place) else { continue };
            let mut buffer = [0_u8; 2 * CONTENT_BYTES];
            let given = match stat::read_into(&brake.fd, &mut buffer) {
                Ok(text) if !text.starts_with(b"max") => continue,
                Ok(_) => rustix::io::pwrite(&brake.fd, lent.old.bytes(), 0).map(drop),
                Err(errno) => Err(errno),
            };
            match given {
                // Its owner may have removed it.
                Ok(()) | Err(Errno::NODEV | Errno::NOENT) => {}
                Err(errno) => {
                    let fits = left.push((lent.place, errno));
                    debug_assert!(fits, "no more files than are lent");
                }
            }
        }
        if let Some(given_back) = self.given_back.as_ref().filter(|_| left.is_empty()) {
            given_back.fetch_or(self.bits, Ordering::AcqRel);
        }
        left
    }

    /// That these files cannot be put back, or are at last; for a helper thread.
    pub(super) fn report(&self, place: usize, error: Option<Errno>) -> Option<Report> {
        let owner = self.victim.brakes.get(place)?.owner.as_ref()?;
        let lent = self.files.iter().find(|lent| lent.place == place)?;
        Some(Report::Stuck(Box::new(Stuck {
            candidate: Arc::clone(&self.victim),
            cgroup: owner.path.clone(),
            file: owner.file,
            value: lent.old.text().to_owned(),
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
