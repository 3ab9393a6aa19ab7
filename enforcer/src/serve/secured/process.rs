//! The metrics process: it does the TLS handshakes, asks clients who they are, and gets each page from the daemon.

use std::{
    collections::BTreeMap,
    io,
    os::fd::AsFd as _,
    process::ExitCode,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    http::{HeaderMap, StatusCode, Uri, Version, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use bytes::Bytes;
use rustls::pki_types::UnixTime;
use tokio::{
    net::{
        TcpListener, TcpStream, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    runtime::{Builder, Runtime},
    sync::{mpsc, oneshot, watch},
};
use tokio_rustls::TlsAcceptor;

use super::{
    NAME,
    message::{Heard, MOST_PAGE_BYTES, Say, Settings},
    tls::Served,
};
use crate::{
    helper::{self, Kind},
    metrics::Format,
    serve::{brief, hosts::Hosts, metrics},
};

/// The hidden verb that this program is started with.
pub const VERB: &str = "metrics-process";

/// How long a TLS handshake may take. The request's head has a limit of its own after it.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// How many messages may wait to be written.
const WAITING: usize = 64;

/// Serves the listener on its standard output, by what the daemon says on the socket on its standard input, until that
/// is closed.
#[must_use]
pub fn main() -> ExitCode {
    helper::main((NAME, Kind::Metrics), runtime, |daemon| async {
        let listener = std::net::TcpListener::from(io::stdout().as_fd().try_clone_to_owned()?);
        listener.set_nonblocking(true)?;
        serve(daemon, TcpListener::from_std(listener)?).await
    })
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// What connections get.
#[derive(Clone)]
enum State {
    /// The daemon has not said it yet: they wait in the listener's queue.
    Unknown,
    /// Nothing: they are closed.
    Closed,
    /// The metrics, if they may have them.
    Open(Arc<Served>, Hosts),
}

/// Serves until the daemon closes its socket.
pub(super) async fn serve(daemon: UnixStream, listener: TcpListener) -> io::Result<()> {
    let (mut reader, writer) = daemon.into_split();
    let (frames, outgoing) = mpsc::channel(WAITING);
    let (settled, mut state) = watch::channel(State::Unknown);
    let pages = Pages { frames: frames.clone(), waiting: Arc::default() };
    let of_daemon = read_all(&mut reader, &frames, &settled, &pages);
    let talks = async {
        // It outlives this.
        drop(state.wait_for(|state| !matches!(state, State::Unknown)).await);
        metrics::welcome(&listener, |stream, asked| {
            talk(stream, state.borrow().clone(), asked, pages.clone())
        })
        .await;
    };
    tokio::select! {
        read = of_daemon => read,
        written = write_all(writer, outgoing) => written,
        () = talks => Ok(()),
    }
}

/// Follows what the daemon says.
async fn read_all(
    reader: &mut OwnedReadHalf,
    frames: &mpsc::Sender<Heard>,
    settled: &watch::Sender<State>,
    pages: &Pages,
) -> io::Result<()> {
    let mut present: Option<(Settings, Result<Arc<Served>, String>)> = None;
    while let Some((say, body)) = helper::read::<Say>(reader, MOST_PAGE_BYTES).await? {
        match say {
            Say::Page { id, written } => pages.arrived(id, written.then_some(body)),
            Say::Settings(settings) => {
                let (settings, served) = match present.take() {
                    Some(same) if same.0 == *settings => same,
                    _ => {
                        let served = prepare(&settings);
                        (*settings, served)
                    }
                };
                let (state, problem) = match &served {
                    Ok(served) => {
                        let state = State::Open(Arc::clone(served), Hosts::new("localhost", &settings.hosts));
                        let path = settings.contents.as_ref().map(|files| files.certificate.path.display());
                        let outdated = served.outdated(UnixTime::now());
                        (state, outdated.zip(path).map(|(why, path)| format!("the certificate {path} {why}")))
                    }
                    Err(why) => (State::Closed, Some(why.clone())),
                };
                settled.send_replace(state);
                present = Some((settings, served));
                // The other end of it is ours.
                drop(frames.send(Heard::Settled { problem }).await);
            }
        }
    }
    Ok(())
}

fn prepare(settings: &Settings) -> Result<Arc<Served>, String> {
    let contents = settings.contents.as_ref().ok_or("there is no certificate")?;
    Served::new(contents).map(Arc::new).map_err(|error| crate::chain(&error))
}

async fn write_all(mut writer: OwnedWriteHalf, mut outgoing: mpsc::Receiver<Heard>) -> io::Result<()> {
    while let Some(heard) = outgoing.recv().await {
        helper::write(&mut writer, &helper::encode(&heard, &[], 0)?).await?;
    }
    Ok(())
}

/// Serves one connection.
async fn talk(stream: TcpStream, state: State, asked: Arc<AtomicBool>, pages: Pages) {
    let State::Open(served, hosts) = state else { return };
    let acceptor = TlsAcceptor::from(Arc::clone(&served.config));
    // What went wrong is the client's to say: it gets the alert.
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await else { return };
    let has_certificate = stream.get_ref().1.peer_certificates().is_some();
    let answer = move |version: Version, uri: Uri, headers: HeaderMap| async move {
        asked.store(true, Ordering::Relaxed);
        if !served.admits(has_certificate, &headers) {
            return unauthorized();
        }
        if let Some(refused) = metrics::misdirected(&hosts, version, &uri, &headers) {
            return refused;
        }
        let format = metrics::format(&headers);
        match pages.get(format).await {
            Some(page) => metrics::answer(format, page),
            None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    };
    brief::answer(NAME, stream, Router::new().route("/metrics", get(answer))).await;
}

fn unauthorized() -> Response {
    let head = [(header::WWW_AUTHENTICATE, "Bearer")];
    (StatusCode::UNAUTHORIZED, head, "show a token or a certificate that may read metrics\n").into_response()
}

/// Gets pages from the daemon.
#[derive(Clone)]
struct Pages {
    frames: mpsc::Sender<Heard>,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    next: u64,
    replies: BTreeMap<u64, oneshot::Sender<Option<Bytes>>>,
}

impl Pages {
    /// The page; `None` if the daemon cannot write it.
    async fn get(&self, format: Format) -> Option<Bytes> {
        let (reply, replied) = oneshot::channel();
        let id = {
            let mut waiting = self.waiting();
            let id = waiting.next;
            waiting.next += 1;
            waiting.replies.insert(id, reply);
            id
        };
        let _withdrawn = Withdrawal { id, pages: self };
        self.frames.send(Heard::Wanted { id, classic: format == Format::Classic }).await.ok()?;
        replied.await.ok().flatten()
    }

    /// Hands a page on. The client may be gone.
    fn arrived(&self, id: u64, page: Option<Bytes>) {
        if let Some(reply) = self.waiting().replies.remove(&id) {
            drop(reply.send(page));
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets a request once nobody waits for its answer, also because its connection was closed meanwhile.
struct Withdrawal<'a> {
    id: u64,
    pages: &'a Pages,
}

impl Drop for Withdrawal<'_> {
    fn drop(&mut self) {
        self.pages.waiting().replies.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_whose_client_is_gone_is_forgotten() {
        let (frames, mut wanted) = mpsc::channel(1);
        let pages = Pages { frames, waiting: Arc::default() };
        let of_client = pages.clone();
        let asking = tokio::spawn(async move { of_client.get(Format::Classic).await });
        let Some(Heard::Wanted { id, .. }) = wanted.recv().await else { panic!() };
        assert_eq!(pages.waiting().replies.len(), 1);
        asking.abort();
        assert!(asking.await.unwrap_err().is_cancelled());
        assert_eq!(pages.waiting().replies.len(), 0);
        // Its page may come all the same.
        pages.arrived(id, None);
    }
}
