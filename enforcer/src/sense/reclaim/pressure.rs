//! Who stalls, as it is told: when it begins to be much, now and then while it lasts, and when it is over.
//!
//! By pod, as that is what somebody can do something about; by cgroup for whatever is no pod's. Pure: records, the time,
//! and what is known of cgroups come in, events come out.
use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::{MuchStall, StallKind};
use crate::{
    journal::Subject,
    model::{CgroupId, CgroupPath, Owner, PodUid},
    sense::incident::Place,
};

/// Without a record for as long, it is over. While stalls are much, a record comes about once a second.
const QUIET_NS: u64 = 10_000_000_000;
/// While it lasts, it is told again after as long.
const REMIND_NS: u64 = 60_000_000_000;
/// The most that can be under pressure at a time; more are not told.
const MAX_TOLD: usize = 4096;

/// Nanoseconds of stalls by kind, in the order of [`StallKind::ALL`].
pub type ByKind = [u64; StallKind::ALL.len()];

/// What is known of cgroups.
pub trait StallWorld {
    /// Whose a cgroup is, or was.
    fn owner(&mut self, cgroup: CgroupId) -> Option<Owner>;
    /// Its path.
    fn path(&mut self, cgroup: CgroupId) -> Option<CgroupPath>;
    /// How long its tasks were stalled so far.
    fn stalled_ns(&mut self, cgroup: CgroupId) -> ByKind;
}

/// How it is known whose limit it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum LimitSource {
    /// The kernel told it of this stall.
    Argument,
    /// It is not: the stalled task's own cgroup is named instead.
    TaskCgroup,
    /// By the kind of the stall: the machine is short.
    Machine,
}

/// The data of `pressure.rising`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rising {
    /// Who is stalled.
    #[serde(flatten)]
    pub place: Place,
    /// The cgroup's id.
    pub cgroup_id: u64,
    /// How.
    pub kind: StallKind,
    /// How long the stall took that is told of.
    pub stall_ms: u64,
    /// What such stalls came to within about a second.
    pub window_stall_ms: u64,
    /// The cgroup whose limit it was; none if it is gone, and its name was not known.
    pub limit_owner: Option<String>,
    /// How that is known.
    pub limit_source: LimitSource,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Name of the thread, as its owner chose it.
    pub comm: String,
    /// For how long it has been told; 0 at first.
    pub lasting_ms: u64,
}

/// The data of `pressure.cleared`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cleared {
    /// Who was stalled last.
    #[serde(flatten)]
    pub place: Place,
    /// The cgroup's id.
    pub cgroup_id: u64,
    /// From the first record to the last.
    pub lasted_ms: u64,
    /// Stalls of the pod's cgroups that were told of, in all and by kind.
    pub stalled_ms: BTreeMap<&'static str, u64>,
    /// The longest that was told of.
    pub longest_stall_ms: u64,
    /// How many records came.
    pub records: u64,
}

/// What is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PressureEvent {
    /// It began to be much, or still is.
    Rising(Rising),
    /// It is over.
    Cleared(Cleared),
}

