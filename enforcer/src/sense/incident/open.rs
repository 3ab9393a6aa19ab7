//! An incident under way.
use std::collections::{BTreeMap, BTreeSet};

use ulid::Ulid;

use super::{CLOSE_NS, FOLD_NS, OomCounts, READ_NS};
use crate::{
    model::CgroupId,
    sense::record::{Exit, Limited, Mark, Task},
};

/// What makes marks one OOM: limit owner and allocating thread.
pub(super) type Key = (Option<Limited>, u32);

/// A victim and its end.
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

    fn is_gone(&self) -> bool {
        self.exit.is_some()
    }
}

/// How far reading the counters is. It is asked for again when another victim comes.
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
    pub(super) trigger: Task,
    pub(super) victims: Vec<Marked>,
    /// What was read of each cgroup; none where it could not be.
    pub(super) readings: BTreeMap<CgroupId, Option<OomCounts>>,
    /// The cgroups of which it will claim counters.
    pub(super) concerns: BTreeSet<CgroupId>,
    /// When it is looked at next.
    pub(super) due_ns: u64,
    reading: Reading,
    last_mark_ns: u64,
    first_seen_ns: u64,
}

/// What an open incident needs now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// To wait until then.
    Wait(u64),
    /// Its counters read.
    Counters,
    /// To be closed.
    Close,
}

impl Open {
    pub(super) fn new(id: Ulid, mark: Mark, now_ns: u64) -> Self {
        Self {
            id,
            key: key(&mark),
            trigger: mark.trigger.clone(),
            last_mark_ns: mark.time_ns,
            first_seen_ns: now_ns,
            victims: vec![Marked { mark, exit: None }],
            readings: BTreeMap::new(),
            concerns: BTreeSet::new(),
            due_ns: now_ns,
            reading: Reading::NotAsked,
        }
    }

    /// Whether a mark of the same key is of the same OOM.
    pub(super) fn takes(&self, mark: &Mark) -> bool {
        mark.time_ns.saturating_sub(self.last_mark_ns) <= FOLD_NS
    }

    /// Adds a victim; another thread of one that is in already adds nothing.
    pub(super) fn add(&mut self, mark: Mark) {
        self.last_mark_ns = self.last_mark_ns.max(mark.time_ns);
        let marked = Marked { mark, exit: None };
        if self.victims.iter().any(|victim| victim.pid() == marked.pid()) {
            return;
        }
        self.victims.push(marked);
        self.reading = Reading::NotAsked;
    }

    /// Notes an exit; false if it is of none of the victims.
    pub(super) fn exit(&mut self, exit: Exit) -> bool {
        let victim = self.victims.iter_mut().find(|victim| {
            let same = victim.pid() == exit.pid || victim.mark.pid.is_none() && victim.mark.tid == exit.tid;
            same && exit.time_ns >= victim.mark.time_ns
        });
        match victim {
            Some(victim) if victim.exit.is_none() => {
                victim.exit = Some(exit);
                true
            }
            Some(_) => true,
            None => false,
        }
    }

    pub(super) fn asked(&mut self) {
        self.reading = Reading::Asked;
    }

    /// Takes readings. A later reading replaces an earlier one, but not by nothing: the cgroup may be gone.
    pub(super) fn answered(&mut self, readings: impl IntoIterator<Item = (CgroupId, Option<OomCounts>)>) {
        for (cgroup, counts) in readings {
            let known = self.readings.entry(cgroup).or_default();
            *known = counts.or(*known);
        }
        if self.reading == Reading::Asked {
            self.reading = Reading::Answered;
        }
    }

    /// Time of the first mark.
    pub(super) fn marked_ns(&self) -> u64 {
        self.victims.first().map_or(self.first_seen_ns, |victim| victim.mark.time_ns)
    }

    /// When the last victim exited, if all have.
    pub(super) fn exited_ns(&self) -> Option<u64> {
        let exits = self.victims.iter().map(|victim| victim.exit.map(|exit| exit.time_ns));
        exits.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    pub(super) fn need(&self, now_ns: u64) -> Need {
        // Counted from when we saw it: a daemon that was held up still waits for the exits of what it reads.
        let close_ns = self.first_seen_ns.saturating_add(CLOSE_NS);
        if now_ns >= close_ns {
            return Need::Close;
        }
        let read_ns = self.first_seen_ns.saturating_add(READ_NS);
        let gone = self.victims.iter().all(Marked::is_gone);
        match self.reading {
            Reading::NotAsked if gone || now_ns >= read_ns => Need::Counters,
            Reading::NotAsked => Need::Wait(read_ns),
            Reading::Asked => Need::Wait(close_ns),
            Reading::Answered => {
                // Another victim may still come: the first of a group can be gone before the last is marked.
                let folded_ns = self.last_mark_ns.saturating_add(FOLD_NS).min(close_ns);
                if now_ns > folded_ns { Need::Close } else { Need::Wait(folded_ns.saturating_add(1)) }
            }
        }
    }
}

pub(super) fn key(mark: &Mark) -> Key {
    (mark.limit, mark.trigger.tid)
}
