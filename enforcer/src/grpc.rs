//! Calls over gRPC, that is over HTTP/2, on a connection that is there.
//!
//! It uses `h2` itself. A gRPC framework stands on the same crate, and adds layers for what one local connection with
//! a few calls has no use for.

use std::{fmt, future::Future, time::Duration};

use bytes::{Buf as _, Bytes, BytesMut};
use h2::{
    RecvStream,
    client::{Builder, SendRequest},
};
use hyper::{
    HeaderMap, Method, Request, StatusCode, Version,
    header::{CONTENT_TYPE, HeaderValue},
};
use prost::Message;
use tokio::net::UnixStream;

use crate::helper::plain;

/// The largest message: what the kubelet takes from a runtime, too.
pub(crate) const MOST_ANSWER_BYTES: usize = 16 << 20;

/// A message is preceded by a byte for its compression and four for its length.
const PREFIX_BYTES: usize = 5;

/// The longest headers of an answer.
const MOST_HEADER_BYTES: u32 = 32 << 10;

/// The status of a call of something that the other end does not have (`UNIMPLEMENTED`).
const UNIMPLEMENTED: u32 = 12;

/// How often the other end is asked whether it still answers, as long as a call of no set time is under way.
const PROBE_EVERY: Duration = Duration::from_secs(20);

/// How many of these questions in a row may be unanswered.
const PROBES: u32 = 2;

/// How long it may take to answer one.
const PROBE_TIMEOUT_MS: u64 = 10_000;

/// What is called for that. A server that does not have it says so, which is an answer, too.
///
/// A PING frame of HTTP/2 does not serve: grpc-go closes a connection after three that come within five minutes of each other
/// while it has sent nothing (`handlePing` of `internal/transport`, `MinTime` of the `EnforcementPolicy`), and a kubelet at rest sends nothing.
const PROBE: &str = "/grpc.health.v1.Health/Check";

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GrpcError {
    /// The connection broke, or it is not HTTP/2.
    #[error("the connection failed")]
    Http2(#[from] h2::Error),
    /// The request cannot be written.
    #[error("the request cannot be written")]
    Request(#[from] hyper::http::Error),
    /// What answers does not speak gRPC.
    #[error("the answer is not gRPC: {0}")]
    NoGrpc(String),
    /// The call failed there.
    #[error("the answer has status {code}: {message}")]
    Status {
        /// gRPC's number of the status.
        code: u32,
        /// Its words.
        message: String,
    },
    /// The answer is larger than is taken.
    #[error("the answer has {bytes} bytes: at most {MOST_ANSWER_BYTES} are taken")]
    TooLarge {
        /// How large it says that it is.
        bytes: usize,
    },
    /// The answer is not one whole message.
    #[error("the answer is not one whole message")]
    Incomplete,
    /// The connection is open, and the other end does nothing.
    #[error("the other end has not answered anything within {timeout_ms} ms: it hangs")]
    Silent {
        /// How long it was waited for.
        timeout_ms: u64,
    },
}

impl GrpcError {
    /// The other end's words, if it does not know what was called.
    pub(crate) fn unimplemented(&self) -> Option<&str> {
        match self {
            Self::Status { code: UNIMPLEMENTED, message } => Some(message),
            _ => None,
        }
    }
}

/// A connection that calls can be made on.
#[derive(Clone)]
pub(crate) struct Channel(SendRequest<Bytes>);

impl fmt::Debug for Channel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Channel").finish_non_exhaustive()
    }
}

impl Channel {
    /// Begins to speak. What is returned beside the channel drives the connection, and ends with it.
    pub(crate) async fn open(
        stream: UnixStream,
    ) -> Result<(Self, impl Future<Output = Result<(), h2::Error>> + Send + 'static), GrpcError> {
        let mut builder = Builder::new();
        builder.enable_push(false).max_header_list_size(MOST_HEADER_BYTES);
        let (sender, connection) = builder.handshake(stream).await?;
        Ok((Self(sender), connection))
    }

    /// Calls a method, and returns its answer's message. The other end learns how long it may take; the caller has to end
    /// it itself. Safe to cancel: the call is given up at the other end too.
    pub(crate) async fn call(
        &self,
        path: &str,
        message: &impl Message,
        timeout_ms: u64,
    ) -> Result<Vec<u8>, GrpcError> {
        let mut answer = self.open_call(path, message, Some(timeout_ms)).await?;
        let message = answer.next().await?.ok_or(GrpcError::Incomplete)?;
        match answer.next().await? {
            None => Ok(message),
            Some(_) => Err(GrpcError::Incomplete),
        }
    }

