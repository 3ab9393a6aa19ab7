//! A kubelet that has the pods that it is given: its Pods API over a unix socket, and its HTTPS server.
//!
//! It uses nothing of this crate, so that any test program may include it, and so that the client is not tested against
//! its own idea of the messages.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use h2::server::SendResponse;
use http_body_util::Full;
use hyper::{
    HeaderMap, Request, Response, StatusCode, body::Incoming, header::HeaderValue, service::service_fn,
};
use hyper_util::rt::TokioIo;
use prost::Message;
use rustls::{
    ConfigBuilder, RootCertStore, ServerConfig, WantsVerifier,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{WantsServerCert, WebPkiClientVerifier},
};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, UnixListener, UnixStream},
    sync::{broadcast, watch},
};
use tokio_rustls::TlsAcceptor;

/// A pod as both interfaces have it, with what nothing here reads.
#[derive(Clone, Debug, Default)]
pub(crate) struct FakePod {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) class: String,
    pub(crate) priority: i32,
    pub(crate) phase: String,
    pub(crate) is_terminating: bool,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) labels: BTreeMap<String, String>,
    /// The kind of its controller; an empty text is none.
    pub(crate) controller: String,
    /// Whether it is from a manifest of the kubelet's own.
    pub(crate) is_static: bool,
    /// Names, memory requests and memory limits; an empty text is none.
    pub(crate) containers: Vec<(String, String, String)>,
}

/// The kubelet.
#[derive(Clone)]
pub(crate) struct FakeKubelet(Arc<Inner>);

struct Inner {
    pods: Mutex<BTreeMap<String, FakePod>>,
    changes: broadcast::Sender<Event>,
    /// How often `/pods` was read.
    lists: AtomicU64,
    /// The list and the messages of `WatchPods` that a real one gave, which come instead of its pods.
    recorded: Mutex<Option<(String, Vec<Vec<u8>>)>>,
    /// What `/configz` answers; `None` for a server without it.
    configz: Mutex<Option<String>>,
    /// Whether it no longer reads what comes to its Pods API.
    hangs: watch::Sender<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(bytes = "vec", tag = "2")]
    pod: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Pod {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Meta>,
    #[prost(message, optional, tag = "2")]
    spec: Option<Spec>,
    #[prost(message, optional, tag = "3")]
    status: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
struct Time {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Meta {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(string, tag = "5")]
    uid: String,
    #[prost(string, tag = "6")]
    resource_version: String,
    #[prost(message, optional, tag = "9")]
    deletion_timestamp: Option<Time>,
    #[prost(btree_map = "string, string", tag = "11")]
    labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "12")]
    annotations: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "13")]
    owners: Vec<Owner>,
}

#[derive(Clone, PartialEq, Message)]
struct Owner {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    uid: String,
    #[prost(string, tag = "5")]
    api_version: String,
    #[prost(bool, optional, tag = "6")]
    controller: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct Spec {
    #[prost(message, repeated, tag = "2")]
    containers: Vec<Container>,
    #[prost(string, tag = "10")]
    node_name: String,
    #[prost(int32, optional, tag = "25")]
    priority: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Container {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    image: String,
    #[prost(message, optional, tag = "8")]
    resources: Option<Resources>,
}

#[derive(Clone, PartialEq, Message)]
struct Resources {
    #[prost(btree_map = "string, message", tag = "1")]
    limits: BTreeMap<String, Quantity>,
    #[prost(btree_map = "string, message", tag = "2")]
    requests: BTreeMap<String, Quantity>,
}

#[derive(Clone, PartialEq, Message)]
struct Quantity {
    #[prost(string, tag = "1")]
    text: String,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "1")]
    phase: String,
    #[prost(string, tag = "9")]
    qos_class: String,
}

impl FakePod {
    /// As a kubelet serves it: it notes itself where it has the pod from, whatever the author wrote.
    fn annotations(&self) -> BTreeMap<String, String> {
        let mut annotations = self.annotations.clone();
        let source = if self.is_static { "file" } else { "api" };
        annotations.insert(String::from("kubernetes.io/config.source"), source.to_owned());
        annotations
    }

    fn owners(&self) -> Vec<Owner> {
        let owner = Owner {
            kind: self.controller.clone(),
            name: String::from("o"),
            uid: String::from("u-o"),
            api_version: String::from("v1"),
            controller: Some(true),
        };
        (!self.controller.is_empty()).then_some(owner).into_iter().collect()
    }

