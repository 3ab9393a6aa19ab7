//! Reports the kernel's OOM kills: connects eBPF records, counters and names to incidents.

mod evicting;
mod names;
mod programs;
mod sources;
mod watch;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    future, io,
    sync::Arc,
    time::{Duration, Instant},
};

use aya::maps::{MapData, RingBuf};
use enforcer_events::Payload;
use tokio::sync::{mpsc, watch as latest};
use ulid::Ulid;

pub(super) use self::evicting::BeingEvicted;
use self::{
    names::Names,
    programs::{emit_drops, emit_inherited, emit_lost, emit_unreadable, load},
    sources::{NoRing, changes, lives, sleep},
    watch::{Changed, CounterWatch},
};
use super::{backlog::Backlog, emit, stalls::Stalling, ticks::Ticks, tracing_report::TracingReport};
use crate::{
    cgroup::Index,
    clock,
    journal::{Journal, Subject},
    metrics::Counts,
    model::{CgroupId, Owner},
    sense::{
        self, Attached, EdgeSource, Facts, Guard, HostFacts, KernelRing, Life, LifeRing, LifeWatch, Programs,
        Record, RecordRing, RingStats,
        incident::{About as _, Incidents, Input, Output, Tracing},
    },
    serve::Doctor,
    source::Kubelet,
};

/// How many records may be queued; further ones stay in the ring.
const RECORDS: usize = 1024;

/// How long incidents from before the start wait until the pods are known.
const UNTIL_READY: Duration = Duration::from_secs(5);

/// How long records of cgroups made and removed gather before the next read: a container that makes and removes cgroups
/// without end costs fifty reads a second. The ring holds 780 of each. A kill has it read at once.
const LIVES_REST: Duration = Duration::from_millis(20);

/// How many cgroups are taken in between two checks for records.
const PASS_CGROUPS: usize = 16;

/// The tracing of OOM kills: the attached programs, and their records, folded into incidents and reported.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own: none excludes another")]
pub(super) struct Ooms {
    journal: Journal,
    programs: Option<Working>,
    incidents: Incidents,
    world: Names,
    counts: Counts,
    life: Option<LifeWatch>,
    /// Until when records of cgroups made and removed gather.
    lives_rest: tokio::time::Instant,
    /// Whether the names of all cgroups are known: all were scanned, and no record of one was lost since.
    complete: bool,
    /// Whether a scan has covered all cgroups that existed then.
    has_looked: bool,
    /// Whether another scan is due.
    is_scan_due: bool,
    watch: Option<CounterWatch>,
    /// Cgroups that were made since the last read of records: most that are made and removed without end are gone with the next.
    fresh: BTreeSet<CgroupId>,
    /// Cgroups to be taken in, in order; each is opened, watched and read.
    new: VecDeque<CgroupId>,
    /// The pods' cgroups that were taken in, and the index generation of that.
    known: BTreeSet<CgroupId>,
    generation: Option<u64>,
    /// Counters that incidents wait for. Records are handled first.
    reads: VecDeque<(Ulid, Vec<CgroupId>)>,
    /// Cgroups whose counters may have changed.
    looks: BTreeSet<CgroupId>,
    /// Whether incidents from before the start are being reported.
    is_catching_up: bool,
    /// The probe's findings at the start, until they are asked for.
    standing: Option<TracingReport>,
    /// Stalls, handled here because the same programs report them.
    stalling: Option<Stalling>,
}

/// What must live as long as the programs run.
struct Working {
    events: Option<RingBuf<MapData>>,
    life: Option<LifeRing>,
    counters: sense::Counters,
    #[cfg_attr(not(feature = "bpf-log"), expect(dead_code, reason = "held for its Drop"))]
    programs: Programs,
}

