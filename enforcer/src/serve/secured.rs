//! Metrics over TLS. Handshakes, certificates and requests of clients are read by a process of its own without privileges
//! ([`helper`](crate::helper)), whose standard output is the listener. The daemon gives it the contents of the files, and
//! each page that a client may have; what it takes from it is that a page is wanted.

mod files;
mod message;
mod process;
#[cfg(test)]
mod tests;
mod tls;

use std::{
    io,
    net::TcpListener as StdListener,
    os::{fd::OwnedFd, unix::net::UnixStream as StdStream},
    pin::Pin,
    process::Child,
    thread,
    time::Duration,
};

use tokio::{
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    runtime::Builder,
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::Instant,
};

use self::message::{Contents, Heard, MOST_PAGE_BYTES, Say, Settings};
pub use self::{
    files::MetricsFiles,
    process::{VERB, main},
};
use super::{
    metrics::{MetricsListener, PLACES, Scrape},
    server::as_any_other,
};
use crate::{
    helper::{self, plain},
    network::{BackOff, Bounds},
    threads,
};

/// The process's name in messages, and the thread's.
const NAME: &str = "metrics";

/// How often the files are read again.
const REREAD: Duration = Duration::from_secs(10);

/// How long a disk or the process may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The waits before a process is started again.
const RESTART: Bounds = Bounds { least: Duration::from_secs(1), most: Duration::from_mins(1) };

/// A process that ran for that long did not fail because of how it was started.
const STEADY: Duration = Duration::from_mins(2);

/// One reads the files, whose disk may hang; one writes the page.
const BLOCKING_THREADS: usize = 2;

/// How many messages may wait to be written.
const WAITING: usize = 64;

type Report = Box<dyn FnMut(Option<&str>) + Send>;

/// Serves metrics over TLS, on a thread of its own.
#[derive(Debug)]
pub struct SecureMetrics(oneshot::Sender<StdListener>);

/// What is served, by which files, and under which names.
struct Service {
    files: MetricsFiles,
    hosts: Vec<String>,
    scrape: Scrape,
    report: Report,
    /// The present problem.
    problem: Option<String>,
    reread: Duration,
}

impl Service {
    /// Reports a problem once, and once that there is none any more.
    fn report(&mut self, problem: Option<&str>) {
        if problem == self.problem.as_deref() {
            return;
        }
        match (problem, &self.problem) {
            // The log has what changes about it: the process could make an event of each word.
            (Some(problem), Some(_)) => tracing::warn!("metrics over TLS: {problem}"),
            _ => (self.report)(problem),
        }
        self.problem = problem.map(str::to_owned);
    }
}

impl SecureMetrics {
    /// Starts the thread, which starts the process. Fails if there is no thread.
    ///
    /// `hosts` are the names of this node that requests may give. `report` gets what is wrong, and `None` when nothing is
    /// any more. It ends when `stopping` becomes true.
    pub fn start(
        files: MetricsFiles,
        hosts: Vec<String>,
        scrape: Scrape,
        report: impl FnMut(Option<&str>) + Send + 'static,
        stopping: watch::Receiver<bool>,
    ) -> io::Result<Self> {
        let report = Box::new(report);
        let service = Service { files, hosts, scrape, report, problem: None, reread: REREAD };
        Self::start_with(service, stopping, |theirs, listener| {
            helper::command(VERB, theirs).stdout(OwnedFd::from(listener)).spawn().map(Some)
        })
    }

    /// The same with another way to start what serves the other end of the socket pair. A test may start something else,
    /// which is no child.
    fn start_with(
        mut service: Service,
        stopping: watch::Receiver<bool>,
        spawn: impl FnMut(StdStream, StdListener) -> io::Result<Option<Child>> + Send + 'static,
    ) -> io::Result<Self> {
        let (listening, listener) = oneshot::channel();
        thread::Builder::new().name(String::from("metrics-tls")).spawn(move || {
            as_any_other();
            let mut builder = Builder::new_current_thread();
            builder.enable_all().thread_name("metrics-tls").on_thread_start(as_any_other);
            match threads::runtime(&mut builder, BLOCKING_THREADS) {
                Ok(runtime) => {
                    runtime.block_on(run(service, listener, stopping, spawn));
                    // A disk that does not answer is not waited for.
                    runtime.shutdown_background();
                }
                Err(error) => service.report(Some(&format!("the threads for it cannot be started: {error}"))),
            }
        })?;
        Ok(Self(listening))
    }

