//! The kubelet's HTTPS server: its `/pods` lists all pods, and cannot be watched.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::{
    Request, StatusCode,
    body::Incoming,
    header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue, USER_AGENT},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use super::{
    items::Items,
    message::HttpsFeed,
    pod::ApiPod,
    process::{Failure, Shared},
    store::Store,
};
use crate::network::Connection;

/// How often the list is read although nothing is known to have changed.
const EVERY: Duration = Duration::from_secs(10);

/// The least time between two readings.
const PAUSE: Duration = Duration::from_millis(500);

/// How long one reading may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How much of an answer that is no list is shown.
const MOST_WORDS_BYTES: usize = 1 << 10;

/// Reads the list again and again, at once when `looks` changes, until it cannot be read.
pub(super) async fn poll(feed: HttpsFeed, mut looks: watch::Receiver<u64>, shared: &Arc<Shared>) -> Failure {
    let mut open = None;
    loop {
        looks.mark_unchanged();
        match timeout(TIMEOUT, list(&feed, &mut open)).await {
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

/// The pods that the kubelet has. The connection is used again for the next list.
async fn list(feed: &HttpsFeed, open: &mut Option<Connection>) -> Result<Vec<Option<ApiPod>>, Failure> {
    let mut connection = match open.take().filter(Connection::is_open) {
        Some(connection) => connection,
        None => Connection::open(&feed.endpoint, &feed.security).await?,
    };
    let (status, _headers, body) = match connection.send(request(feed)?).await {
        Ok(answer) => answer,
        // The kubelet may close a connection just as it is used again.
        Err(_closed) => {
            connection = Connection::open(&feed.endpoint, &feed.security).await?;
            connection.send(request(feed)?).await?
        }
    };
    if status != StatusCode::OK {
        return Err(Failure::refused(status, &words(body).await));
    }
    let pods = read(body).await?;
    *open = Some(connection);
    Ok(pods)
}

fn request(feed: &HttpsFeed) -> Result<Request<Bytes>, Failure> {
    let mut request = Request::get("/pods")
        .header(HOST, feed.endpoint.authority.as_str())
        .header(ACCEPT, "application/json")
        .header(USER_AGENT, crate::USER_AGENT);
    if let Some(token) = &feed.token {
        let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_error| Failure::Token)?;
        value.set_sensitive(true);
        request = request.header(AUTHORIZATION, value);
    }
    Ok(request.body(Bytes::new())?)
}

async fn read(mut body: Incoming) -> Result<Vec<Option<ApiPod>>, Failure> {
    let mut items = Items::default();
    let mut pods: Vec<Option<ApiPod>> = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(crate::network::ConnectionError::from)?;
        if let Some(data) = frame.data_ref() {
            // One that cannot be read must not hide the others; its cgroup is known all the same.
            items.add(data, |item| {
                let mut pod = item.and_then(|item| serde_json::from_slice::<ApiPod>(item).ok());
                pod.iter_mut().for_each(ApiPod::cut);
                // Pods that have ended stay in the list, any number of them.
                if pods.len() >= 2 * Store::MOST_PODS {
                    pods.retain(|pod| pod.as_ref().is_some_and(|pod| !pod.has_ended()));
                }
                pods.push(pod.filter(|_| pods.len() < 2 * Store::MOST_PODS));
            })?;
        }
    }
    items.end()?;
    // Those that run come first, if there is no room for all.
    pods.sort_by_key(|pod| pod.as_ref().is_some_and(ApiPod::has_ended));
    Ok(pods)
}

/// The beginning of an answer that says why there is no list.
async fn words(mut body: Incoming) -> String {
    let mut words = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        words.extend_from_slice(frame.data_ref().map_or(&[][..], |data| &data[..]));
        if words.len() >= MOST_WORDS_BYTES {
            break;
        }
    }
    words.truncate(MOST_WORDS_BYTES);
    String::from_utf8_lossy(&words).trim().to_owned()
}
