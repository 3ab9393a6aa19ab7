//! The files of the run directory and the state directory, by their names: all others there are somebody's.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{cgroup::Trouble, daemon::specifying::NAME_FILE as NODE_NAME};

/// The intent page.
pub(super) const INTENTS: &str = "intent";

/// The newest events, which the state directory may not have.
pub(super) const TAIL: &str = "journal.tail";

/// What was set on the node at the API server.
pub(super) const NODE_MARKS: &str = "node-marks.json";

/// The folder of the journal, and the file in it that each journal of ours has.
const JOURNAL: &str = "journal";
const LOCK: &str = "lock";

/// Those of the run directory, but for the journal's.
pub(super) const OF_RUN_DIR: [&str; 8] = [
    INTENTS,
    "pending-records",
    // Its name in an earlier version.
    "untold",
    "armed.json",
    "kubelet.json",
    "manifests",
    "observe.sock",
    "admin.sock",
];

/// Those of the state directory.
pub(super) const OF_STATE_DIR: [&str; 10] = [
    JOURNAL,
    "recordings",
    "sinks",
    "ended.json",
    "cpu_manager_state",
    "orders.json",
    "specs.json",
    "names.json",
    NODE_NAME,
    NODE_MARKS,
];

/// Whether a state directory is a daemon's own, so that its folders with common names are: `/var/log` has a `journal` too.
pub(super) fn is_ours(state_dir: &Path) -> bool {
    let journal = state_dir.join(JOURNAL);
    !journal.exists() || journal.join(LOCK).is_file()
}

/// What is in a folder.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The daemon's.
    pub(super) known: Vec<PathBuf>,
    /// Whether there is anything else.
    pub(super) has_others: bool,
}

/// What was removed.
#[derive(Debug, Default)]
pub(super) struct Removed {
    pub(super) removed: Vec<PathBuf>,
    pub(super) failed: Vec<Trouble>,
}

/// The files in a folder that have one of these names, with what was set aside under them or was being written. A folder that
/// does not exist has none.
pub(super) fn find(folder: &Path, names: &[&str]) -> io::Result<Found> {
    let mut found = Found::default();
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| names.iter().any(|known| is_of(name, known))) {
            found.known.push(entry.path());
        } else {
            found.has_others = true;
        }
    }
    found.known.sort();
    Ok(found)
}

/// Whether a file has that name, or one that the daemon makes of it.
fn is_of(name: &str, known: &str) -> bool {
    let aside = name.strip_prefix(known).is_some_and(|rest| {
        rest.is_empty() || rest.starts_with(".damaged") || rest.strip_prefix(".v").is_some_and(is_numbered)
    });
    aside || name.strip_prefix('.').and_then(|name| name.strip_suffix(".new")) == Some(known)
}

fn is_numbered(rest: &str) -> bool {
    rest.starts_with(|first: char| first.is_ascii_digit())
}

/// Removes the files of these names, and the folder if nothing else is in it. No link is followed. In a dry run nothing is
/// removed.
pub(super) fn remove(folder: &Path, names: &[&str], dry_run: bool) -> Removed {
    let mut done = Removed::default();
    let trouble = |path: &Path, error: &io::Error| Trouble::again(path.display().to_string(), error);
    let Found { known, has_others } = match find(folder, names) {
        Ok(found) => found,
        Err(error) => {
            done.failed.push(trouble(folder, &error));
            return done;
        }
    };
    for path in known {
        let gone = if dry_run { Ok(()) } else { remove_one(&path) };
        match gone {
            Ok(()) => done.removed.push(path),
            Err(error) => done.failed.push(trouble(&path, &error)),
        }
    }
    if has_others || !done.failed.is_empty() || !folder.is_dir() {
        return done;
    }
    let gone = if dry_run { Ok(()) } else { fs::remove_dir(folder) };
    match gone {
        Ok(()) => done.removed.push(folder.to_owned()),
        // A file came meanwhile, or the folder is a mount point, in a container also one below a read-only root.
        Err(error) => match error.kind() {
            io::ErrorKind::DirectoryNotEmpty
            | io::ErrorKind::ResourceBusy
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::NotFound => {}
            _ => done.failed.push(trouble(folder, &error)),
        },
    }
    done
}

fn remove_one(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(paths: &[PathBuf]) -> Vec<&str> {
        paths.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect()
    }

    #[test]
    fn only_what_the_daemon_has_made_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("run");
        fs::create_dir_all(folder.join("manifests/below")).unwrap();
        for name in [
            "intent",
            "armed.json.damaged",
            "armed.json.v2",
            ".kubelet.json.new",
            "intention",
            "armed.json.very",
        ] {
            fs::write(folder.join(name), "").unwrap();
        }
        let theirs = dir.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        fs::write(theirs.join("file"), "").unwrap();
        symlink(&theirs, folder.join("observe.sock")).unwrap();
        let expected = [
            ".kubelet.json.new",
            "armed.json.damaged",
            "armed.json.v2",
            "intent",
            "manifests",
            "observe.sock",
        ];
        let dry = remove(&folder, &OF_RUN_DIR, true);
        assert_eq!(names(&dry.removed), expected);
        assert!(folder.join("intent").exists() && folder.join("manifests/below").exists());
        let Removed { removed, failed } = remove(&folder, &OF_RUN_DIR, false);
        assert_eq!((names(&removed), failed), (expected.to_vec(), vec![]));
        assert_eq!(find(&folder, &["intention", "armed.json.very"]).unwrap().known.len(), 2);
        assert!(theirs.join("file").exists(), "a link is not followed");
    }

    #[test]
    fn a_folder_with_nothing_else_goes_too_and_one_that_is_gone_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("state");
        fs::create_dir_all(folder.join("journal")).unwrap();
        assert!(!is_ours(&folder), "a journal without our lock is another's");
        fs::write(folder.join("journal/lock"), "").unwrap();
        fs::write(folder.join(NODE_NAME), "{}").unwrap();
        assert!(is_ours(&folder) && is_ours(dir.path()));
        let expected = ["journal", NODE_NAME, "state"];
        assert_eq!(names(&remove(&folder, &OF_STATE_DIR, true).removed), expected);
        assert_eq!(names(&remove(&folder, &OF_STATE_DIR, false).removed), expected);
        let again = remove(&folder, &OF_STATE_DIR, false);
        assert!(again.removed.is_empty() && again.failed.is_empty(), "{again:?}");
    }
}
