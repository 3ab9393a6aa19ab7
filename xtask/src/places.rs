//! Where things are: the repository, its build directory, the cache.
use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use rustix::fs::{FlockOperation, flock};

/// Overrides the cache's place.
pub(crate) const CACHE_VARIABLE: &str = "ENFORCER_CACHE";

/// The places that commands use.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// The repository.
    pub(crate) root: PathBuf,
    /// Cargo's build directory.
    pub(crate) target: PathBuf,
    /// What set-up downloads and builds, shared by all checkouts of one user.
    pub(crate) cache: PathBuf,
}

impl Places {
    pub(crate) fn find() -> anyhow::Result<Self> {
        // `cargo run` names the crate's folder; without it, the one that this program was built in.
        let own = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
        let root = own.parent().context("xtask is in no workspace")?.to_owned();
        let target =
            env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
        let cache = cache_folder()?;
        fs::create_dir_all(&cache).with_context(|| format!("cannot create the cache {}", cache.display()))?;
        Ok(Self { root, target, cache })
    }

    /// Holds the cache for set-up, so that two commands do not fill it at once.
    pub(crate) fn lock_cache(&self) -> anyhow::Result<fs::File> {
        self.lock("lock")
    }

    /// Holds one lock of the cache.
    pub(crate) fn lock(&self, name: &str) -> anyhow::Result<fs::File> {
        let path = self.cache.join(name);
        let file = fs::File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        flock(&file, FlockOperation::LockExclusive)
            .with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(file)
    }

    /// Whether the cache has that folder, complete.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.cache.join(name).is_dir()
    }

    /// Makes a folder of the cache by filling a fresh one beside it and renaming that: it is complete or absent.
    ///
    /// The caller holds the cache, or a lock of the folder's own.
    pub(crate) fn fill(
        &self,
        name: &str,
        fill: impl FnOnce(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<(PathBuf, crate::steps::Work)> {
        let done = self.cache.join(name);
        if self.has(name) {
            return Ok((done, crate::steps::Work::Cached));
        }
        let parent = done.parent().context("a name in the cache")?;
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
        let fresh = tempfile::Builder::new().prefix(".filling-").tempdir_in(parent)?;
        let content = fresh.path().join("content");
        fs::create_dir(&content)?;
        fill(&content)?;
        fs::rename(&content, &done).with_context(|| format!("cannot rename to {}", done.display()))?;
        Ok((done, crate::steps::Work::Done))
    }
}

fn cache_folder() -> anyhow::Result<PathBuf> {
    if let Some(own) = env::var_os(CACHE_VARIABLE).filter(|value| !value.is_empty()) {
        return Ok(env::current_dir()?.join(own));
    }
    // The specification says to ignore a relative path.
    if let Some(caches) = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute()) {
        return Ok(caches.join("enforcer"));
    }
    let home = env::home_dir().with_context(|| format!("there is no HOME; set {CACHE_VARIABLE}"))?;
    Ok(home.join(".cache/enforcer"))
}
