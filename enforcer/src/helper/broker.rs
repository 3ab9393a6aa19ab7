//! The daemon's side: hands questions to the process and answers back, and starts that process when needed.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fmt, io,
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream as StdStream, process::CommandExt as _},
    },
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::frame::{self, Numbered};
use crate::threads;

/// This program, even after its file was replaced.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// How many questions may wait for the broker. Each client has one at a time.
const WAITING: usize = 64;

/// How much longer than a question itself its answer may take, before the process counts as hung: it may be slow to
/// start, and busy with the rest of an earlier answer.
const SLACK: Duration = Duration::from_secs(5);

/// The stack of the broker's thread.
const STACK_BYTES: usize = 256 << 10;

/// What a helper process is asked, and what it answers.
pub(crate) trait Protocol: Send + 'static {
    /// The process's name in messages, and the name of the broker's thread.
    const NAME: &'static str;
    /// Whether it requests evictions, for which nothing else may be waited for.
    const REQUESTS_EVICTIONS: bool = false;
    /// The longest body of a question's frame.
    const MOST_ASK_BYTES: usize;
    /// The longest body of an answer's frame.
    const MOST_ANSWER_BYTES: usize;

    /// What the daemon asks.
    type Question: Send;
    /// What it gets.
    type Answer: Send;
    /// What one process is started for. A question for something else ends it, and starts another.
    type Place: PartialEq + Send;
    /// The head of a question's frame.
    type Ask: Serialize;
    /// The head of an answer's frame. The process is not trusted.
    type Outcome: DeserializeOwned + Send;

    /// What the process must have been started for.
    fn place(question: &Self::Question) -> Self::Place;

    /// How long the process may take, in milliseconds. It has to answer by then, if only with an error.
    fn timeout_ms(question: &Self::Question) -> u64;

    /// The head and the body of a question's frame.
    fn ask(question: Self::Question) -> (Self::Ask, Vec<u8>);

    /// The answer; the error says why there is none.
    fn answer(outcome: Self::Outcome, body: &[u8]) -> Result<Self::Answer, String>;
}

/// Why there is no answer.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HelperError {
    /// The question could not be asked, or was not answered.
    #[error("{0}")]
    Failed(String),
    /// The process does not start.
    #[error("the {process} process does not start: {why}")]
    Unstarted {
        /// Which process.
        process: &'static str,
        /// Why.
        why: String,
    },
    /// The process ended meanwhile. The next request starts it again.
    #[error("the {process} process has ended; the next request starts it again")]
    Ended {
        /// Which process.
        process: &'static str,
    },
    /// The process did not answer in time, and was killed.
    #[error("the {process} process hangs, and was killed; the next request starts it again")]
    Hung {
        /// Which process.
        process: &'static str,
    },
}

/// A handle for asking, from any thread and runtime. The process ends with the last of its clones.
pub(crate) struct Helper<P: Protocol>(mpsc::Sender<Job<P>>);

impl<P: Protocol> Clone for Helper<P> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<P: Protocol> fmt::Debug for Helper<P> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Helper").field(&P::NAME).finish()
    }
}

struct Job<P: Protocol> {
    question: P::Question,
    reply: oneshot::Sender<Result<P::Answer, HelperError>>,
}

/// A command that starts this program again with a verb, for the other end of the socket pair. Its standard output goes
/// nowhere; what it inherits is the standard error.
pub(crate) fn command(verb: impl AsRef<OsStr>, theirs: StdStream) -> Command {
    let mut command = Command::new(OWN_PROGRAM);
    command.arg(verb).env_clear().stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
    // A Ctrl-C on the daemon's terminal is not for it: the daemon ends it, after the last requests.
    command.process_group(0);
    command
}

