//! Manifests that are named one by one and read once.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use super::{
    files,
    loaded::SourceError,
    manifest::{self, ManifestError, Origin},
};
use crate::model::{Pod, PodName, PodUid};

/// Where to read manifests from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Given {
    /// A file, or a folder of them, which is read like `staticPodPath`.
    Path(PathBuf),
    /// Standard input.
    Stdin,
}

/// All pods, and what is wrong.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Gathered {
    /// The good pods, in the order given.
    pub pods: Vec<Pod>,
    /// What is wrong with the others, in that order.
    pub errors: Vec<Wrong>,
}

/// A problem.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Wrong {
    /// The file, as it was given, or `stdin`.
    pub source: String,
    /// What is wrong, with line and field if there are any.
    pub message: String,
}

/// Reads all of them. The first of duplicate pods counts.
#[must_use]
pub fn gather(given: &[Given]) -> Gathered {
    let mut gathering = Gathering::default();
    for one in given {
        match one {
            Given::Stdin => gathering.file("stdin", bounded(io::stdin().lock())),
            Given::Path(path) if path.is_dir() => gathering.folder(path),
            Given::Path(path) => {
                gathering.file(&path.display().to_string(), File::open(path).and_then(bounded));
            }
        }
    }
    gathering.gathered
}

#[derive(Default)]
struct Gathering {
    gathered: Gathered,
    names: BTreeMap<PodName, Origin>,
    uids: BTreeMap<PodUid, Origin>,
}

impl Gathering {
    fn folder(&mut self, path: &Path) {
        let shown = path.display().to_string();
        let listing = match files::open_folder(path).and_then(files::list) {
            Ok(listing) => listing,
            Err(errno) => {
                let error = SourceError::Directory { path: shown.clone(), errno };
                return self.wrong(&shown, &error.to_string());
            }
        };
        if listing.truncated {
            let error = SourceError::TooManyFiles { path: shown.clone(), limit: files::MAX_ENTRIES };
            self.wrong(&shown, &error.to_string());
        }
        for name in &listing.names {
            let file = path.join(name).display().to_string();
            match files::read(&listing.directory, name) {
                Ok(Some(bytes)) => self.file(&file, Ok(bytes)),
                Ok(None) => self.wrong(&file, &SourceError::NotAManifest { file: file.clone() }.to_string()),
                Err(error) => self.wrong(&file, &format!("{shown}/{error}")),
            }
        }
    }

    fn file(&mut self, source: &str, content: io::Result<Vec<u8>>) {
        let content = match content {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                let error =
                    SourceError::TooLarge { file: source.to_owned(), limit_bytes: manifest::MAX_BYTES };
                return self.wrong(source, &error.to_string());
            }
            Err(error) => return self.wrong(source, &format!("{source}: cannot be read: {error}")),
        };
        let manifest::Parsed { pods, origins, errors } = manifest::parse(source, &content);
        for error in errors {
            self.wrong(source, &error.to_string());
        }
        for (pod, origin) in pods.into_iter().zip(origins) {
            self.pod(source, pod, origin);
        }
    }

    fn pod(&mut self, source: &str, pod: Pod, origin: Origin) {
        if let Some(first) = self.names.get(&pod.name) {
            let error = ManifestError::Duplicate { pod: pod.name, first: first.clone(), second: origin };
            self.wrong(source, &error.to_string());
        } else if let Some(first) = self.uids.get(&pod.uid) {
            let error = SourceError::DuplicateUid { uid: pod.uid, first: first.clone(), second: origin };
            self.wrong(source, &error.to_string());
        } else {
            self.names.insert(pod.name.clone(), origin.clone());
            self.uids.insert(pod.uid.clone(), origin);
            self.gathered.pods.push(pod);
        }
    }

    fn wrong(&mut self, source: &str, message: &str) {
        self.gathered.errors.push(Wrong { source: source.to_owned(), message: message.to_owned() });
    }
}

/// Reads at most as much as a manifest file may have.
fn bounded(from: impl Read) -> io::Result<Vec<u8>> {
    let limit = u64::try_from(manifest::MAX_BYTES).unwrap_or(u64::MAX);
    let mut content = Vec::new();
    from.take(limit.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() > manifest::MAX_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn pod(name: &str, more: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}{more}}}\nspec: {{containers: [{{name: c}}]}}\n"
        )
    }

    fn path(path: &Path) -> Given {
        Given::Path(path.to_owned())
    }

    #[test]
    fn pods_come_in_the_order_given_and_count_once() {
        let dir = tempfile::tempdir().unwrap();
        let (last, first) = (dir.path().join("a.yaml"), dir.path().join("z.yaml"));
        fs::write(&last, format!("{}---\n{}", pod("two", ""), pod("one", ""))).unwrap();
        fs::write(&first, format!("{}---\n{}", pod("one", ", uid: u"), pod("three", ", uid: u"))).unwrap();
        let Gathered { pods, errors } = gather(&[path(&first), path(&last)]);
        let names: Vec<_> = pods.iter().map(|pod| pod.name.name.as_str()).collect();
        assert_eq!(names, ["one", "two"]);
        assert_eq!(errors.len(), 2, "{errors:?}");
        assert!(errors[0].message.contains("uid u is used in"), "{errors:?}");
        assert!(
            errors[1].message.contains("z.yaml:1") && errors[1].message.contains("a.yaml:6"),
            "{errors:?}"
        );
        assert_eq!(errors[1].source, last.display().to_string());
    }

    #[test]
    fn a_folder_is_read_as_the_daemon_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("b.yml"), pod("b", "")).unwrap();
        fs::write(dir.path().join("a.yaml"), pod("a", "")).unwrap();
        fs::write(dir.path().join(".hidden.yaml"), "no").unwrap();
        fs::write(dir.path().join("notes.txt"), "no").unwrap();
        fs::create_dir(dir.path().join("sub.yaml")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, dir.path().join("pipe.yaml"), rustix::fs::Mode::RWXU).unwrap();
        std::os::unix::fs::symlink("loop.yaml", dir.path().join("loop.yaml")).unwrap();
        let Gathered { pods, errors } = gather(&[path(dir.path())]);
        assert_eq!(pods.iter().map(|pod| pod.name.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let wrong: Vec<_> = errors.iter().map(|wrong| wrong.source.rsplit('/').next().unwrap()).collect();
        assert_eq!(wrong, ["loop.yaml", "notes.txt", "pipe.yaml", "sub.yaml"], "{errors:?}");
    }

    #[test]
    fn what_is_missing_is_an_error_of_its_own() {
        let Gathered { pods, errors } = gather(&[path(Path::new("/nowhere/at/all.yaml"))]);
        assert!(pods.is_empty());
        assert!(errors[0].message.contains("No such file"), "{errors:?}");
    }
}
