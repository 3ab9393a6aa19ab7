//! Follows the folder of manifests on a thread of its own: its disk may hang.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, TryRecvError},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::{
    folder::Absence,
    kept::Kept,
    loaded::Loaded,
    reader::{Read, Reader},
    watcher::Watcher,
};
use crate::waker::Waker;

/// How long changes are gathered before they are read, so that a file being written is read once.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// How long reading a folder may take before it is reported. On a network file system whose server is gone it never
/// ends.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The reading thread's stack, which parses nested YAML.
const STACK_BYTES: usize = 2 << 20;

/// The pods of a manifest directory (`staticPodPath`), and what is wrong with it.
///
/// It is read on a thread of its own, which nothing waits for. inotify reports changes. The directory is also read
/// every 10 min, with a symlink in it every 20 s, and every 2 s while it is away. Manifests are regular files `*.yaml`,
/// `*.yml` and `*.json`, also through a symlink that stays inside, as in a mounted `ConfigMap`; names that begin with a
/// dot are skipped.
///
/// A directory that is missing, was replaced, or is writable by others leaves the pods unchanged, over a restart too.
/// Only the same directory, empty, means that there are none.
pub struct StaticDir {
    path: PathBuf,
    waker: Arc<Waker>,
    orders: Option<mpsc::Sender<Order>>,
    readings: tokio::sync::mpsc::Receiver<(Arc<Loaded>, Vec<Answer>)>,
    read_clock: Arc<ReadClock>,
    /// What was read last, or kept by an earlier process.
    latest: Arc<Loaded>,
    /// What [`Self::next`] returned last.
    reported: Option<Arc<Loaded>>,
    patience: Duration,
    /// When to check next whether the thread hangs, while it reads.
    check_at: Option<tokio::time::Instant>,
}

/// Called once what was read is in force.
pub type Answer = Box<dyn FnOnce(&Loaded) + Send>;

/// What [`StaticDir::next`] returns.
pub struct News {
    /// What is in force from now on; `None` if unchanged.
    pub loaded: Option<Arc<Loaded>>,
    latest: Arc<Loaded>,
    answers: Vec<Answer>,
}

impl News {
    /// Answers the callers that [asked](StaticDir::look), now that it is in force.
    pub fn answer(self) {
        for answer in self.answers {
            answer(&self.latest);
        }
    }
}

impl fmt::Debug for News {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("News").field("loaded", &self.loaded).finish_non_exhaustive()
    }
}

impl fmt::Debug for StaticDir {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("StaticDir").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A request to read the directory at once.
struct Order {
    is_accepted: bool,
    answer: Option<Answer>,
}

/// How long the thread has been reading.
#[derive(Debug)]
struct ReadClock {
    start: Instant,
    /// In milliseconds from the start, and at least 1; 0 while it waits.
    since_ms: AtomicU64,
    /// Notified when it begins.
    begun: Notify,
}

impl ReadClock {
    fn new() -> Self {
        Self { start: Instant::now(), since_ms: AtomicU64::new(0), begun: Notify::new() }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }

    fn begin(&self) {
        self.since_ms.store(self.now_ms(), Ordering::Relaxed);
        self.begun.notify_one();
    }

    fn end(&self) {
        self.since_ms.store(0, Ordering::Relaxed);
    }

    /// For how long it has been reading; `None` while it waits.
    fn busy(&self) -> Option<Duration> {
        let since_ms = self.since_ms.load(Ordering::Relaxed);
        (since_ms > 0).then(|| Duration::from_millis(self.now_ms().saturating_sub(since_ms)))
    }
}

impl StaticDir {
    /// Starts to read `path`, which need not exist yet, on a thread of its own. Keeps what is in force in `run_dir`.
    ///
    /// Fails if there is no thread or no descriptor for it.
    pub fn start(path: PathBuf, run_dir: &Path) -> io::Result<Self> {
        let waker = Arc::new(Waker::new()?);
        let reader = Reader::new(path.clone(), Watcher::new(Arc::clone(&waker)), Kept::open(run_dir));
        let latest = Arc::clone(reader.loaded());
        Self::spawn(path, waker, latest, reader, TIMEOUT)
    }

