//! The admin socket: requests that change something. They are allowed from the node itself, to root, the daemon's own
//! user and the users in the configuration.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Extension, Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State, rejection::BytesRejection},
    http::{HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
    routing::post,
};
use tokio::{
    net::UnixListener,
    sync::{mpsc, oneshot, watch},
};

use super::{
    Access, AdminRequest, Done, Error, No, Peer, PeerError, Sockets, View,
    brief::{self, Acceptor},
    credit::Credits,
    guarded::Guarded,
    routes::{BODY_BYTES, Routes, reported},
    socket,
};
use crate::model::CgroupPath;

/// The socket's name in the run directory.
const ADMIN_SOCKET: &str = "admin.sock";

/// A request, its caller, and where the answer goes.
#[derive(Debug)]
pub struct Asked {
    /// The request.
    pub request: AdminRequest,
    /// The caller.
    pub peer: Peer,
    /// Takes the result.
    pub answer: oneshot::Sender<Result<Done, No>>,
}

/// The admin socket: bound, and served by [`Admin::serve`].
#[derive(Debug)]
pub struct Admin {
    listener: UnixListener,
    access: Access,
}

/// What every request needs.
#[derive(Clone)]
struct Shared {
    asked: mpsc::Sender<Asked>,
    credits: Arc<Mutex<Credits>>,
}

impl Admin {
    /// The socket's path for a run directory.
    #[must_use]
    pub fn path(run_dir: &Path) -> PathBuf {
        run_dir.join(ADMIN_SOCKET)
    }

    /// Binds the socket in the existing run directory, for its owner only, and for its group if one is configured.
    ///
    /// The process that has the observe socket has this one too, so a socket that an earlier daemon left is replaced.
    pub fn bind(run_dir: &Path, sockets: &Sockets) -> Result<Self, Error> {
        let access = sockets.admin.clone();
        let mode = if access.group.is_some() { 0o660 } else { 0o600 };
        Ok(Self { listener: socket::bind(run_dir, ADMIN_SOCKET, mode, &access)?, access })
    }

    /// Forwards requests until `stopping` becomes true. Requests that are under way then are still answered.
    pub async fn serve(
        self,
        asked: mpsc::Sender<Asked>,
        kubepods: CgroupPath,
        view: watch::Receiver<View>,
        mut stopping: watch::Receiver<bool>,
    ) {
        let router = Routes::new()
            .route("/v1/orders", post(order))
            .with_parameters("/v1/reservations", &["name"], post(reserve).delete(release))
            .with_state(Shared { asked, credits: Arc::default() })
            .layer(DefaultBodyLimit::max(BODY_BYTES));
        let door = AdminService { admin: self, router, kubepods, view };
        let mut under_way = brief::serve(&door, &mut stopping).await;
        while under_way.join_next().await.is_some() {}
    }
}

/// The socket with its routes and access check.
struct AdminService {
    admin: Admin,
    router: Router,
    kubepods: CgroupPath,
    view: watch::Receiver<View>,
}

impl Acceptor for AdminService {
    type Stream = Guarded;
    const NAME: &'static str = "the admin socket";
    const PLACES: usize = 8;

    async fn accept(&self) -> io::Result<(Guarded, Router)> {
        let (stream, _address) = self.admin.listener.accept().await?;
        let peer = Peer::admit(&stream, &self.admin.access, &self.kubepods, &self.view.borrow());
        Ok((Guarded::new(stream, brief::WHOLE), self.router.clone().layer(Extension(peer))))
    }
}

type Caller = Extension<Result<Peer, PeerError>>;
type Body = Result<Bytes, BytesRejection>;

async fn order(State(shared): State<Shared>, caller: Caller, body: Body) -> Response {
    let read =
        |body: &Bytes| serde_json::from_slice(body).map_err(|error| format!("this is not an order: {error}"));
    ask(&shared, caller, body, |body| read(body).map(AdminRequest::Order)).await
}

async fn reserve(State(shared): State<Shared>, caller: Caller, body: Body) -> Response {
    let read = |body: &Bytes| {
        serde_json::from_slice(body).map_err(|error| format!("this is not a reservation: {error}"))
    };
    ask(&shared, caller, body, |body| read(body).map(AdminRequest::Reserve)).await
}

async fn release(State(shared): State<Shared>, caller: Caller, uri: Uri, body: Body) -> Response {
    // No valid name has a character that a query would escape.
    let name = uri.query().and_then(|query| query.strip_prefix("name=")).filter(|name| !name.contains('&'));
    let name =
        name.map(str::to_owned).ok_or_else(|| String::from("say which: DELETE /v1/reservations?name=NAME"));
    ask(&shared, caller, body, |_| name.map(AdminRequest::Release)).await
}

/// Hands a request on, if its caller may make it now, and answers with the result.
async fn ask(
    shared: &Shared,
    Extension(peer): Caller,
    body: Body,
    read: impl FnOnce(&Bytes) -> Result<AdminRequest, String>,
) -> Response {
    let peer = match peer {
        Ok(peer) => peer,
        Err(stranger) => {
            tracing::warn!(%stranger, "a change was refused");
            return reported(StatusCode::FORBIDDEN, &stranger.to_string());
        }
    };
    let rationed = {
        let mut credits = shared.credits.lock().unwrap_or_else(PoisonError::into_inner);
        credits.take(peer.uid, Instant::now())
    };
    if let Err(wait) = rationed {
        return too_many(peer.uid, wait);
    }
    let body = match body {
        Ok(body) => body,
        Err(error) => return reported(error.status(), &error.body_text()),
    };
    let request = match read(&body) {
        Ok(request) => request,
        Err(error) => return reported(StatusCode::BAD_REQUEST, &error),
    };
    let stopping = || reported(StatusCode::SERVICE_UNAVAILABLE, "the daemon is stopping");
    let (answer, answered) = oneshot::channel();
    if shared.asked.send(Asked { request, peer, answer }).await.is_err() {
        return stopping();
    }
    match answered.await {
        Ok(Ok(done)) => Json(done).into_response(),
        Ok(Err(no)) => match no {
            No::Wrong(why) => reported(StatusCode::BAD_REQUEST, &why),
            No::Unknown(why) => reported(StatusCode::NOT_FOUND, &why),
            No::Refused(why) => reported(StatusCode::CONFLICT, &why),
            No::Busy(why) => reported(StatusCode::SERVICE_UNAVAILABLE, &why),
        },
        Err(_gone) => stopping(),
    }
}

fn too_many(uid: u32, wait: Duration) -> Response {
    let error =
        format!("too many changes of uid {uid} at once: the next is taken in {} ms", wait.as_millis());
    let mut answer = reported(StatusCode::TOO_MANY_REQUESTS, &error);
    // In whole seconds, rounded up.
    let seconds = wait.as_millis().div_ceil(1_000).max(1);
    if let Ok(seconds) = HeaderValue::from_str(&seconds.to_string()) {
        answer.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    answer
}

#[cfg(test)]
mod tests;
