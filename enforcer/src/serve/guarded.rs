//! Drops clients that read nothing, and answers those whose request line never ends.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
    time::{Instant, Sleep},
};

/// The longest request line, in bytes. `GET /v1/events?…` with all parameters takes a quarter of it.
pub(super) const REQUEST_LINE_BYTES: usize = 4 << 10;

/// The most unread bytes that are drained before a connection is closed.
const POURED_AWAY_BYTES: usize = 256 << 10;

/// A connection that fails if the peer reads nothing for too long, and that answers an endless request line.
#[derive(Debug)]
pub(super) struct Guarded {
    stream: UnixStream,
    /// How long a peer may read nothing while data is pending.
    stalled: Duration,
    /// The time by which it has to read something.
    until: Option<Pin<Box<Sleep>>>,
    is_stalled: bool,
    /// How many bytes of a request line have come; `None` after its end.
    line_bytes: Option<usize>,
}

impl Guarded {
    pub(super) fn new(stream: UnixStream, stalled: Duration) -> Self {
        Self { stream, stalled, until: None, is_stalled: false, line_bytes: Some(0) }
    }

    /// Handles the result of a write. While none is possible, the timeout runs.
    fn wrote(&mut self, cx: &mut Context<'_>, wrote: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if wrote.is_ready() {
            self.is_stalled = false;
            // After an answer comes another request.
            self.line_bytes = Some(0);
            return wrote;
        }
        let deadline = || Instant::now() + self.stalled;
        let until = self.until.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline())));
        if !self.is_stalled {
            self.is_stalled = true;
            until.as_mut().reset(deadline());
        }
        ready!(until.as_mut().poll(cx));
        let message = format!("it has read nothing for {:?}", self.stalled);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)))
    }

    /// Counts received bytes of the request line. Hyper would answer an endless line like endless headers.
    fn came(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(before) = self.line_bytes else { return Ok(()) };
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let line_bytes = before + end.unwrap_or(bytes.len());
        if line_bytes <= REQUEST_LINE_BYTES {
            self.line_bytes = end.is_none().then_some(line_bytes);
            return Ok(());
        }
        let reported = too_long();
        let answer = format!(
            "HTTP/1.1 414 URI Too Long\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{reported}",
            reported.len()
        );
        // Nothing is queued for a peer that is sending a request, so there is room. One that has closed misses nothing.
        let wrote = self.stream.try_write(answer.as_bytes());
        self.pour_away();
        Err(io::Error::new(io::ErrorKind::InvalidData, format!("a request line without end; {wrote:?}")))
    }
}

impl Guarded {
    /// Discards unread input: otherwise close would reset the connection, and the peer might miss the answer that says
    /// why.
    fn pour_away(&self) {
        let mut away = [0; 4 << 10];
        for _ in 0..POURED_AWAY_BYTES / away.len() {
            if !matches!(self.stream.try_read(&mut away), Ok(1..)) {
                break;
            }
        }
    }
}

/// The error for a request line that is too long.
pub(super) fn too_long() -> String {
    serde_json::json!({"error": format!("the request line is longer than {REQUEST_LINE_BYTES} bytes")})
        .to_string()
}

impl AsyncRead for Guarded {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        Poll::Ready(this.came(buf.filled().get(before..).unwrap_or_default()))
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let wrote = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.wrote(cx, wrote)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let wrote = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.wrote(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
        this.pour_away();
        Poll::Ready(Ok(()))
    }
}