impl<P: Protocol> Helper<P> {
    /// Starts the thread that starts the process: `spawn` does, for the place and the other end of the socket pair. Fails
    /// if there is no thread or no descriptor for it. A test may start something else, which is no child.
    pub(crate) fn start(
        spawn: impl FnMut(P::Place, StdStream) -> io::Result<Option<Child>> + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, jobs) = mpsc::channel(WAITING);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name(String::from(P::NAME)).stack_size(STACK_BYTES).spawn(move || {
            if P::REQUESTS_EVICTIONS {
                threads::set_nice(threads::REQUEST_NICE);
            }
            runtime.block_on(run::<P>(jobs, spawn));
        })?;
        Ok(Self(sender))
    }

    /// Asks. Safe to cancel; the process may do what was asked all the same.
    pub(crate) async fn ask(&self, question: P::Question) -> Result<P::Answer, HelperError> {
        let (reply, replied) = oneshot::channel();
        let ended = HelperError::Ended { process: P::NAME };
        // The thread ends with us.
        self.0.send(Job { question, reply }).await.map_err(|_closed| ended.clone())?;
        replied.await.unwrap_or(Err(ended))
    }
}

/// Starts the process with the first question, and again with the next one after it ended.
async fn run<P: Protocol>(
    mut jobs: mpsc::Receiver<Job<P>>,
    mut spawn: impl FnMut(P::Place, StdStream) -> io::Result<Option<Child>>,
) {
    let mut ended: Vec<Child> = Vec::new();
    let mut elsewhere = None;
    loop {
        let next = match elsewhere.take() {
            Some(job) => Some(job),
            None => jobs.recv().await,
        };
        let Some(job) = next else { return };
        // One that was killed in the middle of a system call takes its time.
        ended.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
        match begin::<P>(P::place(&job.question), &mut spawn) {
            Ok((stream, child)) => {
                let session = Session::<P>::new(P::place(&job.question), stream);
                let why;
                (why, elsewhere) = session.serve(job, &mut jobs).await;
                tracing::debug!(?why, "the {} process is no longer used", P::NAME);
                if let Some(mut child) = child {
                    // It may have ended already.
                    drop(child.kill());
                    ended.push(child);
                }
            }
            Err(error) => {
                let why = error.to_string();
                drop(job.reply.send(Err(HelperError::Unstarted { process: P::NAME, why })));
            }
        }
    }
}

fn begin<P: Protocol>(
    place: P::Place,
    spawn: &mut impl FnMut(P::Place, StdStream) -> io::Result<Option<Child>>,
) -> io::Result<(UnixStream, Option<Child>)> {
    let (ours, theirs) = StdStream::pair()?;
    ours.set_nonblocking(true)?;
    let child = spawn(place, theirs)?;
    Ok((UnixStream::from_std(ours)?, child))
}

/// The questions that one process has.
struct Session<P: Protocol> {
    place: P::Place,
    next: u64,
    waiting: BTreeMap<u64, Waiting<P>>,
    frames: mpsc::Sender<Vec<u8>>,
    replies: mpsc::Receiver<Reply<P>>,
}

/// An answer's head and body.
type Reply<P> = (Numbered<<P as Protocol>::Outcome>, Bytes);

struct Waiting<P: Protocol> {
    deadline: Instant,
    reply: oneshot::Sender<Result<P::Answer, HelperError>>,
}

impl<P: Protocol> Session<P> {
    /// Reads and writes in tasks of their own: neither waits for the other.
    fn new(place: P::Place, stream: UnixStream) -> Self {
        let (reader, writer) = stream.into_split();
        let (frames, outgoing) = mpsc::channel(WAITING);
        // An answer may be large, and is handed on at once: a process that sends many must not fill this memory.
        let (sender, replies) = mpsc::channel(1);
        tokio::spawn(write_all(P::NAME, writer, outgoing));
        tokio::spawn(read_all::<P>(reader, sender));
        Self { place, next: 0, waiting: BTreeMap::new(), frames, replies }
    }

