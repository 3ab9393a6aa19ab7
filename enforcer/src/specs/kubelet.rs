//! The kubelet's HTTPS server: its `/pods` lists all pods, and cannot be watched.

use std::{sync::Arc, time::Duration};

use hyper::StatusCode;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use super::{
    https::{Https, Listed, words},
    message::{HttpsFeed, Look},
    process::{Failure, Shared},
};

/// How often the list is read although nothing is known to have changed: while a threshold may be crossed, and for
/// [`LIVELY`] after a change.
const EVERY: Duration = Duration::from_secs(10);

/// A pod that changes is likely to change again: one that comes gets ready, one that is deleted goes.
const LIVELY: Duration = Duration::from_mins(1);

/// While nothing changes, the list is read more seldom the longer it is: so many bytes of it a second, which take less
/// than a ten-thousandth of a processor.
const CALM_BYTES_PER_SECOND: u64 = 32 << 10;

/// The longest time between two readings.
const CALM: Duration = Duration::from_mins(5);

/// The least time between two readings.
const PAUSE: Duration = Duration::from_millis(500);

/// How long one reading may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long a list of that length is not read again while nothing changes and no threshold is near.
#[must_use]
pub fn kubelet_rest(list_bytes: u64) -> Duration {
    Duration::from_secs(list_bytes / CALM_BYTES_PER_SECOND).clamp(EVERY, CALM)
}

/// Reads the list again and again, at once when `looks` changes, until it cannot be read.
pub(super) async fn poll(feed: HttpsFeed, mut looks: watch::Receiver<Look>, shared: &Arc<Shared>) -> Failure {
    let mut https = Https::default();
    let mut lively_until = Instant::now() + LIVELY;
    loop {
        let is_of_concern = looks.borrow_and_update().is_of_concern;
        let asked_at = Instant::now();
        let list_bytes = match timeout(TIMEOUT, list(&feed, &mut https)).await {
            Ok(Ok(listed)) => {
                let list_bytes = listed.bytes();
                let before = shared.revision();
                shared.change(|known| known.replace_all(&listed.into_pods()));
                if shared.revision() != before {
                    lively_until = asked_at + LIVELY;
                }
                list_bytes
            }
            Ok(Err(failure)) => return failure,
            Err(_elapsed) => return Failure::TimedOut { timeout_ms: TIMEOUT.as_secs() * 1_000 },
        };
        shared.note_reading(asked_at);
        let read_at = Instant::now();
        let is_lively = is_of_concern || read_at < lively_until;
        let rest = if is_lively { EVERY } else { kubelet_rest(list_bytes) };
        tokio::select! {
            changed = looks.changed() => match changed {
                Ok(()) => lively_until = Instant::now() + LIVELY,
                Err(_ended) => return Failure::StreamEnded,
            },
            () = sleep_until(read_at + rest) => {}
            failure = https.away(&feed) => return failure,
        }
        sleep_until(read_at + PAUSE).await;
    }
}

/// The pods that the kubelet has.
async fn list(feed: &HttpsFeed, https: &mut Https) -> Result<Listed, Failure> {
    let (status, _headers, body) = https.get(feed, "/pods").await?;
    if status != StatusCode::OK {
        return Err(Failure::refused(status, &words(body).await));
    }
    let mut listed = Listed::default();
    listed.read(body, |pod| pod.metadata.annotations.keep_kubelets()).await?;
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_read_seldom_while_nothing_changes() {
        let rests = [0, 320 << 10, 1 << 20, 10 << 20, u64::MAX].map(|bytes| kubelet_rest(bytes).as_secs());
        assert_eq!(rests, [10, 10, 32, 300, 300]);
    }
}
