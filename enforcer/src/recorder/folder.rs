//! The recordings on disk: one file for each decision, limited in number and bytes.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use ulid::Ulid;

const FOLDER: &str = "recordings";

/// The extension of a recording's file name.
pub const FILE_ENDING: &str = "rec";

/// How many files are kept, and how many bytes in all.
const MOST_FILES: usize = 64;
const MOST_BYTES: u64 = 32 << 20;

/// The longest file that is read as a recording.
pub const MOST_FILE_BYTES: u64 = 64 << 20;

/// Returns the folder of the recordings in a state directory.
#[must_use]
pub fn folder(state_dir: &Path) -> PathBuf {
    state_dir.join(FOLDER)
}

/// Returns the path of an eviction's recording.
#[must_use]
pub fn path(state_dir: &Path, eviction: Ulid) -> PathBuf {
    folder(state_dir).join(format!("{eviction}.{FILE_ENDING}"))
}

/// Writes or atomically replaces the recording of that eviction, and removes the oldest ones if there are too many.
pub(super) fn keep(
    state_dir: &Path,
    eviction: Ulid,
    write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>,
) -> io::Result<()> {
    let folder = folder(state_dir);
    let about =
        |path: &Path, error: &io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .map_err(|error| about(&folder, &error))?;
    let path = path(state_dir, eviction);
    let fresh = folder.join(".new");
    let write = || {
        // A killed daemon may have left this file.
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        write(&mut file)?;
        file.flush()?;
        drop(file);
        fs::rename(&fresh, &path)
    };
    write().map_err(|error| about(&path, &error))?;
    prune(&folder, MOST_FILES, MOST_BYTES).map_err(|error| about(&folder, &error))
}

/// Removes the oldest files until the limits of number and bytes are met; the newest always stays. Files that are not
/// named like a recording are not touched.
fn prune(folder: &Path, most_files: usize, most_bytes: u64) -> io::Result<()> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        let Some(Ok(id)) = stem.map(Ulid::from_string) else { continue };
        if path.extension().is_some_and(|ending| ending == FILE_ENDING) {
            files.push((id, entry.metadata()?.len(), path));
        }
    }
    // The ids sort by time.
    files.sort_unstable();
    let (mut count, mut bytes) = (0, 0);
    for (_, length, path) in files.into_iter().rev() {
        count += 1;
        bytes += length;
        if count > 1 && (count > most_files || bytes > most_bytes) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn names(state_dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder(state_dir))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many_or_too_large_ones() {
        let temp = tempfile::tempdir().unwrap();
        let ids: Vec<_> = (1..=5).map(|ms| Ulid::from_parts(ms, 7)).collect();
        for id in &ids {
            keep(temp.path(), *id, |file| file.write_all(&[0; 100])).unwrap();
        }
        let all = folder(temp.path());
        fs::write(all.join("notes.txt"), [0; 1_000]).unwrap();
        fs::write(all.join("00000000000000000000000000.txt"), "").unwrap();
        let others = [String::from("00000000000000000000000000.txt"), String::from("notes.txt")];
        let left = |ids: &[Ulid]| {
            let mut left: Vec<_> = ids.iter().map(|id| format!("{id}.rec")).chain(others.clone()).collect();
            left.sort();
            left
        };
        prune(&all, 4, 1_000).unwrap();
        assert_eq!(names(temp.path()), left(&ids[1..]));
        prune(&all, 4, 250).unwrap();
        assert_eq!(names(temp.path()), left(&ids[3..]));
        prune(&all, 0, 0).unwrap();
        assert_eq!(names(temp.path()), left(&ids[4..]));
    }

    #[test]
    fn a_recording_is_replaced_as_a_whole_or_not_at_all() {
        let temp = tempfile::tempdir().unwrap();
        let id = Ulid::from_parts(1, 1);
        keep(temp.path(), id, |file| file.write_all(b"first")).unwrap();
        let failed = keep(temp.path(), id, |file| {
            file.write_all(b"sec")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        });
        assert!(failed.unwrap_err().to_string().contains(&path(temp.path(), id).display().to_string()));
        assert_eq!(fs::read(path(temp.path(), id)).unwrap(), b"first");
        keep(temp.path(), id, |file| file.write_all(b"second")).unwrap();
        assert_eq!(fs::read(path(temp.path(), id)).unwrap(), b"second");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder(temp.path())), mode(&path(temp.path(), id))), (0o700, 0o600));
    }
}
