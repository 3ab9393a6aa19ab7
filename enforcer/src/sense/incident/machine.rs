//! The state machine.
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use ulid::Ulid;

use super::{
    Averted, AvertedCause, Detected, Incident, LimitSource, MAX_LEVELS, MAX_OPEN, OomCounts, REMEMBER_NS,
    Reconciliation, Scope, Timeline, Trigger, Victim,
    counts::Ledger,
    event::Place,
    open::{Key, Marked, Need, Open, key},
};
use crate::{
    model::{CgroupId, CgroupPath, Owner},
    sense::record::{Exit, Limited, Mark, Record},
};

/// What the machine asks of the rest of the daemon. Answers come from memory: none of this may block.
pub trait World {
    /// Whose cgroup it is, if it is kubepods' or below; also of one that is gone since.
    fn owner(&self, cgroup: CgroupId) -> Option<Owner>;
    /// Its path, also outside of kubepods.
    fn path(&self, cgroup: CgroupId) -> Option<CgroupPath>;
    /// The cgroup above it; none for the root and for one that is not known.
    fn parent(&self, cgroup: CgroupId) -> Option<CgroupId>;
    /// Whether we have signalled it or a cgroup above it, and are waiting for it to go.
    fn is_being_evicted(&self, cgroup: CgroupId) -> bool;
    /// The id of an incident that begins with this mark: whoever reads the record again gives it the same.
    fn new_id(&mut self, first: &Mark) -> Ulid;
}

/// What goes in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A record of the ring buffer.
    Record(Record),
    /// A cgroup is known from now on, with these counters. Later ones of the same are ignored.
    Known {
        /// The cgroup.
        cgroup: CgroupId,
        /// Its counters: zero if it was made just now.
        counts: OomCounts,
    },
    /// A cgroup is gone, and all late events of it have come.
    Gone(CgroupId),
    /// The answer to [`Output::ReadCounters`].
    Counters {
        /// The incident.
        incident: Ulid,
        /// What was read of each cgroup; none where it could not be.
        readings: Vec<(CgroupId, Option<OomCounts>)>,
    },
    /// Time has passed.
    Tick,
}

/// What comes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Tell `oom.detected`.
    Detected(Detected),
    /// Tell `oom.incident`.
    Incident(Incident),
    /// Tell `oom.averted`.
    Averted(Averted),
    /// Read `memory.events.local` of these cgroups, and answer with [`Input::Counters`].
    ReadCounters {
        /// The incident.
        incident: Ulid,
        /// The cgroups.
        cgroups: Vec<CgroupId>,
    },
}

/// All incidents under way.
#[derive(Debug, Default)]
pub struct Incidents {
    /// By order of their opening.
    open: BTreeMap<u64, Open>,
    next: u64,
    /// When each is looked at next, so that a burst of thousands costs no more than each of them alone.
    due: BTreeSet<(u64, u64)>,
    by_id: HashMap<Ulid, u64>,
    by_key: HashMap<Key, u64>,
    /// Process ids of victims of open incidents.
    by_pid: HashMap<u32, u64>,
    /// How many open incidents will claim counters of a cgroup.
    claimants: HashMap<CgroupId, u32>,
    ledger: Ledger,
    /// Victims of closed incidents: process id and until when they are remembered.
    recent: VecDeque<(u32, u64)>,
}

impl Incidents {
    /// Takes one input at a time of `CLOCK_BOOTTIME`, and answers with what is to be done, in order.
    pub fn step(&mut self, now_ns: u64, input: Input, world: &mut impl World) -> Vec<Output> {
        let mut out = Vec::new();
        match input {
            Input::Record(Record::Mark(mark)) => self.mark(now_ns, mark, world, &mut out),
            Input::Record(Record::Exit(exit)) => self.exit(now_ns, exit, world),
            Input::Record(Record::KswapdWoke { .. } | Record::DirectReclaim { .. }) | Input::Tick => {}
            Input::Known { cgroup, counts } => self.ledger.begin(cgroup, counts),
            Input::Gone(cgroup) => self.ledger.forget(cgroup),
            Input::Counters { incident, readings } => {
                if let Some(number) = self.by_id.get(&incident).copied()
                    && let Some(open) = self.open.get_mut(&number)
                {
                    open.answered(readings);
                    self.touched(now_ns, number, world);
                }
            }
        }
        self.advance(now_ns, world, &mut out);
        out
    }

