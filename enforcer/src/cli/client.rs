use std::{io, path::Path};

use anyhow::{Context as _, anyhow};
use axum::body::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{StatusCode, body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use super::{Failure, render::escape};
use crate::serve::{Admin, Done, Observe, Wish};

/// One answer of the daemon, read chunk by chunk.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    body: Incoming,
}

impl Answer {
    /// The next part of the body; none at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => {
                    return Err(Failure::unreachable(
                        anyhow::Error::new(error).context(
                            "the daemon hung up: `journalctl -u enforcer` says why, if it has ended",
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

/// Asks the daemon on its observe socket.
pub(super) async fn get(run_dir: &Path, path_and_query: &str) -> Result<Answer, Failure> {
    let request = hyper::Request::get(path_and_query)
        .header(hyper::header::HOST, "enforcer")
        .body(Full::default())
        .with_context(|| format!("cannot ask for {path_and_query:?}"))?;
    send(&Observe::path(run_dir), request).await
}

/// Has the daemon do something, by its admin socket.
pub(super) async fn wish(run_dir: &Path, wish: &Wish) -> Result<Done, Failure> {
    let body = serde_json::to_vec(wish).context("cannot write the order")?;
    let request = hyper::Request::post("/v1/orders")
        .header(hyper::header::HOST, "enforcer")
        .header(hyper::header::CONTENT_TYPE, "application/json")
        .body(Full::from(body))
        .context("cannot ask for an order")?;
    let answer = send(&Admin::path(run_dir), request).await?;
    let status = answer.status;
    let body = answer.bytes().await?;
    match status {
        StatusCode::OK => Ok(serde_json::from_slice(&body).context("the daemon's answer cannot be read")?),
        StatusCode::FORBIDDEN
        | StatusCode::NOT_FOUND
        | StatusCode::CONFLICT
        | StatusCode::TOO_MANY_REQUESTS => Err(Failure::refused(anyhow!("refused: {}", said(&body)))),
        status => Err(refusal(status, &body)),
    }
}

async fn send(socket: &Path, request: hyper::Request<Full<Bytes>>) -> Result<Answer, Failure> {
    let stream = UnixStream::connect(socket).await.map_err(|error| {
        let denied = error.kind() == io::ErrorKind::PermissionDenied;
        let error = anyhow::Error::new(error);
        if denied {
            return Failure::refused(error.context(format!(
                "cannot open {}: ask as root or as a member of its group",
                socket.display()
            )));
        }
        Failure::unreachable(error.context(format!(
            "cannot reach the daemon on {}: start it with `enforcer run`, or give the --config that it runs with",
            socket.display()
        )))
    })?;
    let broken = |error: hyper::Error| {
        Failure::unreachable(
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
    let answer = sender.send_request(request).await.map_err(broken)?;
    let (head, body) = answer.into_parts();
    Ok(Answer { status: head.status, body })
}

/// The body of an answer that must be a success.
pub(super) async fn get_json<T: serde::de::DeserializeOwned>(
    run_dir: &Path,
    path: &str,
) -> Result<T, Failure> {
    let answer = get(run_dir, path).await?;
    let status = answer.status;
    let body = answer.bytes().await?;
    if !status.is_success() {
        return Err(refusal(status, &body));
    }
    Ok(serde_json::from_slice(&body)
        .with_context(|| format!("the daemon's answer to {path} cannot be read"))?)
}

/// What the daemon said instead of what was asked for.
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

/// Percent-encodes a query's value.
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

/// Runs a client's work on a runtime of its own.
pub(super) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::encode;

    #[test]
    fn a_value_cannot_become_another_parameter() {
        assert_eq!(encode("a b&follow=1/\u{e9}"), "a%20b%26follow%3D1%2F%C3%A9");
    }
}
