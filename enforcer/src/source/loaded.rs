//! Decides which manifests are in force: a file that becomes invalid keeps its last good pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    folder::Absence,
    manifest::{ManifestError, Origin, Parsed, Warning},
};
use crate::model::{Pod, PodName, PodUid};

/// How many warnings about all files together are kept.
const MOST_WARNINGS: usize = 100;

/// The contents of a manifest directory.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Loaded {
    /// The pods in force, by file name and by position in the file.
    pub pods: Vec<Arc<Pod>>,
    /// The origin of each of [`Self::pods`], in the same order.
    pub origins: Vec<Origin>,
    /// Everything that is wrong now.
    pub errors: Vec<SourceError>,
    /// What is odd now, and keeps no pod from being in force: the first of it.
    pub warnings: Vec<Warning>,
    /// Whether they are known: the directory was read, now or by an earlier process of this boot.
    pub are_known: bool,
    files: BTreeMap<String, LoadedFile>,
}

/// A file as it was found.
#[derive(Clone, Debug)]
pub struct FileContent {
    /// Its name in the directory.
    pub name: String,
    /// Its content.
    pub content: Content,
}

/// A file's content.
#[derive(Clone, Debug)]
pub enum Content {
    /// The same as the last time.
    Unchanged,
    /// These bytes.
    Bytes(Vec<u8>),
    /// It could not be read.
    Failed(SourceError),
}

/// What is wrong with a manifest directory.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// A manifest is wrong. The last good version of its file stays in force.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// Two pods have the same uid.
    #[error("{second}: uid {uid} is used in {first} already: give each pod a uid of its own, or none")]
    DuplicateUid {
        /// The uid.
        uid: PodUid,
        /// Where it comes first.
        first: Origin,
        /// Where it comes again.
        second: Origin,
    },
    /// A file cannot be read. Its last good version stays in force.
    #[error("{file}: cannot be read: {errno}")]
    Unreadable {
        /// The file.
        file: String,
        /// The error.
        errno: rustix::io::Errno,
    },
    /// A file is too large. Its last good version stays in force.
    #[error("{file}: is larger than {limit_bytes} bytes: split it into several files")]
    TooLarge {
        /// The file.
        file: String,
        /// The limit.
        limit_bytes: usize,
    },
    /// Something that is not a manifest, and does not belong here.
    #[error("{file}: is not taken: a manifest is a regular file named *.yaml, *.yml or *.json")]
    NotAManifest {
        /// The file or folder.
        file: String,
    },
    /// The manifests together are too large. The last good version of this file stays in force.
    #[error(
        "{file}: is not taken: the manifests up to it have more than {limit_bytes} bytes together: see what fills the folder"
    )]
    TooMuch {
        /// The first file, by name, that does not fit, or a later one.
        file: String,
        /// The limit for all together.
        limit_bytes: usize,
    },
    /// A file is a link to somewhere else. Its last good version stays in force.
    #[error(
        "{file}: is a link that leads out of the folder, or an absolute one: put the file itself there, or a relative link to \
         one inside the folder"
    )]
    LeadsOut {
        /// The file.
        file: String,
    },
    /// Others may write to a file, or to a folder that a link leads through. The last good version stays in force.
    #[error("{file}: {why}: {remedy}")]
    Untrusted {
        /// The file or folder, below the directory.
        file: String,
        /// Who may write to it.
        why: String,
        /// What to do about it.
        remedy: String,
    },
    /// The directory yields no manifests at all. What was loaded before stays in force.
    #[error("{path}: {why}: {}", stay(*pods, why))]
    Away {
        /// The directory.
        path: String,
        /// The reason.
        why: Absence,
        /// How many pods stay in force.
        pods: usize,
    },
    /// The manifests in force cannot be kept for the next start.
    #[error(
        "{path}: cannot be written: a start while the manifests' folder is away would not know its pods: {errno}"
    )]
    Unkept {
        /// Where it is kept.
        path: String,
        /// The error.
        errno: rustix::io::Errno,
    },
    /// A given directory cannot be read.
    #[error("{path}: cannot be read: {errno}")]
    Directory {
        /// The directory.
        path: String,
        /// The error.
        errno: rustix::io::Errno,
    },
    /// The directory has more entries than the limit.
    #[error("{path}: has more than {limit} entries, the rest is ignored")]
    TooManyFiles {
        /// The directory.
        path: String,
        /// The limit.
        limit: usize,
    },
    /// Changes are only found by reading the directory every 20 s.
    #[error("{path}: cannot be watched, changes are only found by reading it every 20 s: {errno}")]
    Unwatched {
        /// The directory.
        path: String,
        /// The error.
        errno: rustix::io::Errno,
    },
}

