//! Every verb's way to the daemon: requests to the observe and the admin socket.

use std::{io, path::Path, time::Duration};

use anyhow::{Context as _, anyhow};
use axum::body::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{StatusCode, body::Incoming, client::conn::http1, header::HeaderValue};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use super::{Failure, exit::Unreachable, render::escape};
use crate::serve::{Admin, Done, Observe, OrderRequest, ReservationRequest};

/// How long the daemon may take to begin an answer. It takes milliseconds, or a few seconds on a node that is short of
/// everything.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The same for an order, which the daemon answers once it is on disk, or within 15 s.
const ORDER_TIMEOUT: Duration = Duration::from_secs(30);

/// The header with the cursor of the newest kept event.
const NEWEST: &str = "enforcer-newest";

/// The media type of events that carry a cursor each.
const WITH_CURSORS: &str = "text/event-stream";

/// A response of the daemon, read chunk by chunk.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    content_type: Option<HeaderValue>,
    newest: Option<HeaderValue>,
    body: Incoming,
}

impl Answer {
    /// Whether these are server-sent events, as requested.
    pub(super) fn has_cursors(&self) -> bool {
        let content_type = self.content_type.as_ref().map(HeaderValue::as_bytes);
        content_type.is_some_and(|content_type| content_type.starts_with(WITH_CURSORS.as_bytes()))
    }

    /// The cursor of the newest event when the daemon began to answer.
    pub(super) fn newest(&self) -> Option<&str> {
        self.newest.as_ref()?.to_str().ok()
    }

    /// The next part of the body; `None` at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => {
                    return Err(Failure::unreachable(
                        Unreachable::HungUp,
                        anyhow::Error::new(error).context(
                            "the daemon hung up: if it has exited, `journalctl -u enforcer` shows why",
                        ),
                    ));
                }
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// The whole body.
    pub(super) async fn bytes(mut self) -> Result<Vec<u8>, Failure> {
        let mut whole = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            whole.extend_from_slice(&chunk);
        }
        Ok(whole)
    }
}

impl Answer {
    /// The whole body as JSON; `path` is what was asked.
    pub(super) async fn json<T: serde::de::DeserializeOwned>(self, path: &str) -> Result<T, Failure> {
        let body = self.bytes().await?;
        Ok(serde_json::from_slice(&body)
            .with_context(|| format!("the daemon's answer to {path} cannot be read"))?)
    }
}

/// Sends a GET to the daemon's observe socket.
pub(super) async fn get(run_dir: &Path, path_and_query: &str) -> Result<Answer, Failure> {
    ask(run_dir, path_and_query, "*/*").await
}

/// The same for events with their cursors.
pub(super) async fn get_with_cursors(run_dir: &Path, path_and_query: &str) -> Result<Answer, Failure> {
    ask(run_dir, path_and_query, WITH_CURSORS).await
}

async fn ask(run_dir: &Path, path_and_query: &str, accept: &str) -> Result<Answer, Failure> {
    let request = hyper::Request::get(path_and_query)
        .header(hyper::header::HOST, "enforcer")
        .header(hyper::header::ACCEPT, accept)
        .body(Full::default())
        .with_context(|| format!("cannot make a request for {path_and_query:?}"))?;
    send(&Observe::path(run_dir), request, TIMEOUT).await
}

/// Sends an order to the daemon's admin socket.
pub(super) async fn order(run_dir: &Path, request: &OrderRequest) -> Result<Done, Failure> {
    let body = serde_json::to_vec(request).context("cannot write the order")?;
    change(run_dir, hyper::Request::post("/v1/orders"), body).await
}

/// Makes a reservation.
pub(super) async fn reserve(run_dir: &Path, request: &ReservationRequest) -> Result<Done, Failure> {
    let body = serde_json::to_vec(request).context("cannot write the reservation")?;
    change(run_dir, hyper::Request::post("/v1/reservations"), body).await
}

/// Ends a reservation of a valid name before its time.
pub(super) async fn release(run_dir: &Path, name: &str) -> Result<Done, Failure> {
    let path = format!("/v1/reservations?name={}", encode(name));
    change(run_dir, hyper::Request::delete(path), Vec::new()).await
}

/// Sends a request that changes something to the daemon's admin socket.
async fn change(
    run_dir: &Path,
    request: hyper::http::request::Builder,
    body: Vec<u8>,
) -> Result<Done, Failure> {
    let request = request
        .header(hyper::header::HOST, "enforcer")
        .header(hyper::header::CONTENT_TYPE, "application/json")
        .body(Full::from(body))
        .context("cannot make the request")?;
    let answer = send(&Admin::path(run_dir), request, ORDER_TIMEOUT).await?;
    let status = answer.status;
    let body = answer.bytes().await?;
    match status {
        StatusCode::OK => Ok(serde_json::from_slice(&body).context("the daemon's answer cannot be read")?),
        StatusCode::NOT_FOUND => Err(Failure::not_there(anyhow!("{}", said(&body)))),
        StatusCode::FORBIDDEN | StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS => {
            Err(Failure::refused(anyhow!("refused: {}", said(&body))))
        }
        status => Err(refusal(status, &body)),
    }
}

