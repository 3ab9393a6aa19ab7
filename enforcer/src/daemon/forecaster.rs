//! Forecasts, on a separate thread, when thresholds will be crossed at the present rate, and which pods are the cause.
//!
//! At rest it makes a few small reads every ten seconds, and sooner if the reflex notices a fast fall. All pods are
//! looked at only when little time is left. As it knows when that is, it also checks the candidates for what must never be
//! killed.
mod asking;
mod growth;
mod rechecks;
mod signals;

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use self::{
    growth::{Grown, Growth},
    rechecks::Rechecks,
    signals::SignalReader,
};
use super::emit;
use crate::{
    cgroup::CgroupDir,
    clock,
    config::Config,
    evict::{Candidate, FillWaker},
    journal::{Journal, Subject},
    metrics::{Counts, Level},
    model::{CgroupId, CgroupPath, Limit},
    policy::{
        Plan, PodPlan,
        engine::Resource,
        forecast::{Crossing, Forecast, Trend, Warning},
        threshold::Threshold,
    },
    recorder::Asker,
    serve::{HeadroomView, Headrooms},
};

use enforcer_events::{
    Payload,
    pressure::{Approach, Growing, HeadroomBack, HeadroomShrinking, PressureCleared, PressureRising},
};
use tokio::sync::{Notify, watch};

/// How often it looks: at rest, and while little time is left.
const AT_REST: Duration = Duration::from_secs(10);
const CONCERNED: Duration = Duration::from_secs(1);

/// After the reflex reports a fast fall: how often to look, for how long, and the pause before the next such period
/// unless there is another reason.
const HURRIED: Duration = Duration::from_millis(250);
const HURRY: Duration = Duration::from_millis(1_500);
const BETWEEN_HURRIES: Duration = Duration::from_secs(3);

/// How many looks fit into the time that is left.
const LOOKS: u64 = 8;

/// The thread's stack: no call is deep; it holds the buffers of reads.
const STACK_BYTES: usize = 256 * 1_024;

/// A pod that may be the cause.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct GrowthCandidate {
    pub(super) plan: Arc<PodPlan>,
    /// Where its processes are: its own cgroup, or a former one.
    pub(super) cgroup: CgroupId,
    pub(super) path: CgroupPath,
}

/// The cgroup of all pods.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Kubepods {
    pub(super) path: CgroupPath,
    /// The pods' memory limit, if there is one.
    pub(super) limit_bytes: Option<u64>,
}

impl Kubepods {
    pub(super) fn of(plan: &Plan) -> Self {
        let limit_bytes = plan.node.values.memory_max.and_then(Limit::amount);
        Self { path: plan.node.path.clone(), limit_bytes }
    }
}

