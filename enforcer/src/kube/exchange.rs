//! The connection to the API server, and what is done if it is silent: one that is half open shows it in no other way.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::{
    HeaderMap, Method, Request, StatusCode,
    body::Incoming,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT},
};
use serde_json::Value;
use tokio::{
    sync::Notify,
    time::{Instant, timeout, timeout_at},
};

use super::{answering::answering, api::ApiError};
use crate::{
    clock,
    network::{Connection, ConnectionError},
    specs::ApiServerFeed,
};

/// The longest answer that is read. etcd keeps objects of 1.5 MiB.
pub(super) const MOST_ANSWER_BYTES: usize = 4 << 20;

/// How long what may be asked twice may be unanswered on a connection before it is asked again on another.
const SILENCE: Duration = Duration::from_secs(1);

/// How long the answer to a request may come after a look has shown that it was carried out. A busy server takes longer to
/// answer than to store the change.
const LATE: Duration = Duration::from_secs(1);

/// How long before the deadline of a question what a look has shown is returned.
const MARGIN: Duration = Duration::from_millis(100);

/// One connection at a time, to the server that was asked last.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    open: Option<Open>,
    is_resent: AtomicBool,
}

/// A connection to that server, and what holds as long as it lasts: another server may be of another version.
#[derive(Debug)]
struct Open {
    access: ApiServerFeed,
    connection: Connection,
    /// The group and version of evictions, once asked for.
    evictions: Option<String>,
}

/// An answer to one request.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
    /// When the request was sent, since the machine was started.
    pub(super) sent_boot_ms: u64,
}

/// What came of a request that changes something.
pub(super) enum Sent {
    /// The server has answered it.
    Answered(Answer),
    /// There is no answer, and this is what the server says to the question what became of it.
    Looked(Answer),
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

    /// Sends what done twice is as done once: over a connection that was closed meanwhile, or is silent, it is sent a second
    /// time.
    pub(super) async fn send(
        &mut self,
        access: &ApiServerFeed,
        request: impl Fn() -> Result<Request<Bytes>, ApiError>,
    ) -> Result<Answer, ApiError> {
        if let Some(open) = self.present(access)
            && let Ok(answered) = timeout(SILENCE, open.ask(request()?)).await
            // The server may close a connection just as it is used again, or the connection is half open.
            && let Ok((open, answer)) = answered
        {
            return Ok(self.keep(open, answer));
        }
        let (open, answer) = Open::new(access).await?.ask(request()?).await?;
        Ok(self.keep(open, answer))
    }

    /// Sends a request that must have one effect, at once over the present connection. If that is silent, it looks over another
    /// beside it. The request is sent there again only if `is_undone` says so of the answer, and the other end's machine has not
    /// acknowledged the first, or its connection has ended: a server that has it takes its time. The first answer counts, and what
    /// the look shows only if no request is answered a second later, or near the `deadline`; the time is that of the first request,
    /// unless its connection had ended.
    pub(super) async fn change(
        &mut self,
        access: &ApiServerFeed,
        request: impl Fn() -> Result<Request<Bytes>, ApiError>,
        look: impl FnOnce() -> Result<Request<Bytes>, ApiError>,
        is_undone: impl FnOnce(&Answer) -> Result<bool, ApiError>,
        deadline: Instant,
    ) -> Result<Sent, ApiError> {
        let Some(open) = self.present(access) else {
            let (open, answer) = Open::new(access).await?.ask(request()?).await?;
            return Ok(Sent::Answered(self.keep(open, answer)));
        };
        let asked = request()?;
        let socket = open.connection.socket();
        let first_boot_ms = clock::boottime_ms();
        let (is_done, is_lost, lost) = (AtomicBool::new(false), AtomicBool::new(false), Notify::new());
        let answer = async {
            let answered = open.ask(asked).await.ok();
            if answered.is_none() {
                is_lost.store(true, Ordering::Relaxed);
            }
            // A server may fail after it has stored a change.
            let answered =
                answered.filter(|(_, answer)| answer.status.is_success() || !is_done.load(Ordering::Relaxed));
            if answered.is_none() {
                lost.notify_one();
            }
            answered.map(|(open, answer)| (open, Sent::Answered(answer)))
        };
        let (is_resent, is_done, is_lost, lost) = (&self.is_resent, &is_done, &is_lost, &lost);
        let other = Box::pin(async {
            let (open, looked) = Open::new(access).await?.ask(look()?).await?;
            if !is_undone(&looked)? {
                is_done.store(true, Ordering::Relaxed);
                let end = (Instant::now() + LATE).min(deadline.checked_sub(MARGIN).unwrap_or(deadline));
                if socket.is_acknowledged() {
                    let _elapsed = timeout_at(end, lost.notified()).await;
                }
                return Ok((open, Sent::Looked(looked)));
            }
            if socket.is_acknowledged() && !is_lost.load(Ordering::Relaxed) {
                return Err(ApiError::Unanswered);
            }
            is_resent.store(true, Ordering::Relaxed);
            let (open, answer) = open.ask(request()?).await?;
            Ok::<_, ApiError>((open, Sent::Answered(answer)))
        });
        let (open, mut sent) = answering(answer, other).await?;
        if let Sent::Answered(answer) = &mut sent
            && !is_lost.load(Ordering::Relaxed)
        {
            answer.sent_boot_ms = first_boot_ms;
        }
        self.open = Some(open);
        Ok(sent)
    }

    /// Another question begins.
    pub(super) fn begin(&mut self) {
        *self.is_resent.get_mut() = false;
    }

    /// Whether a change was sent twice since then, also if there is no answer.
    pub(super) fn is_resent(&self) -> bool {
        self.is_resent.load(Ordering::Relaxed)
    }

    /// Takes the open connection to that server.
    fn present(&mut self, access: &ApiServerFeed) -> Option<Open> {
        self.open.take().filter(|open| open.serves(access))
    }

    /// Keeps the connection of an answer.
    fn keep(&mut self, open: Open, answer: Answer) -> Answer {
        self.open = Some(open);
        answer
    }
}

impl Open {
    async fn new(access: &ApiServerFeed) -> Result<Self, ConnectionError> {
        let connection = Connection::open(&access.https.endpoint, &access.https.security).await?;
        Ok(Self { access: access.clone(), connection, evictions: None })
    }

    /// Sends a request, and reads the whole answer. The connection is lost if there is none.
    async fn ask(mut self, request: Request<Bytes>) -> Result<(Self, Answer), ApiError> {
        let sent_boot_ms = clock::boottime_ms();
        let (status, headers, rest) = self.connection.send(request).await?;
        let body = whole(rest).await?;
        Ok((self, Answer { status, headers, body, sent_boot_ms }))
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
