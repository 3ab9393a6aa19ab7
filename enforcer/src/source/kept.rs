//! The manifests in force, kept over a restart: a daemon that starts while their folder is away reads its pods from
//! here.
//!
//! They are in the run directory. A boot empties it, as it ends all pods; and it is in memory, so that nothing waits
//! for a disk.

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use super::{
    files::{self, Reading},
    folder::Identity,
    loaded::{Content, FileContent, Loaded, merge},
    manifest,
};

/// The folder in the run directory.
const FOLDER: &str = "manifests";

/// Identifies the folder that the manifests are from. No manifest begins with a dot.
const IDENTITY: &str = ".folder";

/// A file being written.
const FRESH: &str = ".new";

/// Writes what is in force to the run directory, and reads it back.
#[derive(Debug)]
pub(super) struct Kept {
    path: PathBuf,
    /// What is there.
    identity: Option<Identity>,
    names: BTreeSet<String>,
}

/// The files of one reading that are to be kept.
#[derive(Debug, Default)]
pub(super) struct Fresh(Vec<(String, Vec<u8>)>);

impl Fresh {
    /// Notes a file that is in force from now on.
    pub(super) fn note(&mut self, name: &str, content: &[u8]) {
        self.0.push((name.to_owned(), content.to_owned()));
    }
}

impl Kept {
    /// Loads what an earlier process kept: which folder it was, and what was in force. Unreadable files are skipped.
    pub(super) fn open(run_dir: &Path) -> (Self, Option<Identity>, Loaded) {
        let path = run_dir.join(FOLDER);
        let identity = fs::read(path.join(IDENTITY)).ok();
        let identity = identity.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let (mut names, mut reading) = (BTreeSet::new(), Reading::given());
        let listing = files::open_folder(&path).and_then(files::list);
        // Files are read and parsed one at a time.
        let found = listing.iter().flat_map(|listing| listing.names.iter().map(move |name| (listing, name)));
        let contents = found.filter_map(|(listing, name)| {
            let read = files::read_unless_known(&listing.directory, name, None, &mut reading);
            names.insert(name.clone());
            let content = read.ok().flatten().map(|(content, _)| content);
            let content = content.filter(|content| matches!(content, Content::Bytes(_)))?;
            Some(FileContent { name: name.clone(), content })
        });
        let loaded = merge(&Loaded::default(), contents, manifest::parse);
        (Self { path, identity, names }, identity, loaded)
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps what is in force from now on; `fresh` are the new files.
    pub(super) fn keep(
        &mut self,
        identity: Option<Identity>,
        fresh: Fresh,
        loaded: &Loaded,
    ) -> io::Result<()> {
        let gone: Vec<_> = self.names.iter().filter(|name| !loaded.has_file(name)).cloned().collect();
        let Fresh(fresh) = fresh;
        if self.identity == identity && fresh.is_empty() && gone.is_empty() {
            return Ok(());
        }
        match DirBuilder::new().mode(0o700).create(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        for (name, content) in fresh {
            self.write(&name, &content)?;
            self.names.insert(name);
        }
        for name in gone {
            self.remove(&name)?;
            self.names.remove(&name);
        }
        // Last: an incomplete update still belongs to the former folder.
        match identity {
            Some(identity) => self.write(IDENTITY, &serde_json::to_vec(&identity)?)?,
            None => self.remove(IDENTITY)?,
        }
        self.identity = identity;
        Ok(())
    }

    /// Writes in one step: a reader finds the old content or the new one.
    fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let fresh = self.path.join(FRESH);
        // Manifests may hold data that only root may read.
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
        file.write_all(content)?;
        fs::rename(&fresh, self.path.join(name))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
