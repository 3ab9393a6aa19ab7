//! Starts the eviction thread with its helpers, and hands it pods and settings.

use std::{
    fmt, io,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::{event::EventfdFlags, io::Errno, rand::GetRandomFlags};

use super::{
    brake::{self, Braking},
    candidate::Candidate,
    close::{self, Work},
    drain,
    eviction_loop::{EvictionLoop, Wiring},
    fill_detector::{FillDetector, FillWaker},
    hook::{self, HookProgram, Hooks, Job},
    inherited::InheritedEviction,
    intents::EvictionIntents,
    levels::Levels,
    listener::{self, HELD_BACK, Listener, Recorded},
    observer::{Counters, Observer, Queues, ReflexStats},
    queue::{self, queue},
    reap::{self, Dying},
    rehearsal::{self, Rehearsal},
    report::Report,
    scheduling::Scheduling,
    soft::{self, Requester, ToBeAsked},
};
use crate::{
    clock,
    model::CgroupPath,
    policy::{
        engine::{Candidates, EngineSettings, Few, Mode, Outcome, Past, Reading},
        threshold::Threshold,
    },
    raw,
    recorder::Tap,
    sense::{
        Available, EdgeSource, MeminfoError, MemoryAvailableSource, PROC_MEMINFO, PodsMemory, Tasks,
        snapshot::Charge,
    },
    threads,
};

/// The process file system, in its usual place.
const PROC: &str = "/proc";

/// The length of the report queue. An eviction makes four reports, milliseconds apart.
const REPORTS: usize = 64;

/// The length of the reaper's queue. Victims come one at a time.
const DYING: usize = 4;

/// The length of the queue of what is to be closed or restored.
const WORK: usize = 16;

/// The length of the brake thread's queue: one brake and its end, and the next.
const BRAKING: usize = 4;

/// The length of the hook's queue: the next run, while the one before ends.
const HOOKS: usize = 1;

/// How long to wait for the hook's thread at the end; it may be stuck in opening a program's file.
const HOOK_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The threads' stack size; nothing here recurses deeply.
const STACK_BYTES: usize = 256 * 1024;

/// How the reflex is set up.
#[derive(Clone, Debug)]
pub struct ReflexConfig {
    /// When to evict, and the mode. Whether another is asked first follows from the `requester`.
    pub settings: EngineSettings,
    /// The memory summary, `/proc/meminfo`.
    pub meminfo: PathBuf,
    /// How `memory.available` is computed.
    pub memory_available_source: MemoryAvailableSource,
    /// The process file system, `/proc`, for counting process ids.
    pub proc: PathBuf,
    /// Whether to lock the daemon's memory, as far as it is touched: a reflex that must be paged in is too late.
    pub lock_memory: bool,
    /// How the kernel schedules the thread that evicts.
    pub scheduling: Scheduling,
    /// The number of CPUs, which may all fill memory at once.
    pub cpus: u64,
    /// The evictions that earlier processes began in this boot, the oldest first.
    pub past: Vec<Past>,
    /// The thresholds that were armed in earlier processes of this boot; they evict even if they are already crossed.
    pub armed: Vec<Threshold>,
    /// The program to run before a victim is signalled, if any; `settings` say how long to wait for it.
    pub hook: Option<HookProgram>,
    /// Woken when available memory or process ids begin to fall fast.
    pub fill_waker: Option<FillWaker>,
    /// Asked to end a soft eviction's victim before it is signalled here.
    pub requester: Option<Arc<dyn Requester>>,
    /// The soft eviction that an earlier process left under way; the thread goes on with it.
    pub inherited: Option<Arc<InheritedEviction>>,
}

impl Default for ReflexConfig {
    fn default() -> Self {
        Self {
            settings: EngineSettings::default(),
            meminfo: PathBuf::from(PROC_MEMINFO),
            memory_available_source: MemoryAvailableSource::MemAvailable,
            proc: PathBuf::from(PROC),
            lock_memory: true,
            scheduling: Scheduling::default(),
            cpus: thread::available_parallelism().map_or(1, |cpus| u64::try_from(cpus.get()).unwrap_or(1)),
            past: Vec::new(),
            armed: Vec::new(),
            hook: None,
            fill_waker: None,
            requester: None,
            inherited: None,
        }
    }
}

/// Why the reflex did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReflexError {
    /// The memory summary cannot be read, and the reflex needs it.
    #[error("{}", path.display())]
    Meminfo {
        /// Its path.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: MeminfoError,
    },
    /// The kernel refused a timer, an event descriptor or a thread.
    #[error("cannot set up the eviction thread")]
    Setup(#[source] io::Error),
    /// An edge source's descriptor cannot be waited on.
    #[error("cannot wait for kernel edges")]
    Edges(#[source] io::Error),
}

/// A set of candidates with everything that a decision needs.
#[derive(Debug, Default)]
pub(super) struct PreparedSet {
    pub(super) members: Arc<[Arc<Candidate>]>,
    pub(super) candidates: Candidates,
    pub(super) readings: Vec<Reading>,
}

impl PreparedSet {
    pub(super) fn new(members: Vec<Arc<Candidate>>) -> Self {
        let facts: Vec<_> = members.iter().map(|member| member.facts).collect();
        Self {
            candidates: Candidates::new(&facts),
            readings: vec![Reading::Missing; members.len()],
            members: members.into(),
        }
    }

    /// The total charge of the pods below `path`. Pods that cannot be read are left to the cgroup's own counters.
    pub(super) fn charge_within(&self, path: &CgroupPath, buffer: &mut [u8]) -> Charge {
        let charges =
            self.members.iter().map(|member| member.charge_within(path, buffer).unwrap_or_default());
        charges.fold(Charge::default(), Charge::plus)
    }
}

/// Input for the reflex. Only the newest set and settings count.
#[derive(Default)]
pub(super) struct Inbox {
    pub(super) set: Option<Box<PreparedSet>>,
    pub(super) settings: Option<EngineSettings>,
    /// Whether to arm every threshold, including those of these settings.
    pub(super) is_to_arm: bool,
    /// The outcomes of helpers' work: a soft eviction's first step, a brake, and its end. No more than these can wait.
    pub(super) outcomes: Few<Outcome, 8>,
    /// The files of another kubepods.
    pub(super) pods: Option<Box<PodsMemory>>,
    /// The reflex takes them out one by one, which does not free memory.
    pub(super) edges: Vec<Box<dyn EdgeSource>>,
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { set, settings, is_to_arm, outcomes, pods, edges } = self;
        f.debug_struct("Inbox")
            .field("set", set)
            .field("settings", settings)
            .field("is_to_arm", is_to_arm)
            .field("outcomes", outcomes)
            .field("pods", pods)
            .field("edges", &edges.len())
            .finish()
    }
}

/// The state that the reflex thread shares with its handle.
#[derive(Debug)]
pub(super) struct Shared {
    /// The reflex only uses `try_lock`. Others wake it after they release the lock.
    pub(super) inbox: Mutex<Inbox>,
    pub(super) waker: rustix::fd::OwnedFd,
    pub(super) stop: AtomicBool,
    /// The latest eviction whose victim must no longer be asked to end; 0 if there was none. There is one at a time.
    withdrawn: AtomicU64,
    pub(super) counters: Counters,
}

impl Shared {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            inbox: Mutex::default(),
            waker: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stop: AtomicBool::new(false),
            withdrawn: AtomicU64::new(0),
            counters: Counters::default(),
        })
    }

    fn wake(&self) {
        // It can only fail when the counter is full, and then the reflex is about to wake anyway.
        let _woken = rustix::io::write(&self.waker, &1_u64.to_ne_bytes());
    }

    pub(super) fn post(&self, put: impl FnOnce(&mut Inbox)) {
        put(&mut self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake();
    }

    /// Notes that the victim of that eviction must no longer be asked to end, nor that of an earlier one.
    pub(super) fn withdraw(&self, number: u64) {
        self.withdrawn.fetch_max(number, Ordering::Release);
    }

    fn is_withdrawn(&self, number: u64) -> bool {
        self.withdrawn.load(Ordering::Acquire) >= number
    }

    fn answer(&self, outcome: Outcome) {
        self.post(|inbox| {
            if !inbox.outcomes.push(outcome) {
                tracing::error!(
                    "the eviction thread does not take its helpers' outcomes: restart the daemon"
                );
            }
        });
    }
}

