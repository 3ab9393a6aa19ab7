//! Looks ahead, on a thread of its own: when thresholds will be crossed if things go on as they do, and whose doing it is.
//!
//! At rest that is some small reads every ten seconds, and sooner where the reflex notices that something falls fast. Every
//! pod is looked at only when little time is left.
mod asking;
mod growth;
mod signals;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

pub(super) use self::signals::now_ns;
use self::{
    growth::{Grown, Growth},
    signals::SignalReader,
};
use super::emit;
use crate::{
    cgroup::CgroupDir,
    config::Config,
    evict::FillWaker,
    journal::{Event, EventType, Journal, Subject},
    metrics::{Counts, Level},
    model::{CgroupId, CgroupPath, PodName, PodUid},
    policy::{
        Plan,
        engine::Resource,
        forecast::{Crossing, Forecast, Trend, Warning},
        threshold::Threshold,
    },
    serve::{HeadroomView, Headrooms},
};

use serde_json::{Map, Value, json};
use tokio::sync::Notify;

/// How often it looks: at rest, and while little time is left.
const AT_REST: Duration = Duration::from_secs(10);
const CONCERNED: Duration = Duration::from_secs(1);

/// When the reflex says that something falls fast: so often, for so long, and then not again for a while unless there is
/// reason to.
const HURRIED: Duration = Duration::from_millis(250);
const HURRY: Duration = Duration::from_millis(1_500);
const BETWEEN_HURRIES: Duration = Duration::from_secs(3);

/// How many looks there are to be in the time that is left.
const LOOKS: u64 = 8;

/// Nothing here is deep, but for the buffers of reads.
const STACK_BYTES: usize = 256 * 1_024;

/// A pod that may be the cause.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct GrowthCandidate {
    pub(super) pod: PodName,
    pub(super) uid: PodUid,
    pub(super) cgroup: CgroupId,
    pub(super) path: CgroupPath,
    pub(super) request_bytes: u64,
}

/// Where all pods are.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Kubepods {
    pub(super) path: CgroupPath,
    /// What they may have together, if that is limited.
    pub(super) limit_bytes: Option<u64>,
}

impl Kubepods {
    pub(super) fn of(plan: &Plan) -> Self {
        let limit_bytes = plan.node.files.get("memory.max").and_then(|limit| limit.parse().ok());
        Self { path: plan.node.path.clone(), limit_bytes }
    }
}

/// What is looked at.
#[derive(Debug)]
pub(super) struct ForecastTargets {
    pub(super) root: Arc<CgroupDir>,
    pub(super) suspects: Vec<GrowthCandidate>,
    pub(super) kubepods: Kubepods,
    /// The cgroups that hold pods, by the names that they are told by.
    pub(super) slices: Vec<(&'static str, CgroupPath)>,
}

/// What the thread is told.
#[derive(Debug)]
enum Message {
    ForecastTargets(ForecastTargets),
    Thresholds(Vec<Threshold>),
    /// Somebody asks what is left.
    Asked(SyncSender<HeadroomView>),
}

/// The thread; dropping it ends it.
#[derive(Debug)]
pub(super) struct Forecaster {
    sender: Option<Sender<Message>>,
    thread: Option<JoinHandle<()>>,
    /// That the reflex wants it to look.
    rung: Arc<AtomicBool>,
    boosted: Arc<Notify>,
}

impl Forecaster {
    /// Starts it, looking at no pods yet, and gives what has it look at once. Where it cannot be, that is told, and nothing
    /// is warned of.
    pub(super) fn start(
        config: &Config,
        max_pids: Option<u64>,
        journal: &Journal,
        counts: Counts,
    ) -> (Self, Option<FillWaker>) {
        let (sender, inbox) = channel();
        let (events, rung) = (journal.clone(), Arc::new(AtomicBool::new(false)));
        let (heard, boosted) = (Arc::clone(&rung), Arc::new(Notify::new()));
        let boost = Arc::clone(&boosted);
        let started =
            SignalReader::open(config, max_pids).map_err(|error| error.to_string()).and_then(|signals| {
                let mut watch = Watch::new(signals, events, counts);
                let builder =
                    thread::Builder::new().name(String::from("enforcer-look")).stack_size(STACK_BYTES);
                builder.spawn(move || watch.run(&inbox, &heard, &boost)).map_err(|error| error.to_string())
            });
        let forecaster = match started {
            Ok(thread) => Self { sender: Some(sender), thread: Some(thread), rung, boosted },
            Err(error) => {
                let message = format!("thresholds that come near are not warned of: {error}");
                emit::degraded(journal, "outlook", &message);
                Self { sender: None, thread: None, rung, boosted }
            }
        };
        forecaster.configure(config);
        let alarm = forecaster.alarm();
        (forecaster, alarm)
    }