    fn encoded(&self) -> Vec<u8> {
        let memory = |text: &str| {
            let quantity = (!text.is_empty()).then(|| Quantity { text: text.to_owned() });
            quantity.map(|quantity| (String::from("memory"), quantity)).into_iter().collect()
        };
        let containers = self.containers.iter().map(|(name, request, limit)| Container {
            name: name.clone(),
            image: String::from("registry.example/i"),
            resources: Some(Resources { limits: memory(limit), requests: memory(request) }),
        });
        Pod {
            metadata: Some(Meta {
                name: self.name.clone(),
                namespace: self.namespace.clone(),
                uid: self.uid.clone(),
                resource_version: String::from("7"),
                deletion_timestamp: self.is_terminating.then_some(Time { seconds: 1_767_225_600 }),
                labels: self.labels.clone(),
                annotations: self.annotations(),
                owners: self.owners(),
            }),
            spec: Some(Spec {
                containers: containers.collect(),
                node_name: String::from("n"),
                priority: Some(self.priority),
            }),
            status: Some(Status { phase: self.phase.clone(), qos_class: self.class.clone() }),
        }
        .encode_to_vec()
    }

    fn json(&self) -> Value {
        let memory = |text: &str| if text.is_empty() { json!(null) } else { json!({ "memory": text }) };
        let containers = self.containers.iter().map(|(name, request, limit)| {
            json!({
                "name": name, "image": "registry.example/i",
                "resources": {"requests": memory(request), "limits": memory(limit)},
            })
        });
        let owners = self.owners().into_iter().map(|owner| {
            json!({
                "apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid,
                "controller": owner.controller, "blockOwnerDeletion": true,
            })
        });
        json!({
            "metadata": {
                "name": self.name, "namespace": self.namespace, "uid": self.uid, "resourceVersion": "7",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "deletionTimestamp": self.is_terminating.then_some("2026-01-01T00:00:00Z"),
                "annotations": self.annotations(), "labels": self.labels,
                "ownerReferences": owners.collect::<Vec<_>>(),
            },
            "spec": {"containers": containers.collect::<Vec<_>>(), "nodeName": "n", "priority": self.priority},
            "status": {"phase": self.phase, "qosClass": self.class, "conditions": [{"type": "Ready"}]},
        })
    }
}

impl FakeKubelet {
    /// One without pods.
    pub(crate) fn new() -> Self {
        let (changes, _) = broadcast::channel(1_024);
        Self(Arc::new(Inner {
            pods: Mutex::default(),
            changes,
            lists: AtomicU64::new(0),
            recorded: Mutex::default(),
            configz: Mutex::default(),
            hangs: watch::Sender::new(false),
        }))
    }

    /// Leaves the connections to its Pods API open from now on, and does nothing with them.
    pub(crate) fn hang(&self) {
        self.0.hangs.send_replace(true);
    }

    /// Answers from now on as a real one did: by this list, and by these messages of `WatchPods`.
    pub(crate) fn repeat(&self, list: &str, watched: Vec<Vec<u8>>) {
        *self.0.recorded.lock().unwrap_or_else(PoisonError::into_inner) = Some((list.to_owned(), watched));
    }

    /// Sets what `/configz` answers.
    pub(crate) fn configure(&self, answer: String) {
        *self.0.configz.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
    }

    /// Adds a pod, or changes it.
    pub(crate) fn put(&self, pod: FakePod) {
        let mut pods = self.0.pods.lock().unwrap_or_else(PoisonError::into_inner);
        let kind = if pods.contains_key(&pod.uid) { 2 } else { 1 };
        // There may be no watcher.
        drop(self.0.changes.send(Event { kind, pod: pod.encoded() }));
        pods.insert(pod.uid.clone(), pod);
    }

