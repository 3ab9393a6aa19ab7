//! An open incident.
use std::collections::BTreeMap;

use ulid::Ulid;

use super::{
    ANSWER_NS, CLOSE_NS, EARLY_NS, FOLD_NS, LONGEST_NS, NAME_NS, NAMED_NS, OomCounts, READ_NS, World,
    ledger::Seen,
};
use crate::{
    model::CgroupId,
    sense::record::{Exit, Limited, Mark, MemoryBack, Sharer, Task},
};

/// What marks of one OOM have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// The call of the OOM killer: allocating thread and time.
    Call(u32, u64),
    /// Limit owner and allocating thread, if the call is not known; marks must be less than [`FOLD_NS`] apart.
    Guess(Option<Limited>, u32),
}

impl Key {
    pub(super) fn of(mark: &Mark) -> Self {
        match mark.oom_since_ns {
            Some(since_ns) => Self::Call(mark.trigger.tid, since_ns),
            None => Self::Guess(mark.limit, mark.trigger.tid),
        }
    }

    /// Whether a mark of this key belongs to the same OOM as a mark of that time.
    pub(super) const fn is_same_oom(self, last_mark_ns: u64, mark: &Mark) -> bool {
        match self {
            Self::Call(..) => true,
            Self::Guess(..) => mark.time_ns.saturating_sub(last_mark_ns) <= FOLD_NS,
        }
    }
}

/// A victim and its exit.
#[derive(Clone, Debug)]
pub(super) struct Marked {
    pub(super) mark: Mark,
    pub(super) exit: Option<Exit>,
}

impl Marked {
    pub(super) fn pid(&self) -> u32 {
        self.mark.pid.unwrap_or(self.mark.tid)
    }

    /// Its cgroup: as marked, else as it exited.
    pub(super) fn cgroup(&self) -> Option<CgroupId> {
        self.mark.cgroup.or_else(|| self.exit.and_then(|exit| exit.cgroup))
    }

    /// The cgroup whose counters count it, if known.
    pub(super) fn counted(&self) -> Option<CgroupId> {
        self.mark.counted.or_else(|| self.cgroup())
    }
}

/// A process that dies with a victim, and its exit.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub(super) sharer: Sharer,
    pub(super) exit: Option<Exit>,
}

/// State of reading the counters. Another victim requests a new reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    NotAsked,
    Asked,
    Answered,
}

/// What is known of an OOM so far.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) id: Ulid,
    pub(super) key: Key,
    /// An incident of the same OOM has closed: it includes the first victim, which may be counted twice.
    pub(super) is_rest: bool,
    pub(super) limit: Option<Limited>,
    pub(super) trigger: Task,
    pub(super) victims: Vec<Marked>,
    pub(super) sharers: Vec<Shared>,
    /// The reading of each cgroup; `None` if it failed.
    pub(super) readings: BTreeMap<CgroupId, Option<Seen>>,
    /// The cgroups whose counters it involves.
    pub(super) concerns: Vec<CgroupId>,
    /// How many kills each cgroup should have counted for it.
    pub(super) expected: BTreeMap<CgroupId, Expected>,
    /// When it is checked next.
    pub(super) due_ns: u64,
    /// When the memory with each number was freed.
    memories: BTreeMap<u64, Option<u64>>,
    over: bool,
    reading: Reading,
    /// When its counters were last asked for.
    asked_ns: Option<u64>,
    last_mark_ns: u64,
    first_seen_ns: u64,
    last_seen_ns: u64,
}

/// What a cgroup should have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Expected {
    /// Killed processes.
    pub(super) kills: u64,
    /// How many more kills it may have counted: the kernel counts the first victim of a group kill twice.
    pub(super) twice: u64,
}

/// When a victim's memory was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Back {
    /// The kernel reported the release at that time.
    Traced(u64),
    /// The victim had released it by then; other processes may still hold it.
    ByExit(u64),
}

/// What an open incident needs now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Waiting until that time.
    Wait(u64),
    /// Reading its counters.
    Counters,
    /// Closing.
    Close,
}

