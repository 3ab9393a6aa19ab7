//! The program. It runs as root, so no other user may be able to change it.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Component, Path, PathBuf},
};

use serde::{Deserialize, Serialize};

/// Write permission of the group and of others.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Execute permission of the owner.
const EXECUTABLE: u32 = 0o100;

/// A program with its arguments.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct HookProgram {
    /// Its absolute path.
    pub path: PathBuf,
    /// Its arguments, passed without substitution and without a shell.
    pub args: Vec<String>,
}

/// Why a program is not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnsafeProgram {
    /// `lstat` fails on the program or one of its parent folders.
    #[error("{}", path.display())]
    Unreadable {
        /// The program or folder.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
    /// The path has a symbolic link, `.` or `..` in it.
    #[error("{}: write the path without symbolic links and dots, as `realpath` shows it", path.display())]
    NotReal {
        /// How far the path was followed.
        path: PathBuf,
    },
    /// Users other than root could change it.
    #[error(
        "{} belongs to the user {owner} with the mode {mode:o}: it must belong to root, and neither its group nor others may \
         write to it (chown root, chmod go-w)",
        path.display()
    )]
    Changeable {
        /// The program or a parent folder.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its permissions.
        mode: u32,
    },
    /// It is not an executable file.
    #[error("{} is not an executable file", path.display())]
    NotExecutable {
        /// Its path.
        path: PathBuf,
    },
}

impl HookProgram {
    /// Checks the program and all its parent folders. Only root may change any of them, so the checked program is the
    /// one that runs a moment later.
    pub fn check(&self) -> Result<(), UnsafeProgram> {
        check(&self.path, 0)
    }
}

/// The same for any owner; it is root outside of tests.
pub(super) fn check(path: &Path, owner: u32) -> Result<(), UnsafeProgram> {
    let mut walked = PathBuf::new();
    let mut metadata = None;
    for component in path.components() {
        walked.push(component);
        if !matches!(component, Component::RootDir | Component::Normal(_)) {
            return Err(UnsafeProgram::NotReal { path: walked });
        }
        let found = fs::symlink_metadata(&walked)
            .map_err(|source| UnsafeProgram::Unreadable { path: walked.clone(), source })?;
        if found.is_symlink() {
            return Err(UnsafeProgram::NotReal { path: walked });
        }
        let trusted = found.uid() == 0 || found.uid() == owner;
        if !trusted || found.mode() & WRITABLE_BY_OTHERS != 0 {
            let (owner, mode) = (found.uid(), found.mode() & 0o7777);
            return Err(UnsafeProgram::Changeable { path: walked, owner, mode });
        }
        metadata = Some(found);
    }
    match metadata {
        Some(found) if found.is_file() && found.mode() & EXECUTABLE != 0 && path.is_absolute() => Ok(()),
        Some(_) | None => Err(UnsafeProgram::NotExecutable { path: path.to_owned() }),
    }
}
