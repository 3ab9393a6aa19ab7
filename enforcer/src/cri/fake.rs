//! A container runtime that has what it is given: `runtime.v1.RuntimeService` over a unix socket.
//!
//! It uses nothing of this crate, so that any test program may include it, and so that the client is not tested against
//! its own idea of the messages.

use std::{collections::BTreeMap, io, sync::Arc};

use bytes::Bytes;
use h2::{
    SendStream,
    server::{self, SendResponse},
};
use hyper::{HeaderMap, Request, Response, header::HeaderValue};
use prost::Message;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::mpsc,
};

/// A sandbox as runtimes send it, with what nothing here reads.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Sandbox {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) metadata: Option<SandboxMetadata>,
    /// `SANDBOX_READY` is 0, `SANDBOX_NOTREADY` is 1.
    #[prost(int32, tag = "3")]
    pub(crate) state: i32,
    #[prost(int64, tag = "4")]
    pub(crate) created_at: i64,
    #[prost(btree_map = "string, string", tag = "5")]
    pub(crate) labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub(crate) annotations: BTreeMap<String, String>,
    #[prost(string, tag = "7")]
    pub(crate) runtime_handler: String,
}

/// What the kubelet calls a sandbox.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxMetadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) uid: String,
    #[prost(string, tag = "3")]
    pub(crate) namespace: String,
    #[prost(uint32, tag = "4")]
    pub(crate) attempt: u32,
}

/// A container in the same way.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Container {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) pod_sandbox_id: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "4")]
    pub(crate) image: Option<ImageSpec>,
    #[prost(string, tag = "5")]
    pub(crate) image_ref: String,
    /// `CONTAINER_CREATED` is 0, `_RUNNING` 1, `_EXITED` 2, `_UNKNOWN` 3.
    #[prost(int32, tag = "6")]
    pub(crate) state: i32,
    #[prost(int64, tag = "7")]
    pub(crate) created_at: i64,
    #[prost(btree_map = "string, string", tag = "8")]
    pub(crate) labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "9")]
    pub(crate) annotations: BTreeMap<String, String>,
}

/// What the kubelet calls a container.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerMetadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(uint32, tag = "2")]
    pub(crate) attempt: u32,
}

/// An image's name.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageSpec {
    #[prost(string, tag = "1")]
    pub(crate) image: String,
}

#[derive(Clone, PartialEq, Message)]
struct VersionResponse {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(string, tag = "2")]
    runtime_name: String,
    #[prost(string, tag = "3")]
    runtime_version: String,
    #[prost(string, tag = "4")]
    runtime_api_version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Sandboxes {
    #[prost(message, repeated, tag = "1")]
    items: Vec<Sandbox>,
}

#[derive(Clone, PartialEq, Message)]
struct Containers {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<Container>,
}

#[derive(Clone, PartialEq, Message)]
struct ListContainers {
    #[prost(message, optional, tag = "1")]
    filter: Option<Filter>,
}

#[derive(Clone, PartialEq, Message)]
struct Filter {
    /// The whole id; empty for all.
    #[prost(string, tag = "1")]
    id: String,
    #[prost(message, optional, tag = "2")]
    state: Option<State>,
}

#[derive(Clone, PartialEq, Message)]
struct State {
    #[prost(int32, tag = "1")]
    state: i32,
}

/// What the runtime has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    pub(crate) sandboxes: Vec<Sandbox>,
    pub(crate) containers: Vec<Container>,
}

/// How it answers a call.
#[derive(Clone, Debug)]
pub(crate) enum Say {
    /// With a message.
    Message(Vec<u8>),
    /// With a status and its words.
    Status(u32, &'static str),
    /// With a message of which only half comes.
    Half(Vec<u8>),
    /// With a message, and with no status after it.
    NoStatus(Vec<u8>),
    /// With nothing: it closes the connection in the middle.
    Close,
    /// Never.
    Hang,
}

impl Node {
    /// Adds a pod that runs, with the labels and annotations that a kubelet gives it. Returns its sandbox's id.
    pub(crate) fn add_pod(&mut self, namespace: &str, name: &str, uid: &str) -> String {
        let id = format!("{:0>64x}", 0x5a00_0000 + self.sandboxes.len());
        let label = |key: &str, value: &str| (format!("io.kubernetes.{key}"), value.to_owned());
        let labels = [label("pod.name", name), label("pod.namespace", namespace), label("pod.uid", uid)];
        let config = (String::from("kubernetes.io/config.source"), String::from("api"));
        self.sandboxes.push(Sandbox {
            id: id.clone(),
            metadata: Some(SandboxMetadata {
                name: name.to_owned(),
                uid: uid.to_owned(),
                namespace: namespace.to_owned(),
                attempt: 0,
            }),
            created_at: 1_700_000_000_000_000_000,
            labels: labels.into(),
            annotations: [config].into(),
            ..Sandbox::default()
        });
        id
    }

