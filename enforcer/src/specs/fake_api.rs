//! An API server that has the pods that it is given: lists in parts, watches from a version on, evictions, Events, and
//! failures to order.
//!
//! It uses nothing of this crate, so that any test program may include it, and so that the client is not tested against
//! its own idea of the messages.

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt as _, Collected, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response, StatusCode,
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use rustls::{
    ConfigBuilder, RootCertStore, ServerConfig, WantsVerifier,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{WantsServerCert, WebPkiClientVerifier},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch};
use tokio_rustls::TlsAcceptor;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The API server.
#[derive(Clone)]
pub(crate) struct FakeApi(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    version: u64,
    pods: BTreeMap<String, Value>,
    /// The list, and the beginning of a list in a watch, that a real one gave, which come instead of the pods.
    recorded: Option<(String, String)>,
    /// The lines of watches, each with its version.
    events: Vec<(u64, Bytes)>,
    /// The oldest version that can be watched from.
    oldest: u64,
    refusals: VecDeque<Refusal>,
    asked: Vec<Asked>,
    token: String,
    watching: Watching,
    streams: Streams,
    /// How many lists in watches were refused, as this server gives none.
    unstreamed: usize,
    /// How often all watches were closed.
    closed: u64,
    /// The bodies of requests that change something, by method and path.
    changed: Vec<(String, Value)>,
}

/// What a request gets instead of an answer.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    /// That status, with `Retry-After` in seconds.
    Status(u16, Option<u32>),
    /// An error event with that code, in a watch.
    ErrorEvent(u16),
    /// Half of the pods of a list in a watch, and then an error event with that code; with none, the end.
    Half(Option<u16>),
    /// Nothing.
    Hang,
    /// It is answered all the same.
    None,
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// Its path and query.
    pub(crate) target: String,
    pub(crate) token: String,
    pub(crate) at: Instant,
}

/// How watches go on.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Watching {
    #[default]
    Open,
    /// Each ends after what there is.
    Ending,
    /// Each ends after the time that was asked for.
    Timed,
}

/// What becomes of a request for a list in a watch.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Streams {
    /// The server validates parameters and does not know these: status 422. Such a request is counted apart.
    #[default]
    Forbidden,
    /// The same with status 400.
    Bad,
    /// It does not know them and watches only: all pods come, and bookmarks that end nothing.
    Ignored,
    /// It gives the list.
    Given,
    /// It sends pods again and again, and never says that all have come.
    Endless,
    /// It begins, and fails with status 500.
    Failing,
}

impl Asked {
    pub(crate) fn is_watch(&self) -> bool {
        self.target.contains("watch=true")
    }

    /// Whether it is for a list in a watch.
    pub(crate) fn is_stream(&self) -> bool {
        self.parameter("sendInitialEvents").as_deref() == Some("true")
    }

    /// A parameter of its query.
    pub(crate) fn parameter(&self, name: &str) -> Option<String> {
        let (_, query) = self.target.split_once('?')?;
        let value = query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))?;
        let mut decoded = Vec::new();
        let mut bytes = value.bytes();
        while let Some(byte) = bytes.next() {
            decoded.push(match byte {
                b'%' => {
                    let digits = [bytes.next()?, bytes.next()?];
                    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                }
                byte => byte,
            });
        }
        String::from_utf8(decoded).ok()
    }
}

