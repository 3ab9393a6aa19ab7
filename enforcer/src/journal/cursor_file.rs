//! A reader's position on the disk, and where a reader goes on with it.

use std::{
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::{Cursor, Journal};
use crate::durable::{self, State, StateError};

/// The folder in the state directory.
const FOLDER: &str = "sinks";

#[derive(Deserialize, Serialize)]
struct Content {
    #[serde(deserialize_with = "parsed", serialize_with = "printed")]
    cursor: Cursor,
}

impl State for Content {
    const MAX_BYTES: u64 = 4 << 10;
}

fn parsed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Cursor, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

fn printed<S: Serializer>(cursor: &Cursor, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(cursor)
}

/// The file of one reader's cursor.
#[derive(Debug)]
pub(crate) struct CursorFile {
    folder: PathBuf,
    name: String,
    kept: Option<Cursor>,
    written: Option<Instant>,
}

impl CursorFile {
    /// The least time between two writes. Events delivered within it may be delivered again after a kill.
    pub(crate) const PACE: Duration = Duration::from_secs(1);

    /// The file of the reader with this name: letters, digits and hyphens.
    pub(crate) fn new(state_dir: &std::path::Path, name: &str) -> Self {
        Self { folder: state_dir.join(FOLDER), name: format!("{name}.cursor"), kept: None, written: None }
    }

    /// The cursor that an earlier process wrote; `None` if there is no file.
    pub(crate) fn read(&mut self) -> Result<Option<Cursor>, StateError> {
        self.kept = durable::read::<Content>(&self.path())?.map(|content| content.cursor);
        Ok(self.kept.clone())
    }

    /// When this cursor has to be written; `None` if the file has it.
    pub(crate) fn due(&self, cursor: &Cursor) -> Option<Instant> {
        let now = Instant::now();
        (self.kept.as_ref() != Some(cursor)).then(|| self.written.map_or(now, |written| written + Self::PACE))
    }

    /// Writes it now and waits for the disk, so that it survives a power cut.
    pub(crate) fn write(&mut self, cursor: &Cursor) -> io::Result<()> {
        // The pace also holds for a disk that refuses.
        self.written = Some(Instant::now());
        durable::write(&self.path(), &Content { cursor: cursor.clone() })?;
        self.kept = Some(cursor.clone());
        Ok(())
    }

    /// Whether the file exists, with a cursor or not.
    pub(crate) fn is_there(&self) -> bool {
        self.path().try_exists().unwrap_or(true)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }
}

/// The sequence after which a reader with this cursor continues. The error holds that sequence too, and means that
/// nothing of the cursor's epoch is kept.
///
/// A power cut can lose events that were delivered already. The log then continues under another epoch, with other
/// events of the same sequences. The sink continues after the last event that both epochs share. If nothing of the
/// epoch is kept, that event is unknown: all kept events are delivered, and only those after the cursor are missing.
pub(crate) fn resume(journal: &Journal, cursor: &Cursor) -> Result<u64, u64> {
    let range = journal.range();
    let last = cursor.sequence.min(range.newest);
    if journal.cursor(last).epoch == cursor.epoch {
        return Ok(last);
    }
    let mut kept = (range.oldest..last).rev();
    let shared = kept.find(|sequence| journal.cursor(*sequence).epoch == cursor.epoch);
    shared.ok_or_else(|| last.min(before_all(journal)))
}

/// The sequence just before the oldest kept event.
pub(crate) fn before_all(journal: &Journal) -> u64 {
    journal.range().oldest.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::journal::{EventType, RawEvent, Subject};

    fn append(journal: &Journal, count: usize) {
        for _ in 0..count {
            let data = json!({"pad": "x"});
            journal.append_raw(RawEvent { kind: EventType::PodAdded, subject: Subject::Node, data });
        }
    }

    #[test]
    fn a_cursor_is_read_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = CursorFile::new(dir.path(), "webhook-a");
        assert_eq!(file.read().unwrap(), None);
        let cursor: Cursor = "E:41".parse().unwrap();
        assert!(file.due(&cursor).unwrap() <= Instant::now());
        file.write(&cursor).unwrap();
        assert_eq!(file.due(&cursor), None);
        assert!(file.due(&"E:42".parse().unwrap()).unwrap() > Instant::now(), "not twice within a second");
        let mut next = CursorFile::new(dir.path(), "webhook-a");
        assert_eq!(next.read().unwrap(), Some(cursor));
        assert_eq!(CursorFile::new(dir.path(), "webhook-b").read().unwrap(), None);
        assert_eq!(fs::read_dir(dir.path().join(FOLDER)).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn what_is_no_cursor_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = CursorFile::new(dir.path(), "journald");
        fs::create_dir(dir.path().join(FOLDER)).unwrap();
        fs::write(file.path(), r#"{"version":1,"cursor":"a"}"#).unwrap();
        assert!(matches!(file.read(), Err(StateError::SetAside { .. })));
        assert_eq!(file.read().unwrap(), None);
    }

    #[test]
    fn a_cursor_of_another_log_begins_with_what_is_kept() {
        let journal = Journal::new("n", "b");
        append(&journal, 5);
        assert_eq!(resume(&journal, &journal.cursor(3)), Ok(3));
        let ahead = Cursor { sequence: 70, ..journal.cursor(3) };
        assert_eq!(resume(&journal, &ahead), Ok(5), "events that were lost are not waited for");
        assert_eq!(resume(&journal, &Cursor { epoch: String::from("other"), sequence: 4 }), Err(0));
    }

    #[test]
    fn after_a_power_cut_it_goes_on_where_the_epochs_part() {
        let dir = tempfile::tempdir().unwrap();
        let (state, run) = (dir.path().join("state"), dir.path().join("run"));
        fs::create_dir(&run).unwrap();
        let (journal, _) = Journal::open("n", "b1", &state, &run).unwrap();
        append(&journal, 5);
        let delivered = Cursor { sequence: 8, ..journal.cursor(5) };
        journal.close();
        drop(journal);
        // Three more were delivered, and the power cut took them with the tail.
        fs::remove_file(run.join("journal.tail")).unwrap();
        fs::remove_file(state.join("journal/clean")).unwrap();
        let (journal, recovered) = Journal::open("n", "b2", &state, &run).unwrap();
        append(&journal, 9);
        assert!(recovered.after_power_cut);
        assert_ne!(journal.cursor(9).epoch, delivered.epoch);
        assert_eq!(resume(&journal, &delivered), Ok(5));
        journal.close();
    }
}
