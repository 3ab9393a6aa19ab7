//! Why a pod was, or would have been, evicted or killed.
use std::sync::Arc;

use anyhow::Context as _;

use crate::cli::{Context, Failure, why};

/// What `enforcer why` prints of a pod, in lines.
pub(super) async fn lines(
    context: Arc<Context>,
    namespace: &str,
    name: &str,
) -> Result<Vec<String>, Failure> {
    let pod = format!("{namespace}/{name}");
    let reported = tokio::task::spawn_blocking(move || why::of_pod(&context, &pod)).await;
    Ok(reported.context("it could not be told why")??.lines().map(str::to_owned).collect())
}
