//! Lets async code use the reconciler, which may block in the kernel.

use std::sync::{Arc, Mutex, PoisonError};

use crate::{
    cgroup::{CgroupDir, Reconciler},
    threads,
};

/// The cgroups, shared with the blocking threads.
#[derive(Clone)]
pub(super) struct Hierarchy {
    reconciler: Arc<Mutex<Reconciler>>,
    root: Arc<CgroupDir>,
}

impl Hierarchy {
    pub(super) fn new(reconciler: Reconciler, root: CgroupDir) -> Self {
        Self { reconciler: Arc::new(Mutex::new(reconciler)), root: Arc::new(root) }
    }

    /// Works on the cgroups on a blocking thread.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Reconciler) -> T + Send + 'static,
    ) -> anyhow::Result<T> {
        let reconciler = Arc::clone(&self.reconciler);
        let work = move || work(&mut reconciler.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(threads::blocking(work).await)
    }

    /// Sets up the reconciler, before anything runs.
    pub(super) fn set_up(&self, work: impl FnOnce(&mut Reconciler)) {
        work(&mut self.reconciler.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The root of the cgroups.
    pub(super) fn root(&self) -> &Arc<CgroupDir> {
        &self.root
    }
}
