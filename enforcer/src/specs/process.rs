//! The specs process: it keeps the pods of one source, and says what has changed.

use std::{future::pending, io, os::fd::AsFd as _, process::ExitCode, sync::Arc, time::Duration};

use hyper::StatusCode;
use tokio::{
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    runtime::{Builder, Runtime},
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use super::{
    client::PodSpecs,
    items::ListError,
    kubelet,
    message::{Ask, FeedAsk, Outcome},
    pods_api,
    store::{Since, Store},
};
use crate::{
    grpc::GrpcError,
    helper::{self, Numbered, Protocol as _, plain},
    network::ConnectionError,
};

/// The hidden verb that this program is started with.
pub const VERB: &str = "specs-process";

/// How many questions may wait: the last one counts.
const WAITING: usize = 8;

/// The runtime looks up even an address on a thread of its own, which must exist before the limit of processes is set.
const LOOKUPS: usize = 1;

/// Why a source cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Grpc(#[from] GrpcError),
    #[error("a message cannot be read")]
    Decode(#[from] prost::DecodeError),
    #[error("an event is of the unknown kind {kind}")]
    UnknownEvent { kind: i32 },
    #[error("the stream of changes has ended")]
    StreamEnded,
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error("the request cannot be written")]
    Request(#[from] hyper::http::Error),
    #[error("the token contains characters that an HTTP header may not have: check the token file")]
    Token,
    #[error("the answer has status {status}{hint}: {words}")]
    Refused { status: u16, hint: &'static str, words: String },
    #[error(transparent)]
    ListError(#[from] ListError),
    #[error("it has not listed its pods within {timeout_ms} ms")]
    TimedOut { timeout_ms: u64 },
    #[error("the connection to the kubelet is missing")]
    Unconnected,
}

impl Failure {
    /// The kubelet's refusal, with what to do.
    pub(super) fn refused(status: StatusCode, words: &str) -> Self {
        let hint = match status {
            StatusCode::UNAUTHORIZED => " (it does not accept these credentials)",
            StatusCode::FORBIDDEN => {
                " (these credentials may not `get` the resource `nodes/pods`; kubelets before 1.33 check `nodes/proxy`)"
            }
            _ => "",
        };
        Self::Refused { status: status.as_u16(), hint, words: plain(words) }
    }
}

/// The pods of the source, which one task changes and another reads.
pub(super) struct Shared(watch::Sender<Store>);

impl Shared {
    /// Changes the pods, and wakes who waits for a change.
    pub(super) fn change(&self, change: impl FnOnce(&mut Store)) {
        self.0.send_if_modified(|store| {
            let before = store.revision();
            change(store);
            store.revision() != before
        });
    }
}

/// Serves the socket on its standard input until that is closed, or the source cannot be read.
#[must_use]
pub fn main() -> ExitCode {
    helper::main(PodSpecs::NAME, runtime, |daemon| async {
        // It is there for the Pods API alone.
        let connected = rustix::net::sockopt::socket_type(io::stdout().as_fd()).is_ok();
        let kubelet = connected.then(|| helper::standard_socket(&io::stdout())).transpose()?;
        serve(daemon, kubelet.map(UnixStream::from_std).transpose()?).await
    })
}

fn runtime() -> io::Result<Runtime> {
    let mut builder = Builder::new_current_thread();
    builder.enable_all();
    crate::threads::runtime(&mut builder, LOOKUPS)
}

/// Answers the daemon's questions. Ends when the daemon is gone, or after a failure: the next question is for another
/// process then.
pub(super) async fn serve(daemon: UnixStream, mut kubelet: Option<UnixStream>) -> io::Result<()> {
    let (reader, mut writer) = daemon.into_split();
    let (sender, mut asked) = mpsc::channel(WAITING);
    tokio::spawn(read_all(reader, sender));
    let shared = Arc::new(Shared(watch::channel(Store::default()).0));
    let (looks, look) = watch::channel(0);
    let mut running: Option<(FeedAsk, JoinHandle<Failure>)> = None;
    let Some(mut ask) = asked.recv().await else { return Ok(()) };
    loop {
        let Numbered { id, content: Ask { feed, after, look: wanted, wait_ms } } = ask;
        let Some(feed) = feed else { return reply(&mut writer, id, Outcome::Same, &[]).await };
        looks.send_if_modified(|look| std::mem::replace(look, wanted) != wanted);
        let mut task = match running.take() {
            Some((known, task)) if known == feed => task,
            former => {
                if let Some((_, former)) = former {
                    former.abort();
                    // What it had is not what the next one has.
                    shared.0.send_replace(Store::default());
                }
                tokio::spawn(run(feed.clone(), kubelet.take(), look.clone(), Arc::clone(&shared)))
            }
        };
        let deadline = Instant::now() + Duration::from_millis(wait_ms);
        let mut store = shared.0.subscribe();
        let (outcome, body) = tokio::select! {
            // What is there is not sent once the source has failed: it may be old.
            biased;
            next = asked.recv() => {
                let Some(next) = next else { return Ok(()) };
                ask = next;
                running = Some((feed, task));
                continue;
            }
            failure = &mut task => {
                let failure = failure.unwrap_or(Failure::StreamEnded);
                return reply(&mut writer, id, Outcome::Failed(crate::chain(&failure)), &[]).await;
            }
            since = changed(&mut store, after) => changed_outcome(&shared, &since),
            () = sleep_until(deadline) => {
                if !shared.0.borrow().is_whole() {
                    let failure = Failure::TimedOut { timeout_ms: wait_ms };
                    return reply(&mut writer, id, Outcome::Failed(crate::chain(&failure)), &[]).await;
                }
                (Outcome::Same, Vec::new())
            }
        };
        reply(&mut writer, id, outcome, &body).await?;
        running = Some((feed, task));
        let Some(next) = asked.recv().await else { return Ok(()) };
        ask = next;
    }
}

async fn run(
    feed: FeedAsk,
    kubelet: Option<UnixStream>,
    looks: watch::Receiver<u64>,
    shared: Arc<Shared>,
) -> Failure {
    match (feed, kubelet) {
        (FeedAsk::PodsApi, Some(kubelet)) => pods_api::watch(kubelet, &shared).await,
        (FeedAsk::PodsApi, None) => Failure::Unconnected,
        (FeedAsk::Kubelet(feed), _) => kubelet::poll(*feed, looks, &shared).await,
    }
}

/// Waits for a change after that revision.
async fn changed(store: &mut watch::Receiver<Store>, after: Option<u64>) -> Since {
    loop {
        if let Some(since) = store.borrow_and_update().since(after) {
            return since;
        }
        if store.changed().await.is_err() {
            // Its sender lives as long as this task.
            pending::<()>().await;
        }
    }
}

fn changed_outcome(shared: &Shared, since: &Since) -> (Outcome, Vec<u8>) {
    let dropped = shared.0.borrow().dropped();
    let outcome = Outcome::Changed { revision: since.revision, is_whole: since.is_whole, dropped };
    (outcome, since.body())
}

async fn read_all(mut reader: OwnedReadHalf, asks: mpsc::Sender<Numbered<Ask>>) {
    while let Ok(Some((ask, _body))) = helper::read(&mut reader, PodSpecs::MOST_ASK_BYTES).await {
        if asks.send(ask).await.is_err() {
            return;
        }
    }
}

async fn reply(writer: &mut OwnedWriteHalf, id: u64, content: Outcome, body: &[u8]) -> io::Result<()> {
    let frame = helper::encode(&Numbered { id, content }, body, PodSpecs::MOST_ANSWER_BYTES)?;
    helper::write(writer, &frame).await
}
