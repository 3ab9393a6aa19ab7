//! The kubelet's HTTPS server: its `/pods` lists all pods, and cannot be watched.

use std::{sync::Arc, time::Duration};

use hyper::StatusCode;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use super::{
    https::{Https, Listed, words},
    message::HttpsFeed,
    pod::ApiPod,
    process::{Failure, Shared},
};

/// How often the list is read although nothing is known to have changed.
const EVERY: Duration = Duration::from_secs(10);

/// The least time between two readings.
const PAUSE: Duration = Duration::from_millis(500);

/// How long one reading may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Reads the list again and again, at once when `looks` changes, until it cannot be read.
pub(super) async fn poll(feed: HttpsFeed, mut looks: watch::Receiver<u64>, shared: &Arc<Shared>) -> Failure {
    let mut https = Https::default();
    loop {
        looks.mark_unchanged();
        match timeout(TIMEOUT, list(&feed, &mut https)).await {
            Ok(Ok(pods)) => shared.change(|known| known.replace_all(&pods)),
            Ok(Err(failure)) => return failure,
            Err(_elapsed) => return Failure::TimedOut { timeout_ms: TIMEOUT.as_secs() * 1_000 },
        }
        let read_at = Instant::now();
        tokio::select! {
            changed = looks.changed() => if changed.is_err() {
                return Failure::StreamEnded;
            },
            () = sleep_until(read_at + EVERY) => {}
        }
        sleep_until(read_at + PAUSE).await;
    }
}

/// The pods that the kubelet has.
async fn list(feed: &HttpsFeed, https: &mut Https) -> Result<Vec<Option<ApiPod>>, Failure> {
    let (status, _headers, body) = https.get(feed, "/pods").await?;
    if status != StatusCode::OK {
        return Err(Failure::refused(status, &words(body).await));
    }
    let mut listed = Listed::default();
    listed.read(body, |pod| pod.metadata.annotations.keep_kubelets()).await?;
    Ok(listed.into_pods())
}
