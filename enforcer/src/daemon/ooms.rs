use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future, io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use aya::maps::{MapData, RingBuf};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{mpsc, watch};
use ulid::Ulid;

use super::{backlog::Backlog, stalls::Stalling, standing::Standing, telling};
use crate::{
    cgroup::{CgroupDir, Index},
    journal::{Event, EventType, Journal, Subject},
    model::{CgroupId, CgroupPath, Owner},
    sense::{
        self, Attached, Choice, EdgeSource, Facts, Guard, HostFacts, Inherited, KernelRing, Lost, Mark, Pins,
        Programs, Record, RecordRing, RingStats, SenseError, Version,
        incident::{Incidents, Input, OomCounts, Output, World},
    },
    serve::Doctor,
};

/// How many records may wait; the ring takes up what comes on top.
const RECORDS: usize = 1024;

/// How often losses are counted.
const TICK: Duration = Duration::from_secs(10);

/// How long what happened before our start waits for the pods to be known.
const UNTIL_READY: Duration = Duration::from_secs(5);

/// The most cgroups of the whole hierarchy whose paths are kept.
const MAX_CGROUPS: usize = 65_536;

/// The tracing of OOM kills: programs at work, their records folded into incidents, and those told.
pub(super) struct Ooms {
    journal: Journal,
    programs: Option<Working>,
    incidents: Incidents,
    world: Names,
    /// The cgroups whose counters the incidents know, and as of which generation of the index.
    known: BTreeSet<CgroupId>,
    generation: Option<u64>,
    /// What happened before our start is being told: counters that are read now have it already.
    is_catching_up: bool,
    /// What was found at the start, until it is asked for.
    standing: Option<Standing>,
    /// Stalls, told beside OOM kills as the same programs tell them.
    stalling: Option<Stalling>,
}

/// What must live as long as the programs are to work.
struct Working {
    events: Option<RingBuf<MapData>>,
    counters: sense::Counters,
    #[cfg_attr(not(feature = "bpf-log"), expect(dead_code, reason = "held for its Drop"))]
    programs: Programs,
}

impl Ooms {
    /// Attaches what this kernel offers, and tells what is lost. Gives the edges, for the reflex, and the guard of scores
    /// and files, if there are any.
    pub(super) fn attach(
        journal: &Journal,
        index: Index,
        being_evicted: BeingEvicted,
        mut backlog: Backlog,
    ) -> (Self, Vec<Box<dyn EdgeSource>>, Option<Guard>) {
        let facts = Facts::gather();
        let choice = sense::choose(&facts);
        let mut standing = Standing::new(facts, choice.clone());
        for lost in &choice.lost {
            tell_lost(journal, lost);
        }
        let mut edges: Vec<Box<dyn EdgeSource>> = Vec::new();
        let mut guard = None;
        let mut stalling = None;
        let programs = match load(&choice, journal, &mut backlog) {
            Ok(Attached {
                events,
                edges: ring,
                guard: scores_and_files,
                stalls,
                stall_records,
                counters,
                attached,
                failed,
                inherited,
                unpinned,
                programs,
            }) => {
                tell_inherited(journal, &inherited);
                for lost in &unpinned {
                    tell_lost(journal, lost);
                }
                for failure in &failed {
                    tell_lost(journal, &failure.lost());
                }
                standing.loaded(&attached, &failed);
                tracing::info!(programs = attached.join(", "), "eBPF programs attached");
                edges.push(Box::new(ring));
                stalling = Some(Stalling::new(journal.clone(), index.clone(), stalls, stall_records));
                guard = Some(scores_and_files);
                Some(Working { events: Some(events), counters, programs })
            }
            Err(error) => {
                let message =
                    format!("no eBPF, so OOM kills of the kernel are not told: {}", crate::chain(&error));
                telling::degraded(journal, "ebpf", &message);
                standing.refused(crate::chain(&error));
                None
            }
        };
        let world = Names::new(index, being_evicted, backlog);
        let ooms = Self {
            journal: journal.clone(),
            programs,
            incidents: Incidents::default(),
            world,
            known: BTreeSet::new(),
            generation: None,
            is_catching_up: true,
            standing: Some(standing),
            stalling,
        };
        (ooms, edges, guard)
    }