    /// Adds a container in a state. Returns its id.
    pub(crate) fn add_container(&mut self, sandbox: &str, name: &str, state: i32) -> String {
        let id = format!("{:0>64x}", 0xc0_0000_0000_usize + self.containers.len());
        let image = String::from("registry.example/team/image@sha256:0123456789abcdef");
        let label = (String::from("io.kubernetes.container.name"), name.to_owned());
        let path = (String::from("io.kubernetes.container.terminationMessagePath"), String::from("/dev/t"));
        self.containers.push(Container {
            id: id.clone(),
            pod_sandbox_id: sandbox.to_owned(),
            metadata: Some(ContainerMetadata { name: name.to_owned(), attempt: 2 }),
            image: Some(ImageSpec { image: image.clone() }),
            image_ref: image,
            state,
            created_at: 1_700_000_000_000_000_000,
            labels: [label].into(),
            annotations: [path].into(),
        });
        id
    }

    /// A node with that many pods, each with two containers that run.
    pub(crate) fn with_pods(count: usize) -> Self {
        let mut node = Self::default();
        for number in 0..count {
            let uid = format!("0f5e7a4c-3f0b-4a51-8d6f-{number:012}");
            let sandbox = node.add_pod("default", &format!("web-7d4b9c6f5d-{number:05}"), &uid);
            node.add_container(&sandbox, "server", 1);
            node.add_container(&sandbox, "proxy", 1);
        }
        node
    }

    /// Answers as a runtime does.
    pub(crate) fn say(&self, path: &str, message: &[u8]) -> Say {
        match path.strip_prefix("/runtime.v1.RuntimeService/") {
            Some("Version") => Say::Message(
                VersionResponse {
                    version: String::from("0.1.0"),
                    runtime_name: String::from("fake"),
                    runtime_version: String::from("1.2.3"),
                    runtime_api_version: String::from("v1"),
                }
                .encode_to_vec(),
            ),
            Some("ListPodSandbox") => {
                Say::Message(Sandboxes { items: self.sandboxes.clone() }.encode_to_vec())
            }
            Some("ListContainers") => {
                let asked = ListContainers::decode(message).unwrap_or_default();
                let Filter { id, state } = asked.filter.unwrap_or_default();
                let is_asked = |container: &&Container| {
                    (id.is_empty() || container.id == id)
                        && state.as_ref().is_none_or(|state| container.state == state.state)
                };
                let containers = self.containers.iter().filter(is_asked).cloned().collect();
                Say::Message(Containers { containers }.encode_to_vec())
            }
            _ => Say::Status(12, "unknown%20service"),
        }
    }
}

/// Serves all that connect, for ever. `say` answers a method's path and message.
pub(crate) async fn serve(
    listener: UnixListener,
    say: impl Fn(&str, &[u8]) -> Say + Send + Sync + 'static,
) -> io::Result<()> {
    let say = Arc::new(say);
    loop {
        let (stream, _peer) = listener.accept().await?;
        tokio::spawn(serve_one(stream, Arc::clone(&say)));
    }
}

async fn serve_one<F>(stream: UnixStream, say: Arc<F>) -> Result<(), h2::Error>
where
    F: Fn(&str, &[u8]) -> Say + Send + Sync + 'static,
{
    let mut connection = server::handshake(stream).await?;
    let (close, mut closed) = mpsc::channel(1);
    loop {
        let (request, respond) = tokio::select! {
            accepted = connection.accept() => match accepted {
                Some(accepted) => accepted?,
                None => return Ok(()),
            },
            _ = closed.recv() => return Ok(()),
        };
        tokio::spawn(answer(request, respond, Arc::clone(&say), close.clone()));
    }
}

async fn answer<F>(
    request: Request<h2::RecvStream>,
    mut respond: SendResponse<Bytes>,
    say: Arc<F>,
    close: mpsc::Sender<()>,
) -> Result<(), h2::Error>
where
    F: Fn(&str, &[u8]) -> Say + Send + Sync + 'static,
{
    let (head, mut body) = request.into_parts();
    let mut asked = Vec::new();
    while let Some(data) = body.data().await {
        asked.extend_from_slice(&data?);
    }
    let mut answer = Response::new(());
    answer.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    match say(head.uri.path(), asked.get(5..).unwrap_or_default()) {
        Say::Hang => std::future::pending().await,
        Say::Close => {
            // The connection may be closed already.
            let _closed = close.send(()).await;
            Ok(())
        }
        Say::Status(code, words) => {
            answer.headers_mut().extend(status(code, words));
            respond.send_response(answer, true).map(drop)
        }
        Say::Message(message) => {
            let mut body = respond.send_response(answer, false)?;
            body.send_data(framed(&message), false)?;
            end(body)
        }
        Say::Half(message) => {
            let mut body = respond.send_response(answer, false)?;
            let framed = framed(&message);
            body.send_data(framed.slice(..framed.len() / 2), false)?;
            end(body)
        }
        Say::NoStatus(message) => respond.send_response(answer, false)?.send_data(framed(&message), true),
    }
}

fn end(mut body: SendStream<Bytes>) -> Result<(), h2::Error> {
    body.send_trailers(status(0, ""))
}

fn status(code: u32, words: &'static str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("grpc-status", code.into());
    headers.insert("grpc-message", HeaderValue::from_static(words));
    headers
}

fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0][..], &length.to_be_bytes(), message].concat().into()
}
