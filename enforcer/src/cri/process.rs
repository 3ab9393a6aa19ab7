//! The runtime process: it lists what the container runtime has, on the connection that is its standard output.

use std::{future::pending, io, pin::Pin, process::ExitCode, time::Duration};

use prost::Message as _;
use tokio::{
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    runtime::{Builder, Runtime},
    sync::mpsc,
    time::{Instant, timeout_at},
};

use super::{
    client::Cri,
    message::{Ask, Listing, MOST_WANTED, Outcome},
    proto::{
        self, CREATED, Garbled, Items, ListContainersRequest, ListPodSandboxRequest, RUNNING, VersionRequest,
        VersionResponse,
    },
};
use crate::{
    grpc::{Channel, GrpcError},
    helper::{self, Kind, Numbered, Protocol as _},
};

/// The hidden verb that this program is started with.
pub const VERB: &str = "runtime-process";

/// How many questions may wait: the last one counts.
const WAITING: usize = 8;

/// Why there is no listing.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{method} failed")]
    Call {
        method: &'static str,
        #[source]
        source: GrpcError,
    },
    #[error("the answer to {method} cannot be read")]
    Decode {
        method: &'static str,
        #[source]
        source: prost::DecodeError,
    },
    #[error(transparent)]
    Garbled(#[from] Garbled),
    #[error("the runtime does not answer within {timeout_ms} ms")]
    TimedOut { timeout_ms: u64 },
    #[error("the listing cannot be written")]
    Write(#[from] serde_json::Error),
}

impl Failure {
    fn outcome(&self) -> Outcome {
        match self {
            Self::Call { source, .. } if let Some(words) = source.unimplemented() => {
                Outcome::NoService(words.to_owned())
            }
            _ => Outcome::Failed(crate::chain(self)),
        }
    }
}

/// Serves the socket on its standard input until that is closed, or the connection on its standard output is.
#[must_use]
pub fn main() -> ExitCode {
    helper::main((Cri::NAME, Kind::Runtime), runtime, |daemon| async {
        let runtime = helper::standard_socket(&io::stdout())?;
        serve(daemon, UnixStream::from_std(runtime)?).await
    })
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Answers the daemon's questions by what the runtime says. Ends when the daemon is gone, or after a failure: the next
/// question is for a new connection then.
pub(super) async fn serve(daemon: UnixStream, runtime: UnixStream) -> io::Result<()> {
    let (reader, mut writer) = daemon.into_split();
    let (sender, mut asked) = mpsc::channel(WAITING);
    tokio::spawn(read_all(reader, sender));
    let (channel, connection) = match Channel::open(runtime).await {
        Ok(opened) => opened,
        Err(source) => {
            let Some(Numbered { id, .. }) = asked.recv().await else { return Ok(()) };
            let failure = Failure::Call { method: "the HTTP/2 handshake", source };
            return reply(&mut writer, id, failure.outcome(), &[]).await;
        }
    };
    let mut connection = tokio::spawn(connection);
    // One at a time: the next one means that the daemon has given up the one before.
    let mut present = None;
    // The process is started for a question: it waits for that, to say why there is no answer.
    let mut is_asked = false;
    loop {
        tokio::select! {
            ask = asked.recv() => match ask {
                Some(ask) => {
                    is_asked = true;
                    present = Some(Box::pin(answer(channel.clone(), ask)));
                }
                None => return Ok(()),
            },
            (id, outcome, listing) = finished(&mut present) => {
                present = None;
                let is_last = outcome != Outcome::Listed;
                reply(&mut writer, id, outcome, &listing).await?;
                if is_last {
                    return Ok(());
                }
            }
            // A listing that is under way fails, and says why.
            ended = &mut connection, if is_asked && present.is_none() => {
                return match ended {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(error)) => Err(io::Error::other(error)),
                    Err(error) => Err(io::Error::other(error)),
                };
            }
        }
    }
}

async fn read_all(mut reader: OwnedReadHalf, asks: mpsc::Sender<Numbered<Ask>>) {
    while let Ok(Some((ask, _body))) = helper::read(&mut reader, Cri::MOST_ASK_BYTES).await {
        if asks.send(ask).await.is_err() {
            return;
        }
    }
}

/// Waits for what is under way; for ever without anything.
async fn finished<F: Future>(present: &mut Option<Pin<Box<F>>>) -> F::Output {
    match present {
        Some(present) => present.await,
        None => pending().await,
    }
}

async fn reply(writer: &mut OwnedWriteHalf, id: u64, content: Outcome, listing: &[u8]) -> io::Result<()> {
    let frame = helper::encode(&Numbered { id, content }, listing, Cri::MOST_ANSWER_BYTES)?;
    helper::write(writer, &frame).await
}

/// The answer's number, head and body.
async fn answer(channel: Channel, Numbered { id, content }: Numbered<Ask>) -> (u64, Outcome, Vec<u8>) {
    let Ask { timeout_ms, wanted } = content;
    let until = Instant::now() + Duration::from_millis(timeout_ms);
    let listed = timeout_at(until, list(&channel, timeout_ms)).await;
    let mut listing = match listed.unwrap_or(Err(Failure::TimedOut { timeout_ms })) {
        Ok(listing) => listing,
        Err(failure) => return (id, failure.outcome(), Vec::new()),
    };
    // Whatever comes of these, what is listed has names.
    let outcome = match timeout_at(until, add_wanted(&channel, &wanted, &mut listing, timeout_ms)).await {
        Ok(Ok(())) => Outcome::Listed,
        Ok(Err(_)) | Err(_) => Outcome::ListedInPart,
    };
    match serde_json::to_vec(&listing.checked()) {
        Ok(listing) => (id, outcome, listing),
        Err(error) => (id, Failure::from(error).outcome(), Vec::new()),
    }
}

/// Lists containers before sandboxes, and those that are created before those that run: what begins meanwhile is not
/// missed. Containers that have exited are many, and have no cgroup: only those are of use that are wanted.
///
/// A filter has one state; not every runtime knows how to filter by `CONTAINER_UNKNOWN` (cri-dockerd passes it on to
/// Docker, which refuses).
async fn list(channel: &Channel, timeout_ms: u64) -> Result<Listing, Failure> {
    let version = call(channel, "Version", &VersionRequest {}, timeout_ms).await?;
    let VersionResponse { runtime_name, runtime_version } = VersionResponse::decode(&version[..])
        .map_err(|source| Failure::Decode { method: "Version", source })?;
    let mut listing = Listing { runtime: format!("{runtime_name} {runtime_version}"), ..Listing::default() };
    for state in [CREATED, RUNNING] {
        let filter = ListContainersRequest::in_state(state);
        let answer = call(channel, "ListContainers", &filter, timeout_ms).await?;
        for item in Items::of(&answer) {
            match proto::container(item?) {
                Ok(container) => listing.add_container(container),
                // Such as text that is not UTF-8: tenants choose it.
                Err(_error) => listing.dropped += 1,
            }
        }
    }
    let answer = call(channel, "ListPodSandbox", &ListPodSandboxRequest {}, timeout_ms).await?;
    for item in Items::of(&answer) {
        match proto::sandbox(item?) {
            Ok(sandbox) => listing.add_sandbox(sandbox),
            Err(_error) => listing.dropped += 1,
        }
    }
    Ok(listing)
}

/// Adds the wanted containers that are not listed, in whatever state they are, each by its id: a container that ran for
/// a moment has exited by now. Their sandboxes are listed in any state.
async fn add_wanted(
    channel: &Channel,
    wanted: &[String],
    listing: &mut Listing,
    timeout_ms: u64,
) -> Result<(), Failure> {
    let missing: Vec<&String> = wanted.iter().take(MOST_WANTED).filter(|id| !listing.has(id)).collect();
    for id in missing {
        let filter = ListContainersRequest::with_id(id);
        let answer = call(channel, "ListContainers", &filter, timeout_ms).await?;
        for item in Items::of(&answer) {
            match proto::container(item?) {
                Ok(container) if container.id == *id => listing.add_container(container),
                // Another one was not asked for.
                Ok(_) => {}
                Err(_error) => listing.dropped += 1,
            }
        }
    }
    Ok(())
}

async fn call(
    channel: &Channel,
    method: &'static str,
    message: &impl prost::Message,
    timeout_ms: u64,
) -> Result<Vec<u8>, Failure> {
    let path = format!("{}{method}", proto::SERVICE);
    channel.call(&path, message, timeout_ms).await.map_err(|source| Failure::Call { method, source })
}