impl PressureEvent {
    /// Whom it is about.
    #[must_use]
    pub fn subject(&self) -> Subject {
        let place = match self {
            Self::Rising(rising) => &rising.place,
            Self::Cleared(cleared) => &cleared.place,
        };
        place.pod_name().map_or(Subject::Node, Subject::Pod)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Who {
    Pod(PodUid),
    Cgroup(CgroupId),
}

#[derive(Clone, Debug)]
struct Told {
    since_ns: u64,
    latest_ns: u64,
    reminded_ns: u64,
    records: u64,
    longest_ns: u64,
    /// The cgroups that records came from, and what they had stalled before.
    cgroups: BTreeMap<CgroupId, ByKind>,
    place: Place,
    cgroup: CgroupId,
}

/// Who is under pressure.
#[derive(Clone, Debug, Default)]
pub struct Pressures {
    reported: HashMap<Who, Told>,
    unreported: u64,
}

impl Pressures {
    /// Takes in a record that came at `now_ns` of any clock that does not go back.
    pub fn stalled(
        &mut self,
        now_ns: u64,
        stall: &MuchStall,
        world: &mut impl StallWorld,
    ) -> Option<PressureEvent> {
        let owner = world.owner(stall.cgroup);
        let who = owner
            .as_ref()
            .and_then(|owner| owner.level.uid())
            .map_or(Who::Cgroup(stall.cgroup), |uid| Who::Pod(uid.clone()));
        if !self.reported.contains_key(&who) && self.reported.len() >= MAX_TOLD {
            self.unreported += 1;
            return None;
        }
        let path = world.path(stall.cgroup);
        let place = Place::new(owner.as_ref(), path);
        let mut is_new = false;
        let reported = self.reported.entry(who).or_insert_with(|| {
            is_new = true;
            Told {
                since_ns: now_ns,
                latest_ns: now_ns,
                reminded_ns: now_ns,
                records: 0,
                longest_ns: 0,
                cgroups: BTreeMap::new(),
                place: place.clone(),
                cgroup: stall.cgroup,
            }
        });
        reported.cgroups.entry(stall.cgroup).or_insert_with(|| before(stall, world.stalled_ns(stall.cgroup)));
        reported.latest_ns = now_ns;
        reported.records += 1;
        reported.longest_ns = reported.longest_ns.max(stall.stall_ns);
        reported.place = place.clone();
        reported.cgroup = stall.cgroup;
        let lasting_ns = now_ns.saturating_sub(reported.since_ns);
        if !is_new && now_ns.saturating_sub(reported.reminded_ns) < REMIND_NS {
            return None;
        }
        reported.reminded_ns = now_ns;
        let (limit, limit_source) = limit(stall);
        let limit_owner = match limit {
            Some(limit) => world.path(limit),
            None => Some(CgroupPath::root()),
        };
        Some(PressureEvent::Rising(Rising {
            place,
            cgroup_id: stall.cgroup.0,
            kind: stall.kind,
            stall_ms: ms(stall.stall_ns),
            window_stall_ms: ms(stall.window_ns),
            limit_owner: limit_owner.map(|path| path.to_string()),
            limit_source,
            pid: stall.pid,
            tid: stall.tid,
            comm: stall.comm.clone(),
            lasting_ms: ms(lasting_ns),
        }))
    }

    /// Ends what has been quiet for long enough.
    pub fn quiet(&mut self, now_ns: u64, world: &mut impl StallWorld) -> Vec<PressureEvent> {
        let over =
            self.reported.extract_if(|_, reported| now_ns.saturating_sub(reported.latest_ns) >= QUIET_NS);
        over.map(|(_, reported)| PressureEvent::Cleared(cleared(reported, world))).collect()
    }

    /// When [`quiet`](Self::quiet) has something to end at the earliest; none while nothing is told.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        self.reported.values().map(|reported| reported.latest_ns.saturating_add(QUIET_NS)).min()
    }

    /// Records that were not told, as too many are under pressure at a time.
    #[must_use]
    pub const fn unreported(&self) -> u64 {
        self.unreported
    }
}

/// What the cgroup had stalled before that which the record tells of.
fn before(stall: &MuchStall, stalled_ns: ByKind) -> ByKind {
    let mut before = stalled_ns;
    for (before, kind) in before.iter_mut().zip(StallKind::ALL) {
        if kind == stall.kind {
            *before = before.saturating_sub(stall.window_ns.max(stall.stall_ns));
        }
    }
    before
}

fn limit(stall: &MuchStall) -> (Option<CgroupId>, LimitSource) {
    match (stall.limit, stall.kind) {
        (Some(limit), _) => (Some(limit), LimitSource::Argument),
        (None, StallKind::DirectReclaim | StallKind::Throttled) => (None, LimitSource::Machine),
        (None, StallKind::MemcgReclaim | StallKind::MemoryHigh) => {
            (Some(stall.cgroup), LimitSource::TaskCgroup)
        }
    }
}

fn cleared(reported: Told, world: &mut impl StallWorld) -> Cleared {
    let mut stalled_ns = ByKind::default();
    for (cgroup, before) in &reported.cgroups {
        for ((sum, now), before) in stalled_ns.iter_mut().zip(world.stalled_ns(*cgroup)).zip(before) {
            *sum += now.saturating_sub(*before);
        }
    }
    let kinds = StallKind::ALL.iter().zip(stalled_ns).filter(|(_, ns)| *ns > 0);
    Cleared {
        place: reported.place,
        cgroup_id: reported.cgroup.0,
        lasted_ms: ms(reported.latest_ns.saturating_sub(reported.since_ns)),
        stalled_ms: kinds.map(|(kind, ns)| (kind.as_str(), ms(ns))).collect(),
        longest_stall_ms: ms(reported.longest_ns),
        records: reported.records,
    }
}

const fn ms(ns: u64) -> u64 {
    ns / 1_000_000
}

#[cfg(test)]
mod tests;
