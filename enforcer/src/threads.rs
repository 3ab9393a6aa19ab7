//! Threads that are created before they are needed: later a pod may have taken every process id.

use std::{
    collections::VecDeque,
    fmt, io, panic, process,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::Duration,
};

use tokio::runtime::{Builder, Runtime};

use crate::logging;

/// How long the kernel may take to start a new thread.
const BEGIN: Duration = Duration::from_secs(10);

/// The stack of a [`Workers`] thread, in bytes: its call depth is small.
const STACK_BYTES: usize = 256 * 1024;

/// The daemon's nice value: it sleeps nearly always, and must not wait behind the load on the node when it wakes.
pub(crate) const NICE: i32 = -10;

/// The nice value of the eviction thread, and of the process that sends requests for evictions. That one reads what a network
/// sends, so it is not before the eviction thread; the daemon's others have much to do after a kill.
pub(crate) const EVICTION_NICE: i32 = -15;

/// The nice value of the threads that report a kill and request the eviction, which is short work. On an emulated node a
/// request waited behind the daemon's others for up to 0.4 s.
pub(crate) const REQUEST_NICE: i32 = -20;

/// Sets the nice value of the calling thread, and of what it starts. If that is not permitted, the daemon reports it at its
/// start.
pub(crate) fn set_nice(nice: i32) {
    if let Err(error) = rustix::process::setpriority_process(Some(rustix::thread::gettid()), nice) {
        tracing::debug!(%error, nice, "cannot set a thread's nice value");
    }
}

/// Builds a runtime and creates all its threads: `blocking` many for `spawn_blocking`, which tokio and other libraries
/// use too, such as for name lookups. None of them exits while it is idle.
///
/// Otherwise tokio creates these threads on demand, and panics if it cannot create the first. Call this outside any
/// runtime.
pub(crate) fn runtime(builder: &mut Builder, blocking: usize) -> io::Result<Runtime> {
    // This returns an error where tokio would panic.
    let first = thread::Builder::new().stack_size(STACK_BYTES).spawn(|| ())?;
    join(first);
    let runtime = builder.max_blocking_threads(blocking).thread_keep_alive(Duration::MAX).build()?;
    let (begun, begins) = mpsc::channel();
    let mut releases = Vec::with_capacity(blocking);
    for _ in 0..blocking {
        let begun = begun.clone();
        let (keeper, kept) = mpsc::channel::<()>();
        releases.push(keeper);
        // Each keeps its thread busy until all exist, so that the next one needs another thread.
        runtime.spawn_blocking(move || {
            // The receiver waits for us.
            let _begun = begun.send(());
            let _kept = kept.recv();
        });
    }
    let all = (0..blocking).try_for_each(|_| begins.recv_timeout(BEGIN));
    drop(releases);
    match all {
        Ok(()) => Ok(runtime),
        Err(_) => Err(io::Error::new(io::ErrorKind::WouldBlock, "the kernel starts no more threads")),
    }
}

/// Waits for the end of a thread. Its panic is resumed here; `None` if the present thread panics already. In the daemon
/// the first panic aborts the process before; a test that lost a thread fails.
pub(crate) fn join<T>(thread: thread::JoinHandle<T>) -> Option<T> {
    match thread.join() {
        Ok(result) => Some(result),
        Err(_) if thread::panicking() => None,
        Err(panic) => panic::resume_unwind(panic),
    }
}

/// Aborts the whole process at the first panic of any thread, in every build profile: a daemon that lost a thread would
/// seem alive. It is restarted.
pub fn abort_on_panic() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        logging::last_words(|| report(panicked));
        process::abort();
    }));
}

/// Runs work that may block on one of the present runtime's blocking threads. Its panic is resumed here.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => panic::resume_unwind(panic),
            // The runtime shuts down, and drops this task too.
            Err(_cancelled) => std::future::pending().await,
        },
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Threads for work that may take long, such as waiting for a pod's grace.
///
/// Some exist from the start. While all are busy, another one is created for each further job, and exits after it. If
/// the kernel refuses that, the job waits until a thread is free.
pub(crate) struct Workers {
    name: &'static str,
    shared: Arc<Shared>,
    /// How many jobs may wait.
    most_waiting: usize,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    stirred: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// How many threads wait for a job.
    idle: usize,
    is_closed: bool,
}

/// All threads are busy, no other can be created, and the maximum of jobs waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("all threads for it are busy, the kernel starts no other, and {waiting} jobs are waiting")]
pub(crate) struct Busy {
    waiting: usize,
}

impl Workers {
    /// Starts that many threads.
    pub(crate) fn start(name: &'static str, threads: usize, most_waiting: usize) -> io::Result<Self> {
        // If a thread cannot be created, dropping this ends those that were.
        let workers = Self { name, shared: Arc::default(), most_waiting };
        for _ in 0..threads {
            let shared = Arc::clone(&workers.shared);
            workers.spawn(move || shared.work(Stay::ForEver))?;
        }
        Ok(workers)
    }