    /// What was found at the start, and what is used: to be asked for once.
    pub(super) fn doctor(&mut self, host: &HostFacts) -> Doctor {
        self.standing.take().map(|standing| standing.doctor(host)).unwrap_or_default()
    }

    /// Turns records into events until it is aborted. What happened before is told as soon as the pods are known, or will
    /// not be for now.
    pub(super) async fn run(mut self, mut ready: watch::Receiver<bool>) {
        // It may have been waiting for as long as nobody ran; these seconds it can.
        if tokio::time::timeout(UNTIL_READY, ready.wait_for(|ready| *ready)).await.is_err() {
            tracing::warn!("what happened before the start is told without knowing the pods");
        }
        let Some(mut events) = self.programs.as_mut().and_then(|working| working.events.take()) else {
            return future::pending().await;
        };
        #[cfg(feature = "bpf-log")]
        if let Some(working) = &mut self.programs {
            log_diagnostics(&mut working.programs);
        }
        self.world.backlog.catch_up(&mut events);
        let stalling = self.stalling.take();
        let stalling = async {
            if let Some(stalling) = stalling {
                stalling.run().await;
            }
        };
        match KernelRing::register(events) {
            Ok(ring) => {
                tokio::join!(self.read(ring), stalling);
            }
            Err(error) => tell_unreadable(&self.journal, &error),
        }
    }

    /// Turns what comes out of a ring into events.
    async fn read(mut self, ring: impl RecordRing) {
        let (sink, mut records) = mpsc::channel(RECORDS);
        let stats = RingStats::default();
        for record in self.world.backlog.left().iter().filter_map(|record| stats.decode(record)) {
            self.record(record).await;
        }
        self.is_catching_up = false;
        let draining = sense::drain(self.world.backlog.ring(ring), sink, &stats);
        let index = self.world.index.clone();
        let working = async {
            let mut tick = tokio::time::interval(TICK);
            loop {
                let due = self
                    .incidents
                    .deadline_ns()
                    .map(|deadline_ns| Duration::from_nanos(deadline_ns.saturating_sub(now_ns())));
                tokio::select! {
                    record = records.recv() => match record {
                        Some(record) => self.record(record).await,
                        None => return,
                    },
                    () = sleep(due) => self.step(Input::Tick),
                    () = index.changed() => self.learn_cgroups(),
                    _ = tick.tick() => self.look_around(),
                }
            }
        };
        let (drained, ()) = tokio::join!(draining, working);
        if let Err(error) = drained {
            tell_unreadable(&self.journal, &error);
        }
    }

    async fn record(&mut self, record: Record) {
        // A cgroup may be younger than the last look around.
        self.learn_cgroups();
        if let Record::Mark(mark) = &record {
            let limit = match mark.limit {
                Some(sense::Limited::Cgroup(cgroup)) => Some(cgroup),
                Some(sense::Limited::Machine) | None => None,
            };
            let named = [mark.cgroup, mark.trigger.cgroup, limit];
            if named.into_iter().flatten().any(|cgroup| !self.world.knows(cgroup)) {
                self.world.scan().await;
            }
        }
        self.step(Input::Record(record));
        self.world.backlog.taken();
    }

    fn step(&mut self, input: Input) {
        self.work(input);
        if !self.is_catching_up && self.incidents.deadline_ns().is_none() {
            self.world.backlog.settle();
        }
    }

