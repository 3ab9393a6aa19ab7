//! Connections to the observe socket, with limits on their number, the time for a request, and the time that an answer
//! may stay unread.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use serde_json::json;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
};

use super::{guarded::Guarded, spare::Shortage};

/// The buffer for a request's head, and for an answer in addition to one chunk.
const BUFFER_BYTES: usize = 16 << 10;

/// How many connections are accepted at once when no descriptors are left.
const SPARE_CONNECTIONS: usize = 4;

/// How long a refused connection may take to read the refusal.
const REFUSAL: Duration = Duration::from_secs(2);

/// The limits of connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The most connections at once.
    pub(super) places: usize,
    /// How many of them are reserved for root and the daemon's own user.
    pub(super) kept: usize,
    /// How many more may be refused with an answer at once. Others are closed.
    pub(super) refusals: usize,
    /// How long a client may take for the head of each request.
    pub(super) head: Duration,
    /// How long a client may read nothing while data is pending.
    pub(super) stalled: Duration,
    /// How long the answers may take to end when the daemon stops.
    pub(super) drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            places: 128,
            kept: 16,
            refusals: 16,
            head: Duration::from_secs(10),
            stalled: Duration::from_mins(1),
            drain: Duration::from_millis(1_500),
        }
    }
}

/// The places for connections.
struct ConnectionLimit {
    /// All of them.
    all: Arc<Semaphore>,
    /// Those that are not reserved.
    common: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
}

/// A place, held until it is dropped.
struct Permit {
    _all: OwnedSemaphorePermit,
    _common: Option<OwnedSemaphorePermit>,
}

impl ConnectionLimit {
    fn new(limits: &Limits) -> Self {
        let semaphore = |places| Arc::new(Semaphore::new(places));
        Self {
            all: semaphore(limits.places),
            common: semaphore(limits.places.saturating_sub(limits.kept)),
            refusals: semaphore(limits.refusals),
        }
    }

    fn take(&self, stream: &UnixStream) -> Option<Permit> {
        let own = rustix::process::geteuid().as_raw();
        let is_ours = stream.peer_cred().is_ok_and(|peer| peer.uid() == 0 || peer.uid() == own);
        let common = if is_ours { None } else { Some(Arc::clone(&self.common).try_acquire_owned().ok()?) };
        Some(Permit { _all: Arc::clone(&self.all).try_acquire_owned().ok()?, _common: common })
    }
}

/// Accepts and serves connections until `stopping` becomes true. Answers that are under way then may end.
pub(super) async fn serve(
    listener: UnixListener,
    router: Router,
    limits: Limits,
    mut stopping: watch::Receiver<bool>,
) {
    let places = ConnectionLimit::new(&limits);
    let full = Router::new().fallback(full);
    let mut talks = JoinSet::new();
    let mut shortage = Shortage::new(SPARE_CONNECTIONS);
    loop {
        shortage.settle();
        let accepted = tokio::select! {
            () = reported(&mut stopping) => break,
            Some(_ended) = talks.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _address)) => stream,
            Err(error) => {
                shortage.wait("the observe socket", &error).await;
                continue;
            }
        };
        let share = shortage.admitted();
        if let Some(place) = places.take(&stream) {
            let (router, stopping) = (router.clone(), stopping.clone());
            talks.spawn(async move {
                talk(stream, router, limits, stopping, place).await;
                drop(share);
            });
        } else if let Ok(place) = Arc::clone(&places.refusals).try_acquire_owned() {
            talks.spawn(refuse(stream, full.clone(), place));
        }
    }
    let ended = tokio::time::timeout(limits.drain, async { while talks.join_next().await.is_some() {} });
    if ended.await.is_err() {
        tracing::debug!(left = talks.len(), "closed the connections of readers that do not read");
    }
}

/// Waits until the daemon stops.
async fn reported(stopping: &mut watch::Receiver<bool>) {
    if stopping.wait_for(|stopping| *stopping).await.is_err() {
        tracing::debug!("the daemon ended without a stop signal");
    }
}

fn http() -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).max_buf_size(BUFFER_BYTES);
    http
}

async fn talk(
    stream: UnixStream,
    router: Router,
    limits: Limits,
    mut stopping: watch::Receiver<bool>,
    _place: Permit,
) {
    let io = TokioIo::new(Guarded::new(stream, limits.stalled));
    let connection =
        http().header_read_timeout(limits.head).serve_connection(io, TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = reported(&mut stopping) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = crate::chain(&error), "a connection to the observe socket ended early");
    }
}

/// Answers that there is no place.
async fn refuse(stream: UnixStream, full: Router, _place: OwnedSemaphorePermit) {
    let io = TokioIo::new(Guarded::new(stream, REFUSAL));
    let connection = http()
        .header_read_timeout(REFUSAL)
        .keep_alive(false)
        .serve_connection(io, TowerToHyperService::new(full));
    if !tokio::time::timeout(REFUSAL, connection).await.is_ok_and(|ended| ended.is_ok()) {
        tracing::debug!("a refused client did not read that all connections are taken");
    }
}

async fn full() -> Response {
    let reported = Json(json!({"error": "all connections are taken: try again in a few seconds"}));
    let retry = [(header::RETRY_AFTER, HeaderValue::from_static("5"))];
    (StatusCode::SERVICE_UNAVAILABLE, retry, reported).into_response()
}
