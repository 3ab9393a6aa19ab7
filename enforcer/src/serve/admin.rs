//! The admin socket: what changes something, for root and whoever the daemon runs as, asked from the node itself.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Extension, Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::post,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use serde_json::json;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{Semaphore, mpsc, oneshot, watch},
    task::JoinSet,
};

use super::{Done, Error, No, Peer, Stranger, View, Wish};
use crate::model::CgroupPath;

/// The socket's name in the run directory.
const ADMIN_SOCKET: &str = "admin.sock";

/// The largest request: a reason and two names.
const MAX_BYTES: usize = 16 * 1_024;

/// How much of a request's head is kept; hyper takes no less than this.
const HEAD_BYTES: usize = 8 * 1_024;

/// How many may ask at once; the others wait.
const MAX_PEERS: usize = 8;

/// How long a request's head, and a whole connection with its one request, may take. The disk may take some of it.
const HEAD: Duration = Duration::from_secs(2);
const WHOLE: Duration = Duration::from_secs(15);

/// How many requests are taken at once, and how soon there is one more.
const BURST: u32 = 20;
const REFILL: Duration = Duration::from_millis(250);

/// How long nobody is let in after the kernel refused to.
const NO_PEER: Duration = Duration::from_millis(100);

/// A wish, whose, and where the answer goes.
#[derive(Debug)]
pub struct Asked {
    /// The wish.
    pub wish: Wish,
    /// Who asks.
    pub peer: Peer,
    /// What came of it.
    pub answer: oneshot::Sender<Result<Done, No>>,
}

/// The admin socket: bound, and served by [`Admin::serve`].
#[derive(Debug)]
pub struct Admin {
    listener: UnixListener,
}

/// What every request needs.
#[derive(Clone)]
struct Shared {
    asked: mpsc::Sender<Asked>,
    credit: Arc<Mutex<Credit>>,
}

impl Admin {
    /// The socket's path for a run directory.
    #[must_use]
    pub fn path(run_dir: &Path) -> PathBuf {
        run_dir.join(ADMIN_SOCKET)
    }

    /// Binds the socket in the run directory, which is there, for its owner only.
    ///
    /// Whoever has the observe socket has this one: what a daemon left behind is replaced.
    pub fn bind(run_dir: &Path) -> Result<Self, Error> {
        let path = Self::path(run_dir);
        let listen = |source: io::Error| Error::Listen { path: path.display().to_string(), source };
        // Bound under another name and with its permissions, then moved: nobody ever sees it wider open.
        let fresh = run_dir.join(format!(".{ADMIN_SOCKET}.new"));
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(listen(error)),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(&fresh).map_err(listen)?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600)).map_err(listen)?;
        fs::rename(&fresh, &path).map_err(listen)?;
        Ok(Self { listener })
    }

    /// Hands on what is asked until `stopping` becomes true; what is being answered then is answered.
    pub async fn serve(
        self,
        asked: mpsc::Sender<Asked>,
        kubepods: CgroupPath,
        view: watch::Receiver<View>,
        mut stopping: watch::Receiver<bool>,
    ) {
        let credit = Arc::new(Mutex::new(Credit::new(Instant::now())));
        let router = Router::new()
            .route("/v1/orders", post(order))
            .layer(DefaultBodyLimit::max(MAX_BYTES))
            .with_state(Shared { asked, credit });
        let places = Arc::new(Semaphore::new(MAX_PEERS));
        let mut connections = JoinSet::new();
        loop {
            let next = async {
                // It is never closed.
                let place = Arc::clone(&places).acquire_owned().await.ok();
                (place, self.listener.accept().await)
            };
            let (place, accepted) = tokio::select! {
                _ = stopping.wait_for(|stopping| *stopping) => break,
                Some(_ended) = connections.join_next() => continue,
                next = next => next,
            };
            let stream = match accepted {
                Ok((stream, _address)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "nobody can be let in on the admin socket");
                    tokio::time::sleep(NO_PEER).await;
                    continue;
                }
            };
            let peer = Peer::admit(&stream, &kubepods, &view.borrow());
            let router = router.clone().layer(Extension(peer));
            connections.spawn(async move {
                serve_one(stream, router).await;
                drop(place);
            });
        }
        while connections.join_next().await.is_some() {}
    }
}

async fn serve_one(stream: UnixStream, router: Router) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match tokio::time::timeout(WHOLE, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection to the admin socket failed"),
        Err(_elapsed) => tracing::debug!("a connection to the admin socket took too long"),
    }
}

async fn order(
    State(shared): State<Shared>,
    Extension(peer): Extension<Result<Peer, Stranger>>,
    body: Bytes,
) -> Response {
    let peer = match peer {
        Ok(peer) => peer,
        Err(stranger) => {
            tracing::warn!(%stranger, "a change was refused");
            return told(StatusCode::FORBIDDEN, &stranger.to_string());
        }
    };
    if !shared.credit.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now()) {
        let mut answer =
            told(StatusCode::TOO_MANY_REQUESTS, "too many changes at once: try again in a second");
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        return answer;
    }
    let wish = match serde_json::from_slice(&body) {
        Ok(wish) => wish,
        Err(error) => return told(StatusCode::BAD_REQUEST, &format!("this is no order: {error}")),
    };
    let stopping = || told(StatusCode::SERVICE_UNAVAILABLE, "the daemon is stopping");
    let (answer, answered) = oneshot::channel();
    if shared.asked.send(Asked { wish, peer, answer }).await.is_err() {
        return stopping();
    }
    match answered.await {
        Ok(Ok(done)) => Json(done).into_response(),
        Ok(Err(no)) => match no {
            No::Wrong(why) => told(StatusCode::BAD_REQUEST, &why),
            No::Unknown(why) => told(StatusCode::NOT_FOUND, &why),
            No::Refused(why) => told(StatusCode::CONFLICT, &why),
            No::Busy(why) => told(StatusCode::SERVICE_UNAVAILABLE, &why),
        },
        Err(_gone) => stopping(),
    }
}

fn told(status: StatusCode, error: &str) -> Response {
    (status, Json(json!({"error": error}))).into_response()
}

/// How many more requests are taken.
#[derive(Debug)]
struct Credit {
    left: u32,
    /// When the last one was given back.
    since: Instant,
}

impl Credit {
    fn new(now: Instant) -> Self {
        Self { left: BURST, since: now }
    }

    /// Whether one more is taken.
    fn take(&mut self, now: Instant) -> bool {
        while self.left < BURST && now.saturating_duration_since(self.since) >= REFILL {
            self.left += 1;
            self.since += REFILL;
        }
        if self.left == BURST {
            self.since = now;
        }
        let has = self.left > 0;
        self.left = self.left.saturating_sub(1);
        has
    }
}

#[cfg(test)]
mod tests;