    fn work(&mut self, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for output in self.incidents.step(now_ns(), input, &mut self.world) {
                match output {
                    Output::Detected(detected) => {
                        self.tell(EventType::OomDetected, detected.subject(), serde_json::to_value(detected));
                    }
                    Output::Incident(incident) => {
                        self.tell(EventType::OomIncident, incident.subject(), serde_json::to_value(incident));
                    }
                    Output::Averted(averted) => {
                        self.tell(EventType::OomAverted, averted.subject(), serde_json::to_value(averted));
                    }
                    Output::ReadCounters { incident, cgroups } => {
                        let read = |cgroup| (cgroup, self.world.counters(cgroup));
                        inputs.push(Input::Counters {
                            incident,
                            readings: cgroups.into_iter().map(read).collect(),
                        });
                    }
                }
            }
        }
    }

    fn tell(&mut self, kind: EventType, subject: Subject, data: serde_json::Result<serde_json::Value>) {
        match data {
            Ok(data) if self.world.backlog.has_told(kind, &data) => {}
            Ok(data) => {
                let sequence = self.journal.append(Event { kind, subject, data });
                self.world.backlog.appended(sequence);
            }
            Err(error) => tracing::error!(%error, "an OOM event cannot be written as JSON"),
        }
    }

    /// Learns of new and gone cgroups, and counts what the programs could not tell.
    fn look_around(&mut self) {
        self.learn_cgroups();
        let Some(Working { counters, .. }) = &mut self.programs else { return };
        let told = counters.tell_drops(|stage, lost| tell_drops(&self.journal, stage, lost));
        if let Err(error) = told {
            tracing::debug!(%error, "the programs' losses cannot be read");
        }
    }

    fn learn_cgroups(&mut self) {
        if self.is_catching_up {
            return;
        }
        let generation = self.world.index.generation();
        if self.generation.replace(generation) == Some(generation) {
            return;
        }
        let alive: BTreeMap<CgroupId, Arc<Owner>> = self.world.index.alive().into_iter().collect();
        let new: Vec<_> = alive.keys().filter(|id| !self.known.contains(id)).copied().collect();
        let gone: Vec<_> = self.known.iter().filter(|id| !alive.contains_key(id)).copied().collect();
        for cgroup in new {
            self.known.insert(cgroup);
            // Nobody can have been in it before the roster told that it stands.
            let counts = self.world.counters(cgroup).unwrap_or_default();
            self.step(Input::Known { cgroup, counts });
        }
        for cgroup in gone {
            self.known.remove(&cgroup);
            self.step(Input::Gone(cgroup));
        }
    }
}

/// Loads the programs, and pins what is to outlive us where that can be.
fn load(choice: &Choice, journal: &Journal, backlog: &mut Backlog) -> Result<Attached, SenseError> {
    match Pins::open() {
        Ok(pins) => {
            Programs::load_pinned(choice, pins, Version::of(choice), &mut |record| backlog.inherit(record))
        }
        Err(error) => {
            // That there is no bpffs was told among what this kernel lacks.
            if !choice.lost.iter().any(|lost| lost.what == "bpffs") {
                let message =
                    format!("{}: OOM kills while the daemon restarts are not told", crate::chain(&error));
                telling::degraded(journal, "bpffs", &message);
            }
            Programs::load(choice)
        }
    }
}

fn tell_inherited(journal: &Journal, inherited: &Inherited) {
    let Inherited { programs, versions, records, drops } = inherited;
    if !programs.is_empty() {
        tracing::info!(programs = programs.join(", "), "eBPF programs taken on from the daemon before");
    }
    for version in versions {
        tracing::info!(version = %version.display(), records, "eBPF programs of another version taken over");
    }
    for (stage, lost) in drops {
        tell_drops(journal, stage, *lost);
    }
}

fn tell_drops(journal: &Journal, stage: &str, lost: u64) {
    telling::degraded(
        journal,
        "recordsLost",
        &format!("{lost} records of the eBPF programs were lost ({stage})"),
    );
}

/// Carries the programs' own diagnostics into the log, in a task of its own.
#[cfg(feature = "bpf-log")]
fn log_diagnostics(programs: &mut Programs) {
    let mut logger = match programs.diagnostics() {
        Ok(logger) => logger,
        // The object was built without them.
        Err(error) => {
            tracing::debug!(%error, "the eBPF programs say nothing");
            return;
        }
    };
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(TICK);
        loop {
            tick.tick().await;
            logger.flush();
        }
    });
}

fn tell_lost(journal: &Journal, lost: &Lost) {
    telling::degraded(journal, lost.what, &lost.message());
}

fn tell_unreadable(journal: &Journal, error: &io::Error) {
    let message = format!("the ring buffer of OOM kills cannot be read any more: {error}");
    telling::degraded(journal, "ebpf", &message);
}

pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or_default())
}

async fn sleep(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => future::pending().await,
    }
}

/// The cgroups that we killed ourselves, so that a mark on their dying processes is not told as the kernel's kill.
#[derive(Clone, Debug, Default)]
pub(super) struct BeingEvicted(Arc<Mutex<HashMap<CgroupId, CgroupPath>>>);