    fn spawn(
        path: PathBuf,
        waker: Arc<Waker>,
        latest: Arc<Loaded>,
        reader: impl Read + 'static,
        patience: Duration,
    ) -> io::Result<Self> {
        let (orders, asked) = mpsc::channel();
        // One is enough: a loop that is late must not get more to do.
        let (sender, readings) = tokio::sync::mpsc::channel(1);
        let read_clock = Arc::new(ReadClock::new());
        let beat = Arc::clone(&read_clock);
        thread::Builder::new()
            .name(String::from("manifests"))
            .stack_size(STACK_BYTES)
            .spawn(move || run(reader, &asked, &sender, &beat))?;
        let orders = Some(orders);
        Ok(Self {
            path,
            waker,
            orders,
            readings,
            read_clock,
            latest,
            reported: None,
            patience,
            check_at: None,
        })
    }

    /// What the directory holds: at once the first time, then whenever pods or errors change, or a caller is to be
    /// answered.
    ///
    /// Cancel-safe.
    pub async fn next(&mut self) -> News {
        loop {
            let (loaded, answers) = tokio::select! {
                biased;
                read = self.readings.recv() => match read {
                    Some((loaded, answers)) => {
                        self.latest = Arc::clone(&loaded);
                        self.check_again();
                        (loaded, answers)
                    }
                    // The thread ends with us.
                    None => std::future::pending().await,
                },
                () = self.read_clock.begun.notified() => {
                    self.check_at = Some(tokio::time::Instant::now() + self.patience);
                    continue;
                }
                () = tokio::time::sleep_until(self.check_at.unwrap_or_else(tokio::time::Instant::now)),
                    if self.check_at.is_some() =>
                {
                    self.check_again();
                    if !self.is_stuck() {
                        continue;
                    }
                    let stuck = Absence::Stuck(self.patience.as_secs());
                    (Arc::new(self.latest.away(&self.path.display().to_string(), stuck)), Vec::new())
                }
            };
            let is_news = self.reported.as_ref() != Some(&loaded);
            self.reported = Some(Arc::clone(&loaded));
            if is_news || !answers.is_empty() {
                return News { loaded: is_news.then(|| Arc::clone(&loaded)), latest: loaded, answers };
            }
        }
    }

    /// Has the thread checked later, if it is reading now.
    fn check_again(&mut self) {
        let again = tokio::time::Instant::now() + self.patience;
        self.check_at = self.read_clock.busy().map(|_| again);
    }

    /// Whether reading the directory hangs.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.read_clock.busy().is_some_and(|busy| busy >= self.patience)
    }

    /// Reads the directory at once; with `is_accepted` whatever is at its path counts, also another directory, an empty
    /// one or none. `answer` is called when that is in force.
    pub fn look(&self, is_accepted: bool, answer: Option<Answer>) {
        if let Some(orders) = &self.orders {
            // The thread outlives us.
            drop(orders.send(Order { is_accepted, answer }));
            self.waker.wake();
        }
    }
}

impl Drop for StaticDir {
    /// Does not wait for the thread: it may hang.
    fn drop(&mut self) {
        self.orders = None;
        self.waker.wake();
    }
}

fn run(
    mut reader: impl Read,
    orders: &mpsc::Receiver<Order>,
    readings: &tokio::sync::mpsc::Sender<(Arc<Loaded>, Vec<Answer>)>,
    read_clock: &ReadClock,
) {
    let mut due = Instant::now();
    loop {
        let (mut answers, mut is_asked, mut is_accepted) = (Vec::new(), false, false);
        loop {
            match orders.try_recv() {
                Ok(order) => {
                    is_asked = true;
                    is_accepted |= order.is_accepted;
                    answers.extend(order.answer);
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        if is_asked || Instant::now() >= due {
            read_clock.begin();
            let loaded = reader.read(is_accepted);
            read_clock.end();
            due = Instant::now() + reader.rest();
            if readings.blocking_send((loaded, answers)).is_err() {
                return;
            }
        }
        match reader.wait(due) {
            Ok(true) => due = due.min(Instant::now() + DEBOUNCE),
            Ok(false) => {}
            // The clock remains.
            Err(error) => {
                tracing::warn!(%error, "cannot wait for changes of the manifests");
                thread::sleep(DEBOUNCE);
            }
        }
    }
}

#[cfg(test)]
mod tests;