impl FakeApi {
    /// One without pods, for who has that token.
    pub(crate) fn new(token: &str) -> Self {
        let state = State { version: 100, oldest: 100, token: token.to_owned(), ..State::default() };
        Self(Arc::new(Inner { state: Mutex::new(state), changes: watch::Sender::new(0) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state());
        self.0.changes.send_modify(|count| *count += 1);
        changed
    }

    /// Adds a pod, or changes it; the version is set here.
    pub(crate) fn put(&self, mut pod: Value) {
        self.change(|state| {
            state.version += 1;
            pod["metadata"]["resourceVersion"] = json!(state.version.to_string());
            let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
            let kind = if state.pods.contains_key(&uid) { "MODIFIED" } else { "ADDED" };
            state.note(kind, &pod);
            state.pods.insert(uid, pod);
        });
    }

    /// Answers from now on as a real one did: by this list, or by these lines where it is asked for a list in a watch.
    pub(crate) fn repeat(&self, list: &str, lines: &str) {
        self.change(|state| state.recorded = Some((list.to_owned(), lines.to_owned())));
    }

    /// Removes a pod.
    pub(crate) fn remove(&self, uid: &str) {
        self.change(|state| {
            if let Some(mut pod) = state.pods.remove(uid) {
                state.version += 1;
                pod["metadata"]["resourceVersion"] = json!(state.version.to_string());
                state.note("DELETED", &pod);
            }
        });
    }

    /// Sends a bookmark at a version that nothing else has.
    pub(crate) fn bookmark(&self) {
        self.change(|state| {
            state.version += 10;
            let object = json!({"kind": "Pod", "metadata": {"resourceVersion": state.version.to_string(), "creationTimestamp": null}});
            state.note("BOOKMARK", &object);
        });
    }

    /// Sends a line in watches, whatever it is.
    pub(crate) fn say(&self, line: &str) {
        self.change(|state| {
            state.version += 1;
            state.events.push((state.version, Bytes::from(format!("{line}\n"))));
        });
    }

    /// Forgets the versions up to now, and closes all watches.
    pub(crate) fn expire(&self) {
        self.change(|state| {
            state.version += 1;
            state.oldest = state.version;
            state.closed += 1;
        });
    }

    /// Closes all watches.
    pub(crate) fn close_watches(&self) {
        self.change(|state| state.closed += 1);
    }

    pub(crate) fn set_watching(&self, watching: Watching) {
        self.change(|state| state.watching = watching);
    }

    pub(crate) fn set_streams(&self, streams: Streams) {
        self.state().streams = streams;
    }

    /// How many lists in watches were refused, as this server gives none.
    pub(crate) fn unstreamed(&self) -> usize {
        self.state().unstreamed
    }

    pub(crate) fn set_token(&self, token: &str) {
        token.clone_into(&mut self.state().token);
    }

    /// Refuses so many requests from now on.
    pub(crate) fn refuse(&self, refusal: &Refusal, times: usize) {
        self.state().refusals.extend(std::iter::repeat_n(refusal.clone(), times));
    }

    /// Refuses no more.
    pub(crate) fn serve_again(&self) {
        self.state().refusals.clear();
    }

    /// The requests that changed something: method and path, and the body.
    pub(crate) fn changed(&self) -> Vec<(String, Value)> {
        self.state().changed.clone()
    }

    /// All requests.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.state().asked.clone()
    }

    /// The requests for lists or for watches.
    pub(crate) fn asked_for(&self, watches: bool) -> Vec<Asked> {
        self.asked().into_iter().filter(|asked| asked.is_watch() == watches).collect()
    }

    /// Serves HTTPS there with a certificate and its key in PEM, for ever.
    pub(crate) async fn serve(self, listener: TcpListener, server: (String, String)) -> io::Result<()> {
        let builder = Self::tls()?.with_no_client_auth();
        self.serve_with(listener, builder, server).await
    }

    /// The same for who has a certificate that is signed by this authority, in PEM.
    pub(crate) async fn serve_to(
        self,
        listener: TcpListener,
        server: (String, String),
        authority: &str,
    ) -> io::Result<()> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(authority.as_bytes()) {
            roots.add(certificate.map_err(io::Error::other)?).map_err(io::Error::other)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let builder = Self::tls()?.with_client_cert_verifier(verifier.map_err(io::Error::other)?);
        self.serve_with(listener, builder, server).await
    }

    fn tls() -> io::Result<ConfigBuilder<ServerConfig, WantsVerifier>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)
    }

    async fn serve_with(
        self,
        listener: TcpListener,
        builder: ConfigBuilder<ServerConfig, WantsServerCert>,
        (certificate, key): (String, String),
    ) -> io::Result<()> {
        let chain = CertificateDer::pem_slice_iter(certificate.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(io::Error::other)?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(io::Error::other)?;
        let config = builder.with_single_cert(chain, key).map_err(io::Error::other)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        loop {
            let (stream, _peer) = listener.accept().await?;
            // As servers in Go do: otherwise parts of an answer wait for each other, in a time that tests do not have.
            stream.set_nodelay(true)?;
            let (acceptor, api) = (acceptor.clone(), self.clone());
            tokio::spawn(async move {
                let stream = acceptor.accept(stream).await?;
                let service = service_fn(move |request| {
                    let api = api.clone();
                    async move { Ok::<_, Infallible>(api.answer(request).await) }
                });
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await
                    .map_err(io::Error::other)
            });
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let token = request.headers().get("authorization").and_then(|value| value.to_str().ok());
        let token = token.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default().to_owned();
        let asked = Asked { target: request.uri().to_string(), token, at: Instant::now() };
        let method = request.method().to_string();
        let body = request.into_body().collect().await.map(Collected::to_bytes).unwrap_or_default();
        let refusal = {
            let mut state = self.state();
            // Before anything else, as a real one validates: what is then asked for is what tests count.
            if asked.is_stream() && matches!(state.streams, Streams::Forbidden | Streams::Bad) {
                state.unstreamed += 1;
                return status(if state.streams == Streams::Bad { 400 } else { 422 }, None);
            }
            state.asked.push(asked.clone());
            state.refusals.pop_front()
        };
        match refusal {
            Some(Refusal::Hang) => std::future::pending().await,
            Some(Refusal::Status(code, retry_after)) => status(code, retry_after),
            Some(Refusal::ErrorEvent(code)) => error_event(code),
            Some(Refusal::Half(code)) => self.half(&asked, code),
            _ if asked.token.starts_with("weak") => status(403, None),
            _ if asked.token != self.state().token => status(401, None),
            _ if !asked.target.starts_with("/api/v1/pods?") => {
                self.state().answer(&method, &asked.target, &body)
            }
            _ if asked.is_watch() => self.watch(&asked),
            Some(Refusal::None) | None => self.list(&asked),
        }
    }

    fn list(&self, asked: &Asked) -> Response<Body> {
        let state = self.state();
        if let Some((list, _lines)) = &state.recorded {
            return full(StatusCode::OK, list.clone());
        }
        let limit: usize =
            asked.parameter("limit").and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX);
        // What real ones look like has such characters too.
        let begin = match asked.parameter("continue").as_deref().map(|mark| mark.split_once("/+=&")) {
            None => 0,
            Some(Some((version, at))) if version == state.version.to_string() => {
                at.parse().unwrap_or(usize::MAX)
            }
            Some(_) => return status(410, None),
        };
        let selector = asked.parameter("fieldSelector").unwrap_or_default();
        let node = selector.strip_prefix("spec.nodeName=").unwrap_or_default();
        let pods: Vec<&Value> = state.pods.values().filter(|pod| pod["spec"]["nodeName"] == node).collect();
        let items: Vec<&Value> = pods.iter().skip(begin).take(limit).copied().collect();
        let end = begin + items.len();
        let next = if end < pods.len() { format!("{}/+=&{end}", state.version) } else { String::new() };
        let metadata = json!({"resourceVersion": state.version.to_string(), "continue": next});
        let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items});
        full(StatusCode::OK, list.to_string())
    }

    /// The lines that a list in a watch begins with, and the version that they reach.
    fn initial(&self, asked: &Asked) -> (VecDeque<Bytes>, u64) {
        let state = self.state();
        if let Some((_list, lines)) = &state.recorded {
            return (
                lines.split_inclusive('\n').map(|line| Bytes::from(line.to_owned())).collect(),
                state.version,
            );
        }
        let selector = asked.parameter("fieldSelector").unwrap_or_default();
        let node = selector.strip_prefix("spec.nodeName=").unwrap_or_default();
        let line = |kind: &str, object: &Value| {
            Bytes::from(format!("{}\n", json!({"type": kind, "object": object})))
        };
        let pods = state.pods.values().filter(|pod| pod["spec"]["nodeName"] == node);
        let mut lines: VecDeque<Bytes> = pods.map(|pod| line("ADDED", pod)).collect();
        let version = state.version.to_string();
        let metadata = match state.streams {
            Streams::Given => {
                json!({"resourceVersion": version, "annotations": {"k8s.io/initial-events-end": "true"}})
            }
            _ => json!({"resourceVersion": version, "creationTimestamp": null}),
        };
        lines.push_back(line("BOOKMARK", &json!({"kind": "Pod", "metadata": metadata})));
        (lines, state.version)
    }

    fn half(&self, asked: &Asked, code: Option<u16>) -> Response<Body> {
        let (lines, _version) = self.initial(asked);
        let mut body: Vec<u8> = lines.iter().take(lines.len() / 2).flatten().copied().collect();
        if let Some(code) = code {
            let object = json!({"kind": "Status", "code": code, "message": "to order"});
            body.extend_from_slice(format!("{}\n", json!({"type": "ERROR", "object": object})).as_bytes());
        }
        Response::new(Full::from(body).boxed_unsync())
    }

    fn endless(&self, asked: &Asked) -> Response<Body> {
        let line = self.initial(asked).0.pop_front().unwrap_or_default();
        let lines = stream::unfold(line, |line| async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            Some((Ok::<_, Infallible>(Frame::data(line.clone())), line))
        });
        Response::new(StreamBody::new(lines).boxed_unsync())
    }

    fn watch(&self, asked: &Asked) -> Response<Body> {
        let (closed, oldest, watching) = {
            let state = self.state();
            (state.closed, state.oldest, state.watching)
        };
        if asked.is_stream() && self.state().streams == Streams::Endless {
            return self.endless(asked);
        }
        if asked.is_stream() && self.state().streams == Streams::Failing {
            return error_event(500);
        }
        let (initial, version) = if asked.is_stream() {
            self.initial(asked)
        } else {
            let version = asked.parameter("resourceVersion").and_then(|version| version.parse::<u64>().ok());
            let Some(version) = version.filter(|version| *version >= oldest) else {
                return status(410, None);
            };
            (VecDeque::new(), version)
        };
        let seconds = asked.parameter("timeoutSeconds").and_then(|seconds| seconds.parse().ok());
        let ends = seconds.filter(|_| watching == Watching::Timed).map(Duration::from_secs);
        let ends_at = ends.map(|ends| tokio::time::Instant::now() + ends);
        let (api, changes) = (self.clone(), self.0.changes.subscribe());
        let begin = (api, changes, initial, version);
        let lines = stream::unfold(begin, move |(api, mut changes, mut initial, version)| async move {
            if let Some(line) = initial.pop_front() {
                return Some((Ok::<_, Infallible>(Frame::data(line)), (api, changes, initial, version)));
            }
            loop {
                changes.mark_unchanged();
                {
                    let state = api.state();
                    if let Some((next, line)) = state.events.iter().find(|(at, _)| *at > version) {
                        let (next, line) = (*next, line.clone());
                        drop(state);
                        return Some((Ok(Frame::data(line)), (api, changes, initial, next)));
                    }
                    if state.closed != closed || state.watching == Watching::Ending {
                        return None;
                    }
                }
                match ends_at {
                    Some(at) => tokio::time::timeout_at(at, changes.changed()).await.ok()?.ok()?,
                    None => changes.changed().await.ok()?,
                }
            }
        });
        Response::new(StreamBody::new(lines).boxed_unsync())
    }
}