/// The eviction thread and its helpers. Dropping it stops them.
#[derive(Debug)]
pub struct Reflex {
    shared: Arc<Shared>,
    hooks: Arc<Hooks>,
    queues: Queues,
    threads: Vec<JoinHandle<()>>,
    /// The hook's thread, and the channel that closes when it ends.
    hook_thread: Option<(JoinHandle<()>, mpsc::Receiver<()>)>,
    /// Whether another may be asked to end a soft eviction's victim.
    asks_first: bool,
    memory_locked: Result<(), Errno>,
    scheduled: Result<(), Errno>,
}

impl Reflex {
    /// Starts it. The listener is called in order on its own thread, and may block. Later reports wait meanwhile, and
    /// those that do not fit are counted in [`ReflexStats::reports_dropped`].
    ///
    /// `intents` record each eviction before its signal. `tap` records the engine's input.
    pub fn spawn(
        config: &ReflexConfig,
        intents: Option<EvictionIntents>,
        edges: Vec<Box<dyn EdgeSource>>,
        tap: Option<Tap>,
        mut listener: impl Listener,
    ) -> Result<Self, ReflexError> {
        let failed = |source| ReflexError::Meminfo { path: config.meminfo.clone(), source };
        let available = Available::open(&config.meminfo, config.memory_available_source).map_err(failed)?;
        let memory_locked = if config.lock_memory { raw::lock_memory() } else { Ok(()) };

        let setup = ReflexError::Setup;
        let shared = Arc::new(Shared::new().map_err(setup)?);
        let (reports, received) = queue::<Report>(REPORTS).map_err(setup)?;
        let (reaper, dying) = queue::<Dying>(DYING).map_err(setup)?;
        let (closer, work) = queue::<Work>(WORK).map_err(setup)?;
        let (braker, braking) = queue::<Braking>(BRAKING).map_err(setup)?;
        let (hooker, jobs) = queue::<Job>(HOOKS).map_err(setup)?;
        let hooks = Arc::new(Hooks::new(config.hook.clone(), Some(reports.clone())).map_err(setup)?);
        let mut intents = intents;
        let book = intents.as_mut().and_then(EvictionIntents::take_brakes);
        let ended = intents.as_ref().map(EvictionIntents::ended);
        // Before the senders, so that it is dropped after them if a thread does not start: it joins the others.
        let mut reflex = Self {
            shared: Arc::clone(&shared),
            hooks: Arc::clone(&hooks),
            queues: Queues {
                reports: received.depth(),
                reaper: dying.depth(),
                closer: work.depth(),
                brake: braking.depth(),
                hook: jobs.depth(),
            },
            threads: Vec::new(),
            hook_thread: None,
            asks_first: config.requester.is_some(),
            memory_locked,
            scheduled: Ok(()),
        };
        let cpus = config.cpus;
        let lists = open_lists(config);
        let (from_close, from_brake) = (from_helper(&shared, &reports), from_helper(&shared, &reports));
        let (mut drain, drainer) = lists.unzip();
        if let Some(drain) = &mut drain {
            // A victim of an earlier process may have just died.
            drain.ask(0, clock::boottime_ns());
        }
        let levels = Levels::new(Tasks::open(&config.proc), drain);
        let wiring = Wiring {
            shared,
            available,
            levels,
            reports,
            reaper,
            closer,
            braker,
            hooker,
            hooks: Arc::clone(&hooks),
            edges,
            cpus,
            intents,
            seed: seed(),
            tap,
            fill_detector: FillDetector::new(config.fill_waker.clone()),
            inherited: config.inherited.clone(),
        };
        let settings = EngineSettings { asks_first: reflex.asks_first, ..config.settings };
        // The standard library moves what a thread runs from frame to frame.
        let mut eviction_loop = Box::new(EvictionLoop::new(&settings, &config.past, &config.armed, wiring)?);
        let victims = start_asking(config.requester.clone(), &reflex.shared)?;
        let (to_rehearse, rehearsed) = mpsc::channel::<Report>();
        reflex.start("enforcer-report", move || {
            threads::set_nice(threads::REQUEST_NICE);
            for mut report in rehearsed {
                report.read_victim();
                listener.rehearse(report);
            }
            listener::run(&received, listener, HELD_BACK, ended.as_deref(), |victim, recorded| {
                // Without that thread the daemon ends.
                drop(victims.send((victim, recorded)));
            });
        })?;
        reflex.start("enforcer-reap", move || reap::run(&dying))?;
        // It may be stuck in a call that only makes a victim's end faster, and must not hold up a stop: it is not joined.
        drop(reflex.threads.pop());
        reflex.start("enforcer-close", move || close::run(&work, from_close))?;
        if let Some(drainer) = drainer {
            reflex.start("enforcer-drain", move || drain::run(drainer))?;
        }
        let inbox = Arc::clone(&reflex.shared);
        reflex.start("enforcer-brake", move || {
            brake::run(&braking, book, |outcome| inbox.answer(outcome), from_brake);
        })?;
        let inbox = Arc::clone(&reflex.shared);
        let (alive, hook_ended) = mpsc::channel();
        reflex.start("enforcer-hook", move || {
            // Dropped at the end of the thread.
            let _alive = alive;
            hook::run(&jobs, &hooks, |outcome| inbox.answer(outcome));
        })?;
        reflex.hook_thread = reflex.threads.pop().map(|thread| (thread, hook_ended));
        let rehearsal = Rehearsal::prepare();
        reflex.start("enforcer-reflex", move || {
            threads::set_nice(threads::EVICTION_NICE);
            // Drops `to_rehearse`, whose end the report thread waits for, before the loop runs.
            rehearsal::note(rehearsal.and_then(move |mut rehearsal| {
                let is_signalled = rehearsal.perform()?;
                // The report thread may have ended already, as during a stop.
                rehearsal.reports().for_each(|report| drop(to_rehearse.send(report)));
                Ok(is_signalled)
            }));
            eviction_loop.run();
        })?;
        reflex.scheduled = reflex.threads.last().map_or(Ok(()), |thread| config.scheduling.apply(thread));
        Ok(reflex)
    }

