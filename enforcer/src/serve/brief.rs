//! Connections that carry one request each, some at once, none for long.

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

/// How much of a request's head is kept; hyper takes no less than this.
const HEAD_BYTES: usize = 8 * 1_024;

/// How long a request's head may take.
pub(super) const HEAD: Duration = Duration::from_secs(2);

/// How long a whole connection with its one request may take. The disk may take some of it.
pub(super) const WHOLE: Duration = Duration::from_secs(15);

/// How many are let in at once where no descriptors are left.
const SPARE_CONNECTIONS: usize = 1;

/// Where those connections come from.
pub(super) trait Acceptor: Sync {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Its name, for the log.
    const NAME: &'static str;

    /// How many may be inside at once; the others wait.
    const PLACES: usize;

    /// The next one, and the routes that are answered to it.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Router)>> + Send;
}

/// Lets in whoever comes, until `stopping` becomes true. Answers what is under way then: dropped, it ends.
pub(super) async fn serve<D: Acceptor>(door: &D, stopping: &mut watch::Receiver<bool>) -> JoinSet<()> {
    let places = Arc::new(Semaphore::new(D::PLACES));
    let mut connections = JoinSet::new();
    let mut shortage = Shortage::new(SPARE_CONNECTIONS);
    loop {
        shortage.settle();
        let next = async {
            // It is never closed.
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
