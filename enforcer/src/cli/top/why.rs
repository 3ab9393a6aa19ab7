//! The panel that explains why a pod was, or would have been, evicted or killed.
use std::sync::Arc;

use anyhow::Context as _;

use crate::cli::{Context, Failure, why};

/// The lines that `enforcer why` prints about a pod.
pub(super) async fn lines(
    context: Arc<Context>,
    namespace: &str,
    name: &str,
) -> Result<Vec<String>, Failure> {
    let pod = format!("{namespace}/{name}");
    let reported = tokio::task::spawn_blocking(move || why::of_pod(&context, &pod)).await;
    Ok(reported.context("cannot find out why")??.lines().map(str::to_owned).collect())
}
