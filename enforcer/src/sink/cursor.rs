//! A sink's position on the disk.

use std::{
    fs::File,
    io::{self, Read as _},
    path::PathBuf,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::{durable, journal::Cursor};

/// The folder in the state directory.
const FOLDER: &str = "sinks";

/// The least time between two writes. Events delivered within it may be delivered again after a kill.
const PACE: Duration = Duration::from_secs(1);

const VERSION: u32 = 1;

/// The largest file that is read.
const MAX_BYTES: u64 = 4 << 10;

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    cursor: String,
}

/// The file of one sink's cursor.
#[derive(Debug)]
pub(super) struct CursorFile {
    folder: PathBuf,
    name: String,
    kept: Option<Cursor>,
    written: Option<Instant>,
}

/// A cursor that cannot be used, and the consequence.
#[derive(Debug, thiserror::Error)]
pub(super) enum CursorError {
    /// The file cannot be read.
    #[error("cannot read {}, so it begins again with the oldest event that is kept", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The file holds no cursor. It is replaced.
    #[error("{} holds no cursor ({why}), so it begins again with the oldest event that is kept", path.display())]
    Damaged { path: PathBuf, why: String },
}

impl CursorFile {
    /// The file of the sink with this name: letters, digits and hyphens.
    pub(super) fn new(state_dir: &std::path::Path, name: &str) -> Self {
        Self { folder: state_dir.join(FOLDER), name: format!("{name}.cursor"), kept: None, written: None }
    }

    /// The cursor that an earlier process wrote; `None` if there is no file.
    pub(super) fn read(&mut self) -> Result<Option<Cursor>, CursorError> {
        let path = self.path();
        let mut bytes = Vec::new();
        match File::open(&path) {
            Ok(file) => file.take(MAX_BYTES).read_to_end(&mut bytes).map(drop),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => Err(error),
        }
        .map_err(|source| CursorError::Read { path: path.clone(), source })?;
        self.kept = Some(parse(&bytes).map_err(|why| CursorError::Damaged { path, why })?);
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
        let content = serde_json::to_vec(&Content { version: VERSION, cursor: cursor.to_string() })?;
        durable::write_file(&self.folder, &self.name, &content)?;
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

fn parse(bytes: &[u8]) -> Result<Cursor, String> {
    let Content { version, cursor } = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if version != VERSION {
        return Err(format!("version {version}"));
    }
    cursor.parse().map_err(|error| format!("{error}"))
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
    fn what_is_no_cursor_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = CursorFile::new(dir.path(), "journald");
        fs::create_dir(dir.path().join(FOLDER)).unwrap();
        for wrong in ["", "{}", "{\"version\":2,\"cursor\":\"a:1\"}", "{\"version\":1,\"cursor\":\"a\"}"] {
            fs::write(file.path(), wrong).unwrap();
            assert!(matches!(file.read(), Err(CursorError::Damaged { .. })), "{wrong}");
        }
        fs::remove_file(file.path()).unwrap();
        fs::create_dir(file.path()).unwrap();
        assert!(matches!(file.read(), Err(CursorError::Read { .. })));
    }
}
