//! The daemon's side: hands requests to the network process and answers back, and starts that process when needed.

use std::{
    collections::BTreeMap,
    fmt, io,
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream as StdStream, process::CommandExt as _},
    },
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use tokio::{
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{
    frame,
    message::{Answer, Ask, Exchange, Reply},
    process::VERB,
};

/// This program, even after its file was replaced.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// How many requests may wait for the broker. Each client has one at a time.
const WAITING: usize = 64;

/// How much longer than a request itself its answer may take, before the process counts as hung: it may be slow to start,
/// and read the rest of an earlier answer.
const SLACK: Duration = Duration::from_secs(5);

/// The stack of the broker's thread.
const STACK_BYTES: usize = 256 << 10;

/// Why there is no answer.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// The request could not be made, or was not answered.
    #[error("{0}")]
    Failed(String),
    /// The process does not start.
    #[error("the network process does not start: {0}")]
    Unstarted(String),
    /// The process ended meanwhile. The next request starts it again.
    #[error("the network process has ended; the next request starts it again")]
    Ended,
    /// The process did not answer in time, and was killed.
    #[error("the network process hangs, and was killed; the next request starts it again")]
    Hung,
}

/// A handle for making requests, from any thread and runtime. The process ends with the last of its clones.
#[derive(Clone)]
pub struct Network(mpsc::Sender<Job>);

impl fmt::Debug for Network {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Network").finish_non_exhaustive()
    }
}

struct Job {
    exchange: Exchange,
    reply: oneshot::Sender<Result<Answer, NetworkError>>,
}

impl Network {
    /// Starts the thread that starts the process. Fails if there is no thread or no descriptor for it.
    pub fn start() -> io::Result<Self> {
        Self::start_with(|theirs| {
            let mut command = Command::new(OWN_PROGRAM);
            // What it inherits is its standard error.
            command.arg(VERB).env_clear().stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
            // A Ctrl-C on the daemon's terminal is not for it: the daemon ends it, after the last requests.
            command.process_group(0);
            command.spawn().map(Some)
        })
    }

    /// The same with another way to start what serves the other end of the socket pair.
    pub(crate) fn start_with(
        spawn: impl FnMut(StdStream) -> io::Result<Option<Child>> + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, jobs) = mpsc::channel(WAITING);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new()
            .name(String::from("network"))
            .stack_size(STACK_BYTES)
            .spawn(move || runtime.block_on(run(jobs, spawn)))?;
        Ok(Self(sender))
    }

    /// A network whose process is a thread, with all the rights of this one.
    #[cfg(test)]
    pub(crate) fn in_this_process() -> io::Result<Self> {
        Self::start_with(|theirs| {
            theirs.set_nonblocking(true)?;
            thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime
                    .block_on(async { super::process::serve(UnixStream::from_std(theirs)?).await })
                    .unwrap();
            });
            Ok(None)
        })
    }

    /// Makes a request. Safe to cancel; the request may be made all the same.
    pub async fn exchange(&self, exchange: Exchange) -> Result<Answer, NetworkError> {
        let (reply, replied) = oneshot::channel();
        // The thread ends with us.
        self.0.send(Job { exchange, reply }).await.map_err(|_closed| NetworkError::Ended)?;
        replied.await.unwrap_or(Err(NetworkError::Ended))
    }
}

/// Starts the process with the first request, and again with the next one after it ended.
async fn run(mut jobs: mpsc::Receiver<Job>, mut spawn: impl FnMut(StdStream) -> io::Result<Option<Child>>) {
    let mut ended: Vec<Child> = Vec::new();
    while let Some(job) = jobs.recv().await {
        // One that was killed in the middle of a system call takes its time.
        ended.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
        match begin(&mut spawn) {
            Ok((stream, child)) => {
                let why = Session::new(stream).serve(job, &mut jobs).await;
                tracing::debug!(?why, "the network process is no longer used");
                if let Some(mut child) = child {
                    // It may have ended already.
                    drop(child.kill());
                    ended.push(child);
                }
            }
            Err(error) => drop(job.reply.send(Err(NetworkError::Unstarted(error.to_string())))),
        }
    }
}

