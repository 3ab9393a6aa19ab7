//! Sends events to an HTTP receiver by the HTTP binding of CloudEvents, in structured or batched mode, one request at
//! a time.

mod answer;
mod handshake;
mod secret;

use std::{
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use hyper::{HeaderMap, Request, StatusCode, header, http};

use self::{answer::Verdict, handshake::Leave, secret::SecretError};
use super::{
    WebhookSettings,
    feed::Item,
    run::{Outlet, Trouble},
};
use crate::{
    network::{Answer, Bounds, Certificates, Endpoint, Exchange, Network, NetworkError},
    regular,
};

const STRUCTURED: &str = "application/cloudevents+json; charset=UTF-8";
const BATCH: &str = "application/cloudevents-batch+json; charset=UTF-8";

/// The largest file of certificates that is read. A system's file is a fifth of this.
const MAX_CERTIFICATE_BYTES: u64 = 2 << 20;

/// The header with the time and the signatures of a request.
const SIGNATURE: &str = "enforcer-signature";

#[derive(Debug)]
pub(super) struct Webhook {
    settings: WebhookSettings,
    /// The name that the handshake sends.
    node: String,
    network: Network,
    leave: Option<Leave>,
    /// The most events in a request, as the receiver accepted so far.
    most_events: usize,
    /// When the last request began.
    last: Option<Instant>,
}

/// Why a request could not be made.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("cannot read the certificates of {}", path.display())]
    Certificates {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error("the request cannot be written")]
    Http(#[from] http::Error),
}

impl Webhook {
    pub(super) fn new(settings: WebhookSettings, node: &str, network: Network) -> Self {
        let most_events = settings.batch.map_or(1, |batch| batch.max_events);
        Self { settings, node: node.to_owned(), network, leave: None, most_events, last: None }
    }

    /// Asks the receiver for permission if that is configured and was not given yet.
    async fn ask(&mut self) -> Result<(), Trouble> {
        if !self.settings.handshake || self.leave.is_some() {
            return Ok(());
        }
        let request = handshake::request(&self.settings, &self.node).map_err(|error| later(&error.into()))?;
        let (status, headers) = self.exchange(request).await.map_err(|error| later(&error))?;
        self.leave = Some(handshake::leave(status, &headers, &self.node)?);
        Ok(())
    }

    /// A request with all headers.
    fn request(&self, content_type: &str, body: &Bytes) -> Result<Request<Bytes>, RequestError> {
        let WebhookSettings { url, secret_file, token_file, .. } = &self.settings;
        let mut request = Request::post(url.target.as_str())
            .header(header::HOST, url.authority.as_str())
            .header(header::USER_AGENT, crate::USER_AGENT)
            .header(header::CONTENT_TYPE, content_type);
        if let Some(path) = token_file {
            request = request.header(header::AUTHORIZATION, secret::bearer(path)?);
        }
        if let Some(path) = secret_file {
            let now = jiff::Timestamp::now().as_second();
            request = request.header(SIGNATURE, secret::signature(&secret::read(path)?, now, body));
        }
        Ok(request.body(body.clone())?)
    }

    /// Sends a request and returns the answer.
    async fn exchange(&self, request: Request<Bytes>) -> Result<(StatusCode, HeaderMap), RequestError> {
        let WebhookSettings { name, url, ca_file, connect_timeout_ms, timeout_ms, .. } = &self.settings;
        let endpoint = Endpoint {
            client: name.clone(),
            tls: url.tls,
            host: url.host.clone(),
            port: url.port,
            authority: url.authority.clone(),
            connect_timeout_ms: *connect_timeout_ms,
        };
        let certificates = ca_file.as_deref().filter(|_| url.tls).map(certificates).transpose()?;
        let exchange = Exchange { endpoint, certificates, request, timeout_ms: *timeout_ms };
        let Answer { status, headers } = self.network.exchange(exchange).await?;
        Ok((status, headers))
    }

    /// Waits until the receiver's allowed rate permits the next request.
    async fn keep_pace(&mut self) {
        let gap = self.leave.as_ref().and_then(Leave::gap);
        if let (Some(gap), Some(last)) = (gap, self.last) {
            tokio::time::sleep_until((last + gap).into()).await;
        }
        self.last = Some(Instant::now());
    }
}

impl Outlet for Webhook {
    const BACK_OFF: Bounds = Bounds { least: Duration::from_secs(1), most: Duration::from_mins(1) };

    fn limits(&self) -> (usize, usize) {
        (self.most_events, self.settings.batch.map_or(0, |batch| batch.max_bytes.saturating_sub(2)))
    }

    async fn deliver(&mut self, items: &[Item]) -> Result<usize, Trouble> {
        self.ask().await?;
        let (content_type, body) = match self.settings.batch {
            Some(_) => (BATCH, batch(items)),
            None => (STRUCTURED, single(items)),
        };
        self.keep_pace().await;
        let request = self.request(content_type, &body).map_err(|error| later(&error))?;
        let (status, headers) = self.exchange(request).await.map_err(|error| later(&error))?;
        match answer::verdict(status, &headers, SystemTime::now()) {
            Verdict::Taken => {
                // Grow the batch again after an earlier refusal: events may be smaller now.
                let most = self.settings.batch.map_or(1, |batch| batch.max_events);
                self.most_events = self.most_events.saturating_add(1).min(most);
                Ok(items.len())
            }
            Verdict::TooLarge if items.len() > 1 => {
                self.most_events = items.len() / 2;
                Err(Trouble::Less)
            }
            Verdict::TooLarge => {
                let why = format!("the receiver answers {status} to one event of {} bytes", body.len());
                Err(Trouble::Never { why })
            }
            Verdict::Gone => Err(Trouble::Gone { why: format!("the receiver answers {status}") }),
            Verdict::Later { after, hint } => {
                if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
                    // It may have withdrawn its permission.
                    self.leave = None;
                }
                Err(Trouble::Later { why: format!("the receiver answers {status}{hint}"), after })
            }
        }
    }
}

/// Reads a file of certificates: it may be replaced between two requests.
fn certificates(path: &Path) -> Result<Certificates, RequestError> {
    let mut bytes = Vec::new();
    match regular::open(path).and_then(|file| file.take(MAX_CERTIFICATE_BYTES).read_to_end(&mut bytes)) {
        Ok(_) => Ok(Certificates { path: path.to_owned(), bytes: bytes.into() }),
        Err(source) => Err(RequestError::Certificates { path: path.to_owned(), source }),
    }
}

fn later(error: &RequestError) -> Trouble {
    Trouble::Later { why: crate::chain(error), after: None }
}

/// The single event, as in the log.
fn single(items: &[Item]) -> Bytes {
    items.first().map_or_else(Bytes::new, |item| item.line.slice(..trimmed(&item.line).len()))
}

/// A JSON array of the events.
fn batch(items: &[Item]) -> Bytes {
    let length: usize = items.iter().map(|item| item.line.len()).sum();
    let mut body = Vec::with_capacity(length + 2);
    for item in items {
        body.push(if body.is_empty() { b'[' } else { b',' });
        body.extend_from_slice(trimmed(&item.line));
    }
    body.push(b']');
    body.into()
}

fn trimmed(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\n").unwrap_or(line)
}

#[cfg(test)]
mod tests;
