//! Short connections that carry one request each, limited in number and time.

use std::{io, sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Semaphore, watch},
    task::JoinSet,
};

use super::spare::Shortage;

/// The buffer for a request's head, the smallest that hyper accepts.
const HEAD_BYTES: usize = 8 * 1_024;

/// How long a request's head may take.
pub(super) const HEAD: Duration = Duration::from_secs(2);

/// How long a whole connection with its one request may take, including disk writes.
pub(super) const WHOLE: Duration = Duration::from_secs(15);

/// How many connections are accepted at once when no descriptors are left.
const SPARE_CONNECTIONS: usize = 1;

/// The source of such connections.
pub(super) trait Acceptor: Sync {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Its name, for the log.
    const NAME: &'static str;

    /// The most connections at once; others wait.
    const PLACES: usize;

    /// Accepts the next connection, and returns it with the routes for it.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Router)>> + Send;
}

/// Accepts connections until `stopping` becomes true. Returns those that are under way then; dropping them ends them.
pub(super) async fn serve<D: Acceptor>(door: &D, stopping: &mut watch::Receiver<bool>) -> JoinSet<()> {
    let places = Arc::new(Semaphore::new(D::PLACES));
    let mut connections = JoinSet::new();
    let mut shortage = Shortage::new(SPARE_CONNECTIONS);
    loop {
        shortage.settle();
        let next = async {
            // The semaphore is never closed.
            let place = Arc::clone(&places).acquire_owned().await.ok();
            (place, door.accept().await)
        };
        let (place, accepted) = tokio::select! {
            _ = stopping.wait_for(|stopping| *stopping) => return connections,
            Some(_ended) = connections.join_next() => continue,
            next = next => next,
        };
        match accepted {
            Ok((stream, router)) => {
                let share = shortage.admitted();
                connections.spawn(async move {
                    answer(D::NAME, stream, router).await;
                    drop((place, share));
                });
            }
            Err(error) => shortage.wait(D::NAME, &error).await,
        }
    }
}

/// Answers the one request of a connection.
pub(super) async fn answer<S>(name: &'static str, stream: S, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match tokio::time::timeout(WHOLE, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection to {name} failed"),
        Err(_elapsed) => tracing::debug!("a connection to {name} took too long"),
    }
}