/// What happens to the pods while their directory is away.
fn stay(pods: usize, why: &Absence) -> String {
    let remedy = why.remedy();
    match pods {
        0 => format!("no pods are known: {remedy}"),
        1 => format!("1 pod stays as it was read last: {remedy}"),
        _ => format!("{pods} pods stay as they were read last: {remedy}"),
    }
}

impl SourceError {
    /// Whether the source as a whole fails, and not a manifest in it.
    #[must_use]
    pub fn is_down(&self) -> bool {
        matches!(self, Self::Directory { .. } | Self::Away { .. })
    }

    /// Whether there is no folder, and no pod of one in force: manifests are not used here.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        matches!(self, Self::Away { why: Absence::Missing, pods: 0, .. })
    }

    /// Whether pods are read, but with a limitation.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        matches!(self, Self::Unwatched { .. } | Self::Unkept { .. })
    }
}

/// One file's pods and errors.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct LoadedFile {
    /// The pods that count: those of the last version without errors, or the good ones if there never was such a
    /// version.
    pods: Vec<(Arc<Pod>, Origin)>,
    /// Whether `pods` are a whole version without errors.
    whole: bool,
    errors: Vec<SourceError>,
    warnings: Vec<Warning>,
}

impl Loaded {
    /// The errors that `previous` did not have: those to report now.
    pub fn new_errors<'a>(&'a self, previous: &'a Self) -> impl Iterator<Item = &'a SourceError> {
        self.errors.iter().filter(|error| !previous.errors.contains(error))
    }

    /// The warnings that `previous` did not have: those to report now.
    pub fn new_warnings<'a>(&'a self, previous: &'a Self) -> impl Iterator<Item = &'a Warning> {
        self.warnings.iter().filter(|warning| !previous.warnings.contains(warning))
    }

    /// The same pods, while their directory at that path is away.
    #[must_use]
    pub fn away(&self, path: &str, why: Absence) -> Self {
        let mut loaded = merge(self, self.unchanged(), |_, _| Parsed::default());
        loaded.are_known = self.are_known;
        let pods = loaded.pods.len();
        loaded.errors.insert(0, SourceError::Away { path: path.to_owned(), why, pods });
        loaded
    }

    /// Whether a whole version of that file without errors is in force.
    pub(super) fn has_whole(&self, file: &str) -> bool {
        self.files.get(file).is_some_and(|file| file.whole)
    }

    /// Whether it has that file, valid or not.
    pub(super) fn has_file(&self, file: &str) -> bool {
        self.files.contains_key(file)
    }

    /// Every file as unchanged.
    fn unchanged(&self) -> Vec<FileContent> {
        self.files
            .keys()
            .map(|name| FileContent { name: name.clone(), content: Content::Unchanged })
            .collect()
    }
}

