//! The specs process: it keeps the pods of one source, and says what has changed.

use std::{
    future::pending,
    io,
    os::fd::AsFd as _,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

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
    api_server::{self, ApiFailure, Pace},
    client::PodSpecs,
    configz,
    items::ListError,
    kubelet,
    message::{Ask, FeedAsk, Look, Outcome},
    pods_api,
    store::{Since, Store},
};
use crate::{
    grpc::GrpcError,
    helper::{self, Kind, Numbered, Protocol as _, plain},
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
    #[error("{0}")]
    Unconfigured(String),
    #[error(transparent)]
    Api(#[from] ApiFailure),
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
pub(super) struct Shared {
    store: watch::Sender<Store>,
    /// Why the source cannot be read now, although it is still tried.
    trouble: watch::Sender<Option<String>>,
    /// When the source was read last; `None` if it is watched.
    read_at: Mutex<Option<Instant>>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            store: watch::Sender::new(Store::default()),
            trouble: watch::Sender::new(None),
            read_at: Mutex::default(),
        }
    }
}

impl Shared {
    /// Reports that the source cannot be read, while it is tried again; `None`: it can.
    pub(super) fn set_trouble(&self, trouble: Option<String>) {
        self.trouble.send_if_modified(|known| {
            let differs = *known != trouble;
            *known = trouble;
            differs
        });
    }

    /// Notes that the source is not watched, and was read at that time.
    pub(super) fn note_reading(&self, at: Instant) {
        *self.read_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
    }