    /// When [`Input::Tick`] is due at the latest, if nothing else comes before.
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
        let evicting = mark.cgroup.is_some_and(|cgroup| world.is_being_evicted(cgroup));
        let averted = match mark.killed {
            Some(true) => None,
            // Another thread of a victim that reaches the OOM killer while it dies is marked too.
            Some(false) if self.is_victim(pid, now_ns) => return,
            Some(false) if evicting => Some(AvertedCause::OwnEviction),
            Some(false) => Some(AvertedCause::AlreadyDying),
            None => evicting.then_some(AvertedCause::OwnEviction),
        };
        if let Some(cause) = averted {
            out.push(Output::Averted(Averted {
                incident_id: None,
                cause,
                trigger: trigger(&mark.trigger, world),
                victims: vec![victim(&Marked { mark, exit: None }, world)],
            }));
            return;
        }

        let key = key(&mark);
        if let Some(number) = self.by_key.get(&key).copied()
            && let Some(open) = self.open.get_mut(&number)
            && open.takes(&mark)
        {
            self.by_pid.insert(pid, number);
            open.add(mark);
            self.touched(now_ns, number, world);
            return;
        }
        if self.open.len() >= MAX_OPEN
            && let Some(oldest) = self.open.keys().next().copied()
        {
            self.close(now_ns, oldest, world, out);
        }
        let first = victim(&Marked { mark: mark.clone(), exit: None }, world);
        let open = Open::new(world.new_id(&mark), mark, now_ns);
        out.push(Output::Detected(detected(&open, first, world)));
        let number = self.next;
        self.next += 1;
        self.by_key.insert(key, number);
        self.by_pid.insert(pid, number);
        self.by_id.insert(open.id, number);
        self.open.insert(number, open);
        self.touched(now_ns, number, world);
    }

    fn is_victim(&self, pid: u32, now_ns: u64) -> bool {
        self.by_pid.contains_key(&pid)
            || self.recent.iter().any(|(victim, until_ns)| *victim == pid && now_ns < *until_ns)
    }

    fn exit(&mut self, now_ns: u64, exit: Exit, world: &impl World) {
        // By process, or by thread where the mark told no more.
        let number = self.by_pid.get(&exit.pid).or_else(|| self.by_pid.get(&exit.tid)).copied();
        let Some(number) = number else { return };
        let Some(open) = self.open.get_mut(&number) else { return };
        if open.exit(exit) {
            self.touched(now_ns, number, world);
        } else {
            tracing::debug!(pid = exit.pid, "an exit before its mark: the process id was used again");
        }
    }

    /// Brings up to date what is kept about an incident that has changed.
    fn touched(&mut self, now_ns: u64, number: u64, world: &impl World) {
        let Some(open) = self.open.get_mut(&number) else { return };
        for cgroup in to_read(open, world) {
            if open.concerns.insert(cgroup) {
                *self.claimants.entry(cgroup).or_default() += 1;
            }
        }
        self.due.remove(&(open.due_ns, number));
        open.due_ns = match open.need(now_ns) {
            Need::Wait(until_ns) => until_ns,
            Need::Counters | Need::Close => now_ns,
        };
        self.due.insert((open.due_ns, number));
    }

    /// Does for each incident that is due what it needs now.
    fn advance(&mut self, now_ns: u64, world: &mut impl World, out: &mut Vec<Output>) {
        while self.recent.front().is_some_and(|(_, until_ns)| *until_ns <= now_ns) {
            self.recent.pop_front();
        }
        while let Some((_, number)) = self.due.first().copied().filter(|(due_ns, _)| *due_ns <= now_ns) {
            let Some(open) = self.open.get_mut(&number) else {
                self.due.pop_first();
                continue;
            };
            match open.need(now_ns) {
                Need::Wait(_) => {}
                Need::Counters => {
                    open.asked();
                    let cgroups = open.concerns.iter().copied().collect();
                    out.push(Output::ReadCounters { incident: open.id, cgroups });
                }
                Need::Close => {
                    self.close(now_ns, number, world, out);
                    continue;
                }
            }
            self.touched(now_ns, number, world);
        }
    }

    /// Takes an incident out, and tells it.
    fn close(&mut self, now_ns: u64, number: u64, world: &impl World, out: &mut Vec<Output>) {
        let Some(open) = self.open.remove(&number) else { return };
        self.due.remove(&(open.due_ns, number));
        self.by_id.remove(&open.id);
        if self.by_key.get(&open.key) == Some(&number) {
            self.by_key.remove(&open.key);
        }
        for cgroup in &open.concerns {
            if let Some(claimants) = self.claimants.get_mut(cgroup) {
                *claimants = claimants.saturating_sub(1);
                if *claimants == 0 {
                    self.claimants.remove(cgroup);
                }
            }
        }
        for victim in &open.victims {
            let pid = victim.pid();
            if self.by_pid.get(&pid) == Some(&number) {
                self.by_pid.remove(&pid);
            }
            self.recent.push_back((pid, now_ns.saturating_add(REMEMBER_NS)));
        }
        while self.recent.len() > MAX_OPEN {
            self.recent.pop_front();
        }

        let count = self.claim(&open);
        let victims: Vec<Victim> = open.victims.iter().map(|marked| victim(marked, world)).collect();
        let trigger = trigger(&open.trigger, world);
        // Without a watch on kills the counters decide, if they could be read and compared.
        let unwatched = open.victims.iter().all(|victim| victim.mark.killed.is_none());
        if unwatched && count.comparable() && count.moved.oom_kill == 0 {
            let cause = AvertedCause::AlreadyDying;
            out.push(Output::Averted(Averted { incident_id: Some(open.id), cause, trigger, victims }));
            return;
        }
        let (limit, limit_source) = match open.key.0 {
            Some(limited) => (Some(limited), LimitSource::Traced),
            None => match limit_by_counters(&open, &count, world) {
                Some(limited) => (Some(limited), LimitSource::Counters),
                None => (None, LimitSource::Unknown),
            },
        };
        let (scope, limit_owner) = scope(limit, world);
        out.push(Output::Incident(Incident {
            incident_id: open.id,
            scope,
            limit_owner,
            limit_source,
            trigger,
            timeline_ms: timeline(&open),
            counters: count.moved,
            counters_before: count.before,
            counters_after: count.after,
            reconciled: count.reconciliation == Reconciliation::Matched,
            reconciliation: count.reconciliation,
            reconstructed: false,
            victims,
        }));
    }

    /// Compares the readings with the ledger, and takes from it what belongs to this incident.
    fn claim(&mut self, open: &Open) -> Count {
        let mut count = Count { reconciliation: Reconciliation::Matched, ..Count::default() };
        for (cgroup, counts) in &open.readings {
            let (Some(after), Some(before)) = (*counts, self.ledger.get(*cgroup)) else { continue };
            // What other open incidents will claim of the same cgroup is left to them.
            let kills = u64::try_from(victims_in(open, *cgroup)).unwrap_or(u64::MAX);
            let own = OomCounts { oom: 1, oom_kill: kills, oom_group_kill: 1 };
            let shared = self.claimants.contains_key(cgroup);
            let all = after.since(before);
            let moved = if shared { all.at_most(own) } else { all };
            self.ledger.claim(*cgroup, moved);
            if moved.oom > 0 {
                count.limits.push(*cgroup);
            }
            count.moved = count.moved.plus(moved);
            count.before = count.before.plus(before);
            count.after = count.after.plus(after);
        }
        let missing = |known: &dyn Fn(CgroupId) -> bool| {
            open.victims.iter().any(|victim| !victim.cgroup().is_some_and(known))
        };
        let kills = u64::try_from(open.victims.len()).unwrap_or(u64::MAX);
        let OomCounts { oom_kill, oom_group_kill, oom: _ } = count.moved;
        count.reconciliation = if missing(&|cgroup| open.readings.get(&cgroup).is_some_and(Option::is_some)) {
            Reconciliation::Unreadable
        } else if missing(&|cgroup| self.ledger.get(cgroup).is_some()) {
            Reconciliation::NoBaseline
        } else if oom_kill == kills || oom_kill == kills.saturating_add(oom_group_kill) {
            Reconciliation::Matched
        } else {
            Reconciliation::Differs
        };
        count
    }
}