impl BeingEvicted {
    pub(super) fn add(&self, cgroup: CgroupId, path: CgroupPath) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(cgroup, path);
    }

    pub(super) fn remove(&self, cgroup: CgroupId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&cgroup);
    }

    /// Whether it, or a cgroup above it, is being evicted.
    fn covers(&self, cgroup: CgroupId, path: Option<&CgroupPath>) -> bool {
        let evicted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let below = |above: &CgroupPath| {
            path.is_some_and(|path| {
                path.as_str().strip_prefix(above.as_str()).is_some_and(|rest| rest.starts_with('/'))
            })
        };
        evicted.contains_key(&cgroup) || evicted.values().any(below)
    }
}

/// Names for cgroup ids: those of pods from the index, others from a look at the hierarchy.
struct Names {
    index: Index,
    being_evicted: BeingEvicted,
    root: Option<Arc<CgroupDir>>,
    paths: HashMap<CgroupId, CgroupPath>,
    backlog: Backlog,
}

impl Names {
    fn new(index: Index, being_evicted: BeingEvicted, backlog: Backlog) -> Self {
        let root = CgroupDir::mount(Path::new(crate::cgroup::MOUNT)).ok().map(Arc::new);
        Self { index, being_evicted, root, paths: HashMap::new(), backlog }
    }

    fn knows(&self, cgroup: CgroupId) -> bool {
        self.index.resolve(cgroup).is_some() || self.paths.contains_key(&cgroup)
    }

    /// Reads the names of all cgroups anew. Those that are gone keep theirs until there are too many.
    async fn scan(&mut self) {
        let Some(root) = self.root.clone() else { return };
        let Ok(found) = tokio::task::spawn_blocking(move || walk(&root)).await else {
            tracing::error!("looking through the cgroups panicked");
            return;
        };
        if self.paths.len() + found.len() > MAX_CGROUPS {
            self.paths.clear();
        }
        self.paths.extend(found);
    }

    fn find(&self, cgroup: CgroupId) -> Option<CgroupPath> {
        let of_pod = self.index.resolve(cgroup).map(|resolved| resolved.owner.path.clone());
        of_pod.or_else(|| self.paths.get(&cgroup).cloned())
    }

    fn counters(&self, cgroup: CgroupId) -> Option<OomCounts> {
        let dir = self.root.as_ref()?.open(&self.find(cgroup)?).ok()?;
        // Another cgroup may stand under its name by now.
        (dir.id() == cgroup).then_some(())?;
        dir.read("memory.events.local").ok().map(|text| OomCounts::parse(&text))
    }
}

/// Every cgroup's path by its id, from the root down.
fn walk(root: &CgroupDir) -> HashMap<CgroupId, CgroupPath> {
    let mut found = HashMap::from([(root.id(), CgroupPath::root())]);
    let mut pending = vec![CgroupPath::root()];
    while let Some(path) = pending.pop() {
        // One that went away meanwhile has no children either.
        let children = root.open(&path).and_then(|dir| dir.children()).unwrap_or_default();
        for child in children.iter().filter_map(|name| path.child(name).ok()) {
            if let Ok(dir) = root.open(&child) {
                found.insert(dir.id(), child.clone());
                pending.push(child);
            }
        }
        if found.len() > MAX_CGROUPS {
            break;
        }
    }
    found
}

impl World for Names {
    fn owner(&self, cgroup: CgroupId) -> Option<Owner> {
        self.index.resolve(cgroup).map(|resolved| Owner::clone(&resolved.owner))
    }

    fn path(&self, cgroup: CgroupId) -> Option<CgroupPath> {
        self.find(cgroup)
    }

    fn parent(&self, cgroup: CgroupId) -> Option<CgroupId> {
        let parent = self.find(cgroup)?.parent()?;
        let dir = self.root.as_ref()?.open(&parent).ok()?;
        Some(dir.id())
    }

    fn is_being_evicted(&self, cgroup: CgroupId) -> bool {
        self.being_evicted.covers(cgroup, self.find(cgroup).as_ref())
    }

    fn new_id(&mut self, first: &Mark) -> Ulid {
        self.backlog.id(first)
    }
}

#[cfg(test)]
mod tests;
