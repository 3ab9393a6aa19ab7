//! What the counters say about one incident: its share of the movement, and whether that agrees with the marks.
use std::collections::{BTreeMap, BTreeSet};

use super::{
    OomCounts, Reconciliation, World,
    ledger::{Ledger, Seen},
    open::{Expected, Marked, Open},
    scene::ancestors,
};
use crate::{model::CgroupId, sense::record::Limited};

/// What the counters say about one incident.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) moved: OomCounts,
    pub(super) before: OomCounts,
    pub(super) reconciliation: Reconciliation,
    /// The cgroups whose own limit was hit, by their counters.
    limits: Vec<CgroupId>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            moved: OomCounts::default(),
            before: OomCounts::default(),
            reconciliation: Reconciliation::Unreadable,
            limits: Vec::new(),
        }
    }
}

impl Tally {
    /// Compares the readings with the ledger, and claims the part that belongs to this incident.
    pub(super) fn take(open: &Open, ledger: &mut Ledger, world: &impl World) -> Self {
        let mut tally = Self::default();
        let unwatched = is_unwatched(open);
        // A removed cgroup may have been read before it went, or when a victim was marked, and another incident may have
        // read it since.
        let readings: BTreeMap<CgroupId, Option<Seen>> = open
            .readings
            .iter()
            .map(|(cgroup, own)| {
                let read = own.iter().copied().chain(ledger.latest(*cgroup));
                (*cgroup, read.chain(at_marks(open, *cgroup)).reduce(Seen::merge))
            })
            .collect();
        // Kills from before an account began are included in its initial counts.
        let expected = expected_since(open, &*ledger, world);
        let group = group(open, &readings, &expected, ledger, world);
        let mut claimed = 0_u64;
        let mut moved = BTreeMap::new();
        let exact = open.victims.iter().all(|victim| victim.mark.counted.is_some());
        for (cgroup, seen) in &readings {
            let own = expected.get(cgroup).copied().unwrap_or_default();
            let Some(seen) = seen else {
                if group.is_some() {
                    ledger.leave_twice(*cgroup, own);
                }
                continue;
            };
            let Some(claim) = ledger.claim(*cgroup, own, group, *seen) else { continue };
            // Others that closed before it may have been read at a later mark.
            ledger.note(*cgroup, *seen);
            if group.is_some() && has_no_own_reading(open, *cgroup) {
                ledger.leave_twice(*cgroup, own);
            }
            claimed = claimed.saturating_add(claim.moved.oom_kill.min(own.kills));
            moved.insert(*cgroup, claim.moved.oom_kill);
            if claim.moved.oom > 0 {
                tally.limits.push(*cgroup);
            }
            tally.moved = tally.moved.plus(claim.moved);
            tally.before = tally.before.plus(claim.before);
        }
        // An older reading counts only if it includes the kill.
        let read = |cgroup: CgroupId| {
            open.readings.get(&cgroup).is_some_and(Option::is_some)
                || expected.get(&cgroup).is_some_and(|own| moved.get(&cgroup) >= Some(&own.kills))
        };
        for (cgroup, own) in &expected {
            // The kernel reported that it counts there. An older reading, or none, may lack the kill.
            let fresh = open.readings.get(cgroup).is_some_and(Option::is_some);
            if !unwatched && (exact || !fresh) {
                let rest = own.kills.saturating_sub(moved.get(cgroup).copied().unwrap_or(0));
                ledger.credit(*cgroup, rest);
                claimed = claimed.saturating_add(rest);
            }
        }
        // A victim without a cgroup, or one whose cgroup did not count it, was counted in some other cgroup.
        let kills = u64::try_from(open.victims.len()).unwrap_or(u64::MAX);
        if !unwatched {
            for victim in open
                .victims
                .iter()
                .filter(|victim| victim.mark.counted.is_none())
                .skip(usize::try_from(claimed).unwrap_or(usize::MAX))
            {
                ledger.unplaced(victim.mark.time_ns);
            }
        }
        let missing = |known: &dyn Fn(CgroupId, &Marked) -> bool| {
            open.victims
                .iter()
                .any(|victim| !counted(victim, &*ledger, world).is_some_and(|cgroup| known(cgroup, victim)))
        };
        tally.reconciliation = if missing(&|cgroup, _| read(cgroup)) {
            Reconciliation::Unreadable
        } else if missing(&|cgroup, victim| ledger.covers(cgroup, victim.mark.time_ns)) {
            Reconciliation::NoBaseline
        } else if tally.moved.oom_kill >= kills {
            Reconciliation::Matched
        } else {
            Reconciliation::Differs
        };
        tally
    }

    pub(super) const fn comparable(&self) -> bool {
        matches!(self.reconciliation, Reconciliation::Matched | Reconciliation::Differs)
    }
}

/// What the kernel had counted in a cgroup when it marked the victims that it counts there.
fn at_marks(open: &Open, cgroup: CgroupId) -> impl Iterator<Item = Seen> {
    let marks =
        open.victims.iter().map(|victim| &victim.mark).filter(move |mark| mark.counted == Some(cgroup));
    marks.filter_map(|mark| mark.counts.map(|counts| Seen { counts, at_ns: mark.time_ns }))
}

