//! What a container runtime, a kubelet and an API server answer about the same pods, on a real node, for the fakes.
//!
//! `cargo xtask vm exec --kube --file TARGET/bench:/bin/bench -- 'bench record' > enforcer/src/recorded/1.36.json`
//!
//! Bytes are written in hexadecimal. Nothing is changed or left out: the node is a guest that ends with the command.

use std::{path::Path, process::Command, time::Duration};

use anyhow::{Context as _, bail, ensure};
use bytes::{Buf as _, Bytes, BytesMut};
use hyper::{Method, Request, StatusCode, Version};
use prost::Message;
use serde_json::{Value, json};
use tokio::{net::UnixStream, time::timeout};

/// How long one answer may take on an emulated node.
const ANSWER: Duration = Duration::from_mins(1);

/// A message is preceded by a byte for its compression and four for its length.
const PREFIX_BYTES: usize = 5;

/// The daemon's questions for containers that are created, and for those that run.
const CREATED: &[u8] = &[0x0a, 2, 0x12, 0];
const RUNNING: &[u8] = &[0x0a, 4, 0x12, 2, 8, 1];

/// The kind of the event after which all pods have come.
const INITIAL_SYNC_COMPLETE: i32 = 4;

/// Where to ask.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The node's name
    #[arg(long, default_value = "guest")]
    node: String,
    /// The container runtime's socket
    #[arg(long, default_value = "/run/containerd/containerd.sock")]
    runtime: String,
    /// The socket of the kubelet's Pods API
    #[arg(long, default_value = "/var/lib/kubelet/pods-api/pods-api.sock")]
    pods_api: String,
    /// The kubelet's HTTPS server
    #[arg(long, default_value = "https://127.0.0.1:10250")]
    kubelet: String,
    /// The certificate that it signed itself
    #[arg(long, default_value = "/var/lib/kubelet/pki/kubelet.crt")]
    certificate: String,
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(int32, tag = "1")]
    kind: i32,
}

/// Prints all answers as one document.
pub(crate) fn record(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut recorded = runtime.block_on(over_sockets(args))?;
    let pods = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}", args.node);
    let watch = format!("{pods}&watch=true&allowWatchBookmarks=true&timeoutSeconds=5");
    let list = kubectl(&[], &format!("{pods}&limit=500"))?;
    // A watch from before the first pod has all of them.
    let since = version_before(&list)?;
    recorded["list"] = json!(list);
    for (name, target) in [
        ("version", String::from("/version")),
        ("watch", format!("{watch}&resourceVersion={since}")),
        ("stream", format!("{watch}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan")),
    ] {
        recorded[name] = json!(kubectl(&[], &target)?);
    }
    // Not by way of the API server, which refuses that for some addresses of nodes.
    let kubelet = ["--server", &args.kubelet, "--certificate-authority", &args.certificate];
    let named = ["--tls-server-name", &args.node];
    for (name, target) in [("kubeletPods", "/pods"), ("kubeletConfigz", "/configz")] {
        recorded[name] = json!(kubectl(&[&kubelet[..], &named].concat(), target)?);
    }
    println!("{recorded:#}");
    Ok(())
}

/// The version at which the first pod's namespace was made.
fn version_before(list: &str) -> anyhow::Result<String> {
    let list: Value = serde_json::from_str(list)?;
    let namespace = list["items"][0]["metadata"]["namespace"].as_str().context("there is no pod")?;
    let namespace: Value = serde_json::from_str(&kubectl(&[], &format!("/api/v1/namespaces/{namespace}"))?)?;
    let version =
        namespace["metadata"]["resourceVersion"].as_str().context("the namespace has no version")?;
    Ok(version.to_owned())
}

/// What a server answers to the cluster's administrator: the API server, unless the flags name another.
fn kubectl(flags: &[&str], target: &str) -> anyhow::Result<String> {
    let mut command = Command::new("kubectl");
    let output = command.args(flags).args(["get", "--raw", target]).output().context("cannot run kubectl")?;
    ensure!(output.status.success(), "{target}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).with_context(|| format!("{target}: the answer is no text"))
}

async fn over_sockets(args: &Args) -> anyhow::Result<Value> {
    let service = |method: &str| format!("/runtime.v1.RuntimeService/{method}");
    let one = async |method: &str, message: Vec<u8>| -> anyhow::Result<Vec<u8>> {
        let answer = call(&args.runtime, &service(method), message, |_| true).await?;
        answer.into_iter().next().with_context(|| format!("{method}: no answer"))
    };
    let is_last = |event: &[u8]| Event::decode(event).is_ok_and(|event| event.kind == INITIAL_SYNC_COMPLETE);
    let mut events = None;
    for name in ["v1beta1", "v1alpha1"] {
        let called = call(&args.pods_api, &format!("/{name}.Pods/WatchPods"), Vec::new(), is_last).await;
        match called {
            Ok(answers) => {
                events = Some(
                    json!({"service": format!("{name}.Pods"), "events": answers.iter().map(|event| hex(event)).collect::<Vec<_>>()}),
                );
                break;
            }
            Err(error) => eprintln!("{name}: {error:#}"),
        }
    }
    // By method and question.
    let mut runtime = json!({});
    for (method, question) in [
        ("Version", &[][..]),
        ("ListPodSandbox", &[]),
        ("ListContainers", CREATED),
        ("ListContainers", RUNNING),
    ] {
        runtime[method][hex(question)] = json!(hex(&one(method, question.to_vec()).await?));
    }
    Ok(json!({"runtime": runtime, "podsApi": events}))
}

/// Calls a method, and returns its answer's messages up to the one that is the last.
async fn call(
    socket: &str,
    path: &str,
    message: Vec<u8>,
    is_last: impl Fn(&[u8]) -> bool,
) -> anyhow::Result<Vec<Vec<u8>>> {
    let stream = UnixStream::connect(Path::new(socket)).await.with_context(|| socket.to_owned())?;
    let (sender, connection) = h2::client::handshake(stream).await?;
    let connection = tokio::spawn(connection);
    let request = Request::builder()
        .method(Method::POST)
        .version(Version::HTTP_2)
        .uri(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())?;
    let (answer, mut body) = sender.ready().await?.send_request(request, false)?;
    let length = u32::try_from(message.len())?;
    body.send_data([&[0][..], &length.to_be_bytes(), &message].concat().into(), true)?;
    let answer = timeout(ANSWER, answer).await.with_context(|| format!("{path}: no answer"))??;
    ensure!(answer.status() == StatusCode::OK, "{path}: status {}", answer.status());
    let mut body = answer.into_body();
    let (mut messages, mut rest): (Vec<Vec<u8>>, BytesMut) = (Vec::new(), BytesMut::new());
    while !messages.last().is_some_and(|message| is_last(message)) {
        let data = timeout(ANSWER, body.data()).await.with_context(|| format!("{path}: no message"))?;
        let Some(data) = data else { break };
        let data: Bytes = data?;
        body.flow_control().release_capacity(data.len())?;
        rest.extend_from_slice(&data);
        while let Some(length) = rest.get(1..PREFIX_BYTES).and_then(|bytes| bytes.try_into().ok()) {
            let length = usize::try_from(u32::from_be_bytes(length))?;
            if rest.len() < PREFIX_BYTES + length {
                break;
            }
            rest.advance(PREFIX_BYTES);
            messages.push(rest.split_to(length).to_vec());
        }
    }
    connection.abort();
    if messages.is_empty() {
        bail!("{path}: it ended without a message");
    }
    Ok(messages)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        text.push_str(&format!("{byte:02x}"));
        text
    })
}