    /// Serves questions until the process ends or hangs, there can be no more of them, or one is for another place.
    /// Returns what became of it, and that one.
    async fn serve(
        mut self,
        first: Job<P>,
        jobs: &mut mpsc::Receiver<Job<P>>,
    ) -> (HelperError, Option<Job<P>>) {
        let ended = HelperError::Ended { process: P::NAME };
        self.send(first);
        let (why, elsewhere) = loop {
            let deadline = self.waiting.values().map(|waiting| waiting.deadline).min();
            tokio::select! {
                reply = self.replies.recv() => match reply {
                    Some(reply) if reply.0.id < self.next => self.answer(reply),
                    // Nothing was asked under that number.
                    Some(_) | None => break (ended, None),
                },
                job = jobs.recv() => match job {
                    Some(job) if P::place(&job.question) == self.place => self.send(job),
                    other => break (ended, other),
                },
                () = sleep_until(deadline) => {
                    // A question that was cancelled may have been given up there too.
                    self.waiting.retain(|_, waiting| !waiting.reply.is_closed());
                    if self.waiting.values().any(|waiting| waiting.deadline <= Instant::now()) {
                        break (HelperError::Hung { process: P::NAME }, None);
                    }
                }
            }
        };
        for (_, waiting) in self.waiting {
            // A caller that was cancelled does not wait.
            drop(waiting.reply.send(Err(why.clone())));
        }
        (why, elsewhere)
    }

    fn send(&mut self, Job { question, reply }: Job<P>) {
        let deadline = Instant::now() + Duration::from_millis(P::timeout_ms(&question)) + SLACK;
        let id = self.next;
        self.next += 1;
        let (content, body) = P::ask(question);
        let sent = frame::encode(&Numbered { id, content }, &body, P::MOST_ASK_BYTES)
            .map_err(|error| error.to_string())
            .and_then(|frame| self.frames.try_send(frame).map_err(|error| error.to_string()));
        match sent {
            Ok(()) => drop(self.waiting.insert(id, Waiting { deadline, reply })),
            Err(error) => {
                let error = format!("cannot send a request to the {} process: {error}", P::NAME);
                drop(reply.send(Err(HelperError::Failed(error))));
            }
        }
    }

    fn answer(&mut self, (Numbered { id, content }, body): Reply<P>) {
        if let Some(waiting) = self.waiting.remove(&id) {
            drop(waiting.reply.send(P::answer(content, &body).map_err(HelperError::Failed)));
        }
    }
}

async fn write_all(name: &'static str, mut writer: OwnedWriteHalf, mut frames: mpsc::Receiver<Vec<u8>>) {
    while let Some(frame) = frames.recv().await {
        if let Err(error) = frame::write(&mut writer, &frame).await {
            tracing::debug!(%error, "cannot write to the {name} process");
            return;
        }
    }
}