/// What the counters say of one incident.
#[derive(Debug)]
struct Count {
    moved: OomCounts,
    before: OomCounts,
    after: OomCounts,
    reconciliation: Reconciliation,
    /// The cgroups whose own limit was hit, according to them.
    limits: Vec<CgroupId>,
}

impl Default for Count {
    fn default() -> Self {
        Self {
            moved: OomCounts::default(),
            before: OomCounts::default(),
            after: OomCounts::default(),
            reconciliation: Reconciliation::Unreadable,
            limits: Vec::new(),
        }
    }
}

impl Count {
    const fn comparable(&self) -> bool {
        matches!(self.reconciliation, Reconciliation::Matched | Reconciliation::Differs)
    }
}

fn victims_in(open: &Open, cgroup: CgroupId) -> usize {
    open.victims.iter().filter(|victim| victim.cgroup() == Some(cgroup)).count()
}

/// The cgroups whose counters tell of an incident: the victims', and those above them up to the limit owner,
/// as a group kill is counted where `memory.oom.group` is set.
fn to_read(open: &Open, world: &impl World) -> Vec<CgroupId> {
    let limit = match open.key.0 {
        Some(Limited::Cgroup(limit)) => Some(limit),
        Some(Limited::Machine) | None => None,
    };
    let mut cgroups: Vec<CgroupId> = limit.into_iter().collect();
    for victim in open.victims.iter().filter_map(Marked::cgroup) {
        let above = ancestors(victim, world).take_while(|above| Some(*above) != limit);
        cgroups.push(victim);
        cgroups.extend(above);
    }
    cgroups.sort_unstable();
    cgroups.dedup();
    cgroups
}