/// Whether the incident has no reading of a cgroup by file, only what marks show. The kernel counts a group kill after
/// the first mark.
fn has_no_own_reading(open: &Open, cgroup: CgroupId) -> bool {
    open.readings.get(&cgroup).is_none_or(Option::is_none)
}

/// The cgroup that was killed as a whole for an incident: the highest between the first victim's and the limit owner
/// with a group kill that no incident has claimed (`mem_cgroup_get_oom_group` in `mm/memcontrol.c`).
///
/// Each group kill explains one kill that is counted twice, so it is claimed once: by an incident with such a kill. If
/// the kernel did not count twice (the first victim was gone already), it is claimed by the only incident that it can
/// belong to.
fn group(
    open: &Open,
    readings: &BTreeMap<CgroupId, Option<Seen>>,
    expected: &BTreeMap<CgroupId, Expected>,
    ledger: &mut Ledger,
    world: &impl World,
) -> Option<CgroupId> {
    if open.is_rest {
        return None;
    }
    let first = open.victims.first().and_then(|victim| counted(victim, ledger, world))?;
    let seen = |cgroup: CgroupId| readings.get(&cgroup).copied().flatten();
    let group = std::iter::once(first)
        .chain(ancestors(first, world))
        .filter(|cgroup| seen(*cgroup).is_some_and(|seen| ledger.shows_group(*cgroup, seen)))
        .last()?;
    let own = expected.get(&first).copied().unwrap_or_default();
    let is_twice = has_no_own_reading(open, first)
        || seen(first).is_none_or(|seen| ledger.may_count_twice(first, own, seen));
    (is_twice || !ledger.is_concerned(group)).then_some(group)
}

/// If kills are not watched, the counters decide, provided that they could be read and compared.
pub(super) fn is_unwatched(open: &Open) -> bool {
    open.victims.iter().all(|victim| victim.mark.killed.is_none())
}

/// The cgroup that counts a victim: as the kernel reported, else the nearest at or above its own that has an account.
fn counted(victim: &Marked, ledger: &Ledger, world: &impl World) -> Option<CgroupId> {
    if let Some(counted) = victim.mark.counted {
        return Some(counted);
    }
    let own = victim.cgroup()?;
    std::iter::once(own).chain(ancestors(own, world)).find(|cgroup| ledger.knows(*cgroup)).or(Some(own))
}

/// What each cgroup should have counted for an incident.
pub(super) fn expected(open: &Open, ledger: &Ledger, world: &impl World) -> BTreeMap<CgroupId, Expected> {
    sum(open, ledger, world, |_, _| true)
}

/// As [`expected`], without what the account's initial counts include.
fn expected_since(open: &Open, ledger: &Ledger, world: &impl World) -> BTreeMap<CgroupId, Expected> {
    sum(open, ledger, world, |cgroup, victim| ledger.covers(cgroup, victim.mark.time_ns))
}

fn sum(
    open: &Open,
    ledger: &Ledger,
    world: &impl World,
    counts: impl Fn(CgroupId, &Marked) -> bool,
) -> BTreeMap<CgroupId, Expected> {
    let mut expected: BTreeMap<CgroupId, Expected> = BTreeMap::new();
    for (at, victim) in open.victims.iter().enumerate() {
        if let Some(cgroup) = counted(victim, ledger, world).filter(|cgroup| counts(*cgroup, victim)) {
            let sum = expected.entry(cgroup).or_default();
            sum.kills += 1;
            if at == 0 && !open.is_rest {
                sum.twice = 1;
            }
        }
    }
    expected
}

/// The cgroups whose counters an incident involves: those that count the victims, and those above them up to the
/// limit owner, as a group kill is counted where `memory.oom.group` is set.
pub(super) fn to_read(open: &Open, world: &impl World) -> Vec<CgroupId> {
    let limit = match open.limit {
        Some(Limited::Cgroup(limit)) => Some(limit),
        Some(Limited::Machine) | None => None,
    };
    let mut cgroups: BTreeSet<CgroupId> = limit.into_iter().collect();
    for victim in open.victims.iter().filter_map(Marked::counted) {
        // The cgroups above a known one are included already.
        if Some(victim) != limit && cgroups.insert(victim) {
            cgroups.extend(ancestors(victim, world).take_while(|above| Some(*above) != limit));
        }
    }
    cgroups.extend(open.expected.keys());
    cgroups.into_iter().collect()
}

/// The limit owner by the counter that moved; the machine if all could be compared and none moved.
pub(super) fn limit_by_counters(open: &Open, tally: &Tally, world: &impl World) -> Option<Limited> {
    let victim = open.victims.first()?.counted()?;
    let moved = |cgroup: &CgroupId| tally.limits.contains(cgroup);
    if let Some(limit) = std::iter::once(victim).chain(ancestors(victim, world)).find(moved) {
        return Some(Limited::Cgroup(limit));
    }
    tally.comparable().then_some(Limited::Machine)
}