    /// Removes a pod.
    pub(crate) fn remove(&self, uid: &str) {
        let mut pods = self.0.pods.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pod) = pods.remove(uid) {
            // Only what names it is sent.
            let gone =
                FakePod { uid: pod.uid, namespace: pod.namespace, name: pod.name, ..FakePod::default() };
            drop(self.0.changes.send(Event { kind: 3, pod: gone.encoded() }));
        }
    }

    /// Says that a pod has changed, in a way that cannot be read: its phase is no text.
    pub(crate) fn garble(&self, pod: &FakePod) {
        let pod = [&pod.encoded()[..], b"\x1a\x03\x0a\x01\xff"].concat();
        drop(self.0.changes.send(Event { kind: 2, pod }));
    }

    /// Sends an event of that kind to all that watch.
    pub(crate) fn send(&self, kind: i32) {
        drop(self.0.changes.send(Event { kind, pod: Vec::new() }));
    }

    /// How often `/pods` was read.
    pub(crate) fn lists(&self) -> u64 {
        self.0.lists.load(Ordering::Relaxed)
    }

    /// Serves the Pods API there, for ever.
    pub(crate) async fn serve_pods_api(self, listener: UnixListener) -> io::Result<()> {
        loop {
            let (stream, _peer) = listener.accept().await?;
            tokio::spawn(self.clone().serve_one(stream));
        }
    }

    /// Serves the Pods API on one connection.
    pub(crate) async fn serve_one(self, stream: UnixStream) -> Result<(), h2::Error> {
        let mut connection = h2::server::handshake(stream).await?;
        let mut hangs = self.0.hangs.subscribe();
        loop {
            let (request, respond) = tokio::select! {
                biased;
                () = async { drop(hangs.wait_for(|hangs| *hangs).await) } => std::future::pending().await,
                call = connection.accept() => match call {
                    Some(call) => call?,
                    None => return Ok(()),
                },
            };
            tokio::spawn(self.clone().watch(request.uri().path().to_owned(), respond));
        }
    }

    async fn watch(self, path: String, mut respond: SendResponse<Bytes>) -> Result<(), h2::Error> {
        let mut answer = Response::new(());
        answer.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        if path != "/v1beta1.Pods/WatchPods" {
            answer.headers_mut().extend(status(12));
            return respond.send_response(answer, true).map(drop);
        }
        let (mut events, known) = {
            let pods = self.0.pods.lock().unwrap_or_else(PoisonError::into_inner);
            let known = pods.values().map(|pod| Event { kind: 1, pod: pod.encoded() });
            let known = known.chain([Event { kind: 4, pod: Vec::new() }]).map(|event| event.encode_to_vec());
            (self.0.changes.subscribe(), known.collect())
        };
        let recorded = self.0.recorded.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let known: Vec<Vec<u8>> = recorded.map_or(known, |(_list, watched)| watched);
        let mut body = respond.send_response(answer, false)?;
        for message in &known {
            body.send_data(framed(message), false)?;
        }
        while let Ok(event) = events.recv().await {
            // A kind that there is not ends the stream.
            if event.kind == 0 {
                break;
            }
            body.send_data(framed(&event.encode_to_vec()), false)?;
        }
        body.send_trailers(status(0))
    }

    /// Serves HTTPS there with a certificate and its key in PEM, for ever. Who has not this token is refused; one that
    /// begins with `weak` may not list pods.
    pub(crate) async fn serve_https(
        self,
        listener: TcpListener,
        server: (String, String),
        token: &'static str,
    ) -> io::Result<()> {
        let builder = Self::tls()?.with_no_client_auth();
        self.serve_with(listener, builder, server, Some(token)).await
    }

    /// The same for who has a certificate that is signed by this authority, in PEM.
    pub(crate) async fn serve_https_to(
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
        self.serve_with(listener, builder, server, None).await
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
        token: Option<&'static str>,
    ) -> io::Result<()> {
        let chain = CertificateDer::pem_slice_iter(certificate.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(io::Error::other)?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(io::Error::other)?;
        let config = builder.with_single_cert(chain, key).map_err(io::Error::other)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        loop {
            let (stream, _peer) = listener.accept().await?;
            let (acceptor, kubelet) = (acceptor.clone(), self.clone());
            tokio::spawn(async move {
                let stream = acceptor.accept(stream).await?;
                let service = service_fn(move |request| {
                    let answer = kubelet.list(&request, token);
                    async move { Ok::<_, Infallible>(answer) }
                });
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await
                    .map_err(io::Error::other)
            });
        }
    }

    /// The answer to who has that token; without one, to whoever TLS has let in.
    fn list(&self, request: &Request<Incoming>, token: Option<&str>) -> Response<Full<Bytes>> {
        let given =
            request.headers().get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
        let given = given.strip_prefix("Bearer ");
        let (status, body) = match given {
            Some(weak) if weak.starts_with("weak") => (
                StatusCode::FORBIDDEN,
                String::from("Forbidden (user=x, verb=get, resource=nodes, subresource(s)=[pods])"),
            ),
            given if given == token && request.uri().path() == "/configz" => {
                let configz = self.0.configz.lock().unwrap_or_else(PoisonError::into_inner).clone();
                configz.map_or((StatusCode::NOT_FOUND, String::new()), |answer| (StatusCode::OK, answer))
            }
            given if given == token => {
                self.0.lists.fetch_add(1, Ordering::Relaxed);
                let pods = self.0.pods.lock().unwrap_or_else(PoisonError::into_inner);
                let items: Vec<Value> = pods.values().map(FakePod::json).collect();
                let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items});
                let recorded = self.0.recorded.lock().unwrap_or_else(PoisonError::into_inner);
                let recorded = recorded.as_ref().map(|(recorded, _watched)| recorded.clone());
                (StatusCode::OK, recorded.unwrap_or_else(|| list.to_string()))
            }
            _ => (StatusCode::UNAUTHORIZED, String::from("Unauthorized")),
        };
        let mut answer = Response::new(Full::from(body));
        *answer.status_mut() = status;
        answer
    }
}

fn status(code: u32) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("grpc-status", code.into());
    headers
}

fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0][..], &length.to_be_bytes(), message].concat().into()
}
