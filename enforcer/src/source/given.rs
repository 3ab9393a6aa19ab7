//! Manifests that are named one by one and read once.

mod resolved;

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use super::{
    files,
    loaded::SourceError,
    manifest::{self, ManifestError, Objects, Origin, Problem, Warning},
};
use crate::model::{Pod, PodName, PodUid};

/// Where to read manifests from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Given {
    /// A file, or a folder of them.
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
    /// What is odd, and costs no pod.
    pub warnings: Vec<Wrong>,
    /// What was found and not taken, in words.
    pub notes: Vec<String>,
}

/// Which of the objects that are given are taken, by [`gather_objects`].
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Selection {
    /// Only pods of that node, and those that name none.
    pub node: Option<String>,
    /// Whether folders in folders are read.
    pub recursive: bool,
}

/// A problem.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Wrong {
    /// The file, as it was given, or `stdin`.
    pub source: String,
    /// What is wrong, with line and field if there are any.
    pub message: String,
}

/// Reads all of them as the daemon does. The first of duplicate pods counts.
#[must_use]
pub fn gather(given: &[Given]) -> Gathered {
    let mut gathering = Gathering::default();
    gathering.all(given);
    gathering.gathered
}

/// Reads all of them as `kubectl` does: also workloads, whose pods are made, and priority classes.
///
/// Pods come in the order of their creation, then those that were not created yet in the order given: so the kubelet
/// admits them when it starts.
#[must_use]
pub fn gather_objects(given: &[Given], selection: &Selection) -> Gathered {
    let mut gathering = Gathering { selection: Some(selection), ..Gathering::default() };
    gathering.all(given);
    let resolved::Resolved { pods, errors, notes } =
        resolved::resolve(std::mem::take(&mut gathering.objects), selection.node.as_deref());
    for error in errors {
        gathering.wrong(&error.source, &error.message);
    }
    for (pod, origin) in pods {
        gathering.pod(&origin.source.clone(), pod, origin);
    }
    gathering.gathered.notes = notes;
    gathering.gathered
}

#[derive(Default)]
struct Gathering<'a> {
    gathered: Gathered,
    /// With it all kinds of objects are read.
    selection: Option<&'a Selection>,
    objects: Objects,
    names: BTreeMap<PodName, Origin>,
    uids: BTreeMap<PodUid, Origin>,
}