/// What the forecaster looks at.
#[derive(Debug)]
pub(super) struct ForecastTargets {
    pub(super) root: Arc<CgroupDir>,
    pub(super) suspects: Vec<GrowthCandidate>,
    pub(super) kubepods: Kubepods,
    /// The cgroups that hold pods, by the names in reports.
    pub(super) slices: Vec<(&'static str, CgroupPath)>,
}

/// Messages to the thread.
#[derive(Debug)]
enum Message {
    ForecastTargets(ForecastTargets),
    Thresholds(Vec<Threshold>),
    /// The pods that may be evicted.
    Candidates(Vec<Weak<Candidate>>),
    /// A request for the headroom.
    Asked(SyncSender<HeadroomView>),
}

/// The thread; dropping it ends it.
#[derive(Debug)]
pub(super) struct Forecaster {
    sender: Option<Sender<Message>>,
    thread: Option<JoinHandle<()>>,
    /// Set by the reflex to request a look.
    woken: Arc<AtomicBool>,
    boosted: Arc<Notify>,
    forbidden: Arc<Notify>,
    concern: Arc<watch::Sender<bool>>,
}

impl Forecaster {
    /// Starts the thread, without pods yet, and returns a handle that wakes it. If it cannot be started, that is
    /// reported, and there are no warnings.
    pub(super) fn start(
        config: &Config,
        max_pids: Option<u64>,
        journal: &Journal,
        counts: Counts,
        recorder: Option<Asker>,
    ) -> (Self, Option<FillWaker>) {
        let (sender, inbox) = channel();
        let (events, woken) = (journal.clone(), Arc::new(AtomicBool::new(false)));
        let (flag, boosted) = (Arc::clone(&woken), Arc::new(Notify::new()));
        let (boost, forbidden) = (Arc::clone(&boosted), Arc::new(Notify::new()));
        let found = Arc::clone(&forbidden);
        // Without forecasts nothing says that much time is left.
        let concern = Arc::new(watch::Sender::new(true));
        let noted = Arc::clone(&concern);
        let started =
            SignalReader::open(config, max_pids).map_err(|error| error.to_string()).and_then(|signals| {
                let mut watch = Watch::new(signals, events, counts, recorder, (found, noted));
                let builder =
                    thread::Builder::new().name(String::from("enforcer-look")).stack_size(STACK_BYTES);
                builder.spawn(move || watch.run(&inbox, &flag, &boost)).map_err(|error| error.to_string())
            });
        let forecaster = match started {
            Ok(thread) => {
                Self { sender: Some(sender), thread: Some(thread), woken, boosted, forbidden, concern }
            }
            Err(error) => {
                let message = format!(
                    "there are no warnings before thresholds are crossed, and what is moved into a candidate's cgroup \
                     is not noticed: {error}"
                );
                emit::degraded(journal, "outlook", &message);
                Self { sender: None, thread: None, woken, boosted, forbidden, concern }
            }
        };
        forecaster.configure(config);
        let fill_waker = forecaster.fill_waker();
        (forecaster, fill_waker)
    }

    /// Forecasts the thresholds of this configuration.
    pub(super) fn configure(&self, config: &Config) {
        let thresholds = &config.settings.eviction.thresholds;
        let followed = thresholds.iter().filter(|threshold| Resource::of(threshold.signal).is_some());
        self.send(Message::Thresholds(followed.copied().collect()));
    }

    /// Looks at these pods from now on.
    pub(super) fn look_at(&self, targets: ForecastTargets) {
        self.send(Message::ForecastTargets(targets));
    }

    /// Notified each time that a resource begins to fall fast.
    pub(super) fn boosted(&self) -> Arc<Notify> {
        Arc::clone(&self.boosted)
    }

    /// Checks these candidates again and again from now on, for what must never be killed.
    pub(super) fn recheck(&self, candidates: &[Arc<Candidate>]) {
        self.send(Message::Candidates(candidates.iter().map(Arc::downgrade).collect()));
    }

    /// Notified when a candidate is found to hold what must never be killed.
    pub(super) fn forbidden(&self) -> Arc<Notify> {
        Arc::clone(&self.forbidden)
    }

    /// Whether a threshold is crossed, or may be soon; true until the first look, and without a thread.
    pub(super) fn concern(&self) -> watch::Receiver<bool> {
        self.concern.subscribe()
    }

    /// Returns a handle to ask for the headroom of each threshold.
    pub(super) fn headrooms(&self) -> Headrooms {
        let thread = self.thread.as_ref().map(|thread| thread.thread().clone());
        asking::headrooms(self.sender.clone().zip(thread))
    }

    fn fill_waker(&self) -> Option<FillWaker> {
        let thread = self.thread.as_ref()?.thread().clone();
        Some(FillWaker::new(thread, Arc::clone(&self.woken)))
    }

