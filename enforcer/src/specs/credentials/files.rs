//! Reads the files of credentials, and knows whether they are still as they were read.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use rustix::io::Errno;

use super::CredentialsError;
use crate::{regular, stamp::Stamp, trust};

/// The largest file that is read: a kubeconfig with certificates in it.
const MAX_BYTES: u64 = 256 << 10;

/// The files that were read.
#[derive(Debug, Default)]
pub(super) struct Files(Vec<(PathBuf, Seen)>);

/// How a file was when it was read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Seen {
    /// As this shows.
    As(Stamp),
    /// It did not exist.
    Absent,
    /// It may have changed since without a trace.
    Unsettled,
}

impl Files {
    /// Whether all that was read is as it was.
    pub(super) fn are_as_read(&self) -> bool {
        self.0.iter().all(|(path, seen)| match (seen, rustix::fs::stat(path)) {
            (Seen::As(stamp), Ok(stat)) => Stamp::of(&stat) == *stamp,
            (Seen::Absent, Err(Errno::NOENT)) => true,
            _ => false,
        })
    }

    pub(super) fn read(&mut self, path: &Path) -> Result<String, CredentialsError> {
        self.text_of(path, regular::open(path))
    }

    /// The same of a file that decides whom to trust: only root and this process's user may change or replace it.
    pub(super) fn read_trusted(&mut self, path: &Path) -> Result<String, CredentialsError> {
        match trust::open(path) {
            Ok(Ok(file)) => self.text_of(path, Ok(File::from(file))),
            Ok(Err((path, trust::Untrusted { why, remedy }))) => {
                Err(CredentialsError::Untrusted { path, why, remedy })
            }
            Err(error) => self.text_of(path, Err(error)),
        }
    }

    fn text_of(&mut self, path: &Path, file: io::Result<File>) -> Result<String, CredentialsError> {
        let mut text = String::new();
        // Before it is read, which may take long.
        let now = SystemTime::now();
        let reading = file.and_then(|file| {
            let stamp = Stamp::of(&rustix::fs::fstat(&file)?);
            file.take(MAX_BYTES).read_to_string(&mut text)?;
            Ok(stamp)
        });
        let seen = match &reading {
            Ok(stamp) if stamp.is_settled(now) => Seen::As(*stamp),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Seen::Absent,
            _ => Seen::Unsettled,
        };
        self.0.push((path.to_owned(), seen));
        reading.map(|_| text).map_err(|source| CredentialsError::Read { path: path.to_owned(), source })
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, time::Duration};

    use super::*;

    #[test]
    fn a_file_is_as_it_was_read_until_it_changes_is_replaced_or_goes() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let write = |name: &str| fs::write(at(name), "text").unwrap();
        let read = |name: &str| {
            let mut files = Files::default();
            let _text = files.read(&at(name));
            files
        };
        write("token");
        assert!(!read("token").are_as_read(), "it was just written");
        assert!(read("none").are_as_read());
        // The time of its last change cannot be set: what was read is taken to be settled.
        let settled = |name: &str| {
            let mut files = read(name);
            files.0[0].1 = Seen::As(Stamp::of(&rustix::fs::stat(at(name)).unwrap()));
            files
        };
        let (none, token) = (read("none"), settled("token"));
        assert!(token.are_as_read());
        std::thread::sleep(Duration::from_millis(20));
        write("token");
        assert!(!token.are_as_read());
        let token = settled("token");
        write("next");
        fs::rename(at("next"), at("token")).unwrap();
        assert!(!token.are_as_read());
        let token = settled("token");
        fs::remove_file(at("token")).unwrap();
        assert!(!token.are_as_read());
        write("none");
        assert!(!none.are_as_read());
    }

    /// As a cluster replaces a token that it has mounted.
    #[test]
    fn a_link_that_leads_elsewhere_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for version in ["1", "2"] {
            fs::create_dir(at(version)).unwrap();
            fs::write(at(version).join("token"), "text").unwrap();
        }
        symlink("1", at("data")).unwrap();
        symlink("data/token", at("token")).unwrap();
        let stamp = Stamp::of(&rustix::fs::stat(at("token")).unwrap());
        let files = Files(vec![(at("token"), Seen::As(stamp))]);
        assert!(files.are_as_read());
        symlink("2", at("next")).unwrap();
        fs::rename(at("next"), at("data")).unwrap();
        assert!(!files.are_as_read());
    }
}