impl Open {
    pub(super) fn new(id: Ulid, mark: Mark, now_ns: u64) -> Self {
        let mut open = Self {
            id,
            key: Key::of(&mark),
            is_rest: false,
            limit: mark.limit,
            trigger: mark.trigger.clone(),
            last_mark_ns: mark.time_ns,
            first_seen_ns: now_ns,
            last_seen_ns: now_ns,
            victims: Vec::new(),
            sharers: Vec::new(),
            readings: BTreeMap::new(),
            concerns: Vec::new(),
            expected: BTreeMap::new(),
            memories: BTreeMap::new(),
            due_ns: now_ns,
            over: false,
            reading: Reading::NotAsked,
            asked_ns: None,
        };
        open.add(mark, now_ns);
        open
    }

    /// Whether a mark of the same key belongs to the same OOM.
    pub(super) fn takes(&self, mark: &Mark) -> bool {
        self.key.is_same_oom(self.last_mark_ns, mark)
    }

    /// Time of the last mark.
    pub(super) const fn last_mark_ns(&self) -> u64 {
        self.last_mark_ns
    }

    /// Adds a victim; another thread of a known victim adds nothing.
    pub(super) fn add(&mut self, mark: Mark, now_ns: u64) {
        self.last_mark_ns = self.last_mark_ns.max(mark.time_ns);
        self.last_seen_ns = self.last_seen_ns.max(now_ns);
        if mark.memory_watched
            && let Some(number) = mark.memory_number
        {
            self.memories.insert(number, None);
        }
        let mut marked = Marked { mark, exit: None };
        let pid = marked.pid();
        if self.victims.iter().any(|victim| victim.pid() == pid) {
            return;
        }
        // A process that shares a victim's memory is marked itself if it is in the killed group.
        if let Some(at) = self.sharers.iter().position(|shared| shared.sharer.pid == pid) {
            marked.exit = self.sharers.remove(at).exit;
        }
        self.victims.push(marked);
        self.reading = Reading::NotAsked;
    }

    /// Adds a process that dies with a victim; returns false if it is known already.
    pub(super) fn share(&mut self, sharer: Sharer) -> bool {
        let pid = sharer.pid;
        let known = self.victims.iter().any(|victim| victim.pid() == pid)
            || self.sharers.iter().any(|shared| shared.sharer.pid == pid);
        if !known {
            self.sharers.push(Shared { sharer, exit: None });
        }
        !known
    }

    /// Notes an exit; returns false if it belongs to no victim and no process that dies with one.
    pub(super) fn exit(&mut self, exit: Exit) -> bool {
        let victim = self.victims.iter_mut().find(|victim| {
            let same = victim.pid() == exit.pid || victim.mark.pid.is_none() && victim.mark.tid == exit.tid;
            same && exit.time_ns.saturating_add(EARLY_NS) >= victim.mark.time_ns
        });
        let slot = match victim {
            Some(victim) => &mut victim.exit,
            None => match self
                .sharers
                .iter_mut()
                .find(|shared| shared.sharer.pid == exit.pid && exit.time_ns >= shared.sharer.marked_ns)
            {
                Some(shared) => &mut shared.exit,
                None => return false,
            },
        };
        slot.get_or_insert(exit);
        true
    }

    /// Notes that memory was freed; returns false if it is not a victim's.
    pub(super) fn back(&mut self, back: MemoryBack) -> bool {
        match self.memories.get_mut(&back.memory_number) {
            Some(slot) => {
                slot.get_or_insert(back.time_ns);
                true
            }
            None => false,
        }
    }

    /// The numbers of the memory it waits for.
    pub(super) fn memories(&self) -> impl Iterator<Item = u64> {
        self.memories.keys().copied()
    }

    /// No more marks and sharers follow.
    pub(super) fn is_over(&mut self) {
        self.over = true;
    }

    pub(super) fn asked(&mut self, now_ns: u64) {
        self.reading = Reading::Asked;
        self.asked_ns = Some(now_ns);
    }

    /// Takes readings. A later reading replaces an earlier one; a failed one does not: the cgroup may be gone.
    pub(super) fn answered(
        &mut self,
        readings: impl IntoIterator<Item = (CgroupId, Option<OomCounts>)>,
        now_ns: u64,
    ) {
        for (cgroup, counts) in readings {
            let known = self.readings.entry(cgroup).or_default();
            *known = counts.map(|counts| Seen { counts, at_ns: now_ns }).or(*known);
        }
        if self.reading == Reading::Asked {
            self.reading = Reading::Answered;
        }
    }

