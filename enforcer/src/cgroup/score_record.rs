//! What scores were before enforcer changed them, for `enforcer cleanup` to put back, and beside a kubelet for the next
//! start.
//!
//! As a [`Mark`](super::Mark) does, it lives in extended attributes of the hierarchy: those of a container on its cgroup, and
//! those of the node's own components on the root. So it is in memory, is written before the score without waiting for a disk,
//! and ends with what it is about.

use rustix::{fs::XattrFlags, io::Errno};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{CgroupDir, Error};

/// The attribute of a container's cgroup. Reading or writing `trusted.*` needs `CAP_SYS_ADMIN`.
const CONTAINER: &str = "trusted.enforcer.score";
/// The attribute of the hierarchy's root.
const COMPONENTS: &str = "trusted.enforcer.components";
/// The format of both.
const VERSION: u32 = 1;
/// The most scores of a container that are remembered; those that follow the ranking change often.
const MOST_WRITTEN: usize = 16;
/// The most processes of components that are remembered.
const MOST_PROCESSES: usize = 512;
/// The size of each in bytes, at most. The kernel's own bound is 64 KiB (`XATTR_SIZE_MAX`).
const CONTAINER_BYTES: usize = 1024;
const COMPONENTS_BYTES: usize = 64 * 1024;

/// The score of a container's processes before they were given others.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ScoreRecord {
    /// What the first process had that was given another score. A child inherits its parent's.
    pub before: i16,
    /// The scores that were given, the latest last.
    pub written: Vec<i16>,
}

/// The score of a process of one of the node's own components before it was given another.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ComponentRecord {
    /// Its id in our own PID namespace.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// The score that it had.
    pub before: i16,
    /// The score that it was given.
    pub written: i16,
}

/// The processes of components, as they are kept.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Processes {
    processes: Vec<ComponentRecord>,
}

#[derive(Deserialize, Serialize)]
struct Versioned<T> {
    version: u32,
    #[serde(flatten)]
    content: T,
}

/// What an attribute holds.
enum Kept<T> {
    /// Nothing that can be read.
    Nothing,
    Content(T),
    /// What a newer version wrote, which is not overwritten.
    Newer,
}

impl ScoreRecord {
    /// The record of the first score that is given.
    #[must_use]
    pub fn new(before: i16, written: i16) -> Self {
        Self { before, written: vec![written] }
    }

    /// The record with one more score; `None` if that adds nothing. A score as before undoes the others,
    /// and is not undone itself.
    fn with(mut self, score: i16) -> Option<Self> {
        if score == self.before || self.written.last() == Some(&score) {
            return None;
        }
        self.written.retain(|written| *written != score);
        self.written.push(score);
        let too_many = self.written.len().saturating_sub(MOST_WRITTEN);
        self.written.drain(..too_many);
        Some(self)
    }

    /// The score that a process with this one gets back; `None` if it was not given this one.
    #[must_use]
    pub fn undone(&self, present: i16) -> Option<i16> {
        (present != self.before && self.written.contains(&present)).then_some(self.before)
    }
}

impl Processes {
    /// Adds a process that is not known yet, and drops those that are gone. Returns whether it was added.
    fn note(&mut self, new: ComponentRecord, lives: impl Fn(&ComponentRecord) -> bool) -> bool {
        let is_it = |kept: &ComponentRecord| (kept.pid, kept.start_ticks) == (new.pid, new.start_ticks);
        if self.processes.iter().any(is_it) {
            return false;
        }
        self.processes.retain(lives);
        let has_room = self.processes.len() < MOST_PROCESSES;
        if has_room {
            self.processes.push(new);
        }
        has_room
    }
}

fn parse<T: DeserializeOwned>(text: &[u8]) -> Kept<T> {
    #[derive(Deserialize)]
    struct Only {
        version: u32,
    }
    match serde_json::from_slice::<Only>(text) {
        Ok(Only { version }) if version > VERSION => Kept::Newer,
        Ok(_) => serde_json::from_slice::<Versioned<T>>(text)
            .map_or(Kept::Nothing, |kept| Kept::Content(kept.content)),
        Err(_) => Kept::Nothing,
    }
}

impl CgroupDir {
    /// The scores that its processes had; `None` if none of them was changed.
    pub fn score_record(&self) -> Result<Option<ScoreRecord>, Error> {
        Ok(match self.kept(CONTAINER, CONTAINER_BYTES)? {
            Kept::Content(record) => Some(record),
            Kept::Nothing | Kept::Newer => None,
        })
    }

    /// Records that a process of it with the score `before` is about to be given another.
    pub fn note_score(&self, before: i16, score: i16) -> Result<(), Error> {
        let record = match self.kept::<ScoreRecord>(CONTAINER, CONTAINER_BYTES)? {
            Kept::Nothing => Some(ScoreRecord::new(before, score)),
            Kept::Content(record) => record.with(score),
            Kept::Newer => None,
        };
        record.map_or(Ok(()), |record| self.keep(CONTAINER, record))
    }

    /// The scores that components' processes had: on the hierarchy's root.
    pub fn component_records(&self) -> Result<Vec<ComponentRecord>, Error> {
        Ok(match self.kept::<Processes>(COMPONENTS, COMPONENTS_BYTES)? {
            Kept::Content(Processes { processes }) => processes,
            Kept::Nothing | Kept::Newer => Vec::new(),
        })
    }

