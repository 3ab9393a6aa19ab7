//! The connection to the API server, and with which care a request is sent over it: one that is half open shows it only by
//! silence.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::{
    HeaderMap, Method, Request, StatusCode,
    body::Incoming,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT},
};
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::{answering::answering, api::ApiError};
use crate::{
    clock,
    network::{Connection, ConnectionError},
    specs::ApiServerFeed,
};

/// The longest answer that is read. etcd keeps objects of 1.5 MiB.
pub(super) const MOST_ANSWER_BYTES: usize = 4 << 20;

/// For how long a connection that has answered counts as one that answers.
pub(super) const ANSWER_LASTS: Duration = Duration::from_millis(100);

/// How long what may be asked twice may be unanswered on a connection before it is asked again on another.
const SILENCE: Duration = Duration::from_secs(1);

/// What is asked only for an answer. All who are known to the server may read it (`system:public-info-viewer`), and it asks no
/// storage.
pub(super) const PING: &str = "/version";

/// One connection at a time, to the server that was asked last.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    open: Option<Open>,
}

/// A connection to that server, and what holds as long as it lasts: another server may be of another version.
#[derive(Debug)]
struct Open {
    access: ApiServerFeed,
    connection: Connection,
    /// The group and version of evictions, once asked for.
    evictions: Option<String>,
    /// When its last answer was there.
    answered: Instant,
}

/// An answer to one request.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
    /// When the request was sent, since the machine was started.
    pub(super) sent_boot_ms: u64,
}

/// How a request is sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Care {
    /// Done twice it is as done once: over a connection that was closed meanwhile, or is silent, it is sent a second time.
    Repeatable,
    /// It is sent once, and must not wait for the end of a connection that is half open: only over one that answers.
    Once,
}

impl Exchange {
    /// The group and version of evictions, if that user has asked for it over the present connection.
    pub(super) fn version(&self, access: &ApiServerFeed) -> Option<&str> {
        self.open.as_ref().filter(|open| open.serves(access))?.evictions.as_deref()
    }

    /// Notes it for as long as the present connection lasts.
    pub(super) fn set_version(&mut self, version: Option<String>) {
        if let Some(open) = &mut self.open {
            open.evictions = version;
        }
    }

    /// Sends a request.
    pub(super) async fn send(
        &mut self,
        access: &ApiServerFeed,
        request: impl Fn() -> Result<Request<Bytes>, ApiError>,
        care: Care,
    ) -> Result<Answer, ApiError> {
        let present = self.open.take().filter(|open| open.serves(access));
        let anew = || Box::pin(Open::new(access));
        let mut open = match (present, care) {
            (None, _) => anew().await?,
            (Some(open), Care::Once) if open.answered.elapsed() < ANSWER_LASTS => open,
            (Some(open), Care::Once) => answering(probed(access, open), anew()).await?,
            (Some(mut open), Care::Repeatable) => {
                let sent_boot_ms = boot_ms();
                match timeout(SILENCE, open.connection.send(request()?)).await {
                    Ok(Ok(answer)) => return self.read(open, answer, sent_boot_ms).await,
                    // The server may close a connection just as it is used again, or the connection is half open.
                    Ok(Err(_)) | Err(_) => anew().await?,
                }
            }
        };
        let sent_boot_ms = boot_ms();
        let answer = open.connection.send(request()?).await?;
        self.read(open, answer, sent_boot_ms).await
    }

    /// Reads the whole answer, and keeps the connection.
    async fn read(
        &mut self,
        open: Open,
        (status, headers, rest): (StatusCode, HeaderMap, Incoming),
        sent_boot_ms: u64,
    ) -> Result<Answer, ApiError> {
        let body = whole(rest).await?;
        self.open = Some(Open { answered: Instant::now(), ..open });
        Ok(Answer { status, headers, body, sent_boot_ms })
    }
}

impl Open {
    async fn new(access: &ApiServerFeed) -> Result<Self, ConnectionError> {
        let connection = Connection::open(&access.https.endpoint, &access.https.security).await?;
        Ok(Self { access: access.clone(), connection, evictions: None, answered: Instant::now() })
    }

    /// Whether another request of that user may be sent over it.
    fn serves(&self, access: &ApiServerFeed) -> bool {
        self.access == *access && self.connection.is_open()
    }
}

/// Reads the whole body of an answer.
async fn whole(mut rest: Incoming) -> Result<Vec<u8>, ApiError> {
    let mut body = Vec::new();
    while let Some(frame) = rest.frame().await {
        if let Some(data) = frame.map_err(ConnectionError::from)?.data_ref() {
            if body.len() + data.len() > MOST_ANSWER_BYTES {
                return Err(ApiError::TooLong);
            }
            body.extend_from_slice(data);
        }
    }
    Ok(body)
}

/// Asks for what changes nothing, and gives the connection back if the server answers it, whatever it says.
async fn probed(access: &ApiServerFeed, mut open: Open) -> Option<Open> {
    let asked = build(access, Method::GET, PING, None, None).ok()?;
    let (_status, _headers, rest) = open.connection.send(asked).await.ok()?;
    whole(rest).await.ok()?;
    open.connection.is_open().then_some(open)
}

/// A request of that user.
pub(super) fn build(
    access: &ApiServerFeed,
    method: Method,
    target: &str,
    content_type: Option<&str>,
    body: Option<&Value>,
) -> Result<Request<Bytes>, ApiError> {
    let mut request = Request::builder()
        .method(method)
        .uri(format!("{}{target}", access.base))
        .header(HOST, access.https.endpoint.authority.as_str())
        .header(ACCEPT, "application/json")
        .header(USER_AGENT, crate::USER_AGENT);
    if let Some(token) = &access.https.token {
        let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_error| ApiError::Token)?;
        value.set_sensitive(true);
        request = request.header(AUTHORIZATION, value);
    }
    if let Some(content_type) = content_type {
        request = request.header(CONTENT_TYPE, content_type);
    }
    let body = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
    Ok(request.body(body.into())?)
}

fn boot_ms() -> u64 {
    clock::boottime_ns() / 1_000_000
}