/// Takes the files that a directory holds now, and decides which pods are in force.
///
/// A file that became invalid or unreadable keeps its last good version in force; one that was never valid counts with
/// its good pods. A file that is not in `files` is gone. If two files name one pod, the one that has it in force
/// already keeps it, else the first by name, and the error names both.
#[must_use]
pub fn merge(
    previous: &Loaded,
    files: impl IntoIterator<Item = FileContent>,
    mut parse: impl FnMut(&str, &[u8]) -> Parsed,
) -> Loaded {
    let mut loaded = Loaded::default();
    for FileContent { name, content } in files {
        let before = previous.files.get(&name);
        let file = match content {
            Content::Unchanged => before.cloned().unwrap_or_default(),
            Content::Bytes(bytes) => parsed(before, parse(&name, &bytes)),
            Content::Failed(error) => {
                LoadedFile { errors: vec![error], ..before.cloned().unwrap_or_default() }
            }
        };
        loaded.files.insert(name, file);
    }
    loaded.errors = loaded.files.values().flat_map(|file| file.errors.iter().cloned()).collect();
    let warnings = loaded.files.values().flat_map(|file| file.warnings.iter().cloned());
    loaded.warnings = warnings.take(MOST_WARNINGS).collect();
    choose(previous, &mut loaded);
    loaded
}

fn parsed(before: Option<&LoadedFile>, parsed: Parsed) -> LoadedFile {
    let Parsed { pods, origins, errors, warnings } = parsed;
    let whole = errors.is_empty();
    let errors = errors.into_iter().map(SourceError::from).collect();
    match before {
        Some(before) if !whole && before.whole => {
            LoadedFile { pods: before.pods.clone(), whole: true, errors, warnings }
        }
        Some(_) | None => {
            // A pod that has not changed is held once: the roster keeps the one that it has.
            let before = before.iter().flat_map(|before| &before.pods).map(|(pod, _)| (&pod.uid, pod));
            let before: BTreeMap<&PodUid, &Arc<Pod>> = before.collect();
            let known = |pod: &Pod| before.get(&pod.uid).copied().filter(|known| ***known == *pod);
            let shared = |pod: Pod| match known(&pod) {
                Some(known) => Arc::clone(known),
                None => Arc::new(pod),
            };
            let pods = pods.into_iter().map(shared).zip(origins).collect();
            LoadedFile { pods, whole, errors, warnings }
        }
    }
}

/// Picks one pod of each name and of each uid.
fn choose(previous: &Loaded, loaded: &mut Loaded) {
    let in_force: BTreeSet<(&PodName, &str)> = previous
        .pods
        .iter()
        .zip(&previous.origins)
        .map(|(pod, origin)| (&pod.name, origin.source.as_str()))
        .collect();
    let mut candidates: Vec<(usize, &Arc<Pod>, &Origin)> = loaded
        .files
        .values()
        .flat_map(|file| &file.pods)
        .enumerate()
        .map(|(place, (pod, origin))| (place, pod, origin))
        .collect();
    candidates.sort_by_key(|(place, pod, origin)| {
        (!in_force.contains(&(&pod.name, origin.source.as_str())), *place)
    });
    let mut by_name: BTreeMap<&PodName, &Origin> = BTreeMap::new();
    let mut by_uid: BTreeMap<&PodUid, &Origin> = BTreeMap::new();
    let mut chosen = Vec::new();
    for (place, pod, origin) in candidates {
        if let Some(first) = by_name.get(&pod.name) {
            let error = ManifestError::Duplicate {
                pod: pod.name.clone(),
                first: (*first).clone(),
                second: origin.clone(),
            };
            loaded.errors.push(error.into());
        } else if let Some(first) = by_uid.get(&pod.uid) {
            let (first, second) = ((*first).clone(), origin.clone());
            loaded.errors.push(SourceError::DuplicateUid { uid: pod.uid.clone(), first, second });
        } else {
            by_name.insert(&pod.name, origin);
            by_uid.insert(&pod.uid, origin);
            chosen.push((place, Arc::clone(pod), origin.clone()));
        }
    }
    chosen.sort_by_key(|(place, ..)| *place);
    (loaded.pods, loaded.origins) = chosen.into_iter().map(|(_, pod, origin)| (pod, origin)).unzip();
}

#[cfg(test)]
mod tests;
