//! The state machine.
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use ulid::Ulid;

use super::{
    Averted, AvertedCause, CLOSE_NS, Detected, FOLD_NS, GRACE_NS, Incident, MAX_EARLY, MAX_OPEN, OomCounts,
    REMEMBER_NS, Reconciliation, SETTLE_NS, SUSPECT_NS,
    ledger::{Ledger, Seen},
    open::{Key, Marked, Need, Open},
    rebuild::Rebuilding,
    scene::{self, ancestors},
    tally::{self, Tally},
};
use crate::{
    model::{CgroupId, CgroupPath, Instance, Owner},
    sense::record::{Exit, Mark, MemoryBack, OomOver, Record, Sharer},
};

/// What the machine needs from the rest of the daemon. Answers come from memory: no call may block.
pub trait World {
    /// The owner of a cgroup at or below kubepods, also after its removal.
    fn owner(&self, cgroup: CgroupId) -> Option<Owner>;
    /// Its path, also outside of kubepods.
    fn path(&self, cgroup: CgroupId) -> Option<CgroupPath>;
    /// Which container of its pod the cgroup of an owner is.
    fn instance(&self, owner: &CgroupPath) -> Instance;
    /// The cgroup above it; `None` for the root and for an unknown cgroup.
    fn parent(&self, cgroup: CgroupId) -> Option<CgroupId>;
    /// Whether its pod or container has no name, and the container runtime may still give it one.
    fn awaits_name(&self, cgroup: CgroupId) -> bool;
    /// What our evictions had to do with it, or with a cgroup above it, at that time.
    fn eviction(&self, cgroup: CgroupId, at_ns: u64) -> Option<Eviction>;
    /// The id of an incident that begins with this mark: reading the same record again gives the same id. With `None`,
    /// the incident comes from counters.
    fn new_id(&mut self, first: Option<&Mark>) -> Ulid;
}

/// Our own eviction of a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Eviction {
    /// It has ended not long ago: what we have killed may not be gone yet.
    Ended,
    /// It lasts: we kill what is in the cgroup.
    Lasts,
}

/// Whether kills are traced, or visible in counters only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tracing {
    /// Counts wait for their records.
    #[default]
    On,
    /// No records will come.
    Off,
}

/// Inputs of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "most are records, and none is stored")]
pub enum Input {
    /// A record of the ring buffer.
    Record(Record),
    /// A cgroup is known from now on, with these counters. Later inputs for the same cgroup are ignored.
    Known {
        /// The cgroup.
        cgroup: CgroupId,
        /// Its counters; `None` if its creation was seen: then all start at zero, and every count is reported.
        counts: Option<OomCounts>,
    },
    /// A cgroup is gone.
    Gone(CgroupId),
    /// A cgroup's counters, read outside of an incident: they have changed, or may have.
    Looked {
        /// The cgroup.
        cgroup: CgroupId,
        /// Their values.
        counts: OomCounts,
    },
    /// The answer to [`Output::ReadCounters`].
    Counters {
        /// The incident.
        incident: Ulid,
        /// The reading of each cgroup; `None` if it failed.
        readings: Vec<(CgroupId, Option<OomCounts>)>,
    },
    /// Time has passed.
    Tick,
}

/// Outputs of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Emit `oom.detected`.
    Detected(Detected),
    /// Emit `oom.incident`.
    Incident(Incident),
    /// Emit `oom.averted`.
    Averted(Averted),
    /// Read `memory.events.local` of these cgroups, and answer with [`Input::Counters`].
    ReadCounters {
        /// The incident.
        incident: Ulid,
        /// The cgroups.
        cgroups: Vec<CgroupId>,
    },
}

/// What to check at its due time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Incident(u64),
    Suspect(CgroupId),
    Rebuilding(Ulid),
}