fn begin(
    spawn: &mut impl FnMut(StdStream) -> io::Result<Option<Child>>,
) -> io::Result<(UnixStream, Option<Child>)> {
    let (ours, theirs) = StdStream::pair()?;
    ours.set_nonblocking(true)?;
    let child = spawn(theirs)?;
    Ok((UnixStream::from_std(ours)?, child))
}

/// The requests that one process has.
struct Session {
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
    frames: mpsc::Sender<Vec<u8>>,
    replies: mpsc::Receiver<Reply>,
}

struct Waiting {
    deadline: Instant,
    reply: oneshot::Sender<Result<Answer, NetworkError>>,
}

impl Session {
    /// Reads and writes in tasks of their own: neither waits for the other.
    fn new(stream: UnixStream) -> Self {
        let (reader, writer) = stream.into_split();
        let (frames, outgoing) = mpsc::channel(WAITING);
        let (sender, replies) = mpsc::channel(WAITING);
        tokio::spawn(write_all(writer, outgoing));
        tokio::spawn(read_all(reader, sender));
        Self { next: 0, waiting: BTreeMap::new(), frames, replies }
    }

    /// Serves requests until the process ends or hangs, or there can be no more of them. Returns what became of it.
    async fn serve(mut self, first: Job, jobs: &mut mpsc::Receiver<Job>) -> NetworkError {
        self.send(first);
        let why = loop {
            let deadline = self.waiting.values().map(|waiting| waiting.deadline).min();
            tokio::select! {
                reply = self.replies.recv() => match reply {
                    Some(reply) if reply.id < self.next => self.answer(reply),
                    // Nothing was asked under that number.
                    Some(_) | None => break NetworkError::Ended,
                },
                job = jobs.recv() => match job {
                    Some(job) => self.send(job),
                    None => break NetworkError::Ended,
                },
                () = sleep_until(deadline) => {
                    // A request that was cancelled may have been given up there too.
                    self.waiting.retain(|_, waiting| !waiting.reply.is_closed());
                    if self.waiting.values().any(|waiting| waiting.deadline <= Instant::now()) {
                        break NetworkError::Hung;
                    }
                }
            }
        };
        for (_, waiting) in self.waiting {
            // A caller that was cancelled does not wait.
            drop(waiting.reply.send(Err(why.clone())));
        }
        why
    }

    fn send(&mut self, Job { exchange, reply }: Job) {
        let deadline = Instant::now() + Duration::from_millis(exchange.timeout_ms) + SLACK;
        let id = self.next;
        self.next += 1;
        let (ask, body) = Ask::new(id, exchange);
        let sent = frame::encode(&ask, &body)
            .map_err(|error| error.to_string())
            .and_then(|frame| self.frames.try_send(frame).map_err(|error| error.to_string()));
        match sent {
            Ok(()) => drop(self.waiting.insert(id, Waiting { deadline, reply })),
            Err(error) => {
                let error = format!("the network process takes no request: {error}");
                drop(reply.send(Err(NetworkError::Failed(error))));
            }
        }
    }

    fn answer(&mut self, Reply { id, outcome }: Reply) {
        if let Some(waiting) = self.waiting.remove(&id) {
            drop(waiting.reply.send(outcome.into_answer().map_err(NetworkError::Failed)));
        }
    }
}

async fn write_all(mut writer: OwnedWriteHalf, mut frames: mpsc::Receiver<Vec<u8>>) {
    while let Some(frame) = frames.recv().await {
        if let Err(error) = frame::write(&mut writer, &frame).await {
            tracing::debug!(%error, "cannot write to the network process");
            return;
        }
    }
}