    /// Serves this listener from now on.
    pub fn serve(self, listener: MetricsListener) -> io::Result<()> {
        // Without the thread there is nothing to serve, which it has reported.
        drop(self.0.send(listener.into_std()?));
        Ok(())
    }
}

/// Keeps a process running that serves the listener, until the daemon stops.
async fn run(
    mut service: Service,
    listener: oneshot::Receiver<StdListener>,
    mut stopping: watch::Receiver<bool>,
    mut spawn: impl FnMut(StdStream, StdListener) -> io::Result<Option<Child>>,
) {
    let listener = tokio::select! {
        _ = stopping.wait_for(|stopping| *stopping) => return,
        listener = listener => listener,
    };
    // The daemon stops before there is one.
    let Ok(listener) = listener else { return };
    let mut back_off = BackOff::new(RESTART);
    let mut ended: Vec<Child> = Vec::new();
    loop {
        // One that was killed in the middle of a system call takes its time.
        ended.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
        let begun = Instant::now();
        let why = match begin(&listener, &mut spawn) {
            Ok((stream, child)) => {
                let why = session(&mut service, stream, &mut stopping).await;
                if let Some(mut child) = child {
                    // It may have ended already.
                    drop(child.kill());
                    ended.push(child);
                }
                match why {
                    Some(why) => format!("the {NAME} process {why}"),
                    None => return,
                }
            }
            Err(error) => format!("the {NAME} process does not start: {error}"),
        };
        service.report(Some(&format!("{why}; it is started again")));
        if begun.elapsed() >= STEADY {
            back_off.reset();
        }
        tokio::select! {
            _ = stopping.wait_for(|stopping| *stopping) => return,
            () = tokio::time::sleep(back_off.next()) => {}
        }
    }
}

fn begin(
    listener: &StdListener,
    spawn: &mut impl FnMut(StdStream, StdListener) -> io::Result<Option<Child>>,
) -> io::Result<(UnixStream, Option<Child>)> {
    let (ours, theirs) = StdStream::pair()?;
    ours.set_nonblocking(true)?;
    let child = spawn(theirs, listener.try_clone()?)?;
    Ok((UnixStream::from_std(ours)?, child))
}

/// What is done about the files, until it is due.
enum Upkeep {
    /// Nothing: they are read again then.
    Idle,
    /// They are read.
    Reading(Reading),
    /// The process has what was read, or why it has nothing, and is to answer.
    Settling(Option<String>),
}

type Reading = Pin<Box<dyn Future<Output = Result<Contents, String>> + Send>>;

impl Upkeep {
    /// What was read. Safe to cancel.
    async fn read(&mut self) -> Result<Contents, String> {
        match self {
            Self::Reading(reading) => reading.await,
            Self::Idle | Self::Settling(_) => std::future::pending().await,
        }
    }
}