    /// Time of the first mark.
    pub(super) fn marked_ns(&self) -> u64 {
        self.victims.first().map_or(self.first_seen_ns, |victim| victim.mark.time_ns)
    }

    /// When the last killed process exited; `None` if one has not.
    pub(super) fn exited_ns(&self) -> Option<u64> {
        let exits = self.exits().map(|exit| exit.map(|exit| exit.time_ns));
        exits.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    /// When all victims' memory was freed; `None` if it was not, or could not be observed.
    pub(super) fn back_ns(&self) -> Option<Back> {
        let mut latest = Back::Traced(0);
        for victim in &self.victims {
            let watched = victim.mark.memory_number.filter(|_| victim.mark.memory_watched);
            let back = match watched {
                Some(number) => Back::Traced(self.memories.get(&number).copied().flatten()?),
                None => Back::ByExit(victim.exit.filter(|exit| exit.memory_let_go)?.time_ns),
            };
            latest = match (latest, back) {
                (Back::Traced(one), Back::Traced(other)) => Back::Traced(one.max(other)),
                (Back::Traced(one) | Back::ByExit(one), Back::Traced(other) | Back::ByExit(other)) => {
                    Back::ByExit(one.max(other))
                }
            };
        }
        Some(latest)
    }

    fn exits(&self) -> impl Iterator<Item = Option<Exit>> {
        let victims = self.victims.iter().map(|victim| victim.exit);
        victims.chain(self.sharers.iter().map(|shared| shared.exit))
    }

    /// Whether the end of the OOM is traced.
    fn end_is_watched(&self) -> bool {
        matches!(self.key, Key::Call(..)) && self.victims.iter().all(|victim| victim.mark.end_watched)
    }

    /// Whether the pod or container of a victim or of the trigger has no name yet.
    fn awaits_name(&self, world: &impl World) -> bool {
        let victims = self.victims.iter().filter_map(Marked::cgroup);
        victims.chain(self.trigger.cgroup).any(|cgroup| world.awaits_name(cgroup))
    }

    pub(super) fn need(&self, now_ns: u64, world: &impl World) -> Need {
        // Counted from when we saw it: a delayed daemon still waits for the exits of what it reads. A group kill of
        // many processes goes on after its first mark.
        let close_ns =
            self.last_seen_ns.saturating_add(CLOSE_NS).min(self.first_seen_ns.saturating_add(LONGEST_NS));
        // On a busy machine this daemon may be late, with asking and with the answer. Without the counters the incident
        // would say less than is known. Victims that come after that are not waited for again.
        let end_ns = match self.reading {
            Reading::NotAsked if self.asked_ns.is_none_or(|at_ns| at_ns < close_ns) => u64::MAX,
            Reading::Asked => self.asked_ns.unwrap_or(0).max(close_ns).saturating_add(ANSWER_NS),
            Reading::Answered if self.awaits_name(world) => close_ns.saturating_add(NAMED_NS),
            Reading::NotAsked | Reading::Answered => close_ns,
        };
        if now_ns >= end_ns {
            return Need::Close;
        }
        let read_ns = close_ns.saturating_sub(CLOSE_NS - READ_NS);
        // Another victim may follow: the first of a group can exit before the last is marked.
        let over = self.over || !self.end_is_watched();
        let gone = over && self.exits().all(|exit| exit.is_some());
        match self.reading {
            Reading::NotAsked if gone || now_ns >= read_ns => Need::Counters,
            Reading::NotAsked => Need::Wait(read_ns),
            Reading::Asked => Need::Wait(end_ns),
            // Only names are missing.
            Reading::Answered if now_ns >= close_ns => Need::Wait(now_ns.saturating_add(NAME_NS).min(end_ns)),
            Reading::Answered if !gone => Need::Wait(close_ns),
            Reading::Answered if self.memories.values().any(Option::is_none) => Need::Wait(close_ns),
            Reading::Answered if self.awaits_name(world) => {
                Need::Wait(now_ns.saturating_add(NAME_NS).min(close_ns))
            }
            Reading::Answered if self.over => Need::Close,
            Reading::Answered => {
                let folded_ns = self.last_mark_ns.saturating_add(FOLD_NS).min(close_ns);
                if now_ns > folded_ns { Need::Close } else { Need::Wait(folded_ns.saturating_add(1)) }
            }
        }
    }
}