impl Ooms {
    /// Attaches the programs that this kernel supports, and reports what is lost. Returns the edges for the reflex, and
    /// the guard of scores and files if there is one.
    pub(super) fn attach(
        journal: &Journal,
        counts: &Counts,
        (index, kubelet): (Index, Option<Kubelet>),
        being_evicted: BeingEvicted,
        mut backlog: Backlog,
    ) -> (Self, Vec<Box<dyn EdgeSource>>, Option<Guard>) {
        let facts = Facts::gather();
        let choice = sense::choose(&facts);
        let mut standing = TracingReport::new(facts, choice.clone());
        for lost in &choice.lost {
            emit_lost(journal, lost);
        }
        let mut edges: Vec<Box<dyn EdgeSource>> = Vec::new();
        let mut guard = None;
        let mut stalling = None;
        let mut tracing = Tracing::Off;
        let begin = Instant::now();
        let programs = match load(&choice, journal, &mut backlog) {
            Ok(all) => {
                if all.mark().is_some() {
                    tracing = Tracing::On;
                }
                let Attached {
                    events,
                    edges: ring,
                    life,
                    guard: scores_and_files,
                    stalls,
                    stall_records,
                    counters,
                    attached,
                    failed,
                    inherited,
                    unpinned,
                    programs,
                } = all;
                emit_inherited(journal, counts, &inherited);
                for lost in &unpinned {
                    emit_lost(journal, lost);
                }
                for failure in &failed {
                    emit_lost(journal, &failure.lost());
                }
                standing.loaded(&attached, &failed, &unpinned);
                // This part of the start cannot be shortened.
                let took_ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
                tracing::debug!(programs = attached.join(", "), took_ms, "eBPF programs attached");
                edges.push(Box::new(ring));
                let named = (index.clone(), kubelet.clone());
                stalling = Some(Stalling::new(journal.clone(), named, stalls, stall_records));
                guard = Some(scores_and_files);
                Some(Working { events: Some(events), life, counters, programs })
            }
            Err(error) => {
                let message = format!(
                    "no eBPF, so OOM kills are reported from counters alone, without victim or trigger: {}",
                    crate::chain(&error)
                );
                emit::degraded(journal, "ebpf", &message);
                standing.refused(crate::chain(&error));
                None
            }
        };
        let world = Names::new(index, kubelet, being_evicted, backlog);
        let mut ooms = Self::new(journal, counts, world, tracing);
        ooms.programs = programs;
        ooms.standing = Some(standing);
        ooms.stalling = stalling;
        (ooms, edges, guard)
    }

    /// Without programs.
    fn new(journal: &Journal, counts: &Counts, world: Names, tracing: Tracing) -> Self {
        Self {
            journal: journal.clone(),
            counts: counts.clone(),
            programs: None,
            incidents: Incidents::new(tracing),
            world,
            life: None,
            lives_rest: tokio::time::Instant::now(),
            complete: false,
            has_looked: false,
            is_scan_due: false,
            watch: None,
            fresh: BTreeSet::new(),
            new: VecDeque::new(),
            known: BTreeSet::new(),
            generation: None,
            reads: VecDeque::new(),
            looks: BTreeSet::new(),
            is_catching_up: true,
            standing: None,
            stalling: None,
        }
    }

    /// Returns what was found at the start, and what is used. Works once.
    pub(super) fn doctor(&mut self, host: &HostFacts) -> Doctor {
        self.standing.take().map(|standing| standing.doctor(host)).unwrap_or_default()
    }

