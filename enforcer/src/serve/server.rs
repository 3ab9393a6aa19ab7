use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use tokio::{net::UnixListener, sync::watch};

use super::{Doctor, Foresight, OrderView, Usages, View, containers, events, headroom, now, ranking};
use crate::{journal::Journal, policy::order::Order, recorder::Asker};

/// The observe socket's name in the run directory.
const OBSERVE_SOCKET: &str = "observe.sock";

/// A socket that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The run directory could not be made.
    #[error("cannot create the run directory {path}")]
    RunDir {
        /// The directory.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
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
    /// Somebody answers on it.
    #[error("another enforcer answers on {path}: stop it first, or give this one another runDir")]
    Taken {
        /// The socket.
        path: String,
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
    pub(super) ready: watch::Receiver<bool>,
    pub(super) stopping: watch::Receiver<bool>,
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

    /// Makes the run directory where it is missing, and binds the socket in it, for its owner and group only.
    ///
    /// A socket that a daemon left behind is replaced, one that answers is not.
    pub async fn bind(run_dir: &Path) -> Result<Self, Error> {
        let path = Self::path(run_dir);
        let shown = path.display().to_string();
        let made = fs::DirBuilder::new().recursive(true).mode(0o750).create(run_dir);
        made.map_err(|source| Error::RunDir { path: run_dir.display().to_string(), source })?;
        if tokio::net::UnixStream::connect(&path).await.is_ok() {
            return Err(Error::Taken { path: shown });
        }
        let listen = |source| Error::Listen { path: shown.clone(), source };
        // Bound under another name and with its permissions, then moved: nobody ever sees it wider open, or absent.
        let fresh = run_dir.join(format!(".{OBSERVE_SOCKET}.new"));
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(listen(error)),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(&fresh).map_err(listen)?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o660)).map_err(listen)?;
        fs::rename(&fresh, &path).map_err(listen)?;
        Ok(Self { listener, path })
    }

    /// Answers until `stopping` becomes true.
    pub async fn serve(
        self,
        sources: Sources,
        ready: watch::Receiver<bool>,
        stopping: watch::Receiver<bool>,
    ) -> Result<(), Error> {
        let Self { listener, path } = self;
        let Sources { journal, doctor, recorder, usages, foresight, view, orders } = sources;
        let mut stop = stopping.clone();
        let doctor = Arc::new(doctor);
        let router =
            router(Shared { journal, doctor, recorder, usages, foresight, view, orders, ready, stopping });
        let stopped = async move {
            // The sender's end means the same as the word.
            if stop.wait_for(|stopping| *stopping).await.is_err() {
                tracing::debug!("the daemon ended without saying so");
            }
        };
        axum::serve(listener, router)
            .with_graceful_shutdown(stopped)
            .await
            .map_err(|source| Error::Serve { path: path.display().to_string(), source })
    }
}

fn router(shared: Shared) -> Router {
    Router::new()
        .route("/v1/events", get(events::events))
        .route("/v1/pods", get(pods))
        .route("/v1/doctor", get(doctor))
        .route("/v1/recording", get(recording))
        .route("/v1/usages", get(usages))
        .route("/v1/containers", get(containers::containers))
        .route("/v1/orders", get(orders))
        .route("/v1/ranking", get(ranking::ranking))
        .route("/v1/headroom", get(headroom::headroom))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .with_state(shared)
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
    match tokio::task::spawn_blocking(move || shared.usages.read()).await {
        Ok(usages) => Json(usages).into_response(),
        Err(error) => {
            tracing::error!(%error, "the usages could not be read");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// What the flight recorder holds now, as a recording's file.
async fn recording(State(shared): State<Shared>) -> Response {
    let Some(recorder) = shared.recorder else {
        return (StatusCode::SERVICE_UNAVAILABLE, "the flight recorder does not run\n").into_response();
    };
    match tokio::task::spawn_blocking(move || recorder.snapshot()).await {
        Ok(file) => ([(header::CONTENT_TYPE, "application/octet-stream")], file).into_response(),
        Err(error) => {
            tracing::error!(%error, "the recording could not be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
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