    /// Calls a method whose answer is a stream of messages. The call is given up when that is dropped.
    pub(crate) async fn stream(&self, path: &str, message: &impl Message) -> Result<Messages, GrpcError> {
        self.open_call(path, message, None).await
    }

    /// Asks again and again whether the other end still answers, and returns when it does not. A stream alone does not show
    /// that: it may have nothing to say.
    pub(crate) async fn silence(&self) -> GrpcError {
        // On a node that reclaims all the time, one may take longer.
        let mut unanswered = 0;
        while unanswered < PROBES {
            tokio::time::sleep(PROBE_EVERY).await;
            let limit = Duration::from_millis(PROBE_TIMEOUT_MS);
            match tokio::time::timeout(limit, self.call(PROBE, &(), PROBE_TIMEOUT_MS)).await {
                Err(_elapsed) => unanswered += 1,
                Ok(Err(lost @ (GrpcError::Http2(_) | GrpcError::Request(_)))) => return lost,
                // Whatever the answer is, there is one.
                Ok(_) => unanswered = 0,
            }
        }
        GrpcError::Silent { timeout_ms: PROBE_TIMEOUT_MS }
    }

    async fn open_call(
        &self,
        path: &str,
        message: &impl Message,
        timeout_ms: Option<u64>,
    ) -> Result<Messages, GrpcError> {
        let mut request = Request::builder()
            .method(Method::POST)
            .version(Version::HTTP_2)
            // What it is called is of no matter on a socket of this machine, but there must be a valid name.
            .uri(format!("http://localhost{path}"))
            .header(CONTENT_TYPE, "application/grpc")
            .header("te", "trailers")
            .header("user-agent", crate::USER_AGENT);
        if let Some(timeout_ms) = timeout_ms {
            request = request.header("grpc-timeout", format!("{timeout_ms}m"));
        }
        let mut sender = self.0.clone().ready().await?;
        let (answer, mut body) = sender.send_request(request.body(())?, false)?;
        body.send_data(frame(message), true)?;
        let (head, body) = answer.await?.into_parts();
        if head.status != StatusCode::OK {
            return Err(GrpcError::NoGrpc(head.status.to_string()));
        }
        // An error may come as headers alone.
        if let Some(outcome) = outcome(&head.headers) {
            outcome?;
            return Err(GrpcError::Incomplete);
        }
        let kind = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        if !kind.starts_with(b"application/grpc") {
            return Err(GrpcError::NoGrpc(plain(&String::from_utf8_lossy(kind))));
        }
        Ok(Messages { body, received: Received::default() })
    }
}

/// The messages of an answer, as they come.
pub(crate) struct Messages {
    body: RecvStream,
    received: Received,
}

impl Messages {
    /// The next message; `None` once the call has ended well. What is read makes room for more.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>, GrpcError> {
        loop {
            if let Some(message) = self.received.take()? {
                return Ok(Some(message));
            }
            let Some(data) = self.body.data().await else { break };
            let data = data?;
            self.received.add(&data);
            self.body.flow_control().release_capacity(data.len())?;
        }
        let trailers = self.body.trailers().await?.ok_or(GrpcError::Incomplete)?;
        outcome(&trailers).ok_or(GrpcError::Incomplete)??;
        if self.received.is_empty() { Ok(None) } else { Err(GrpcError::Incomplete) }
    }
}

/// A message behind its prefix.
fn frame(message: &impl Message) -> Bytes {
    let message = message.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0][..], &length.to_be_bytes(), &message].concat().into()
}

/// What has come of messages, with their prefixes.
#[derive(Debug, Default)]
struct Received(BytesMut);