    /// Turns records and counters into events until it is aborted. Incidents from before the start are reported as soon
    /// as the pods are known, or after a timeout.
    pub(super) async fn run(mut self, mut ready: latest::Receiver<bool>, ticks: Ticks) {
        #[cfg(feature = "bpf-log")]
        if let Some(working) = &mut self.programs {
            programs::log_diagnostics(&mut working.programs, ticks.clone());
        }
        self.start_watches();
        self.scan().await;
        let Some(mut events) = self.programs.as_mut().and_then(|working| working.events.take()) else {
            self.read(NoRing, ticks).await;
            return;
        };
        // Records may have waited as long as no daemon ran; a few more seconds do not matter.
        let until = tokio::time::Instant::now() + UNTIL_READY;
        loop {
            tokio::select! {
                ready = tokio::time::timeout_at(until, ready.wait_for(|ready| *ready)) => {
                    if ready.is_err() {
                        tracing::warn!("reporting incidents from before the start without knowing the pods");
                    }
                    break;
                }
                alive = lives(&mut self.life, self.lives_rest) => self.alive(alive),
            }
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
                tokio::join!(self.read(ring, ticks), stalling);
            }
            Err(error) => {
                emit_unreadable(&self.journal, &error);
                self.incidents.stop_tracing();
                self.read(NoRing, ticks).await;
            }
        }
    }

    /// Begins to watch for cgroups made and removed, and for counters that change.
    fn start_watches(&mut self) {
        if let Some(life) = self.programs.as_mut().and_then(|working| working.life.take()) {
            match life.watch() {
                Ok(life) => self.life = Some(life),
                Err(error) => {
                    let message = format!("short-lived cgroups have no names: {error}");
                    emit::degraded(&self.journal, "cgroupLife", &message);
                }
            }
        }
        match CounterWatch::new() {
            Ok(watch) => self.watch = Some(watch),
            Err(error) => {
                let message =
                    format!("OOM kills that are not traced are not reported: no inotify instance: {error}");
                emit::degraded(&self.journal, "oomWatches", &message);
            }
        }
    }

    /// Turns a ring's records and changed counters into events.
    async fn read(mut self, ring: impl RecordRing, mut ticks: Ticks) {
        let (sink, mut records) = mpsc::channel(RECORDS);
        let stats = RingStats::default();
        for record in self.world.backlog.left().iter().filter_map(|record| stats.decode(record)) {
            self.record(record).await;
        }
        self.is_catching_up = false;
        let ring = self.world.backlog.ring(ring);
        let journal = self.journal.clone();
        let draining = async {
            if let Err(error) = sense::drain(ring, sink, &stats).await {
                emit_unreadable(&journal, &error);
            }
        };
        let index = self.world.index().clone();
        let working = async {
            self.learn_cgroups();
            let mut records_end = false;
            loop {
                let due = self.incidents.deadline_ns().map(|deadline_ns| {
                    Duration::from_nanos(deadline_ns.saturating_sub(clock::boottime_ns()))
                });
                let busy = !self.reads.is_empty() || !self.looks.is_empty() || !self.new.is_empty();
                // In order of urgency: records of kills, their explanation, then the follow-up work.
                tokio::select! {
                    biased;
                    record = records.recv(), if !records_end => if let Some(record) = record {
                        self.record(record).await;
                    } else {
                        records_end = true;
                        self.incidents.stop_tracing();
                    },
                    alive = lives(&mut self.life, self.lives_rest) => self.alive(alive),
                    () = tokio::time::sleep_until(self.lives_rest), if !self.fresh.is_empty() => self.take_fresh(),
                    () = sleep(due) => self.step(Input::Tick),
                    () = index.changed() => self.learn_cgroups(),
                    changed = changes(&mut self.watch) => self.changed(changed),
                    () = ticks.next() => self.on_tick().await,
                    () = future::ready(()), if busy => {
                        self.work();
                        if std::mem::take(&mut self.is_scan_due) {
                            self.scan().await;
                        }
                        // The other half of this task reads the ring.
                        tokio::task::yield_now().await;
                    }
                }
            }
        };
        let ((), ()) = tokio::join!(draining, working);
    }

    async fn record(&mut self, record: Record) {
        // Where a marked or a sharing process ended, which may be elsewhere by now.
        let ended = match &record {
            Record::Exit(exit) => exit.cgroup,
            Record::Sharer(sharer) => sharer.cgroup,
            Record::Mark(_)
            | Record::MemoryBack(_)
            | Record::OomOver(_)
            | Record::KswapdWoke { .. }
            | Record::DirectReclaim { .. } => None,
        };
        if let Some(cgroup) = ended {
            self.learn_lives();
            self.take_in_brief(cgroup);
            self.world.want_name(cgroup);
        }
        if let Record::Mark(mark) = &record {
            // The kernel may have reported a new cgroup just before.
            self.learn_lives();
            let limit = match mark.limit {
                Some(sense::Limited::Cgroup(cgroup)) => Some(cgroup),
                Some(sense::Limited::Machine) | None => None,
            };
            let named = [mark.cgroup, mark.trigger.cgroup, limit];
            if !self.complete && named.into_iter().flatten().any(|cgroup| !self.world.knows(cgroup)) {
                self.scan().await;
            }
            for cgroup in named.into_iter().chain([mark.counted]).flatten() {
                self.take_in_brief(cgroup);
                self.world.want_name(cgroup);
            }
        }
        self.step(Input::Record(record));
        self.world.backlog.taken();
    }

    /// Learns the names of all cgroups, and their counters.
    async fn scan(&mut self) {
        let found = self.world.scan().await;
        self.complete = self.life.is_some();
        // Cgroups made meanwhile are known from their records.
        let brief = self.learn_lives();
        // Without records of cgroups, a cgroup that an earlier scan did not find is new, with counters of zero, and one
        // that this scan does not find is gone.
        let is_next = self.life.is_none() && std::mem::replace(&mut self.has_looked, found.is_whole());
        if is_next && found.is_whole() {
            for cgroup in self.world.gone_since(&found) {
                self.gone(cgroup);
            }
        }
        for (cgroup, counts) in self.world.take(found, &brief) {
            self.step(Input::Known { cgroup, counts: Some(counts).filter(|_| !is_next) });
            self.new.push_back(cgroup);
        }
    }

    /// Takes in the kernel's records of cgroups made and removed. Returns the cgroups that were made and are gone.
    fn learn_lives(&mut self) -> Vec<CgroupId> {
        let Some(life) = &mut self.life else { return Vec::new() };
        let mut lives = Vec::new();
        life.take(&mut lives);
        if !lives.is_empty() && life.lost() > 0 {
            self.complete = false;
        }
        self.lives_rest = tokio::time::Instant::now() + LIVES_REST;
        let now = Instant::now();
        let mut gone: Vec<CgroupId> = lives.iter().filter_map(Life::gone).collect();
        gone.sort_unstable();
        self.fresh.retain(|cgroup| gone.binary_search(cgroup).is_err());
        self.take_fresh();
        let mut brief = Vec::new();
        for life in lives {
            if let Life::Made { parent, .. } = &life
                && self.complete
            {
                self.complete = self.world.knows(*parent);
            }
            match life {
                // Its counters can no longer be read; it is taken in later if they turn out to matter.
                Life::Made { cgroup, parent, name } if gone.binary_search(&cgroup).is_ok() => {
                    brief.push(cgroup);
                    self.world.learn_brief(cgroup, parent, name);
                }
                made @ Life::Made { cgroup, .. } => {
                    self.world.learn(made, now);
                    self.step(Input::Known { cgroup, counts: None });
                    self.fresh.insert(cgroup);
                }
                // Most are removed right after they were made.
                Life::Gone(cgroup) if brief.iter().rev().any(|brief| *brief == cgroup) => {}
                Life::Gone(cgroup) => {
                    self.world.learn(Life::Gone(cgroup), now);
                    self.gone(cgroup);
                }
            }
        }
        brief
    }

    /// Has the cgroups taken in that were made before the last read of records.
    fn take_fresh(&mut self) {
        self.new.extend(std::mem::take(&mut self.fresh));
    }

    /// Takes in a cgroup, and its ancestors, that were gone before: a process was killed in it.
    fn take_in_brief(&mut self, cgroup: CgroupId) {
        for cgroup in self.world.take_in_brief(cgroup, Instant::now()) {
            if !self.incidents.knows(cgroup) {
                self.step(Input::Known { cgroup, counts: None });
                self.gone(cgroup);
            }
        }
    }

    fn alive(&mut self, readable: io::Result<()>) {
        match readable {
            Ok(()) => drop(self.learn_lives()),
            Err(error) => {
                let message = format!("short-lived cgroups no longer have names: {error}");
                emit::degraded(&self.journal, "cgroupLife", &message);
                self.life = None;
                self.complete = false;
            }
        }
    }

    fn changed(&mut self, changed: io::Result<Changed>) {
        match changed {
            Ok(Changed { cgroups, overflow: false }) => self.looks.extend(cgroups),
            Ok(Changed { cgroups: _, overflow: true }) => self.look_at_all(),
            Err(error) => {
                let message = format!("OOM kills that are not traced are no longer reported: {error}");
                emit::degraded(&self.journal, "oomWatches", &message);
                self.watch = None;
            }
        }
    }

    /// Schedules a read of all counters.
    fn look_at_all(&mut self) {
        if let Some(watch) = &self.watch {
            self.looks.extend(watch.cgroups());
        }
    }

    /// Does a part of the work that is not urgent.
    fn work(&mut self) {
        if let Some((incident, cgroups)) = self.reads.pop_front() {
            let readings = cgroups.into_iter().map(|cgroup| (cgroup, self.world.counters(cgroup))).collect();
            self.step(Input::Counters { incident, readings });
            return;
        }
        for _ in 0..PASS_CGROUPS {
            if let Some(cgroup) = self.looks.pop_first() {
                if let Some(counts) = self.world.counters(cgroup) {
                    let was_hit = self.incidents.is_hit(cgroup);
                    self.step(Input::Looked { cgroup, counts });
                    // The process killed for that limit may be counted in a cgroup that no record named.
                    self.is_scan_due |= self.life.is_none() && !was_hit && self.incidents.is_hit(cgroup);
                }
            } else if let Some(cgroup) = self.new.pop_front() {
                self.track(cgroup);
            } else {
                break;
            }
        }
        if self.new.is_empty() {
            // A scan puts all cgroups there at once, and they hardly ever come so many again.
            self.new.shrink_to_fit();
        }
    }

    /// Watches a new cgroup, and reads its counters: that read covers changes before the watch.
    fn track(&mut self, cgroup: CgroupId) {
        let (Some(watch), Some(dir)) = (&mut self.watch, self.world.open(cgroup)) else { return };
        match watch.add(&dir) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                let message = format!(
                    "OOM kills that are not traced are not reported for every cgroup: {}",
                    crate::chain(&error)
                );
                emit::degraded(&self.journal, "oomWatches", &message);
                return;
            }
        }
        if let Some(counts) = names::read_counters(&dir) {
            self.step(Input::Looked { cgroup, counts });
        }
    }

    fn gone(&mut self, cgroup: CgroupId) {
        if let Some(watch) = &mut self.watch {
            watch.remove(cgroup);
        }
        self.step(Input::Gone(cgroup));
    }

    fn step(&mut self, input: Input) {
        for output in self.incidents.step(clock::boottime_ns(), input, &mut self.world) {
            match output {
                Output::Detected(detected) => {
                    self.emit(detected.subject(), Payload::OomDetected(detected));
                }
                Output::Incident(incident) => {
                    self.emit(incident.subject(), Payload::OomIncident(incident));
                }
                Output::Averted(averted) => {
                    self.emit(averted.subject(), Payload::OomAverted(averted));
                }
                Output::ReadCounters { incident, cgroups } => self.reads.push_back((incident, cgroups)),
            }
        }
        if !self.is_catching_up && self.incidents.deadline_ns().is_none() {
            self.world.backlog.settle();
        }
    }

    fn emit(&mut self, subject: Subject, payload: Payload) {
        if !self.world.backlog.is_reported(&payload) {
            let sequence = self.journal.emit(subject, payload);
            self.world.backlog.appended(sequence);
        }
    }

    /// Learns of new and gone cgroups, and counts the records that the programs lost.
    async fn on_tick(&mut self) {
        self.learn_cgroups();
        if self.life.is_none() {
            // A container may have made cgroups of its own, which the roster does not name.
            self.scan().await;
        }
        let Some(Working { counters, .. }) = &mut self.programs else { return };
        let mut more = false;
        let reported = counters.emit_drops(|stage, lost| {
            emit_drops(&self.journal, &self.counts, stage, lost);
            more = true;
        });
        if let Err(error) = reported {
            tracing::debug!(%error, "cannot read the programs' losses");
        }
        if more {
            // The counters may show what the lost records contained.
            self.look_at_all();
        }
    }

    /// Learns of pods' cgroups from the roster: their only source where the kernel does not report cgroups.
    fn learn_cgroups(&mut self) {
        let generation = self.world.index().generation();
        if self.generation.replace(generation) == Some(generation) {
            return;
        }
        self.learn_lives();
        let alive: BTreeMap<CgroupId, Arc<Owner>> = self.world.index().alive().into_iter().collect();
        let new: Vec<_> = alive.keys().filter(|id| !self.known.contains(id)).copied().collect();
        let gone: Vec<_> = self.known.iter().filter(|id| !alive.contains_key(id)).copied().collect();
        for (cgroup, owner) in &alive {
            self.world.share(*cgroup, owner);
        }
        for cgroup in new {
            self.known.insert(cgroup);
            if !self.incidents.knows(cgroup) {
                // No process can have been in it before the roster named it.
                let counts = self.world.counters(cgroup).unwrap_or_default();
                self.step(Input::Known { cgroup, counts: Some(counts) });
            }
            self.new.push_back(cgroup);
        }
        for cgroup in gone {
            self.known.remove(&cgroup);
            self.gone(cgroup);
        }
    }
}

#[cfg(test)]
mod tests;
