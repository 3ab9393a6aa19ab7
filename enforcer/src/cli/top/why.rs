//! Why a pod was, or would have been, evicted or killed.
use std::path::Path;

use super::feed;
use crate::cli::Failure;

/// The last decisions and OOM kills of a pod, the newest first, as a person reads them.
pub(super) async fn lines(run_dir: &Path, namespace: &str, name: &str) -> Result<Vec<String>, Failure> {
    let kinds = ["eviction.decided", "eviction.completed", "eviction.failed", "oom.incident"];
    feed::pod_events(run_dir, namespace, name, &kinds).await
}
