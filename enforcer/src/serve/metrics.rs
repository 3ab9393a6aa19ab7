//! `GET /metrics`: on the observe socket, and on a TCP address where one is configured.

use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
};

use crate::metrics::CONTENT_TYPE;

/// How many may be answered over TCP at once; the others wait.
const MAX_PEERS: usize = 4;

/// How long a request's head, and a whole connection with its one request, may take.
const HEAD: Duration = Duration::from_secs(2);
const WHOLE: Duration = Duration::from_secs(15);

/// How much of a request's head is kept; hyper takes no less than this.
const HEAD_BYTES: usize = 8 * 1_024;

/// How long nobody is let in after the kernel refused to.
const NO_PEER: Duration = Duration::from_millis(100);

/// Writes the metrics; may take some milliseconds.
#[derive(Clone)]
pub struct Scrape(Arc<Writer>);

struct Writer {
    write: Box<dyn Fn() -> Result<String, fmt::Error> + Send + Sync>,
    /// One at a time: the threads that may block are few, and others need them.
    turn: Semaphore,
}

impl Scrape {
    /// By that function, which may block.
    pub fn by(write: impl Fn() -> Result<String, fmt::Error> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Writer { write: Box::new(write), turn: Semaphore::new(1) }))
    }

    /// The answer to a request for them.
    pub(super) async fn answer(&self) -> Response {
        let writer = Arc::clone(&self.0);
        let turn = self.0.turn.acquire().await;
        let written = tokio::task::spawn_blocking(move || (writer.write)()).await;
        drop(turn);
        match written {
            Ok(Ok(text)) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
            Ok(Err(error)) => failed(&error),
            Err(error) => failed(&error),
        }
    }
}

fn failed(error: &impl fmt::Display) -> Response {
    tracing::error!(%error, "the metrics could not be written");
    StatusCode::INTERNAL_SERVER_ERROR.into_response()
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrape")
    }
}

/// A TCP address where nothing but metrics is answered: bound, and served by [`MetricsListener::serve`].
#[derive(Debug)]
pub struct MetricsListener(TcpListener);

impl MetricsListener {
    /// Binds it. Must be called inside a tokio runtime.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        TcpListener::bind(address).await.map(Self)
    }

    /// Answers until `stopping` becomes true.
    pub async fn serve(self, scrape: Scrape, mut stopping: watch::Receiver<bool>) {
        let router = Router::new()
            .route("/metrics", get(|State(scrape): State<Scrape>| async move { scrape.answer().await }))
            .with_state(scrape);
        let places = Arc::new(Semaphore::new(MAX_PEERS));
        let mut connections = JoinSet::new();
        loop {
            let next = async {
                // It is never closed.
                let place = Arc::clone(&places).acquire_owned().await.ok();
                (place, self.0.accept().await)
            };
            let (place, accepted) = tokio::select! {
                _ = stopping.wait_for(|stopping| *stopping) => break,
                Some(_ended) = connections.join_next() => continue,
                next = next => next,
            };
            let stream = match accepted {
                Ok((stream, _address)) => stream,
                Err(error) => {
                    tracing::debug!(%error, "nobody can be let in on metricsListen");
                    tokio::time::sleep(NO_PEER).await;
                    continue;
                }
            };
            let router = router.clone();
            connections.spawn(async move {
                serve_one(stream, router).await;
                drop(place);
            });
        }
    }
}

async fn serve_one(stream: TcpStream, router: Router) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match tokio::time::timeout(WHOLE, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection to metricsListen failed"),
        Err(_elapsed) => tracing::debug!("a connection to metricsListen took too long"),
    }
}