    /// Records that a component's process is about to be given another score: on the hierarchy's root.
    pub fn note_component(
        &self,
        new: ComponentRecord,
        lives: impl Fn(&ComponentRecord) -> bool,
    ) -> Result<(), Error> {
        let mut processes = match self.kept::<Processes>(COMPONENTS, COMPONENTS_BYTES)? {
            Kept::Content(processes) => processes,
            Kept::Nothing => Processes::default(),
            Kept::Newer => return Ok(()),
        };
        if processes.note(new, lives) { self.keep(COMPONENTS, processes) } else { Ok(()) }
    }

    /// Removes what is recorded on it of scores.
    pub fn forget_scores(&self) -> Result<(), Error> {
        for name in [CONTAINER, COMPONENTS] {
            match rustix::fs::fremovexattr(self, name) {
                // PERM: who may not remove one could not write it either.
                Ok(()) | Err(Errno::NODATA | Errno::NOTSUP | Errno::PERM) => {}
                Err(errno) => return Err(self.unkept(name, errno)),
            }
        }
        Ok(())
    }

    fn kept<T: DeserializeOwned>(&self, name: &str, most_bytes: usize) -> Result<Kept<T>, Error> {
        let mut content = vec![0_u8; most_bytes];
        match rustix::fs::fgetxattr(self, name, content.as_mut_slice()) {
            Ok(length) => Ok(parse(content.get(..length).unwrap_or_default())),
            // NODATA: it has none. The others: this file system or process cannot have any.
            Err(Errno::NODATA | Errno::NOTSUP | Errno::PERM | Errno::RANGE) => Ok(Kept::Nothing),
            Err(errno) => Err(Error::Read {
                path: self.path().to_string(),
                file: name.to_owned(),
                source: errno.into(),
            }),
        }
    }

    fn keep<T: Serialize>(&self, name: &str, content: T) -> Result<(), Error> {
        let text = serde_json::to_vec(&Versioned { version: VERSION, content }).map_err(|error| {
            let (path, value) = (self.path().to_string(), String::from("a score"));
            Error::Write { path, file: name.to_owned(), value, source: error.into() }
        })?;
        rustix::fs::fsetxattr(self, name, &text, XattrFlags::empty())
            .map_err(|errno| self.unkept(name, errno))
    }

    fn unkept(&self, name: &str, errno: Errno) -> Error {
        let (path, value) = (self.path().to_string(), String::from("a score"));
        Error::Write { path, file: name.to_owned(), value, source: errno.into() }
    }
}

/// Records a score before it is given. What cannot be recorded is given all the same: at worst it stays after a cleanup, which
/// says so, or beside a kubelet after a start that follows a kill.
pub(super) fn note(dir: &CgroupDir, before: i16, score: i16) {
    if let Err(error) = dir.note_score(before, score) {
        tracing::debug!(
            "a score will not be put back by a cleanup or the next start: {}",
            crate::chain(&error)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_score_that_was_given_is_undone() {
        let record = ScoreRecord::new(0, 988).with(-997).unwrap();
        assert_eq!([988, -997].map(|given| record.undone(given)), [Some(0), Some(0)]);
        assert_eq!([0, 500].map(|other| record.undone(other)), [None, None]);
    }

    #[test]
    fn a_score_as_before_adds_nothing_and_the_oldest_of_many_are_forgotten() {
        let record = ScoreRecord::new(3, 988);
        assert_eq!(record.clone().with(988), None);
        assert_eq!(record.clone().with(3), None);
        let many = (100..140).fold(record, |record, score| record.with(score).unwrap());
        assert_eq!(many.written, (124..140).collect::<Vec<_>>());
        // One that is given again is the latest.
        assert_eq!(many.with(124).unwrap().written.last(), Some(&124));
    }

    #[test]
    fn a_process_is_recorded_once_and_forgotten_when_it_is_gone() {
        let record = |pid, before| ComponentRecord { pid, start_ticks: 7, before, written: -999 };
        let mut processes = Processes::default();
        assert!(processes.note(record(1, 5), |_| true));
        assert!(!processes.note(record(1, -999), |_| true), "what it had first counts");
        assert!(processes.note(record(2, 0), |kept| kept.pid != 1));
        assert_eq!(processes.processes, [record(2, 0)]);
        for pid in 3..2_000 {
            processes.note(record(pid, 0), |_| true);
        }
        assert_eq!(processes.processes.len(), MOST_PROCESSES);
        let text = serde_json::to_vec(&Versioned { version: VERSION, content: processes }).unwrap();
        assert!(text.len() <= COMPONENTS_BYTES, "{}", text.len());
    }

    #[test]
    fn a_newer_record_is_recognised_and_a_damaged_one_is_none() {
        let kept = |text: &str| parse::<ScoreRecord>(text.as_bytes());
        let own = r#"{"version":1,"before":0,"written":[988]}"#;
        assert!(matches!(kept(own), Kept::Content(record) if record == ScoreRecord::new(0, 988)));
        assert!(matches!(kept(r#"{"version":2,"anything":1}"#), Kept::Newer));
        assert!(matches!(kept("{"), Kept::Nothing));
    }
}
