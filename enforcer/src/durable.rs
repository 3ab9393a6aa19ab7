//! Small files that outlive the process.
//!
//! A state file is a JSON object with a `version` beside its own keys. Version N of a format also reads N-1: a key that
//! is added needs a default. What cannot be read as either is set aside, and never overwritten.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The most files that are set aside under one name.
const MOST_ASIDE: u32 = 100;

/// The content of a state file.
pub(crate) trait State: Serialize + DeserializeOwned {
    /// The version of its format.
    const VERSION: u32 = 1;
    /// The largest file that is read, in bytes.
    const MAX_BYTES: u64;
    /// Whether it must survive a power cut, for which a write waits for the disk.
    const IS_SYNCED: bool = true;

    /// Whether what was read belongs together; the error says what does not.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Why a state file says nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    /// It cannot be read, and stays as it is.
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// It is damaged, or a newer version wrote it. It has another name now.
    #[error("{} cannot be used ({why}), and is kept as {}", path.display(), aside.display())]
    SetAside { path: PathBuf, why: String, aside: PathBuf },
}

#[derive(Deserialize, Serialize)]
struct Versioned<T> {
    version: u32,
    #[serde(flatten)]
    content: T,
}

/// Reads a state file; `None` if there is none.
pub(crate) fn read<T: State>(path: &Path) -> Result<Option<T>, StateError> {
    let failed = |source| StateError::Read { path: path.to_owned(), source };
    // A pipe is no reason to wait.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    file.take(T::MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    parse(&bytes).map(Some).or_else(|(why, ending)| {
        let aside = set_aside(path, &ending).map_err(failed)?;
        Err(StateError::SetAside { path: path.to_owned(), why, aside })
    })
}

/// Renames a file to an unused name, and returns that. Only one process has the folder.
fn set_aside(path: &Path, ending: &str) -> io::Result<PathBuf> {
    for number in 0..MOST_ASIDE {
        let mut aside = path.as_os_str().to_owned();
        aside.push(ending);
        if number > 0 {
            aside.push(format!(".{number}"));
        }
        let aside = PathBuf::from(aside);
        if !aside.try_exists()? {
            return fs::rename(path, &aside).map(|()| aside);
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// The content, or why there is none, with what is appended to the name of such a file.
fn parse<T: State>(bytes: &[u8]) -> Result<T, (String, String)> {
    let damaged = |why: String| (why, String::from(".damaged"));
    if u64::try_from(bytes.len()).is_ok_and(|length| length > T::MAX_BYTES) {
        return Err(damaged(format!("it has more than {} bytes", T::MAX_BYTES)));
    }
    // The version first: the keys of another one may be anything.
    let Versioned { version, content: serde::de::IgnoredAny } =
        serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    if version > T::VERSION {
        let why = format!("its format is version {version}, and this enforcer reads version {}", T::VERSION);
        return Err((why, format!(".v{version}")));
    }
    if version + 1 < T::VERSION || version == 0 {
        return Err(damaged(format!("its format is version {version}")));
    }
    let content: T = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    content.check().map_err(damaged)?;
    Ok(content)
}

/// Writes a state file atomically: a reader finds the old content or the new one.
pub(crate) fn write<T: State>(path: &Path, content: &T) -> io::Result<()> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    fs::DirBuilder::new().recursive(true).mode(0o750).create(dir)?;
    let bytes = serde_json::to_vec(&Versioned { version: T::VERSION, content })?;
    let mut fresh = std::ffi::OsString::from(".");
    fresh.push(name);
    fresh.push(".new");
    let fresh = dir.join(fresh);
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o640)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&fresh)?;
    file.write_all(&bytes)?;
    if T::IS_SYNCED {
        file.sync_all()?;
    }
    fs::rename(&fresh, path)?;
    if T::IS_SYNCED { File::open(dir)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, Eq, PartialEq, Serialize)]
    struct Second {
        old: u8,
        #[serde(default)]
        new: u8,
    }

    impl State for Second {
        const VERSION: u32 = 2;
        const MAX_BYTES: u64 = 64;
    }

    #[test]
    fn what_was_written_and_what_the_version_before_wrote_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("below/state.json");
        assert_eq!(read::<Second>(&path).unwrap(), None);
        write(&path, &Second { old: 1, new: 2 }).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), r#"{"version":2,"old":1,"new":2}"#);
        assert_eq!(read(&path).unwrap(), Some(Second { old: 1, new: 2 }));
        fs::write(&path, r#"{"version":1,"old":7}"#).unwrap();
        assert_eq!(read(&path).unwrap(), Some(Second { old: 7, new: 0 }));
        let names: Vec<_> =
            fs::read_dir(dir.path().join("below")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["state.json"], "nothing is left beside it");
    }

    #[test]
    fn what_cannot_be_used_is_set_aside_and_what_cannot_be_read_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        let long = format!(r#"{{"version":2,"old":1,"pad":"{}"}}"#, "x".repeat(64));
        for (wrong, ending) in [
            ("", ".damaged"),
            ("{}", ".damaged.1"),
            ("\u{0}", ".damaged.2"),
            (r#"{"version":0,"old":1}"#, ".damaged.3"),
            (r#"{"version":2,"old":"x"}"#, ".damaged.4"),
            (&long, ".damaged.5"),
            (r#"{"version":3,"other":[]}"#, ".v3"),
        ] {
            fs::write(&path, wrong).unwrap();
            let error = read::<Second>(&path).unwrap_err();
            let StateError::SetAside { aside, .. } = &error else { panic!("{error}") };
            assert!(aside.to_str().unwrap().ends_with(&format!("state.json{ending}")), "{error}");
            assert_eq!(fs::read_to_string(aside).unwrap(), wrong);
            assert_eq!(read::<Second>(&path).unwrap(), None);
        }
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        assert!(matches!(read::<Second>(&path), Err(StateError::Read { .. })), "no link is followed");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(matches!(read::<Second>(&path), Err(StateError::Read { .. })));
        assert!(path.is_dir());
    }
}
