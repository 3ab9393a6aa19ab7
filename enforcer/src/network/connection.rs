//! One HTTP connection to another machine, bounded in time and memory.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{HeaderMap, Request, StatusCode, body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::watch,
};

use super::{
    message::{Endpoint, Security},
    tls::{self, TlsError},
};
use crate::raw::unacknowledged_bytes;

/// How much of an answer's body is read so that the connection can be used again.
const MOST_ANSWER_BYTES: usize = 64 << 10;

/// How long to wait for the rest of an answer. Without it the connection is not used again.
const DRAIN: Duration = Duration::from_secs(1);

/// The longest head of an answer: a receiver must not fill this process's memory.
const MOST_HEAD_BYTES: usize = 32 << 10;

/// How long a connection may be silent before the kernel asks whether the other end is there, and how long it waits
/// before it asks again.
const KEEP_ALIVE: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(10)];

/// How often the kernel asks in vain before it ends the connection.
const KEEP_ALIVE_COUNT: u32 = 3;

/// How long what was sent may go unacknowledged before the kernel ends the connection, in milliseconds.
const UNACKNOWLEDGED_MS: u32 = 60_000;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    /// The host cannot be reached.
    #[error("cannot connect to {authority}")]
    Connect {
        /// Host and port.
        authority: String,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
    /// Connecting took too long.
    #[error("no connection to {authority} within {timeout_ms} ms")]
    TimedOut {
        /// Host and port.
        authority: String,
        /// The configured time.
        timeout_ms: u64,
    },
    /// TLS failed.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// It does not speak HTTP, or it closed the connection.
    #[error("the receiver did not answer")]
    Http(#[from] hyper::Error),
}

/// A connection to a receiver.
#[derive(Debug)]
pub(crate) struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    socket: Socket,
    /// Closed when the connection ends.
    alive: watch::Receiver<()>,
}

/// The socket of a connection, to ask the kernel how it is. It is open as long as this.
#[derive(Clone, Debug)]
pub(crate) struct Socket(Arc<OwnedFd>);

impl Socket {
    /// Whether the other end's machine has all that was sent. False if that is not known.
    pub(crate) fn is_acknowledged(&self) -> bool {
        unacknowledged_bytes(self.0.as_fd()).is_ok_and(|bytes| bytes == 0)
    }
}

impl Connection {
    /// Opens a connection: looks up the name, connects, does the TLS handshake.
    pub(crate) async fn open(endpoint: &Endpoint, security: &Security) -> Result<Self, ConnectionError> {
        let Endpoint { tls, host, port, authority, connect_timeout_ms, client: _ } = endpoint;
        let timeout_ms = *connect_timeout_ms;
        let connecting = async {
            let failed = |source| ConnectionError::Connect { authority: authority.clone(), source };
            let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?;
            notice_a_dead_end(&stream);
            // A request must not wait until the end of the handshake is acknowledged.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "a short request may be delayed");
            }
            let socket = Socket(Arc::new(stream.as_fd().try_clone_to_owned().map_err(failed)?));
            if *tls {
                Self::over(tls::wrap(stream, host, security).await?, socket).await
            } else {
                Self::over(stream, socket).await
            }
        };
        match tokio::time::timeout(Duration::from_millis(timeout_ms), connecting).await {
            Ok(connection) => connection,
            Err(_elapsed) => Err(ConnectionError::TimedOut { authority: authority.clone(), timeout_ms }),
        }
    }

    async fn over<S>(stream: S, socket: Socket) -> Result<Self, ConnectionError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) =
            http1::Builder::new().max_buf_size(MOST_HEAD_BYTES).handshake(TokioIo::new(stream)).await?;
        let (lives, alive) = watch::channel(());
        // The task ends with the sender.
        tokio::spawn(async move {
            let _lives = lives;
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to a receiver ended");
            }
        });
        Ok(Self { sender, socket, alive })
    }

    /// Whether another request may be sent over it.
    pub(crate) fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Waits until it is closed, by either end.
    pub(crate) async fn closed(&mut self) {
        while self.alive.changed().await.is_ok() {}
    }

    /// Its socket.
    pub(crate) fn socket(&self) -> Socket {
        self.socket.clone()
    }

    /// Sends a request. Returns the answer's status, headers and unread body.
    pub(crate) async fn send(
        &mut self,
        request: Request<Bytes>,
    ) -> Result<(StatusCode, HeaderMap, Incoming), ConnectionError> {
        self.sender.ready().await?;
        let answer = self.sender.send_request(request.map(Full::new)).await?;
        let (head, body) = answer.into_parts();
        Ok((head.status, head.headers, body))
    }
}

/// Has the kernel notice that the other end is gone without a word: a machine that lost its power, or a firewall that
/// forgot the connection. Where the kernel refuses, the time that a request may take is the bound.
fn notice_a_dead_end(stream: &TcpStream) {
    let [idle, interval] = KEEP_ALIVE;
    let set = || {
        sockopt::set_tcp_keepidle(stream, idle)?;
        sockopt::set_tcp_keepintvl(stream, interval)?;
        sockopt::set_tcp_keepcnt(stream, KEEP_ALIVE_COUNT)?;
        sockopt::set_tcp_user_timeout(stream, UNACKNOWLEDGED_MS)?;
        sockopt::set_socket_keepalive(stream, true)
    };
    if let Err(error) = set() {
        tracing::debug!(%error, "a connection is not watched for a dead end");
    }
}

/// Discards the rest of an answer, for a limited time. Returns whether it ended. The status counts even if the receiver
/// closes the connection after it or sends no more.
pub(super) async fn drain(body: Incoming) -> bool {
    tokio::time::timeout(DRAIN, read(body)).await.unwrap_or(false)
}

async fn read(mut body: Incoming) -> bool {
    let mut read = 0;
    while read < MOST_ANSWER_BYTES {
        match body.frame().await {
            None => return true,
            Some(Ok(frame)) => read += frame.data_ref().map_or(0, Bytes::len),
            Some(Err(_)) => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn the_kernel_watches_a_connection_for_a_dead_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        notice_a_dead_end(&stream);
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), KEEP_ALIVE[0]);
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), UNACKNOWLEDGED_MS);
    }
}