    /// Sets the pods that may be evicted from now on, in the order that breaks ties.
    ///
    /// Pass a candidate that stays again, instead of opening it anew.
    pub fn set_candidates(&self, candidates: Vec<Arc<Candidate>>) {
        let set = Box::new(PreparedSet::new(candidates));
        // A set that the reflex has not taken yet is freed here.
        self.shared.post(|inbox| inbox.set = Some(set));
    }

    /// Sets new settings. This also closes an open breaker, until the next kill would again be one too many.
    pub fn configure(&self, mut settings: EngineSettings) {
        settings.asks_first = self.asks_first;
        self.shared.post(|inbox| inbox.settings = Some(settings));
    }

    /// The same, and arms every threshold of these settings, even if it is already crossed.
    pub fn configure_armed(&self, mut settings: EngineSettings) {
        settings.asks_first = self.asks_first;
        self.shared.post(|inbox| {
            inbox.settings = Some(settings);
            inbox.is_to_arm = true;
        });
    }

    /// Sets the program to run before a victim is signalled; `None` for no program.
    pub fn set_hook(&self, program: Option<HookProgram>) {
        self.hooks.configure(program);
    }

    /// Adds an edge source that wakes it until the source is gone.
    pub fn add_edges(&self, source: Box<dyn EdgeSource>) {
        self.shared.post(|inbox| inbox.edges.push(source));
    }

