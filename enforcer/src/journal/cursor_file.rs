//! A sink's position on the disk.

use std::{
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{
    durable::{self, State, StateError},
    journal::Cursor,
};

/// The folder in the state directory.
const FOLDER: &str = "sinks";

/// The least time between two writes. Events delivered within it may be delivered again after a kill.
const PACE: Duration = Duration::from_secs(1);

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

/// The file of one sink's cursor.
#[derive(Debug)]
pub(super) struct CursorFile {
    folder: PathBuf,
    name: String,
    kept: Option<Cursor>,
    written: Option<Instant>,
}

impl CursorFile {
    /// The file of the sink with this name: letters, digits and hyphens.
    pub(super) fn new(state_dir: &std::path::Path, name: &str) -> Self {
        Self { folder: state_dir.join(FOLDER), name: format!("{name}.cursor"), kept: None, written: None }
    }

    /// The cursor that an earlier process wrote; `None` if there is no file.
    pub(super) fn read(&mut self) -> Result<Option<Cursor>, StateError> {
        self.kept = durable::read::<Content>(&self.path())?.map(|content| content.cursor);
        Ok(self.kept.clone())
    }

    /// When this cursor has to be written; `None` if the file has it.
    pub(super) fn due(&self, cursor: &Cursor) -> Option<Instant> {
        let now = Instant::now();
        (self.kept.as_ref() != Some(cursor)).then(|| self.written.map_or(now, |written| written + PACE))
    }

    /// Writes it now and waits for the disk, so that it survives a power cut.
    pub(super) fn write(&mut self, cursor: &Cursor) -> io::Result<()> {
        // The pace also holds for a disk that refuses.
        self.written = Some(Instant::now());
        durable::write(&self.path(), &Content { cursor: cursor.clone() })?;
        self.kept = Some(cursor.clone());
        Ok(())
    }

    /// Whether the file exists, with a cursor or not.
    pub(super) fn is_there(&self) -> bool {
        self.path().try_exists().unwrap_or(true)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

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
}