async fn send(
    socket: &Path,
    request: hyper::Request<Full<Bytes>>,
    patience: Duration,
) -> Result<Answer, Failure> {
    let stream = UnixStream::connect(socket).await.map_err(|error| no_connection(socket, error))?;
    let broken = |error: hyper::Error| {
        Failure::unreachable(
            Unreachable::HungUp,
            anyhow::Error::new(error)
                .context("the daemon did not answer: ask again, or see `journalctl -u enforcer`"),
        )
    };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "the connection to the daemon ended");
        }
    });
    let answer = tokio::time::timeout(patience, sender.send_request(request)).await.map_err(|elapsed| {
        let said = format!("has not answered for {} s", patience.as_secs());
        mute(socket, &said, anyhow::Error::new(elapsed))
    })?;
    let (mut head, body) = answer.map_err(broken)?.into_parts();
    let content_type = head.headers.remove(hyper::header::CONTENT_TYPE);
    let newest = head.headers.remove(NEWEST);
    Ok(Answer { status: head.status, content_type, newest, body })
}

fn no_connection(socket: &Path, error: io::Error) -> Failure {
    let kind = error.kind();
    let error = anyhow::Error::new(error);
    match kind {
        io::ErrorKind::PermissionDenied => Failure::refused(error.context(format!(
            "cannot open {}: ask as root or as a member of its group",
            socket.display()
        ))),
        // The listen backlog is full.
        io::ErrorKind::WouldBlock => mute(socket, "does not accept connections", error),
        _ => Failure::unreachable(
            Unreachable::Down,
            error.context(format!(
                "cannot reach the daemon on {}: start it with `enforcer run`, or name its --socket or the --config that it runs with",
                socket.display()
            )),
        ),
    }
}

fn mute(socket: &Path, said: &str, error: anyhow::Error) -> Failure {
    Failure::unreachable(
        Unreachable::Mute,
        error.context(format!(
            "the daemon listens on {} and {said}: is it stopped or frozen? See `systemctl status enforcer`",
            socket.display()
        )),
    )
}

/// The body of a successful response; any other status is an error.
pub(super) async fn get_json<T: serde::de::DeserializeOwned>(
    run_dir: &Path,
    path: &str,
) -> Result<T, Failure> {
    let answer = get(run_dir, path).await?;
    let status = answer.status;
    if !status.is_success() {
        return Err(refusal(status, &answer.bytes().await?));
    }
    answer.json(path).await
}

/// The failure for an error response of the daemon.
pub(super) fn refusal(status: StatusCode, body: &[u8]) -> Failure {
    let error = anyhow!("the daemon answers {status}: {}", said(body));
    if status == StatusCode::BAD_REQUEST { Failure::usage(error) } else { Failure::from(error) }
}

fn said(body: &[u8]) -> String {
    let error = serde_json::from_slice::<serde_json::Value>(body)
        .ok()
        .and_then(|value| value.get("error").and_then(|error| error.as_str().map(str::to_owned)));
    escape(&error.unwrap_or_else(|| String::from_utf8_lossy(body).trim().to_owned()))
}

/// Percent-encodes a query value.
pub(super) fn encode(value: &str) -> String {
    value.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
        encoded
    })
}

/// Runs a client's future on a runtime of its own.
pub(super) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(work)
}

#[cfg(test)]
mod tests {
    use tokio::{net::UnixListener, time::Instant};

    use super::*;
    use crate::policy::order::What;

    #[test]
    fn a_value_cannot_become_another_parameter() {
        assert_eq!(encode("a b&follow=1/\u{e9}"), "a%20b%26follow%3D1%2F%C3%A9");
    }

    /// The admin socket itself answers within 15 s, whatever comes of an order.
    #[tokio::test(start_paused = true)]
    async fn a_listener_that_does_not_answer_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let _sockets = [Observe::path(dir.path()), Admin::path(dir.path())]
            .map(|path| UnixListener::bind(path).unwrap());
        let start = Instant::now();
        let failure = get(dir.path(), "/v1/pods").await.unwrap_err();
        assert_eq!((failure.silence(), start.elapsed().as_secs()), (Some(Unreachable::Mute), 10));
        let start = Instant::now();
        let end = OrderRequest::End { what: What::Pause, reason: String::from("over") };
        let failure = order(dir.path(), &end).await.unwrap_err();
        assert_eq!((failure.silence(), start.elapsed().as_secs()), (Some(Unreachable::Mute), 30));
        assert!(failure.to_string().contains("is it stopped or frozen?"), "{failure}");
    }

    /// The backlog of a listener that accepts no connection is full at some time.
    #[tokio::test]
    async fn a_door_before_which_too_many_wait_is_not_taken_for_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = Observe::path(dir.path());
        let socket =
            rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None);
        let socket = socket.unwrap();
        rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        let _waiting = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let failure = get(dir.path(), "/v1/pods").await.unwrap_err();
        assert_eq!(failure.silence(), Some(Unreachable::Mute), "{failure}");
        drop(socket);
        let failure = get(dir.path(), "/v1/pods").await.unwrap_err();
        assert_eq!(failure.silence(), Some(Unreachable::Down), "{failure}");
    }
}