    /// How long ago the source was read, in milliseconds; 0 if it is watched.
    fn read_ago_ms(&self) -> u64 {
        let read_at = *self.read_at.lock().unwrap_or_else(PoisonError::into_inner);
        read_at.map_or(0, |at| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Whether all pods of the source are known as they were at one time.
    pub(super) fn is_whole(&self) -> bool {
        self.store.borrow().is_whole()
    }

    /// The number of the last change.
    pub(super) fn revision(&self) -> u64 {
        self.store.borrow().revision()
    }

    /// All pods, for tests.
    #[cfg(test)]
    pub(super) fn since(&self, revision: Option<u64>) -> Option<Since> {
        self.store.borrow().since(revision)
    }

    /// How many pods are left out, for tests.
    #[cfg(test)]
    pub(super) fn dropped(&self) -> u64 {
        self.store.borrow().dropped()
    }

    /// Why the source cannot be read now, for tests.
    #[cfg(test)]
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.borrow().clone()
    }

    /// Changes the pods, and wakes who waits for a change.
    pub(super) fn change(&self, change: impl FnOnce(&mut Store)) {
        self.store.send_if_modified(|store| {
            let before = store.revision();
            change(store);
            store.revision() != before
        });
    }
}

/// Serves the socket on its standard input until that is closed, or the source cannot be read.
#[must_use]
pub fn main() -> ExitCode {
    helper::main((PodSpecs::NAME, Kind::Specs), runtime, |daemon| async {
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
    let shared = Arc::new(Shared::default());
    let (looks, look) = watch::channel(Look::default());
    let mut running: Option<Running> = None;
    let Some(mut ask) = asked.recv().await else { return Ok(()) };
    loop {
        let Numbered { id, content: Ask { feed, after, look: wanted, wait_ms } } = ask;
        let Some(feed) = feed else {
            return reply(&mut writer, id, Outcome::Same { read_ago_ms: 0 }, &[]).await;
        };
        if let FeedAsk::Configz(feed) = &feed {
            let outcome = match configz::read(feed).await {
                Ok(known) => Outcome::Configured(known),
                Err(failure) => Outcome::Failed(crate::chain(&failure)),
            };
            return reply(&mut writer, id, outcome, &[]).await;
        }
        looks.send_if_modified(|look| std::mem::replace(look, wanted) != wanted);
        let goes_on = running.as_ref().is_some_and(|known| known.feeds.borrow().goes_on(&feed));
        let mut now = match running.take() {
            Some(known) if goes_on => {
                known.feeds.send_if_modified(|known| std::mem::replace(known, feed.clone()) != feed);
                known
            }
            former => {
                if let Some(former) = former {
                    former.task.abort();
                    // What it had is not what the next one has.
                    shared.store.send_replace(Store::default());
                    shared.set_trouble(None);
                    *shared.read_at.lock().unwrap_or_else(PoisonError::into_inner) = None;
                }
                let (feeds, new) = watch::channel(feed);
                let task = tokio::spawn(run(new, kubelet.take(), look.clone(), Arc::clone(&shared)));
                Running { feeds, task }
            }
        };
        let deadline = Instant::now() + Duration::from_millis(wait_ms);
        let (mut store, mut trouble) = (shared.store.subscribe(), shared.trouble.subscribe());
        let (outcome, body) = tokio::select! {
            // What is there is not sent once the source has failed: it may be old.
            biased;
            next = asked.recv() => {
                let Some(next) = next else { return Ok(()) };
                ask = next;
                running = Some(now);
                continue;
            }
            failure = &mut now.task => {
                let failure = failure.unwrap_or(Failure::StreamEnded);
                return reply(&mut writer, id, Outcome::Failed(crate::chain(&failure)), &[]).await;
            }
            // What it has may be old by now.
            why = troubled(&mut trouble) => (Outcome::Failed(why), Vec::new()),
            since = changed(&mut store, after) => changed_outcome(&shared, &since),
            () = sleep_until(deadline) => {
                if shared.is_whole() {
                    (Outcome::Same { read_ago_ms: shared.read_ago_ms() }, Vec::new())
                } else {
                    let failure = Outcome::Failed(crate::chain(&Failure::TimedOut { timeout_ms: wait_ms }));
                    // One that tries again by itself has what it got so far, and knows when to ask.
                    if !now.feeds.borrow().tries_again() {
                        return reply(&mut writer, id, failure, &[]).await;
                    }
                    (failure, Vec::new())
                }
            }
        };
        reply(&mut writer, id, outcome, &body).await?;
        running = Some(now);
        let Some(next) = asked.recv().await else { return Ok(()) };
        ask = next;
    }
}

/// The task that reads a source, and the source with the credentials of the last question.
struct Running {
    feeds: watch::Sender<FeedAsk>,
    task: JoinHandle<Failure>,
}

async fn run(
    feeds: watch::Receiver<FeedAsk>,
    kubelet: Option<UnixStream>,
    looks: watch::Receiver<Look>,
    shared: Arc<Shared>,
) -> Failure {
    let feed = feeds.borrow().clone();
    match (feed, kubelet) {
        (FeedAsk::PodsApi, Some(kubelet)) => pods_api::watch(kubelet, &shared).await,
        // The configuration is answered without a task.
        (FeedAsk::PodsApi, None) | (FeedAsk::Configz(_), _) => Failure::Unconnected,
        (FeedAsk::Kubelet(feed), _) => kubelet::poll(*feed, looks, &shared).await,
        (FeedAsk::ApiServer(feed), _) => api_server::watch(*feed, feeds, Pace::default(), &shared).await,
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

/// Waits until the source cannot be read although it is tried again, and returns why.
async fn troubled(trouble: &mut watch::Receiver<Option<String>>) -> String {
    loop {
        if let Some(why) = trouble.borrow_and_update().clone() {
            return why;
        }
        if trouble.changed().await.is_err() {
            // Its sender lives as long as this task.
            pending::<()>().await;
        }
    }
}

fn changed_outcome(shared: &Shared, since: &Since) -> (Outcome, Vec<u8>) {
    let dropped = shared.store.borrow().dropped();
    let Since { revision, is_whole, .. } = *since;
    let outcome = Outcome::Changed { revision, is_whole, dropped, read_ago_ms: shared.read_ago_ms() };
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