/// A watch that fails at once.
fn error_event(code: u16) -> Response<Body> {
    let status = json!({"type": "ERROR", "object": {"kind": "Status", "code": code, "message": "to order"}});
    full(StatusCode::OK, format!("{status}\n"))
}

impl State {
    /// Answers what is about one object.
    fn answer(&mut self, method: &str, target: &str, body: &[u8]) -> Response<Body> {
        if target == "/api/v1" {
            let resources =
                json!([{"name": "pods/eviction", "group": "policy", "version": "v1", "kind": "Eviction"}]);
            return full(StatusCode::OK, json!({"resources": resources}).to_string());
        }
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        if target.starts_with("/apis/events.k8s.io/v1/namespaces/") {
            self.changed.push((format!("{method} {target}"), body));
            return full(StatusCode::CREATED, String::from("{}"));
        }
        let below = target.strip_prefix("/api/v1/namespaces/").unwrap_or_default();
        let (namespace, rest) = below.split_once("/pods/").unwrap_or_default();
        let (name, subresource) = rest.split_once('/').unwrap_or((rest, ""));
        let is_it =
            |pod: &&mut Value| pod["metadata"]["name"] == name && pod["metadata"]["namespace"] == namespace;
        let Some(pod) = self.pods.values_mut().find(is_it) else { return status(404, None) };
        match (method, subresource) {
            ("GET", "") => full(StatusCode::OK, pod.to_string()),
            ("POST", "eviction")
                if body["deleteOptions"]["preconditions"]["uid"] != pod["metadata"]["uid"] =>
            {
                status(409, None)
            }
            ("POST", "eviction") => {
                pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                self.changed.push((format!("{method} {target}"), body));
                full(StatusCode::CREATED, String::from("{}"))
            }
            _ => status(405, None),
        }
    }

    fn note(&mut self, kind: &str, object: &Value) {
        let line = json!({"type": kind, "object": object});
        self.events.push((self.version, Bytes::from(format!("{line}\n"))));
    }
}

fn full(status: StatusCode, body: String) -> Response<Body> {
    let mut answer = Response::new(Full::from(body).boxed_unsync());
    *answer.status_mut() = status;
    answer
}

fn status(code: u16, retry_after: Option<u32>) -> Response<Body> {
    let body = json!({"kind": "Status", "code": code, "message": "to order\u{1b}[31m"});
    let mut answer = full(StatusCode::from_u16(code).unwrap_or_default(), body.to_string());
    if let Some(seconds) = retry_after {
        answer.headers_mut().insert("retry-after", seconds.into());
    }
    answer
}