    /// Sets the files of kubepods, from which `allocatableMemory.available` is measured.
    pub fn set_kubepods(&self, pods: PodsMemory) {
        // Files that the reflex has not taken yet are closed here.
        self.shared.post(|inbox| inbox.pods = Some(Box::new(pods)));
    }

    /// The current counters.
    #[must_use]
    pub fn stats(&self) -> ReflexStats {
        self.observer().stats()
    }

    /// A handle to read the counters from elsewhere.
    #[must_use]
    pub fn observer(&self) -> Observer {
        Observer::of(&self.shared, &self.hooks, &self.queues)
    }

    /// Fails if the daemon's memory could not be locked; paging can delay reactions then.
    pub fn memory_locked(&self) -> Result<(), io::Error> {
        self.memory_locked.map_err(io::Error::from)
    }

    /// Fails if the eviction thread is not scheduled as configured; it may have to wait for a CPU then.
    pub fn scheduled(&self) -> Result<(), io::Error> {
        self.scheduled.map_err(io::Error::from)
    }

    /// Stops the threads and waits until every report is passed on.
    pub fn stop(mut self) {
        self.halt();
    }

    fn start(&mut self, name: &'static str, run: impl FnOnce() + Send + 'static) -> Result<(), ReflexError> {
        let builder = thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
        let shared = Arc::clone(&self.shared);
        let run = move || {
            run();
            ended(name, &shared.stop);
        };
        self.threads.push(builder.spawn(run).map_err(ReflexError::Setup)?);
        Ok(())
    }

