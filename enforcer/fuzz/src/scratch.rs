//! A folder in memory for readers of files, gone with its value.

use std::{
    fs,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

static COUNT: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(what: &str) -> Self {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new("/dev/shm").join(format!("enforcer-fuzz-{what}-{}-{count}", process::id()));
        assert!(fs::create_dir_all(&path).is_ok(), "cannot create {}", path.display());
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Creates folders below it as needed.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.0.join(name);
        let folder = path.parent().unwrap_or(&self.0);
        let written = fs::create_dir_all(folder).and_then(|()| fs::write(&path, bytes));
        assert!(written.is_ok(), "cannot write {}: {written:?}", path.display());
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left in memory goes with the machine.
        let _removed = fs::remove_dir_all(&self.0);
    }
}
