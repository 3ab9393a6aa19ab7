//! Events about stalled pods and cgroups: at the begin, now and then while it lasts, and at the end.
//!
//! By pod, as operators can act on that; by cgroup if it belongs to no pod. Pure: records, the time and the owners of
//! cgroups come in, events come out.
use std::collections::{BTreeMap, HashMap};

use enforcer_events::{
    Payload,
    pod::Place,
    pressure::{PressureCleared, PressureRising, Stalling, StallsOver},
};

use super::{MuchStall, StallKind};
use crate::{
    journal::Subject,
    model::{CgroupId, CgroupPath, Owner, PodUid},
    sense::incident::{place_of, pod_name},
};

/// It ends after this time without a record. While stalls are long or frequent, a record comes about once a second.
const QUIET_NS: u64 = 10_000_000_000;
/// While it lasts, the event is repeated after this time.
const REMIND_NS: u64 = 60_000_000_000;
/// The most pods and cgroups under pressure at a time; others are not reported.
const MAX_TOLD: usize = 4096;

/// Nanoseconds of stalls by kind, in the order of [`StallKind::ALL`].
pub type ByKind = [u64; StallKind::ALL.len()];

/// What is known of cgroups.
pub trait StallWorld {
    /// The current or former owner of a cgroup.
    fn owner(&mut self, cgroup: CgroupId) -> Option<Owner>;
    /// Its path.
    fn path(&mut self, cgroup: CgroupId) -> Option<CgroupPath>;
    /// How long its tasks have been stalled so far.
    fn stalled_ns(&mut self, cgroup: CgroupId) -> ByKind;
}

/// An event to emit.
#[derive(Clone, Debug, PartialEq)]
pub enum PressureEvent {
    /// Stalls became long or frequent, or still are.
    Rising(Stalling),
    /// It is over.
    Cleared(StallsOver),
}

impl PressureEvent {
    /// The pod or node that the event is about.
    #[must_use]
    pub fn subject(&self) -> Subject {
        let place = match self {
            Self::Rising(rising) => &rising.place,
            Self::Cleared(cleared) => &cleared.place,
        };
        pod_name(place).map_or(Subject::Node, Subject::Pod)
    }

    /// The cgroup whose tasks are stalled; of several in a pod, the last one.
    #[must_use]
    pub fn cgroup(&self) -> CgroupId {
        match self {
            Self::Rising(rising) => CgroupId(rising.cgroup_id),
            Self::Cleared(cleared) => CgroupId(cleared.cgroup_id),
        }
    }

    /// Takes the names that the cgroup's pod and container have by now. A cgroup that is gone keeps those that it had.
    pub fn name_again(&mut self, world: &mut impl StallWorld) {
        let cgroup = self.cgroup();
        let Some(owner) = world.owner(cgroup) else { return };
        let named = place_of(Some(&owner), world.path(cgroup));
        match self {
            Self::Rising(rising) => rising.place = named,
            Self::Cleared(cleared) => cleared.place = named,
        }
    }

    /// The event's payload.
    #[must_use]
    pub fn into_payload(self) -> Payload {
        match self {
            Self::Rising(stalling) => Payload::PressureRising(PressureRising::Stalls(stalling)),
            Self::Cleared(over) => Payload::PressureCleared(PressureCleared::Stalls(over)),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Who {
    Pod(PodUid),
    Cgroup(CgroupId),
}

#[derive(Clone, Debug)]
struct Ongoing {
    since_ns: u64,
    latest_ns: u64,
    reminded_ns: u64,
    records: u64,
    longest_ns: u64,
    /// The cgroups of the records, and their stalls before.
    cgroups: BTreeMap<CgroupId, ByKind>,
    place: Place,
    cgroup: CgroupId,
}

/// All pods and cgroups under pressure.
#[derive(Clone, Debug, Default)]
pub struct Pressures {
    reported: HashMap<Who, Ongoing>,
    unreported: u64,
}

impl Pressures {
    /// Takes a record that came at `now_ns` of any monotonic clock.
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
        let place = place_of(owner.as_ref(), path);
        let mut is_new = false;
        let reported = self.reported.entry(who).or_insert_with(|| {
            is_new = true;
            Ongoing {
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
        Some(PressureEvent::Rising(Stalling {
            place,
            cgroup_id: stall.cgroup.0,
            kind: stall.kind.as_str().into(),
            stall_ms: ms(stall.stall_ns),
            window_stall_ms: ms(stall.window_ns),
            limit_owner: limit_owner.map(|path| path.to_string()),
            limit_source: limit_source.into(),
            pid: stall.pid,
            tid: stall.tid,
            comm: stall.comm.clone(),
            lasting_ms: ms(lasting_ns),
        }))
    }

    /// Ends those that have been quiet for long enough.
    pub fn quiet(&mut self, now_ns: u64, world: &mut impl StallWorld) -> Vec<PressureEvent> {
        let over =
            self.reported.extract_if(|_, reported| now_ns.saturating_sub(reported.latest_ns) >= QUIET_NS);
        over.map(|(_, reported)| PressureEvent::Cleared(cleared(reported, world))).collect()
    }

    /// The earliest time at which [`quiet`](Self::quiet) has something to end; `None` if nothing is reported.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        self.reported.values().map(|reported| reported.latest_ns.saturating_add(QUIET_NS)).min()
    }

    /// Records that were not reported, as too many pods and cgroups were under pressure.
    #[must_use]
    pub const fn unreported(&self) -> u64 {
        self.unreported
    }
}

/// The cgroup's stalls before the one in the record.
fn before(stall: &MuchStall, stalled_ns: ByKind) -> ByKind {
    let mut before = stalled_ns;
    for (before, kind) in before.iter_mut().zip(StallKind::ALL) {
        if kind == stall.kind {
            *before = before.saturating_sub(stall.window_ns.max(stall.stall_ns));
        }
    }
    before
}

fn limit(stall: &MuchStall) -> (Option<CgroupId>, &'static str) {
    match (stall.limit, stall.kind) {
        (Some(limit), _) => (Some(limit), "argument"),
        (None, StallKind::DirectReclaim | StallKind::Throttled) => (None, "machine"),
        (None, StallKind::MemcgReclaim | StallKind::MemoryHigh) => (Some(stall.cgroup), "taskCgroup"),
    }
}

fn cleared(reported: Ongoing, world: &mut impl StallWorld) -> StallsOver {
    let mut stalled_ns = ByKind::default();
    for (cgroup, before) in &reported.cgroups {
        for ((sum, now), before) in stalled_ns.iter_mut().zip(world.stalled_ns(*cgroup)).zip(before) {
            *sum += now.saturating_sub(*before);
        }
    }
    let kinds = StallKind::ALL.iter().zip(stalled_ns).filter(|(_, ns)| *ns > 0);
    StallsOver {
        place: reported.place,
        cgroup_id: reported.cgroup.0,
        lasted_ms: ms(reported.latest_ns.saturating_sub(reported.since_ns)),
        stalled_ms: kinds.map(|(kind, ns)| (kind.as_str().into(), ms(ns))).collect(),
        longest_stall_ms: ms(reported.longest_ns),
        records: reported.records,
    }
}

const fn ms(ns: u64) -> u64 {
    ns / 1_000_000
}

#[cfg(test)]
mod tests;