async fn read_all(mut reader: OwnedReadHalf, replies: mpsc::Sender<Reply>) {
    loop {
        match frame::read(&mut reader, 0).await {
            Ok(Some((reply, _body))) => {
                if replies.send(reply).await.is_err() {
                    return;
                }
            }
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, "the network process says what cannot be read");
                return;
            }
        }
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use bytes::Bytes;
    use hyper::Request;

    use super::{super::message::Endpoint, *};

    fn exchange(timeout_ms: u64) -> Exchange {
        let endpoint = Endpoint {
            client: String::from("c"),
            tls: false,
            host: String::from("127.0.0.1"),
            port: 1,
            authority: String::from("127.0.0.1:1"),
            connect_timeout_ms: 1_000,
        };
        let request = Request::post("/").body(Bytes::new()).unwrap();
        Exchange { endpoint, certificates: None, request, timeout_ms }
    }

    /// A network whose process does `what` on a thread of its own, and how often it was started.
    fn network(what: fn(StdStream)) -> (Network, Arc<AtomicUsize>) {
        let started = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&started);
        let network = Network::start_with(move |theirs| {
            count.fetch_add(1, Ordering::Relaxed);
            thread::spawn(move || what(theirs));
            Ok(None)
        });
        (network.unwrap(), started)
    }

    #[tokio::test]
    async fn a_process_that_ends_is_started_again_with_the_next_request() {
        let (network, started) = network(drop);
        for times in 1..=3 {
            assert_eq!(network.exchange(exchange(60_000)).await, Err(NetworkError::Ended));
            assert_eq!(started.load(Ordering::Relaxed), times);
        }
    }

    #[tokio::test]
    async fn a_process_that_says_nonsense_counts_as_ended() {
        use std::io::{Read as _, Write as _};
        let (network, _started) = network(|mut stream| {
            // It reads the request first.
            drop(stream.read(&mut [0; 64]));
            drop(stream.write_all(&[0xff; 64]));
            thread::park();
        });
        assert_eq!(network.exchange(exchange(60_000)).await, Err(NetworkError::Ended));
    }

    #[tokio::test]
    async fn a_process_that_hangs_is_given_up() {
        let (network, started) = network(|stream| {
            let _held = stream;
            thread::park();
        });
        let large =
            || Exchange { request: Request::post("/").body(vec![0; 4 << 20].into()).unwrap(), ..exchange(1) };
        let (first, second) = tokio::join!(network.exchange(large()), network.exchange(large()));
        assert_eq!((first, second), (Err(NetworkError::Hung), Err(NetworkError::Hung)));
        assert_eq!(started.load(Ordering::Relaxed), 1);
    }

    /// A sink that is replaced drops its request; the process may have given that up.
    #[tokio::test]
    async fn a_request_that_was_cancelled_is_not_waited_for() {
        let (network, started) = network(|stream| {
            let _held = stream;
            thread::park();
        });
        let cancelled = network.exchange(exchange(1));
        drop(tokio::time::timeout(Duration::from_millis(100), cancelled).await);
        let second = network.exchange(exchange(4_000));
        let waited = tokio::time::timeout(Duration::from_secs(7), second).await;
        assert!(waited.is_err(), "the second still has its time: {waited:?}");
        assert_eq!(started.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_process_that_does_not_start_is_an_error() {
        let network = Network::start_with(|_theirs| Err(io::ErrorKind::NotFound.into())).unwrap();
        let refused = network.exchange(exchange(60_000)).await;
        assert!(matches!(refused, Err(NetworkError::Unstarted(_))), "{refused:?}");
    }

    #[tokio::test]
    async fn what_is_too_large_fails_alone() {
        let (network, _started) = network(|stream| {
            let _held = stream;
            thread::park();
        });
        let huge =
            Exchange { request: Request::post("/").body(vec![0; 9 << 20].into()).unwrap(), ..exchange(1) };
        let refused = network.exchange(huge).await;
        assert!(matches!(&refused, Err(NetworkError::Failed(why)) if why.contains("at most")), "{refused:?}");
    }
}
