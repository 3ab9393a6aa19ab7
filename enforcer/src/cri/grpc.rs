//! Unary calls over gRPC, that is over HTTP/2, on a connection that is there.
//!
//! It uses `h2` itself. A gRPC framework stands on the same crate, and adds layers for what one local connection with
//! four calls has no use for.

use std::{fmt, future::Future};

use bytes::Bytes;
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

use super::message::plain;

/// The largest answer: what the kubelet takes from a runtime, too.
pub(super) const MOST_ANSWER_BYTES: usize = 16 << 20;

/// A message is preceded by a byte for its compression and four for its length.
const PREFIX_BYTES: usize = 5;

/// The longest headers of an answer.
const MOST_HEADER_BYTES: u32 = 32 << 10;

/// The status of a call of something that the other end does not have (`UNIMPLEMENTED`).
const UNIMPLEMENTED: u32 = 12;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum GrpcError {
    /// The connection broke, or it is not HTTP/2.
    #[error("the connection to the runtime failed")]
    Http2(#[from] h2::Error),
    /// The request cannot be written.
    #[error("the request cannot be written")]
    Request(#[from] hyper::http::Error),
    /// What answers does not speak gRPC.
    #[error("the runtime's answer is not gRPC: {0}")]
    NoGrpc(String),
    /// The call failed there.
    #[error("the runtime answers with status {code}: {message}")]
    Status {
        /// gRPC's number of the status.
        code: u32,
        /// The runtime's words.
        message: String,
    },
    /// The answer is larger than is taken.
    #[error("the runtime's answer has {bytes} bytes: at most {MOST_ANSWER_BYTES} are taken")]
    TooLarge {
        /// How large it says that it is.
        bytes: usize,
    },
    /// The answer is not one whole message.
    #[error("the runtime's answer is not one whole message")]
    Incomplete,
}

impl GrpcError {
    /// The runtime's words, if it does not know what was called.
    pub(super) fn unimplemented(&self) -> Option<&str> {
        match self {
            Self::Status { code: UNIMPLEMENTED, message } => Some(message),
            _ => None,
        }
    }
}

/// A connection that calls can be made on.
#[derive(Clone)]
pub(super) struct Channel(SendRequest<Bytes>);

impl fmt::Debug for Channel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Channel").finish_non_exhaustive()
    }
}

impl Channel {
    /// Begins to speak. What is returned beside the channel drives the connection, and ends with it.
    pub(super) async fn open(
        stream: UnixStream,
    ) -> Result<(Self, impl Future<Output = Result<(), h2::Error>> + Send + 'static), GrpcError> {
        let mut builder = Builder::new();
        builder.enable_push(false).max_header_list_size(MOST_HEADER_BYTES);
        let (sender, connection) = builder.handshake(stream).await?;
        Ok((Self(sender), connection))
    }

    /// Calls a method, and returns its answer's message. The runtime learns how long it may take; the caller has to end
    /// it itself. Safe to cancel: the call is given up at the other end too.
    pub(super) async fn call(
        &self,
        path: &str,
        message: &impl Message,
        timeout_ms: u64,
    ) -> Result<Vec<u8>, GrpcError> {
        let request = Request::builder()
            .method(Method::POST)
            .version(Version::HTTP_2)
            // What it is called is of no matter on a socket of this machine, but there must be a valid name.
            .uri(format!("http://localhost{path}"))
            .header(CONTENT_TYPE, "application/grpc")
            .header("te", "trailers")
            .header("grpc-timeout", format!("{timeout_ms}m"))
            .header("user-agent", concat!("enforcer/", env!("CARGO_PKG_VERSION")))
            .body(())?;
        let mut sender = self.0.clone().ready().await?;
        let (answer, mut body) = sender.send_request(request, false)?;
        body.send_data(frame(message), true)?;
        let (head, mut body) = answer.await?.into_parts();
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
        let received = read(&mut body).await?;
        let trailers = body.trailers().await?.ok_or(GrpcError::Incomplete)?;
        outcome(&trailers).ok_or(GrpcError::Incomplete)??;
        received.whole()
    }
}

/// A message behind its prefix.
fn frame(message: &impl Message) -> Bytes {
    let message = message.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0][..], &length.to_be_bytes(), &message].concat().into()
}

/// Reads all of an answer's body. What is read makes room for more.
async fn read(body: &mut RecvStream) -> Result<Received, GrpcError> {
    let mut received = Received::default();
    while let Some(data) = body.data().await {
        let data = data?;
        received.add(&data)?;
        body.flow_control().release_capacity(data.len())?;
    }
    Ok(received)
}

/// What has come of a message, with its prefix.
#[derive(Debug, Default)]
struct Received {
    prefix: Vec<u8>,
    message: Vec<u8>,
    /// What the prefix says.
    length: Option<usize>,
}

impl Received {
    fn add(&mut self, data: &[u8]) -> Result<(), GrpcError> {
        let of_prefix = data.len().min(PREFIX_BYTES - self.prefix.len());
        let (prefix, message) = data.split_at(of_prefix);
        self.prefix.extend_from_slice(prefix);
        if self.length.is_none()
            && let &[compression, ref length @ ..] = &self.prefix[..]
            && let Ok(length) = <[u8; 4]>::try_from(length)
        {
            let bytes = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
            if compression != 0 {
                return Err(GrpcError::NoGrpc(String::from("a compressed message")));
            }
            if bytes > MOST_ANSWER_BYTES {
                return Err(GrpcError::TooLarge { bytes });
            }
            self.message.reserve_exact(bytes);
            self.length = Some(bytes);
        }
        if self.message.len() + message.len() > self.length.unwrap_or(0) {
            return Err(GrpcError::Incomplete);
        }
        self.message.extend_from_slice(message);
        Ok(())
    }

    fn whole(self) -> Result<Vec<u8>, GrpcError> {
        if self.length == Some(self.message.len()) { Ok(self.message) } else { Err(GrpcError::Incomplete) }
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

    fn received(parts: &[&[u8]]) -> Result<Vec<u8>, GrpcError> {
        let mut received = Received::default();
        parts.iter().try_for_each(|part| received.add(part))?;
        received.whole()
    }

    #[test]
    fn a_message_is_whole_however_it_is_cut() {
        let message = [0, 0, 0, 0, 3, b'a', b'b', b'c'];
        for at in 0..=message.len() {
            let (first, second) = message.split_at(at);
            assert_eq!(received(&[first, second]).unwrap(), b"abc", "{at}");
        }
        assert_eq!(received(&[&[0; 5]]).unwrap(), b"");
    }

    #[test]
    fn what_is_not_one_whole_message_is_an_error() {
        for wrong in [&[][..], &[0; 4], &[0, 0, 0, 0, 2, b'a'], &[0, 0, 0, 0, 0, b'a']] {
            assert!(matches!(received(&[wrong]), Err(GrpcError::Incomplete)), "{wrong:?}");
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