    /// Looks ahead to the thresholds of this configuration.
    pub(super) fn configure(&self, config: &Config) {
        let thresholds = &config.settings.eviction.thresholds;
        let followed = thresholds.iter().filter(|threshold| Resource::of(threshold.signal).is_some());
        self.send(Message::Thresholds(followed.copied().collect()));
    }

    /// Looks at these pods from now on.
    pub(super) fn look_at(&self, targets: ForecastTargets) {
        self.send(Message::ForecastTargets(targets));
    }

    /// Told each time that something begins to run short fast.
    pub(super) fn boosted(&self) -> Arc<Notify> {
        Arc::clone(&self.boosted)
    }

    /// To ask what is left before each threshold.
    pub(super) fn headrooms(&self) -> Headrooms {
        let thread = self.thread.as_ref().map(|thread| thread.thread().clone());
        asking::headrooms(self.sender.clone().zip(thread))
    }

    fn alarm(&self) -> Option<FillWaker> {
        let thread = self.thread.as_ref()?.thread().clone();
        Some(FillWaker::new(thread, Arc::clone(&self.rung)))
    }

    fn send(&self, message: Message) {
        if let Some(sender) = &self.sender
            && sender.send(message).is_err()
        {
            tracing::error!("nobody looks ahead any longer");
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

/// The thread's own.
struct Watch {
    signals: SignalReader,
    outlook: Forecast,
    growth: Growth,
    journal: Journal,
    counts: Counts,
    thresholds: Vec<Threshold>,
    slices: Vec<(&'static str, CgroupPath)>,
    /// The latest look.
    looked_ns: u64,
    trends: Vec<Trend>,
}

impl Watch {
    fn new(signals: SignalReader, journal: Journal, counts: Counts) -> Self {
        Self {
            signals,
            outlook: Forecast::default(),
            growth: Growth::default(),
            journal,
            counts,
            thresholds: Vec::new(),
            slices: Vec::new(),
            looked_ns: 0,
            trends: Vec::new(),
        }
    }

    fn run(&mut self, inbox: &Receiver<Message>, rung: &AtomicBool, boosted: &Notify) {
        let mut due = Instant::now();
        let mut hurry = FastUntil::default();
        while self.take(inbox) {
            let now = Instant::now();
            if rung.swap(false, Ordering::AcqRel) {
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

    /// Takes what it was told; whether there may be more.
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
                    self.outlook.configure(&thresholds);
                    self.thresholds = thresholds;
                }
                Ok(Message::Asked(answer)) => {
                    // Who has given up waiting is answered for nothing.
                    let _unheard = answer.try_send(self.headroom());
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Looks once; answers when to look again.
    fn look(&mut self) -> Duration {
        let now_ns = now_ns();
        let trends = self.signals.look(now_ns);
        for level in Level::ALL {
            self.counts.set_left_ns(*level, self.outlook.left_ns(&trends, *level == Level::Hard));
        }
        self.looked_ns = now_ns;
        self.trends.clone_from(&trends);
        let is_of_concern = self.outlook.is_of_concern(&trends);
        if is_of_concern {
            self.growth.look(now_ns);
        } else {
            self.growth.rest();
        }
        for warning in self.outlook.look(now_ns, &trends) {
            self.emit(&warning);
        }
        let soon = self.outlook.least_left_ns(&trends).map(|left_ns| Duration::from_nanos(left_ns / LOOKS));
        match (is_of_concern, soon) {
            (true, soon) => soon.unwrap_or(CONCERNED).clamp(HURRIED, CONCERNED),
            (false, soon) => soon.unwrap_or(AT_REST).clamp(CONCERNED, AT_REST),
        }
    }

    fn emit(&self, warning: &Warning) {
        let (kind, data) = match warning {
            Warning::Rising(ahead) => {
                let resource = Resource::of(ahead.threshold.signal);
                let causes = resource
                    .map(|resource| self.growth.causes(resource, ahead.falling_per_second))
                    .unwrap_or_default();
                (EventType::PressureRising, rising(ahead, resource, &causes))
            }
            Warning::Cleared { ahead, lasted_ns } => {
                let mut data = common(ahead, Resource::of(ahead.threshold.signal));
                data.insert(String::from("lastedMs"), json!(lasted_ns / 1_000_000));
                (EventType::PressureCleared, data)
            }
        };
        self.journal.append(Event { kind, subject: Subject::Node, data: Value::Object(data) });
    }
}

/// Whether it looks often for a while.
#[derive(Debug, Default)]
struct FastUntil {
    since: Option<Instant>,
}

impl FastUntil {
    /// Begins one, if the last one was long enough ago; whether it did.
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

fn rising(ahead: &Crossing, resource: Option<Resource>, causes: &[Grown<'_>]) -> Map<String, Value> {
    let mut data = common(ahead, resource);
    let (rate, usage) = match resource {
        Some(Resource::Pids) => ("growthPerSecond", "processCount"),
        Some(Resource::Memory) | None => ("growthBytesPerSecond", "usageBytes"),
    };
    let left_ms = ahead.left_ns.map(|left_ns| left_ns / 1_000_000);
    data.insert(String::from("crossedInMs"), json!(left_ms));
    let pods = causes.iter().map(|Grown { suspect, usage: used, per_second }| {
        json!({
            "namespace": suspect.pod.namespace,
            "name": suspect.pod.name,
            "uid": suspect.uid.as_str(),
            (rate): per_second,
            (usage): used,
            "requestBytes": suspect.request_bytes,
        })
    });
    data.insert(String::from("pods"), pods.collect());
    let seconds = left_ms.map_or(0, |left_ms| left_ms.div_ceil(1_000));
    let by_whom = match causes {
        [] => String::from("no pod's doing"),
        [one] => format!("the doing of {}", one.suspect.pod),
        [one, others @ ..] => format!("the doing of {} and {} more", one.suspect.pod, others.len()),
    };
    let message =
        format!("{} comes to its threshold in about {seconds} s: {by_whom}", ahead.threshold.signal);
    data.insert(String::from("message"), json!(message));
    data
}

/// What both tell.
fn common(ahead: &Crossing, resource: Option<Resource>) -> Map<String, Value> {
    let (threshold, available, rate) = match resource {
        Some(Resource::Pids) => ("thresholdCount", "availableCount", "fillPerSecond"),
        Some(Resource::Memory) | None => ("thresholdBytes", "availableBytes", "fillBytesPerSecond"),
    };
    let entries = [
        ("kind", json!("headroom")),
        ("signal", json!(ahead.threshold.signal.as_str())),
        ("hard", json!(ahead.threshold.is_hard())),
        (threshold, json!(ahead.amount)),
        (available, json!(ahead.available)),
        (rate, json!(ahead.falling_per_second)),
    ];
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}
