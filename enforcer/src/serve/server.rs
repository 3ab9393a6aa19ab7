//! The observe socket, which answers all reads, on a thread that never delays the daemon.

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
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
};

use super::{
    ConfigView, Doctor, Foresight, OrderView, Requested, Scrape, Sockets, Usages, View, allocatable, config,
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

/// The threads for requests that read the log's older part, the candidates' usage or the flight recorder. More such
/// requests wait.
const BLOCKING_THREADS: usize = 2;

/// The socket cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The run directory could not be created, or its permissions not set.
    #[error("cannot prepare the run directory {path}")]
    RunDir {
        /// The directory.
        path: String,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
    /// Other users may change the run directory.
    #[error(
        "the run directory {path} {why}, so what it keeps there is not safe: {remedy}, or name another runDir"
    )]
    UnsafeRunDir {
        /// The directory.
        path: String,
        /// What is wrong with it.
        why: String,
        /// How to fix it.
        remedy: String,
    },
    /// The socket could not be bound.
    #[error("cannot listen on {path}")]
    Listen {
        /// The socket.
        path: String,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
    /// Its owner could not be set.
    #[error("cannot give {path} to {owner}: run as root, or configure no owner and no group for it")]
    Owner {
        /// The socket.
        path: String,
        /// The user and the group, as configured.
        owner: String,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
    /// Another process answers on it.
    #[error("another enforcer answers on {path}: stop it first, or give this one another runDir")]
    Taken {
        /// The socket.
        path: String,
        /// The process that listens on it, if it is visible here.
        pid: Option<i32>,
    },
    /// Serving ended.
    #[error("cannot serve {path}")]
    Serve {
        /// The socket.
        path: String,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
}

/// The sources of all answers.
#[derive(Debug)]
pub struct Sources {
    /// The events.
    pub journal: Journal,
    /// The host's facilities.
    pub doctor: Doctor,
    /// The flight recorder, if it runs.
    pub recorder: Option<Asker>,
    /// The usage of each candidate for eviction.
    pub usages: Usages,
    /// The eviction order, and the headroom.
    pub foresight: Foresight,
    /// The running configuration.
    pub config: watch::Receiver<Arc<ConfigView>>,
    /// The pods.
    pub view: watch::Receiver<View>,
    /// The operators' orders.
    pub orders: watch::Receiver<Vec<Order>>,
    /// What pods and reservations request.
    pub requested: watch::Receiver<Requested>,
    /// The metrics.
    pub metrics: Scrape,
    /// Whether the eviction thread works.
    pub evictor: Vital,
}

/// Checks whether one of the daemon's threads works.
#[derive(Clone)]
pub struct Vital(Arc<dyn Fn() -> bool + Send + Sync>);

impl Vital {
    /// Uses this function, which must not block.
    pub fn by(is_alive: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_alive))
    }
}

impl fmt::Debug for Vital {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Vital")
    }
}

/// The state of every request.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) journal: Journal,
    pub(super) doctor: Arc<Doctor>,
    pub(super) recorder: Option<Asker>,
    pub(super) usages: Usages,
    pub(super) foresight: Foresight,
    pub(super) config: watch::Receiver<Arc<ConfigView>>,
    pub(super) view: watch::Receiver<View>,
    pub(super) orders: watch::Receiver<Vec<Order>>,
    pub(super) requested: watch::Receiver<Requested>,
    pub(super) metrics: Scrape,
    pub(super) evictor: Vital,
    pub(super) ready: watch::Receiver<bool>,
    pub(super) stopping: watch::Receiver<bool>,
    /// The newest sequence for which followers are woken.
    pub(super) throttle: watch::Receiver<u64>,
    /// The daemon's own runtime.
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

    /// Creates the run directory if it does not exist, lets the owners of the sockets reach them, and binds this socket
    /// in it for its owner and group only.
    ///
    /// A socket that an earlier daemon left is replaced. A socket that answers is not.
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

    /// Answers until `stopping` becomes true, in a separate thread at normal priority: however much is read, it does
    /// not hinder the daemon, and gets no more CPU time than any other process.
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
        let Sources {
            journal,
            doctor,
            recorder,
            usages,
            foresight,
            config,
            view,
            orders,
            requested,
            metrics,
            evictor,
        } = sources;
        let throttle = WakeThrottle::new(&journal);
        let shared = Shared {
            journal: journal.clone(),
            doctor: Arc::new(doctor),
            recorder,
            usages,
            foresight,
            config,
            view,
            orders,
            requested,
            metrics,
            evictor,
            ready,
            stopping: stopping.clone(),
            throttle: throttle.subscribe(),
            daemon: Handle::current(),
        };
        let serving = async move {
            let listener = tokio::net::UnixListener::from_std(listener)?;
            // The throttle must run until the followers end.
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

/// Runs the future to its end in the calling thread.
fn on_own_runtime(serving: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    as_any_other();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().thread_name("observe-disk").on_thread_start(as_any_other);
    let runtime = threads::runtime(&mut builder, BLOCKING_THREADS)?;
    let served = runtime.block_on(serving);
    // Do not wait for a disk that does not answer.
    runtime.shutdown_background();
    served
}

/// Resets the thread to the normal priority: the daemon's threads have a higher one.
pub(super) fn as_any_other() {
    if let Err(error) = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 0) {
        tracing::debug!(%error, "cannot lower the priority of a thread that serves readers");
    }
}

fn router(shared: Shared) -> Router {
    Routes::new()
        .checking("/v1/events", get(events))
        .route("/v1/pods", get(pods))
        .route("/v1/config", get(config::config))
        .route("/v1/doctor", get(doctor))
        .route("/v1/recording", get(recording))
        .route("/v1/usages", get(usages))
        .checking("/v1/containers", get(containers::containers))
        .route("/v1/orders", get(orders))
        .route("/v1/allocatable", get(allocatable::allocatable))
        .checking(
            "/metrics",
            get(|State(shared): State<Shared>, headers: HeaderMap| async move {
                shared.metrics.answer(&headers).await
            }),
        )
        .checking("/v1/ranking", get(ranking::ranking))
        .route("/v1/headroom", get(headroom::headroom))
        .route("/v1/schema", get(schema))
        .checking("/livez", get(livez))
        .checking("/readyz", get(readyz))
        .with_state(shared)
}

/// Whether the daemon's main thread and the eviction thread work, not only this one.
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

/// The JSON Schema of events.
async fn schema() -> Response {
    ([(header::CONTENT_TYPE, "application/schema+json")], enforcer_events::SCHEMA).into_response()
}

/// The operators' orders that are in force.
async fn orders(State(shared): State<Shared>) -> Response {
    let now = now();
    let orders: Vec<_> = shared.orders.borrow().iter().map(|order| OrderView::new(order, now)).collect();
    Json(orders).into_response()
}

async fn doctor(State(shared): State<Shared>) -> Response {
    Json(&*shared.doctor).into_response()
}

/// The present usage of each candidate for eviction.
async fn usages(State(shared): State<Shared>) -> Response {
    Json(threads::blocking(move || shared.usages.read()).await).into_response()
}

/// The present content of the flight recorder, as a recording file.
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