/// All open incidents.
#[derive(Debug, Default)]
pub struct Incidents {
    tracing: Tracing,
    /// In the order of opening.
    open: BTreeMap<u64, Open>,
    next: u64,
    /// When each is checked next, so that in a burst of thousands each costs no more than alone.
    due: BTreeSet<(u64, Due)>,
    by_id: HashMap<Ulid, u64>,
    by_key: HashMap<Key, u64>,
    /// Process ids of all processes that die in open incidents.
    by_pid: HashMap<u32, u64>,
    /// Exits of processes without a mark so far: the kernel may report an exit before the mark.
    early: VecDeque<Exit>,
    /// Memory that open incidents wait for, by its number.
    by_memory: HashMap<u64, u64>,
    ledger: Ledger,
    /// Open incidents with a victim whose cgroup is not known yet: any cgroup may have counted it.
    placeless: BTreeSet<u64>,
    rebuilding: HashMap<Ulid, Rebuilding>,
    /// Processes that died or were dying when marked, and until when each is remembered.
    recent: HashMap<u32, u64>,
    forgetting: VecDeque<(u64, u32)>,
    /// OOMs whose incidents have closed, with their last marks and until when each is remembered: later marks of them
    /// open other incidents.
    closed: HashMap<Key, (u64, u64)>,
    forgetting_closed: VecDeque<(u64, Key)>,
}

impl Incidents {
    /// A machine without incidents.
    #[must_use]
    pub fn new(tracing: Tracing) -> Self {
        Self { tracing, ..Self::default() }
    }

    /// Reports what counters show at once: no records will come any more.
    pub fn stop_tracing(&mut self) {
        self.tracing = Tracing::Off;
    }

    /// Whether the counters of a cgroup are known.
    #[must_use]
    pub fn knows(&self, cgroup: CgroupId) -> bool {
        self.ledger.knows(cgroup)
    }

    /// Whether the limit of a cgroup was hit recently without a known kill.
    #[must_use]
    pub fn is_hit(&self, cgroup: CgroupId) -> bool {
        self.ledger.is_hit(cgroup)
    }

    /// Takes one input with its `CLOCK_BOOTTIME` time, and returns the actions to take, in order.
    pub fn step(&mut self, now_ns: u64, input: Input, world: &mut impl World) -> Vec<Output> {
        let mut out = Vec::new();
        match input {
            Input::Record(Record::Mark(mark)) => {
                let pid = mark.pid.unwrap_or(mark.tid);
                self.mark(now_ns, mark, world, &mut out);
                self.meet(now_ns, pid, world);
            }
            Input::Record(Record::Exit(exit)) => self.exit(now_ns, exit, world),
            Input::Record(Record::Sharer(sharer)) => {
                let pid = sharer.pid;
                self.sharer(now_ns, sharer, world);
                self.meet(now_ns, pid, world);
            }
            Input::Record(Record::MemoryBack(back)) => self.back(now_ns, back, world),
            Input::Record(Record::OomOver(over)) => self.over(now_ns, over, world),
            Input::Record(Record::KswapdWoke { .. } | Record::DirectReclaim { .. }) | Input::Tick => {}
            Input::Known { cgroup, counts } => {
                let since_ns = if counts.is_some() { now_ns } else { 0 };
                self.ledger.begin(cgroup, counts.unwrap_or_default(), since_ns);
            }
            Input::Gone(cgroup) => self.ledger.remove(cgroup, now_ns),
            Input::Looked { cgroup, counts } => self.look(cgroup, Seen { counts, at_ns: now_ns }),
            Input::Counters { incident, readings } => {
                self.counters(now_ns, incident, readings, world, &mut out);
            }
        }
        self.advance(now_ns, world, &mut out);
        out
    }

