use std::{
    fmt, io,
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
};

use super::{
    Doctor, Foresight, OrderView, Scrape, Sockets, Usages, View,
    connections::{self, Limits},
    containers,
    events::events,
    headroom, now, ranking,
    routes::Routes,
    socket,
    wake_throttle::WakeThrottle,
};
use crate::{journal::Journal, policy::order::Order, recorder::Asker, threads};

/// The observe socket's name in the run directory.
const OBSERVE_SOCKET: &str = "observe.sock";

/// How long the daemon's own thread may be busy before it counts as stuck.
const LIVE: Duration = Duration::from_secs(5);

/// What reads the log's older part, the candidates' usage or the flight recorder runs on these threads; the others wait.
const BLOCKING_THREADS: usize = 2;

/// A socket that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The run directory could not be made, or not be opened to whom it should be.
    #[error("cannot prepare the run directory {path}")]
    RunDir {
        /// The directory.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Others may change what is in the run directory.
    #[error(
        "the run directory {path} {why}, so what it keeps there is not safe: {remedy}, or name another runDir"
    )]
    UnsafeRunDir {
        /// The directory.
        path: String,
        /// What is wrong with it.
        why: String,
        /// What to do about it.
        remedy: String,
    },
    /// The socket could not be made.
    #[error("cannot listen on {path}")]
    Listen {
        /// The socket.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It could not be given to whom it should belong.
    #[error("cannot give {path} to {owner}: run as root, or configure no owner and no group of it")]
    Owner {
        /// The socket.
        path: String,
        /// The user and the group as the configuration has them.
        owner: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Somebody answers on it.
    #[error("another enforcer answers on {path}: stop it first, or give this one another runDir")]
    Taken {
        /// The socket.
        path: String,
        /// The process that listens on it, as far as it is visible here.
        pid: Option<i32>,
    },
    /// Serving ended.
    #[error("cannot serve {path}")]
    Serve {
        /// The socket.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// What requests are answered from.
#[derive(Debug)]
pub struct Sources {
    /// The events.
    pub journal: Journal,
    /// What this host offers.
    pub doctor: Doctor,
    /// The flight recorder, if it runs.
    pub recorder: Option<Asker>,
    /// What each candidate for eviction uses.
    pub usages: Usages,
    /// Who would be evicted, and what is left before that.
    pub foresight: Foresight,
    /// The pods.
    pub view: watch::Receiver<View>,
    /// What operators have ordered.
    pub orders: watch::Receiver<Vec<Order>>,
    /// The metrics.
    pub metrics: Scrape,
    /// Whether the thread that evicts does its work.
    pub evictor: Vital,
}

/// Says whether a thread of the daemon's does its work.
#[derive(Clone)]
pub struct Vital(Arc<dyn Fn() -> bool + Send + Sync>);

impl Vital {
    /// By that function, which may not block.
    pub fn by(is_alive: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_alive))
    }
}

impl fmt::Debug for Vital {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Vital")
    }
}

/// What every request needs.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) journal: Journal,
    pub(super) doctor: Arc<Doctor>,
    pub(super) recorder: Option<Asker>,
    pub(super) usages: Usages,
    pub(super) foresight: Foresight,
    pub(super) view: watch::Receiver<View>,
    pub(super) orders: watch::Receiver<Vec<Order>>,
    pub(super) metrics: Scrape,
    pub(super) evictor: Vital,
    pub(super) ready: watch::Receiver<bool>,
    pub(super) stopping: watch::Receiver<bool>,
    /// When there is something to send.
    pub(super) throttle: watch::Receiver<u64>,
    /// What the daemon itself runs on.
    pub(super) daemon: Handle,
}

/// The observe socket: bound, and served by [`Observe::serve`].
#[derive(Debug)]
pub struct Observe {
    listener: UnixListener,
    path: PathBuf,
}

impl Observe {
    /// The socket's path for a run directory.
    #[must_use]
    pub fn path(run_dir: &Path) -> PathBuf {
        run_dir.join(OBSERVE_SOCKET)
    }

    /// Makes the run directory where it is missing, opens it to whom the sockets are for, and binds this socket in it,
    /// for its owner and group only.
    ///
    /// A socket that a daemon left behind is replaced, one that answers is not.
    pub async fn bind(run_dir: &Path, sockets: &Sockets) -> Result<Self, Error> {
        let path = Self::path(run_dir);
        socket::prepare(run_dir, sockets)?;
        if let Ok(stream) = tokio::net::UnixStream::connect(&path).await {
            let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
            return Err(Error::Taken { path: path.display().to_string(), pid });
        }
        let listener = socket::bind(run_dir, OBSERVE_SOCKET, 0o660, &sockets.observe)?;
        let listener = listener.into_std();
        let listener =
            listener.map_err(|source| Error::Listen { path: path.display().to_string(), source })?;
        Ok(Self { listener, path })
    }

