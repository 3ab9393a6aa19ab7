//! The files that the object is built from.
use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

use crate::{lock, sha256};

/// Files and folders below the root of the repository.
const PATHS: [&str; 4] =
    ["enforcer-common/Cargo.toml", "enforcer-common/src", "enforcer-ebpf/Cargo.toml", "enforcer-ebpf/src"];

/// The content of each source, by its path below the root of the repository, in the order of the paths; and the packages of
/// other projects.
#[derive(Debug)]
pub struct Sources {
    files: Vec<(PathBuf, Vec<u8>)>,
    packages: String,
}

impl Sources {
    /// Reads the sources below the root of a repository.
    ///
    /// # Errors
    ///
    /// When one cannot be read.
    pub fn find(root: &Path) -> anyhow::Result<Self> {
        let mut files = Vec::new();
        for path in PATHS {
            read(root, Path::new(path), &mut files)?;
        }
        files.sort();
        let lock = root.join("Cargo.lock");
        let lock = fs::read_to_string(&lock).with_context(|| format!("cannot read {}", lock.display()))?;
        Ok(Self { files, packages: lock::packages(&lock) })
    }

    /// The files and folders to watch for changes, below the root of the repository.
    pub fn watched() -> impl Iterator<Item = &'static str> {
        PATHS.into_iter().chain(["Cargo.lock", crate::OBJECT, crate::RECORD])
    }

    /// One hash of all names and contents.
    #[must_use]
    pub fn sha256(&self) -> String {
        let line = |(path, content): &(PathBuf, Vec<u8>)| format!("{} {}\n", sha256(content), path.display());
        let list: String = self.files.iter().map(line).collect();
        sha256(format!("{list}{}", self.packages).as_bytes())
    }
}

/// Reads a file, or all Rust files below a folder; an editor may leave others there.
fn read(root: &Path, path: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) -> anyhow::Result<()> {
    let whole = root.join(path);
    let failed = || format!("cannot read {}", whole.display());
    if !whole.is_dir() {
        files.push((path.to_owned(), fs::read(&whole).with_context(failed)?));
        return Ok(());
    }
    for entry in fs::read_dir(&whole).with_context(failed)? {
        let below = path.join(entry.with_context(failed)?.file_name());
        if below.extension().is_some_and(|extension| extension == "rs") || root.join(&below).is_dir() {
            read(root, &below, files)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_of_a_source_changes_the_hash() {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in [
            ("enforcer-common/Cargo.toml", "a"),
            ("enforcer-common/src/lib.rs", "b"),
            ("enforcer-ebpf/Cargo.toml", "c"),
            ("enforcer-ebpf/src/deep/main.rs", "d"),
            ("Cargo.lock", "[[package]]\nname = \"aya-ebpf\"\nversion = \"1\"\n"),
        ] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let hash = || Sources::find(root.path()).unwrap().sha256();
        let write = |path: &str, content: &str| fs::write(root.path().join(path), content).unwrap();
        let mut seen = vec![hash()];
        let mut differs = |what: &str| {
            let now = hash();
            assert!(!seen.contains(&now), "{what}");
            seen.push(now);
        };
        write("enforcer-ebpf/src/deep/main.rs", "e");
        differs("another content");
        write("enforcer-ebpf/src/deep/other.rs", "");
        differs("another file");
        write("Cargo.lock", "[[package]]\nname = \"aya-ebpf\"\nversion = \"2\"\n");
        differs("another version of a package");
        let before = hash();
        write("enforcer-ebpf/src/deep/.main.rs.swp", "f");
        assert_eq!(hash(), before, "a file that is no source");
        write(
            "Cargo.lock",
            "[[package]]\nname = \"aya-ebpf\"\nversion = \"2\"\n[[package]]\nname = \"clap\"\nversion = \"2\"\n",
        );
        assert_eq!(hash(), before, "a package that the programs do not depend on");
    }
}