/// Uses one process. Returns why it cannot be used any more; `None` if the daemon stops.
async fn session(
    service: &mut Service,
    stream: UnixStream,
    stopping: &mut watch::Receiver<bool>,
) -> Option<String> {
    let (reader, writer) = stream.into_split();
    let (frames, outgoing) = mpsc::channel(WAITING);
    // One at a time: a process that says much must not fill this memory.
    let (sender, mut heard) = mpsc::channel(1);
    let mut ends = JoinSet::new();
    ends.spawn(write_all(writer, outgoing));
    ends.spawn(read_all(reader, sender));
    let mut pages = JoinSet::new();
    let mut upkeep = Upkeep::Idle;
    let mut due = Instant::now();
    loop {
        tokio::select! {
            _ = stopping.wait_for(|stopping| *stopping) => return None,
            // More wait with the process until some of these are written.
            said = heard.recv(), if pages.len() < PLACES => match (said, &mut upkeep) {
                (None, _) => return Some(String::from("has ended")),
                (Some(Heard::Wanted { id, classic }), _) => {
                    pages.spawn(page(service.scrape.clone(), id, classic, frames.clone()));
                }
                (Some(Heard::Settled { problem }), Upkeep::Settling(unread)) => {
                    let problem = unread.take().or_else(|| problem.map(|problem| plain(&problem)));
                    service.report(problem.as_deref());
                    upkeep = Upkeep::Idle;
                    due = Instant::now() + service.reread;
                }
                (Some(Heard::Settled { .. }), _) => return Some(String::from("says what it was not asked")),
            },
            Some(_sent) = pages.join_next() => {}
            contents = upkeep.read() => {
                let (contents, problem) = match contents {
                    Ok(contents) => (Some(contents), None),
                    Err(problem) => (None, Some(problem)),
                };
                let settings = Settings { hosts: service.hosts.clone(), contents };
                if !send(&frames, &Say::Settings(Box::new(settings)), &[]).await {
                    return Some(String::from("takes no message"));
                }
                upkeep = Upkeep::Settling(problem);
                due = Instant::now() + PATIENCE;
            }
            () = tokio::time::sleep_until(due) => {
                due = Instant::now() + PATIENCE;
                match upkeep {
                    Upkeep::Idle => upkeep = Upkeep::Reading(read(service.files.clone())),
                    Upkeep::Reading(_) => service.report(Some(
                        "the disk of its files does not answer: what was read last stays in force",
                    )),
                    Upkeep::Settling(_) => return Some(String::from("hangs, and was killed")),
                }
            }
        }
    }
}

fn read(files: MetricsFiles) -> Reading {
    let read = move || files.read().map_err(|error| crate::chain(&error));
    Box::pin(threads::blocking(read))
}

/// Writes the page that a client wants.
async fn page(scrape: Scrape, id: u64, classic: bool, frames: mpsc::Sender<Vec<u8>>) {
    let text = scrape.write(message::format_of(classic)).await;
    let text = text.inspect_err(|error| tracing::error!(%error, "the metrics could not be written")).ok();
    // The client gets an answer also if it cannot get the page.
    let text = text.filter(|text| {
        let fits = text.len() <= MOST_PAGE_BYTES;
        if !fits {
            let bytes = text.len();
            tracing::error!("the metrics have {bytes} bytes; over TLS a page has {MOST_PAGE_BYTES} at most");
        }
        fits
    });
    let body = text.as_deref().unwrap_or_default().as_bytes();
    if !send(&frames, &Say::Page { id, written: text.is_some() }, body).await {
        tracing::debug!("a page could not be handed to the {NAME} process");
    }
}

/// Sends a message; returns whether it is on its way.
async fn send(frames: &mpsc::Sender<Vec<u8>>, say: &Say, body: &[u8]) -> bool {
    match helper::encode(say, body, MOST_PAGE_BYTES) {
        Ok(frame) => matches!(tokio::time::timeout(PATIENCE, frames.send(frame)).await, Ok(Ok(()))),
        Err(error) => {
            tracing::error!(%error, "a message to the {NAME} process cannot be written");
            false
        }
    }
}

async fn write_all(mut writer: OwnedWriteHalf, mut outgoing: mpsc::Receiver<Vec<u8>>) {
    while let Some(frame) = outgoing.recv().await {
        if let Err(error) = helper::write(&mut writer, &frame).await {
            tracing::debug!(%error, "cannot write to the {NAME} process");
            return;
        }
    }
}

async fn read_all(mut reader: OwnedReadHalf, heard: mpsc::Sender<Heard>) {
    loop {
        match helper::read(&mut reader, 0).await {
            Ok(Some((said, _body))) => {
                if heard.send(said).await.is_err() {
                    return;
                }
            }
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, "cannot read from the {NAME} process");
                return;
            }
        }
    }
}