    /// Answers until `stopping` becomes true, in a thread of its own: however much is read, the daemon is not kept from
    /// its work, and gives up no more of the processor than any other process gets.
    pub async fn serve(
        self,
        sources: Sources,
        ready: watch::Receiver<bool>,
        stopping: watch::Receiver<bool>,
    ) -> Result<(), Error> {
        self.serve_within(Limits::default(), sources, ready, stopping).await
    }

    async fn serve_within(
        self,
        limits: Limits,
        sources: Sources,
        ready: watch::Receiver<bool>,
        stopping: watch::Receiver<bool>,
    ) -> Result<(), Error> {
        let Self { listener, path } = self;
        let failed = |source| Error::Serve { path: path.display().to_string(), source };
        let Sources { journal, doctor, recorder, usages, foresight, view, orders, metrics, evictor } =
            sources;
        let throttle = WakeThrottle::new(&journal);
        let shared = Shared {
            journal: journal.clone(),
            doctor: Arc::new(doctor),
            recorder,
            usages,
            foresight,
            view,
            orders,
            metrics,
            evictor,
            ready,
            stopping: stopping.clone(),
            throttle: throttle.subscribe(),
            daemon: Handle::current(),
        };
        let serving = async move {
            let listener = tokio::net::UnixListener::from_std(listener)?;
            // The followers hear the throttle to their end.
            tokio::select! {
                () = throttle.run(&journal) => {}
                () = connections::serve(listener, router(shared), limits, stopping) => {}
            }
            Ok(())
        };
        let (ended, end) = oneshot::channel();
        let thread = std::thread::Builder::new().name(String::from("observe"));
        thread.spawn(move || drop(ended.send(on_own_runtime(serving)))).map_err(failed)?;
        end.await.unwrap_or_else(|_gone| Err(io::Error::other("its thread ended early"))).map_err(failed)
    }
}

/// Runs to the end in the calling thread.
fn on_own_runtime(serving: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    as_any_other();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().thread_name("observe-disk").on_thread_start(as_any_other);
    let runtime = threads::runtime(&mut builder, BLOCKING_THREADS)?;
    let served = runtime.block_on(serving);
    // A disk that does not answer keeps nobody.
    runtime.shutdown_background();
    served
}

/// Takes back what the daemon's threads are preferred by.
fn as_any_other() {
    if let Err(error) = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 0) {
        tracing::debug!(%error, "readers are served with the daemon's own priority");
    }
}

fn router(shared: Shared) -> Router {
    Routes::new()
        .route("/v1/events", get(events))
        .route("/v1/pods", get(pods))
        .route("/v1/doctor", get(doctor))
        .route("/v1/recording", get(recording))
        .route("/v1/usages", get(usages))
        .route("/v1/containers", get(containers::containers))
        .route("/v1/orders", get(orders))
        .route("/metrics", get(|State(shared): State<Shared>| async move { shared.metrics.answer().await }))
        .route("/v1/ranking", get(ranking::ranking))
        .route("/v1/headroom", get(headroom::headroom))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .with_state(shared)
}

/// Whether the daemon's own thread and the one that evicts do their work, and not only this one.
async fn livez(State(shared): State<Shared>) -> Response {
    if !(shared.evictor.0)() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the eviction thread is stuck\n").into_response();
    }
    match tokio::time::timeout(LIVE, shared.daemon.spawn(async {})).await {
        Ok(Ok(())) => "ok\n".into_response(),
        Ok(Err(_)) => (StatusCode::SERVICE_UNAVAILABLE, "the daemon is stopping\n").into_response(),
        Err(_elapsed) => (StatusCode::SERVICE_UNAVAILABLE, "the daemon is stuck\n").into_response(),
    }
}

async fn pods(State(shared): State<Shared>) -> Response {
    let view = shared.view.borrow().clone();
    Json(view).into_response()
}

/// What operators have ordered, as long as it is in force.
async fn orders(State(shared): State<Shared>) -> Response {
    let now = now();
    let orders: Vec<_> = shared.orders.borrow().iter().map(|order| OrderView::new(order, now)).collect();
    Json(orders).into_response()
}

async fn doctor(State(shared): State<Shared>) -> Response {
    Json(&*shared.doctor).into_response()
}

/// What each candidate for eviction uses right now.
async fn usages(State(shared): State<Shared>) -> Response {
    Json(threads::blocking(move || shared.usages.read()).await).into_response()
}

/// What the flight recorder holds now, as a recording's file.
async fn recording(State(shared): State<Shared>) -> Response {
    let Some(recorder) = shared.recorder else {
        return (StatusCode::SERVICE_UNAVAILABLE, "the flight recorder does not run\n").into_response();
    };
    let file = threads::blocking(move || recorder.snapshot()).await;
    ([(header::CONTENT_TYPE, "application/octet-stream")], file).into_response()
}

async fn readyz(State(shared): State<Shared>) -> Response {
    if *shared.ready.borrow() {
        "ok\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready: the pods have not been read yet\n").into_response()
    }
}

#[cfg(test)]
mod tests;