/// The cgroups above one, from the nearest on.
fn ancestors(cgroup: CgroupId, world: &impl World) -> impl Iterator<Item = CgroupId> {
    std::iter::successors(Some(cgroup), |cgroup| world.parent(*cgroup)).skip(1).take(MAX_LEVELS)
}

/// Whose limit it was by the counter that moved; if all could be compared and none did, the machine's.
fn limit_by_counters(open: &Open, count: &Count, world: &impl World) -> Option<Limited> {
    let victim = open.victims.first()?.cgroup()?;
    let moved = |cgroup: &CgroupId| count.limits.contains(cgroup);
    if let Some(limit) = std::iter::once(victim).chain(ancestors(victim, world)).find(moved) {
        return Some(Limited::Cgroup(limit));
    }
    count.comparable().then_some(Limited::Machine)
}

fn scope(limit: Option<Limited>, world: &impl World) -> (Option<Scope>, Option<String>) {
    match limit {
        None => (None, None),
        Some(Limited::Machine) => (Some(Scope::Node), Some("/".to_owned())),
        Some(Limited::Cgroup(cgroup)) => {
            let owner = world.owner(cgroup);
            let path = owner.as_ref().map(|owner| owner.path.clone()).or_else(|| world.path(cgroup));
            // A limit that we cannot place at all is not called the system's.
            let scope = path.is_some().then(|| Scope::of(owner.as_ref()));
            (scope, path.map(|path| path.to_string()))
        }
    }
}

fn place(cgroup: Option<CgroupId>, world: &impl World) -> Place {
    let owner = cgroup.and_then(|cgroup| world.owner(cgroup));
    let path = cgroup.and_then(|cgroup| world.path(cgroup));
    Place::new(owner.as_ref(), path)
}

fn trigger(task: &crate::sense::record::Task, world: &impl World) -> Trigger {
    Trigger::new(task, place(task.cgroup, world))
}

fn victim(marked: &Marked, world: &impl World) -> Victim {
    let exit_code = marked.exit.and_then(|exit| exit.exit_code);
    Victim::new(&marked.mark, place(marked.cgroup(), world), exit_code)
}

fn detected(open: &Open, victim: Victim, world: &impl World) -> Detected {
    let (scope, limit_owner) = scope(open.key.0, world);
    Detected { incident_id: open.id, scope, limit_owner, trigger: trigger(&open.trigger, world), victim }
}

fn timeline(open: &Open) -> Timeline {
    let marked_ns = open.marked_ns();
    let reclaim_ns = open.victims.first().and_then(|victim| victim.mark.reclaim_since_ns);
    let zero_ns = reclaim_ns.unwrap_or(marked_ns);
    let ms = |at_ns: u64| at_ns.saturating_sub(zero_ns) / 1_000_000;
    Timeline { first_reclaim: reclaim_ns.map(|_| 0), marked: ms(marked_ns), exited: open.exited_ns().map(ms) }
}