    fn send(&self, message: Message) {
        if let Some(sender) = &self.sender
            && sender.send(message).is_err()
        {
            tracing::error!("the forecaster's thread has ended");
        }
        self.wake();
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Forecaster {
    fn drop(&mut self) {
        drop(self.sender.take());
        self.wake();
        if let Some(thread) = self.thread.take() {
            crate::threads::join(thread);
        }
    }
}

/// The thread's state.
struct Watch {
    signals: SignalReader,
    forecast: Forecast,
    growth: Growth,
    journal: Journal,
    counts: Counts,
    /// Records what the kernel would kill while memory may run short.
    recorder: Option<Asker>,
    rechecks: Rechecks,
    /// Notified of candidates that must not be killed any more.
    forbidden: Arc<Notify>,
    /// Whether a threshold is crossed, or may be soon.
    concern: Arc<watch::Sender<bool>>,
    thresholds: Vec<Threshold>,
    slices: Vec<(&'static str, CgroupPath)>,
    /// When the latest look was.
    looked_ns: u64,
    trends: Vec<Trend>,
}

impl Watch {
    fn new(
        signals: SignalReader,
        journal: Journal,
        counts: Counts,
        recorder: Option<Asker>,
        (forbidden, concern): (Arc<Notify>, Arc<watch::Sender<bool>>),
    ) -> Self {
        Self {
            signals,
            forecast: Forecast::default(),
            growth: Growth::default(),
            journal,
            counts,
            recorder,
            rechecks: Rechecks::default(),
            forbidden,
            concern,
            thresholds: Vec::new(),
            slices: Vec::new(),
            looked_ns: 0,
            trends: Vec::new(),
        }
    }

    fn run(&mut self, inbox: &Receiver<Message>, woken: &AtomicBool, boosted: &Notify) {
        let mut due = Instant::now();
        let mut hurry = FastUntil::default();
        while self.take(inbox) {
            let now = Instant::now();
            if woken.swap(false, Ordering::AcqRel) {
                boosted.notify_one();
                if hurry.begin(now) {
                    due = now;
                }
            }
            if let Some(left) = due.checked_duration_since(now).filter(|left| !left.is_zero()) {
                thread::park_timeout(left);
                continue;
            }
            let within = self.look();
            due = now + if hurry.lasts(now) { within.min(HURRIED) } else { within };
        }
    }

    /// Takes the queued messages; returns whether more may come.
    fn take(&mut self, inbox: &Receiver<Message>) -> bool {
        loop {
            match inbox.try_recv() {
                Ok(Message::ForecastTargets(ForecastTargets { root, suspects, kubepods, slices })) => {
                    self.signals.set_kubepods(&root, &kubepods);
                    self.slices = slices;
                    self.growth.suspect(root, suspects);
                }
                Ok(Message::Thresholds(thresholds)) => {
                    self.signals.set_signals(&thresholds);
                    self.forecast.configure(&thresholds);
                    let is_of_pids =
                        |threshold: &Threshold| Resource::of(threshold.signal) == Some(Resource::Pids);
                    self.growth.count_tasks(thresholds.iter().any(is_of_pids));
                    self.thresholds = thresholds;
                }
                Ok(Message::Candidates(candidates)) => self.rechecks.add(candidates),
                Ok(Message::Asked(answer)) => {
                    // The caller may have given up; its receiver is gone then.
                    let _sent = answer.try_send(self.headroom());
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Looks once; returns when to look again.
    fn look(&mut self) -> Duration {
        let now_ns = clock::boottime_ns();
        let trends = self.signals.look(now_ns);
        for level in Level::ALL {
            self.counts.set_left_ns(*level, self.forecast.left_ns(&trends, *level == Level::Hard));
        }
        self.looked_ns = now_ns;
        self.trends.clone_from(&trends);
        let is_of_concern = self.forecast.is_of_concern(&trends);
        self.concern.send_if_modified(|known| std::mem::replace(known, is_of_concern) != is_of_concern);
        if is_of_concern {
            if let Some(recorder) = &self.recorder {
                recorder.near();
            }
            self.growth.look(now_ns);
        } else {
            self.growth.rest();
        }
        for warning in self.forecast.look(now_ns, &trends) {
            self.emit(&warning);
        }
        if self.rechecks.look(now_ns, is_of_concern) {
            self.forbidden.notify_one();
        }
        let soon = self.forecast.least_left_ns(&trends).map(|left_ns| Duration::from_nanos(left_ns / LOOKS));
        match (is_of_concern, soon) {
            (true, soon) => soon.unwrap_or(CONCERNED).clamp(HURRIED, CONCERNED),
            (false, soon) => soon.unwrap_or(AT_REST).clamp(CONCERNED, AT_REST),
        }
    }

    fn emit(&self, warning: &Warning) {
        let payload = match warning {
            Warning::Rising(ahead) => {
                let resource = Resource::of(ahead.threshold.signal);
                let causes = resource
                    .map(|resource| self.growth.causes(resource, ahead.falling_per_second))
                    .unwrap_or_default();
                Payload::PressureRising(PressureRising::Headroom(rising(ahead, resource, &causes)))
            }
            Warning::Cleared { ahead, lasted_ns } => {
                let approach = approach(ahead, Resource::of(ahead.threshold.signal));
                let data = HeadroomBack { approach, lasted_ms: lasted_ns / 1_000_000 };
                Payload::PressureCleared(PressureCleared::Headroom(data))
            }
        };
        self.journal.emit(Subject::Node, payload);
    }
}

/// A period of frequent looks.
#[derive(Debug, Default)]
struct FastUntil {
    since: Option<Instant>,
}

impl FastUntil {
    /// Begins one, if the last one was long enough ago; returns whether it did.
    fn begin(&mut self, now: Instant) -> bool {
        let is_over = |since: Instant| now.duration_since(since) >= HURRY + BETWEEN_HURRIES;
        let begins = self.since.is_none_or(is_over);
        if begins {
            self.since = Some(now);
        }
        begins
    }

    fn lasts(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.duration_since(since) < HURRY)
    }
}

fn rising(ahead: &Crossing, resource: Option<Resource>, causes: &[Grown<'_>]) -> HeadroomShrinking {
    let is_of_pids = resource == Some(Resource::Pids);
    let left_ms = ahead.left_ns.map(|left_ns| left_ns / 1_000_000);
    let pods = causes.iter().map(|Grown { suspect, usage, per_second }| Growing {
        namespace: suspect.plan.name.namespace.clone(),
        name: suspect.plan.name.name.clone(),
        uid: suspect.plan.uid.to_string(),
        growth_bytes_per_second: (!is_of_pids).then_some(*per_second),
        growth_per_second: is_of_pids.then_some(*per_second),
        usage_bytes: (!is_of_pids).then_some(*usage),
        process_count: is_of_pids.then_some(*usage),
        request_bytes: suspect.plan.ranking_request_bytes,
    });
    let seconds = left_ms.map_or(0, |left_ms| left_ms.div_ceil(1_000));
    let cause = match causes {
        [] => String::from("caused by no pod"),
        [one] => format!("caused by {}", one.suspect.plan.name),
        [one, others @ ..] => format!("caused by {} and {} more", one.suspect.plan.name, others.len()),
    };
    HeadroomShrinking {
        approach: approach(ahead, resource),
        crossed_in_ms: left_ms,
        pods: pods.collect(),
        message: format!("{} crosses its threshold in about {seconds} s: {cause}", ahead.threshold.signal),
    }
}

/// The keys of both events.
fn approach(ahead: &Crossing, resource: Option<Resource>) -> Approach {
    let is_of_pids = resource == Some(Resource::Pids);
    let (bytes, count) = (|amount| (!is_of_pids).then_some(amount), |amount| is_of_pids.then_some(amount));
    Approach {
        kind: "headroom".into(),
        signal: ahead.threshold.signal.as_str().into(),
        hard: ahead.threshold.is_hard(),
        threshold_bytes: bytes(ahead.amount),
        threshold_count: count(ahead.amount),
        available_bytes: bytes(ahead.available),
        available_count: count(ahead.available),
        fill_bytes_per_second: bytes(ahead.falling_per_second),
        fill_per_second: count(ahead.falling_per_second),
    }
}
