//! `GET /metrics`: on the observe socket, and on a TCP address where one is configured.

use std::{fmt, io, net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
};

use super::brief::{self, Door};
use crate::{metrics::CONTENT_TYPE, threads};

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
        let written = threads::blocking(move || (writer.write)()).await;
        drop(turn);
        match written {
            Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
            Err(error) => failed(error),
        }
    }
}

fn failed(error: fmt::Error) -> Response {
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
        let door = Scrapes { listener: self.0, router };
        // Who scrapes asks again: nobody waits for an answer that is under way.
        drop(brief::serve(&door, &mut stopping).await);
    }
}

struct Scrapes {
    listener: TcpListener,
    router: Router,
}

impl Door for Scrapes {
    type Stream = TcpStream;
    const NAME: &'static str = "metricsListen";
    const PLACES: usize = 4;

    async fn accept(&self) -> io::Result<(TcpStream, Router)> {
        let (stream, _address) = self.listener.accept().await?;
        Ok((stream, self.router.clone()))
    }
}