impl Received {
    fn add(&mut self, data: &[u8]) {
        self.0.extend_from_slice(data);
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next message, if all of it has come.
    fn take(&mut self) -> Result<Option<Vec<u8>>, GrpcError> {
        let Some((&[compression, ref length @ ..], _)) = self.0.split_first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        let bytes = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if compression != 0 {
            return Err(GrpcError::NoGrpc(String::from("a compressed message")));
        }
        if bytes > MOST_ANSWER_BYTES {
            return Err(GrpcError::TooLarge { bytes });
        }
        let whole = PREFIX_BYTES + bytes;
        if self.0.len() < whole {
            self.0.reserve(whole - self.0.len());
            return Ok(None);
        }
        let mut message = self.0.split_to(whole);
        message.advance(PREFIX_BYTES);
        // What a large message took is not kept for small ones.
        if self.0.is_empty() {
            self.0 = BytesMut::new();
        }
        Ok(Some(message.into()))
    }
}

/// How a call ended, if these headers say so.
fn outcome(headers: &HeaderMap) -> Option<Result<(), GrpcError>> {
    let status = headers.get("grpc-status")?;
    let Some(code) = status.to_str().ok().and_then(|code| code.parse().ok()) else {
        return Some(Err(GrpcError::NoGrpc(String::from("grpc-status is not a number"))));
    };
    if code == 0 {
        return Some(Ok(()));
    }
    let message = headers.get("grpc-message").map(HeaderValue::as_bytes).unwrap_or_default();
    Some(Err(GrpcError::Status { code, message: plain(&percent_decoded(message)) }))
}

/// What stands for other characters as `%41` is these again; anything else stays.
fn percent_decoded(text: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, behind)) = rest.split_first() {
        let byte = match behind {
            [high, low, ..] if first == b'%' => hex(*high).zip(hex(*low)).map(|(high, low)| high << 4 | low),
            _ => None,
        };
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { behind.get(2..).unwrap_or_default() } else { behind };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hex(digit: u8) -> Option<u8> {
    u8::try_from(char::from(digit).to_digit(16)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages that parts make, and whether something is left.
    fn received(parts: &[&[u8]]) -> Result<(Vec<Vec<u8>>, bool), GrpcError> {
        let mut received = Received::default();
        let mut messages = Vec::new();
        for part in parts {
            received.add(part);
            while let Some(message) = received.take()? {
                messages.push(message);
            }
        }
        Ok((messages, !received.is_empty()))
    }

    #[test]
    fn messages_are_whole_however_they_are_cut() {
        let messages = [0, 0, 0, 0, 3, b'a', b'b', b'c', 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, b'd'];
        let expected = (vec![b"abc".to_vec(), Vec::new(), b"d".to_vec()], false);
        for at in 0..=messages.len() {
            let (first, second) = messages.split_at(at);
            assert_eq!(received(&[first, second]).unwrap(), expected, "{at}");
        }
        let single: Vec<&[u8]> = messages.chunks(1).collect();
        assert_eq!(received(&single).unwrap(), expected);
    }

    #[test]
    fn what_is_cut_off_or_compressed_is_no_message() {
        for wrong in [&[0; 4][..], &[0, 0, 0, 0, 2, b'a'], &[0, 0, 0, 0, 1]] {
            assert_eq!(received(&[wrong]).unwrap(), (vec![], true), "{wrong:?}");
        }
        assert!(matches!(received(&[&[1, 0, 0, 0, 0]]), Err(GrpcError::NoGrpc(_))));
    }

    #[test]
    fn what_is_too_large_is_refused_by_its_prefix() {
        let bytes = MOST_ANSWER_BYTES + 1;
        let length = u32::try_from(bytes).unwrap().to_be_bytes();
        let refused = received(&[&[0], &length]);
        assert!(matches!(refused, Err(GrpcError::TooLarge { bytes: said }) if said == bytes), "{refused:?}");
    }

    #[test]
    fn a_message_of_exactly_16_mib_is_taken_and_one_byte_more_is_refused() {
        let send = |bytes: usize| {
            let length = u32::try_from(bytes).unwrap().to_be_bytes();
            let message = vec![b'x'; bytes];
            received(&[&[0], &length, &message]).map(|(messages, has_rest)| (messages[0].len(), has_rest))
        };
        assert_eq!(send(16 << 20).unwrap(), (16 << 20, false));
        assert!(matches!(send((16 << 20) + 1), Err(GrpcError::TooLarge { bytes: 16_777_217 })));
    }

    #[test]
    fn a_status_has_its_message_in_plain_words() {
        let headers = |status: &str, message: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-status", status.parse().unwrap());
            headers.insert("grpc-message", message.parse().unwrap());
            headers
        };
        assert!(outcome(&HeaderMap::new()).is_none());
        assert!(matches!(outcome(&headers("0", "")), Some(Ok(()))));
        assert!(matches!(outcome(&headers("x", "")), Some(Err(GrpcError::NoGrpc(_)))));
        let long = "x".repeat(10_000);
        for (message, plain) in [
            ("unknown%20service%0Aa", "unknown servicea"),
            ("100%", "100%"),
            ("%zz%4", "%zz%4"),
            ("%C3%A4", "ä"),
            ("%ff", "\u{fffd}"),
            (&long, &long[..500]),
        ] {
            let error = outcome(&headers("12", message)).unwrap().unwrap_err();
            assert_eq!(error.unimplemented(), Some(plain));
        }
    }
}
