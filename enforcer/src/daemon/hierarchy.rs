use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;

use crate::cgroup::{CgroupDir, Reconciler};

/// The cgroups, shared with the threads that may block.
#[derive(Clone)]
pub(super) struct Hierarchy {
    reconciler: Arc<Mutex<Reconciler>>,
    root: Arc<CgroupDir>,
}

impl Hierarchy {
    pub(super) fn new(reconciler: Reconciler, root: CgroupDir) -> Self {
        Self { reconciler: Arc::new(Mutex::new(reconciler)), root: Arc::new(root) }
    }

    /// Works on the cgroups on a thread that may block.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Reconciler) -> T + Send + 'static,
    ) -> anyhow::Result<T> {
        let reconciler = Arc::clone(&self.reconciler);
        tokio::task::spawn_blocking(move || {
            // What a panic left half done is done by the next reconciliation, which starts from what it finds.
            work(&mut reconciler.lock().unwrap_or_else(PoisonError::into_inner))
        })
        .await
        .context("the reconciler panicked")
    }

    /// Sets it up, before anything runs.
    pub(super) fn set_up(&self, work: impl FnOnce(&mut Reconciler)) {
        work(&mut self.reconciler.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The root of the cgroups.
    pub(super) fn root(&self) -> &Arc<CgroupDir> {
        &self.root
    }
}