    /// The latest time for [`Input::Tick`], if no other input comes before.
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        self.due.first().map(|(due_ns, _)| *due_ns)
    }

    /// How many incidents are open.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.len()
    }

    fn mark(&mut self, now_ns: u64, mark: Mark, world: &mut impl World, out: &mut Vec<Output>) {
        let pid = mark.pid.unwrap_or(mark.tid);
        let eviction = mark.cgroup.and_then(|cgroup| world.eviction(cgroup, mark.time_ns));
        let averted = match mark.killed {
            Some(true) => None,
            // Another thread of a dying process that reaches the OOM killer is marked too.
            Some(false) if self.is_dying(pid, now_ns) => return,
            // A pod counts as evicted before the last of its processes has given back all that it had.
            Some(false) if eviction.is_some() => Some(AvertedCause::OwnEviction),
            Some(false) => Some(AvertedCause::AlreadyDying),
            None => (eviction == Some(Eviction::Lasts)).then_some(AvertedCause::OwnEviction),
        };
        if let Some(cause) = averted {
            self.remember(pid, now_ns);
            out.push(Output::Averted(Averted {
                incident_id: None,
                cause,
                trigger: scene::trigger(&mark.trigger, world),
                victims: vec![scene::victim(&Marked { mark, exit: None }, world)],
            }));
            return;
        }
        if let Some(counted) = mark.counted.or(mark.cgroup)
            && self.ledger.settle(counted, mark.time_ns)
        {
            tracing::info!(pid, "a kill reported from counters is traced now, and not reported again");
            self.remember(pid, now_ns);
            return;
        }

        let key = Key::of(&mark);
        if let Some(number) = self.by_key.get(&key).copied()
            && let Some(open) = self.open.get_mut(&number)
            && open.takes(&mark)
        {
            self.by_pid.insert(pid, number);
            open.add(mark, now_ns);
            self.touched(now_ns, number, world);
            return;
        }
        if self.open.len() >= MAX_OPEN
            && let Some(oldest) = self.open.keys().next().copied()
        {
            self.close(now_ns, oldest, world, out);
        }
        let first = scene::victim(&Marked { mark: mark.clone(), exit: None }, world);
        let is_rest = self.closed.get(&key).is_some_and(|(last_ns, _)| key.is_same_oom(*last_ns, &mark));
        let mut open = Open::new(world.new_id(Some(&mark)), mark, now_ns);
        open.is_rest = is_rest;
        out.push(Output::Detected(scene::detected(&open, first, world)));
        let number = self.next;
        self.next += 1;
        self.by_key.insert(key, number);
        self.by_pid.insert(pid, number);
        self.by_id.insert(open.id, number);
        self.open.insert(number, open);
        self.touched(now_ns, number, world);
    }

    fn is_dying(&self, pid: u32, now_ns: u64) -> bool {
        self.by_pid.contains_key(&pid) || self.recent.get(&pid).is_some_and(|until_ns| now_ns < *until_ns)
    }

    fn remember(&mut self, pid: u32, now_ns: u64) {
        let until_ns = now_ns.saturating_add(REMEMBER_NS);
        self.recent.insert(pid, until_ns);
        self.forgetting.push_back((until_ns, pid));
        while self.forgetting.len() > MAX_OPEN {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some((until_ns, pid)) = self.forgetting.pop_front()
            && self.recent.get(&pid) == Some(&until_ns)
        {
            self.recent.remove(&pid);
        }
    }

    fn remember_closed(&mut self, now_ns: u64, open: &Open) {
        let until_ns = now_ns.saturating_add(REMEMBER_NS);
        self.closed.insert(open.key, (open.last_mark_ns(), until_ns));
        self.forgetting_closed.push_back((until_ns, open.key));
        while self.forgetting_closed.len() > MAX_OPEN {
            self.forget_first_closed();
        }
    }

    fn forget_first_closed(&mut self) {
        if let Some((until_ns, key)) = self.forgetting_closed.pop_front()
            && self.closed.get(&key).is_some_and(|(_, until)| *until == until_ns)
        {
            self.closed.remove(&key);
        }
    }

    fn exit(&mut self, now_ns: u64, exit: Exit, world: &impl World) {
        // By process, or by thread if the mark had no more.
        let number = self.by_pid.get(&exit.pid).or_else(|| self.by_pid.get(&exit.tid)).copied();
        let Some(number) = number else {
            // Its mark has not arrived yet.
            if self.early.len() >= MAX_EARLY {
                self.early.pop_front();
            }
            self.early.push_back(exit);
            return;
        };
        let Some(open) = self.open.get_mut(&number) else { return };
        if open.exit(exit) {
            self.touched(now_ns, number, world);
        } else {
            tracing::debug!(pid = exit.pid, "an exit before its mark: the process id was reused");
        }
    }

    /// Processes the exit of a process that arrived before its mark or sharer record.
    fn meet(&mut self, now_ns: u64, pid: u32, world: &impl World) {
        if let Some(place) = self.early.iter().position(|exit| exit.pid == pid || exit.tid == pid)
            && let Some(exit) = self.early.remove(place)
        {
            self.exit(now_ns, exit, world);
        }
    }

    fn sharer(&mut self, now_ns: u64, sharer: Sharer, world: &impl World) {
        let Some(number) = self.by_pid.get(&sharer.victim).copied() else { return };
        let Some(open) = self.open.get_mut(&number) else { return };
        let pid = sharer.pid;
        if open.share(sharer) {
            self.by_pid.insert(pid, number);
            self.touched(now_ns, number, world);
        }
    }

    fn back(&mut self, now_ns: u64, back: MemoryBack, world: &impl World) {
        let Some(number) = self.by_memory.remove(&back.memory_number) else { return };
        let Some(open) = self.open.get_mut(&number) else { return };
        if open.back(back) {
            self.touched(now_ns, number, world);
        }
    }

    fn over(&mut self, now_ns: u64, over: OomOver, world: &impl World) {
        let Some(number) = self.by_key.remove(&Key::Call(over.trigger_tid, over.oom_since_ns)) else {
            return;
        };
        let Some(open) = self.open.get_mut(&number) else { return };
        open.is_over();
        self.touched(now_ns, number, world);
    }

    fn counters(
        &mut self,
        now_ns: u64,
        incident: Ulid,
        readings: Vec<(CgroupId, Option<OomCounts>)>,
        world: &impl World,
        out: &mut Vec<Output>,
    ) {
        if let Some(number) = self.by_id.get(&incident).copied()
            && let Some(open) = self.open.get_mut(&number)
        {
            open.answered(readings, now_ns);
            self.touched(now_ns, number, world);
        } else if self.rebuilding.contains_key(&incident) {
            self.rebuild(now_ns, incident, &readings.into_iter().collect(), world, out);
        }
    }

    /// Updates everything derived from an incident after it changed.
    fn touched(&mut self, now_ns: u64, number: u64, world: &impl World) {
        let Some(open) = self.open.get_mut(&number) else { return };
        let expected = tally::expected(open, &self.ledger, world);
        if expected != open.expected {
            self.ledger.expect(&open.expected, &expected);
            open.expected = expected;
        }
        if open.victims.iter().any(|victim| victim.counted().is_none()) {
            self.placeless.insert(number);
        } else {
            self.placeless.remove(&number);
        }
        let concerns = tally::to_read(open, world);
        if concerns != open.concerns {
            self.ledger.concern(&open.concerns, &concerns);
            open.concerns = concerns;
        }
        for memory in open.memories() {
            self.by_memory.entry(memory).or_insert(number);
        }
        self.due.remove(&(open.due_ns, Due::Incident(number)));
        open.due_ns = match open.need(now_ns, world) {
            Need::Wait(until_ns) => until_ns,
            Need::Counters | Need::Close => now_ns,
        };
        self.due.insert((open.due_ns, Due::Incident(number)));
    }

    /// Does everything that is due.
    fn advance(&mut self, now_ns: u64, world: &mut impl World, out: &mut Vec<Output>) {
        while self.forgetting.front().is_some_and(|(until_ns, _)| *until_ns <= now_ns) {
            self.forget_first();
        }
        while self.forgetting_closed.front().is_some_and(|(until_ns, _)| *until_ns <= now_ns) {
            self.forget_first_closed();
        }
        self.ledger.forget(now_ns);
        while let Some((due_ns, due)) = self.due.first().copied().filter(|(due_ns, _)| *due_ns <= now_ns) {
            match due {
                Due::Incident(number) => self.look_after(now_ns, number, (due_ns, due), world, out),
                Due::Suspect(cgroup) => {
                    self.due.remove(&(due_ns, due));
                    self.suspect(now_ns, cgroup, world, out);
                }
                Due::Rebuilding(id) => {
                    self.due.remove(&(due_ns, due));
                    self.rebuild(now_ns, id, &BTreeMap::new(), world, out);
                }
            }
        }
    }

    fn look_after(
        &mut self,
        now_ns: u64,
        number: u64,
        due: (u64, Due),
        world: &impl World,
        out: &mut Vec<Output>,
    ) {
        let Some(open) = self.open.get_mut(&number) else {
            self.due.remove(&due);
            return;
        };
        match open.need(now_ns, world) {
            Need::Wait(_) => {}
            Need::Counters => {
                open.asked(now_ns);
                out.push(Output::ReadCounters { incident: open.id, cgroups: open.concerns.clone() });
            }
            Need::Close => {
                self.close(now_ns, number, world, out);
                return;
            }
        }
        self.touched(now_ns, number, world);
    }

    /// Takes a reading, and schedules a check if no record explains it yet.
    fn look(&mut self, cgroup: CgroupId, seen: Seen) {
        let grace_ns = match self.tracing {
            Tracing::On => GRACE_NS,
            Tracing::Off => SETTLE_NS,
        };
        if let Some(until_ns) = self.ledger.read(cgroup, seen.counts, seen.at_ns, grace_ns) {
            self.due.insert((until_ns, Due::Suspect(cgroup)));
        }
    }

    /// The time to explain a reading is over.
    fn suspect(&mut self, now_ns: u64, cgroup: CgroupId, world: &mut impl World, out: &mut Vec<Output>) {
        let Some(seen) = self.ledger.suspect(cgroup) else { return };
        let awaited = self.ledger.is_expected(cgroup) || !self.placeless.is_empty();
        if awaited && now_ns < seen.at_ns.saturating_add(SUSPECT_NS) {
            // An open incident will say which part belongs to it.
            let until_ns = now_ns.saturating_add(FOLD_NS);
            self.ledger.put_off(cgroup, until_ns);
            self.due.insert((until_ns, Due::Suspect(cgroup)));
            return;
        }
        let id = world.new_id(None);
        self.rebuilding.insert(id, Rebuilding { id, cgroup, seen });
        self.due.insert((now_ns.saturating_add(CLOSE_NS), Due::Rebuilding(id)));
        let cgroups = std::iter::once(cgroup).chain(ancestors(cgroup, world)).collect();
        out.push(Output::ReadCounters { incident: id, cgroups });
    }

    /// Reports what counters alone show.
    fn rebuild(
        &mut self,
        now_ns: u64,
        id: Ulid,
        readings: &BTreeMap<CgroupId, Option<OomCounts>>,
        world: &impl World,
        out: &mut Vec<Output>,
    ) {
        let Some(rebuilding) = self.rebuilding.remove(&id) else { return };
        let fresh = readings.get(&rebuilding.cgroup).copied().flatten();
        let bound = match (self.tracing, fresh) {
            (Tracing::Off, Some(counts)) => Seen { counts, at_ns: now_ns },
            (Tracing::Off, None) | (Tracing::On, _) => rebuilding.seen,
        };
        let latest = rebuilding.emit(bound, readings, &mut self.ledger, world, out);
        if let Some(latest) = latest.filter(|latest| latest.at_ns > bound.at_ns) {
            self.look(rebuilding.cgroup, latest);
        }
    }

    /// Closes and reports an incident.
    fn close(&mut self, now_ns: u64, number: u64, world: &impl World, out: &mut Vec<Output>) {
        let Some(open) = self.open.remove(&number) else { return };
        self.due.remove(&(open.due_ns, Due::Incident(number)));
        self.by_id.remove(&open.id);
        self.placeless.remove(&number);
        if self.by_key.get(&open.key) == Some(&number) {
            self.by_key.remove(&open.key);
        }
        self.remember_closed(now_ns, &open);
        for memory in open.memories() {
            if self.by_memory.get(&memory) == Some(&number) {
                self.by_memory.remove(&memory);
            }
        }
        self.ledger.expect(&open.expected, &BTreeMap::new());
        self.ledger.concern(&open.concerns, &[]);
        let sharers = open.sharers.iter().map(|shared| shared.sharer.pid);
        for pid in open.victims.iter().map(Marked::pid).chain(sharers) {
            if self.by_pid.get(&pid) == Some(&number) {
                self.by_pid.remove(&pid);
            }
            self.remember(pid, now_ns);
        }

        let tally = Tally::take(&open, &mut self.ledger, world);
        emit(&open, &tally, world, out);
        for (cgroup, seen) in &open.readings {
            if let Some(seen) = seen {
                self.look(*cgroup, *seen);
            }
        }
    }
}

/// Reports an incident, or that there was none.
fn emit(open: &Open, tally: &Tally, world: &impl World, out: &mut Vec<Output>) {
    let victims = scene::victims(open, world);
    let trigger = scene::trigger(&open.trigger, world);
    if tally::is_unwatched(open) && tally.comparable() && tally.moved.oom_kill == 0 {
        let cause = AvertedCause::AlreadyDying;
        out.push(Output::Averted(Averted { incident_id: Some(open.id), cause, trigger, victims }));
        return;
    }
    let limit = open.limit.or_else(|| tally::limit_by_counters(open, tally, world));
    let (scope, limit_owner) = scene::scope(limit, world);
    out.push(Output::Incident(Incident {
        incident_id: open.id,
        scope,
        limit_owner,
        limit_source: scene::source(open.limit.is_some(), limit),
        trigger: Some(trigger),
        place: None,
        kills: u64::try_from(open.victims.len()).unwrap_or(u64::MAX),
        timeline_ms: scene::timeline(open),
        counters: tally.moved,
        counters_before: tally.before,
        counters_after: tally.before.plus(tally.moved),
        reconciled: tally.reconciliation == Reconciliation::Matched,
        reconciliation: tally.reconciliation,
        reconstructed: false,
        victims,
    }));
}