async fn read_all<P: Protocol>(mut reader: OwnedReadHalf, replies: mpsc::Sender<Reply<P>>) {
    loop {
        match frame::read(&mut reader, P::MOST_ANSWER_BYTES).await {
            Ok(Some(reply)) => {
                if replies.send(reply).await.is_err() {
                    return;
                }
            }
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, "cannot read from the {} process", P::NAME);
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

    use super::*;

    /// Bytes are asked and answered, at a place that is a letter.
    struct Bytewise;

    struct Question {
        place: char,
        bytes: usize,
        timeout_ms: u64,
    }

    impl Protocol for Bytewise {
        const NAME: &'static str = "test";
        const MOST_ASK_BYTES: usize = 8 << 20;
        const MOST_ANSWER_BYTES: usize = 100;
        type Question = Question;
        type Answer = usize;
        type Place = char;
        type Ask = ();
        type Outcome = String;

        fn place(question: &Question) -> char {
            question.place
        }

        fn timeout_ms(question: &Question) -> u64 {
            question.timeout_ms
        }

        fn ask(question: Question) -> ((), Vec<u8>) {
            ((), vec![0; question.bytes])
        }

        fn answer(outcome: String, body: &[u8]) -> Result<usize, String> {
            if outcome.is_empty() { Ok(body.len()) } else { Err(outcome) }
        }
    }

    const ENDED: HelperError = HelperError::Ended { process: "test" };

    const HUNG: HelperError = HelperError::Hung { process: "test" };

    fn question(timeout_ms: u64) -> Question {
        Question { place: 'a', bytes: 0, timeout_ms }
    }

    /// A helper whose process does `what` on a thread of its own, and how often it was started.
    fn helper(what: fn(StdStream)) -> (Helper<Bytewise>, Arc<AtomicUsize>) {
        let started = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&started);
        let helper = Helper::start(move |_place, theirs| {
            count.fetch_add(1, Ordering::Relaxed);
            thread::spawn(move || what(theirs));
            Ok(None)
        });
        (helper.unwrap(), started)
    }

    fn hang(stream: StdStream) {
        let _held = stream;
        thread::park();
    }

    /// Answers each question with as many bytes as it has, or with an error if those are too many.
    fn echo(stream: StdStream) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        stream.set_nonblocking(true).unwrap();
        runtime.block_on(async {
            let mut stream = UnixStream::from_std(stream).unwrap();
            while let Ok(Some((ask, body))) = frame::read::<Numbered<()>>(&mut stream, 8 << 20).await {
                let content = if body.len() > 100 { "too many" } else { "" };
                let body = if content.is_empty() { &body[..] } else { &[] };
                let frame = frame::encode(&Numbered { id: ask.id, content }, body, 100).unwrap();
                drop(frame::write(&mut stream, &frame).await);
            }
        });
    }

    #[tokio::test]
    async fn answers_go_to_the_questions_that_they_are_for() {
        let (helper, started) = helper(echo);
        let ask = |bytes| helper.ask(Question { bytes, ..question(60_000) });
        let answers = tokio::join!(ask(1), ask(1_000), ask(100));
        assert_eq!(answers, (Ok(1), Err(HelperError::Failed(String::from("too many"))), Ok(100)));
        assert_eq!(started.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_question_for_another_place_is_one_for_another_process() {
        let (helper, started) = helper(echo);
        for (place, processes) in [('a', 1), ('a', 1), ('b', 2), ('b', 2), ('a', 3)] {
            assert_eq!(helper.ask(Question { place, ..question(60_000) }).await, Ok(0));
            assert_eq!(started.load(Ordering::Relaxed), processes, "{place}");
        }
    }

    #[tokio::test]
    async fn a_process_that_ends_is_started_again_with_the_next_question() {
        let (helper, started) = helper(drop);
        for times in 1..=3 {
            assert_eq!(helper.ask(question(60_000)).await, Err(ENDED));
            assert_eq!(started.load(Ordering::Relaxed), times);
        }
    }

    #[tokio::test]
    async fn a_process_that_says_nonsense_counts_as_ended() {
        use std::io::{Read as _, Write as _};
        let (helper, _started) = helper(|mut stream| {
            // It reads the question first.
            drop(stream.read(&mut [0; 64]));
            drop(stream.write_all(&[0xff; 64]));
            thread::park();
        });
        assert_eq!(helper.ask(question(60_000)).await, Err(ENDED));
    }

    #[tokio::test]
    async fn a_process_that_hangs_is_given_up() {
        let (helper, started) = helper(hang);
        let large = || Question { bytes: 4 << 20, ..question(1) };
        let (first, second) = tokio::join!(helper.ask(large()), helper.ask(large()));
        assert_eq!((first, second), (Err(HUNG), Err(HUNG)));
        assert_eq!(started.load(Ordering::Relaxed), 1);
    }

    /// A sink that is replaced drops its request; the process may have given that up.
    #[tokio::test]
    async fn a_question_that_was_cancelled_is_not_waited_for() {
        let (helper, started) = helper(hang);
        let cancelled = helper.ask(question(1));
        drop(tokio::time::timeout(Duration::from_millis(100), cancelled).await);
        let second = helper.ask(question(4_000));
        let waited = tokio::time::timeout(Duration::from_secs(7), second).await;
        assert!(waited.is_err(), "the second still has its time: {waited:?}");
        assert_eq!(started.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_process_that_does_not_start_is_an_error() {
        let helper =
            Helper::<Bytewise>::start(|_place, _theirs| Err(io::ErrorKind::NotFound.into())).unwrap();
        let refused = helper.ask(question(60_000)).await;
        assert!(matches!(refused, Err(HelperError::Unstarted { .. })), "{refused:?}");
    }

    #[tokio::test]
    async fn what_is_too_large_fails_alone() {
        let (helper, _started) = helper(hang);
        let refused = helper.ask(Question { bytes: 9 << 20, ..question(1) }).await;
        assert!(matches!(&refused, Err(HelperError::Failed(why)) if why.contains("at most")), "{refused:?}");
    }
}