impl Gathering<'_> {
    fn all(&mut self, given: &[Given]) {
        for one in given {
            match one {
                Given::Stdin => self.file("stdin", bounded(io::stdin().lock())),
                Given::Path(path) if path.is_dir() => self.folder(path),
                Given::Path(path) => {
                    self.file(&path.display().to_string(), File::open(path).and_then(bounded));
                }
            }
        }
        // Files of comments alone are nothing wrong beside others, and a folder may be empty: a node may have no pods.
        let has_folder = given.iter().any(|one| matches!(one, Given::Path(path) if path.is_dir()));
        let is_nothing = self.objects.documents == 0 && self.gathered.errors.is_empty() && !has_folder;
        if let Some(first) = given.first().filter(|_| self.selection.is_some() && is_nothing) {
            let source = match first {
                Given::Stdin => String::from("stdin"),
                Given::Path(path) => path.display().to_string(),
            };
            self.wrong(&source, &format!("{source}: {}", Problem::Empty));
        }
    }

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
            let path = path.join(name);
            if let Some(selection) = self.selection {
                // As for kubectl: other files are no concern, and folders only if asked for.
                if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
                    if selection.recursive {
                        self.folder(&path);
                    }
                    continue;
                }
                if !files::is_manifest_name(name) {
                    continue;
                }
            }
            let file = path.display().to_string();
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
                let hint = if self.selection.is_some() {
                    ", or list one node's pods: kubectl get pods -A --field-selector spec.nodeName=NODE -o json"
                } else {
                    ""
                };
                return self.wrong(source, &format!("{error}{hint}"));
            }
            Err(error) => return self.wrong(source, &format!("{source}: cannot be read: {error}")),
        };
        if let Some(selection) = self.selection {
            let (errors, warnings) = self.objects.read(source, &content, selection.node.as_deref());
            return self.said(source, errors, warnings);
        }
        let manifest::Parsed { pods, origins, errors, warnings } = manifest::parse(source, &content);
        self.said(source, errors, warnings);
        for (pod, origin) in pods.into_iter().zip(origins) {
            self.pod(source, pod, origin);
        }
    }

    fn said(&mut self, source: &str, errors: Vec<ManifestError>, warnings: Vec<Warning>) {
        for error in errors {
            self.wrong(source, &error.to_string());
        }
        let odd = |warning: Warning| Wrong { source: source.to_owned(), message: warning.to_string() };
        self.gathered.warnings.extend(warnings.into_iter().map(odd));
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
        let Gathered { pods, errors, .. } = gather(&[path(&first), path(&last)]);
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
        let Gathered { pods, errors, .. } = gather(&[path(dir.path())]);
        assert_eq!(pods.iter().map(|pod| pod.name.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let wrong: Vec<_> = errors.iter().map(|wrong| wrong.source.rsplit('/').next().unwrap()).collect();
        assert_eq!(wrong, ["loop.yaml", "notes.txt", "pipe.yaml", "sub.yaml"], "{errors:?}");
    }

    #[test]
    fn what_is_missing_is_an_error_of_its_own() {
        let Gathered { pods, errors, .. } = gather(&[path(Path::new("/nowhere/at/all.yaml"))]);
        assert!(pods.is_empty());
        assert!(errors[0].message.contains("No such file"), "{errors:?}");
    }

    #[test]
    fn objects_of_a_folder_are_read_as_kubectl_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("b.yml"), pod("b", "")).unwrap();
        fs::write(dir.path().join("a.json"), "# Source: nothing\n---\n").unwrap();
        fs::write(dir.path().join("notes.txt"), "no").unwrap();
        fs::create_dir_all(dir.path().join("sub.yaml/deep")).unwrap();
        fs::write(dir.path().join("sub.yaml/deep/c.yaml"), pod("c", "")).unwrap();
        std::os::unix::fs::symlink(dir.path(), dir.path().join("sub.yaml/loop")).unwrap();
        for (recursive, expected) in [(false, &["b"][..]), (true, &["b", "c"][..])] {
            let selection = Selection { node: None, recursive };
            let Gathered { pods, errors, .. } = gather_objects(&[path(dir.path())], &selection);
            assert_eq!(errors, []);
            assert_eq!(pods.iter().map(|pod| pod.name.name.as_str()).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn what_holds_nothing_at_all_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        fs::write(&file, "# Source: nothing\n---\n").unwrap();
        let Gathered { errors, .. } = gather_objects(&[path(&file)], &Selection::default());
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!(errors[0].message, format!("{}: holds no manifest", file.display()));
        let empty = tempfile::tempdir().unwrap();
        let Gathered { errors, .. } = gather_objects(&[path(empty.path())], &Selection::default());
        assert!(errors.is_empty(), "a node may have no pods: {errors:?}");
    }

    /// A pod of a Deployment and one of the same name; classes in another file than their pods.
    #[test]
    fn files_are_read_together() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("1.yaml"), dir.path().join("2.yaml"));
        let deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  replicas: 2\n  template:\n    spec:\n      priorityClassName: high\n      containers: [{name: c}]\n";
        fs::write(&one, format!("{}---\n{deployment}", pod("web-1", ""))).unwrap();
        fs::write(
            &two,
            "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: high}\nvalue: 9\n",
        )
        .unwrap();
        let Gathered { pods, errors, .. } = gather_objects(&[path(&one), path(&two)], &Selection::default());
        let found: Vec<_> = pods.iter().map(|pod| (pod.name.name.as_str(), pod.priority())).collect();
        assert_eq!(found, [("web-1", 0), ("web-0", 9)]);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].message.contains("1.yaml:6: pod default/web-1 is in"), "{errors:?}");
        // The daemon takes pods alone.
        let Gathered { pods, errors, .. } = gather(&[path(&one), path(&two)]);
        assert_eq!((pods.len(), errors.len()), (1, 2), "{errors:?}");
    }
}