    /// Runs the job on a thread.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) -> Result<(), Busy> {
        let job: Job = Box::new(job);
        let mut queue = self.shared.lock();
        if queue.jobs.len() < queue.idle {
            queue.jobs.push_back(job);
            self.shared.stirred.notify_one();
            return Ok(());
        }
        // Creating a thread may take the kernel a while: do it without the lock.
        drop(queue);
        // If the thread cannot be created, its closure is dropped; this keeps the job.
        let first = Arc::new(Mutex::new(Some(job)));
        let taken = Arc::clone(&first);
        let take = |job: &Mutex<Option<Job>>| job.lock().unwrap_or_else(PoisonError::into_inner).take();
        let shared = Arc::clone(&self.shared);
        let made = self.spawn(move || {
            if let Some(job) = take(&taken) {
                job();
            }
            shared.work(Stay::WhileThereIsWork);
        });
        let Err(error) = made else { return Ok(()) };
        let mut queue = self.shared.lock();
        let waiting = queue.jobs.len();
        if waiting >= self.most_waiting {
            return Err(Busy { waiting });
        }
        tracing::warn!(%error, waiting, "no further thread for {}: the job waits", self.name);
        queue.jobs.extend(take(&first));
        // A thread may have become idle meanwhile.
        self.shared.stirred.notify_one();
        Ok(())
    }

    fn spawn(&self, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let builder = thread::Builder::new().name(self.name.to_owned()).stack_size(STACK_BYTES);
        builder.spawn(work).map(drop)
    }
}

/// How long a thread stays.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stay {
    ForEver,
    WhileThereIsWork,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, stay: Stay) {
        let mut queue = self.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                job();
                queue = self.lock();
            } else if queue.is_closed || stay == Stay::WhileThereIsWork {
                return;
            } else {
                queue.idle += 1;
                queue = self.stirred.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
            }
        }
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("name", &self.name).finish_non_exhaustive()
    }
}

/// It does not wait for running jobs: a pod's grace may be long, and the process may exit before its end.
impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.stirred.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, env, fs, os::unix::process::ExitStatusExt as _};

    use super::*;

    fn threads_of_this_process() -> BTreeSet<String> {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        let comm = |task: io::Result<fs::DirEntry>| {
            let folder = task.unwrap().path();
            let name = fs::read_to_string(folder.join("comm")).unwrap_or_default();
            format!("{} {}", name.trim(), folder.display())
        };
        tasks.map(comm).filter(|task| task.starts_with("made-at-start")).collect()
    }

    /// Runs this test alone in a process of its own, where it is to panic on another thread.
    #[test]
    fn the_first_panic_ends_the_process() {
        const VARIABLE: &str = "ENFORCER_TEST_PANICS";
        if env::var_os(VARIABLE).is_some() {
            abort_on_panic();
            // Its end is not waited for by unwinding.
            join(thread::spawn(|| panic!("on purpose")));
            return;
        }
        let mut again = process::Command::new(env::current_exe().unwrap());
        again.args(["--exact", "threads::tests::the_first_panic_ends_the_process", "--nocapture"]);
        let ended = again.env(VARIABLE, "1").output().unwrap();
        let error = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{}: {error}", ended.status);
        assert!(error.contains("on purpose"), "{error}");
    }

    #[test]
    fn a_runtimes_threads_are_there_before_they_are_needed_and_stay() {
        let mut builder = Builder::new_current_thread();
        let runtime = runtime(builder.enable_all().thread_name("made-at-start"), 3).unwrap();
        let before = threads_of_this_process();
        assert_eq!(before.len(), 3, "{before:?}");
        let work = || tokio::task::spawn_blocking(|| thread::sleep(Duration::from_millis(20)));
        let all = async { futures_util::future::join_all((0..12).map(|_| work())).await };
        assert!(runtime.block_on(all).iter().all(Result::is_ok));
        assert_eq!(threads_of_this_process(), before);
    }

    #[test]
    fn work_is_done_in_order_by_threads_that_are_there() {
        let workers = Workers::start("test", 1, 0).unwrap();
        let (done, results) = mpsc::channel();
        while workers.shared.lock().idle == 0 {
            thread::yield_now();
        }
        for number in 0..3 {
            let done = done.clone();
            workers.run(move || done.send(number).unwrap()).unwrap();
            assert_eq!(results.recv().unwrap(), number);
            while workers.shared.lock().idle == 0 {
                thread::yield_now();
            }
        }
    }

    #[test]
    fn who_takes_long_does_not_keep_the_next_from_its_work() {
        let workers = Workers::start("test", 1, 0).unwrap();
        let (release, released) = mpsc::channel::<()>();
        let wait = move || {
            let _released = released.recv();
        };
        workers.run(wait).unwrap();
        let (done, results) = mpsc::channel();
        workers.run(move || done.send(()).unwrap()).unwrap();
        results.recv_timeout(BEGIN).unwrap();
        drop(release);
    }
}