    fn halt(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        self.hooks.cut(u64::MAX);
        let mut threads = std::mem::take(&mut self.threads).into_iter().rev();
        // First the reflex itself, which gives the others their work, then the hook's thread.
        if let Some(reflex) = threads.next() {
            threads::join(reflex);
        }
        if let Some((thread, ended)) = self.hook_thread.take() {
            if ended.recv_timeout(HOOK_DRAIN_TIMEOUT) == Err(RecvTimeoutError::Disconnected) {
                threads::join(thread);
            } else {
                tracing::error!("the preKillHook thread does not end, and is left behind");
            }
        }
        self.hooks.silence();
        for thread in threads {
            threads::join(thread);
        }
    }
}

/// Starts the thread that has soft evictions' victims ended, by another if there is one to ask. It is not joined: an answer
/// or a disk that it waits for must not hold up a stop.
fn start_asking(
    requester: Option<Arc<dyn Requester>>,
    shared: &Arc<Shared>,
) -> Result<mpsc::Sender<(ToBeAsked, Recorded)>, ReflexError> {
    let (sender, victims) = mpsc::channel();
    let inbox = Arc::clone(shared);
    let builder = thread::Builder::new().name(String::from("enforcer-ask")).stack_size(STACK_BYTES);
    let thread = builder.spawn(move || {
        let is_withdrawn = |number| inbox.is_withdrawn(number) || inbox.stop.load(Ordering::Acquire);
        soft::run(&victims, requester.as_deref(), is_withdrawn, |outcome| inbox.answer(outcome));
    });
    thread.map(|_thread| sender).map_err(ReflexError::Setup)
}

/// How a helper thread emits reports.
fn from_helper(shared: &Arc<Shared>, reports: &ReportSender) -> impl FnMut(Report) + Send + use<> {
    let (shared, reports) = (Arc::clone(shared), reports.clone());
    move |report| {
        shared.counters.reports.fetch_add(1, Ordering::Relaxed);
        if reports.offer(report).is_err() {
            shared.counters.reports_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Panics if a thread ends unasked. Without one of these threads the daemon would seem alive but not evict, so it ends
/// with the first of them, and is restarted.
fn ended(name: &str, stop: &AtomicBool) {
    assert!(stop.load(Ordering::Acquire), "the thread {name} ended unexpectedly");
}

impl Drop for Reflex {
    fn drop(&mut self) {
        self.halt();
    }
}

/// Opens the kernel's per-CPU lists of free pages, where they matter.
fn open_lists(config: &ReflexConfig) -> Option<(drain::Drain, drain::Drainer)> {
    if config.settings.mode == Mode::Enforce {
        drain::restore(&config.proc);
    }
    match config.memory_available_source {
        MemoryAvailableSource::MemAvailable => drain::open(&config.proc)
            .inspect_err(|error| {
                tracing::warn!(
                    proc = %config.proc.display(), %error,
                    "cannot open zoneinfo or sys/vm/stat_refresh: pages that a victim leaves on per-CPU lists do not \
                     count, and another pod may be evicted before they are available"
                );
            })
            .ok(),
        // There, all memory outside of the working set counts as available, so no list matters.
        MemoryAvailableSource::Kubelet => None,
    }
}

/// The random part of the first eviction id; the later ones count on from it.
fn seed() -> u128 {
    let mut bytes = [0_u8; 16];
    match rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(count) if count == bytes.len() => u128::from_ne_bytes(bytes),
        // Only before the machine has gathered any randomness; the time still makes ids unique.
        Ok(_) | Err(_) => u128::from(std::process::id()),
    }
}

pub(super) type ReportSender = queue::Sender<Report>;
pub(super) type Reaper = queue::Sender<Dying>;
pub(super) type Closer = queue::Sender<Work>;
pub(super) type Braker = queue::Sender<Braking>;
pub(super) type Hooker = queue::Sender<Job>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "the thread enforcer-reflex ended unexpectedly")]
    fn a_thread_that_ends_by_itself_ends_the_daemon() {
        let stop = AtomicBool::new(true);
        ended("enforcer-reflex", &stop);
        stop.store(false, Ordering::Release);
        ended("enforcer-reflex", &stop);
    }
}
