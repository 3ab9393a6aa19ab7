//! Compares plan and hierarchy; pure, and ordered so that no child exceeds its parent.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Controller, Held, Missing, PageSize, Reason, Step, Withheld, Write,
    ledger::Ledger,
    observe::{Observed, Snapshot, inner_paths},
};
use crate::{
    model::{CgroupFile, CgroupPath, CgroupValue, Limit},
    policy::CgroupPlan,
};

/// The steps that make the hierarchy as planned, and what cannot be done.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Diff {
    /// The steps in order.
    pub steps: Vec<Step>,
    /// Writes that wait, because more memory is in use than the new limit allows.
    pub withheld: Vec<Withheld>,
    /// Planned files that do not exist.
    pub missing: Vec<Missing>,
}

/// Compares the planned cgroups with the existing ones.
///
/// First cgroups are made and controllers enabled, top down. Then every value that gives more is written, top down, and
/// last every value that gives less, bottom up: no child is ever granted more than its parent has. Within a cgroup
/// raises go `memory.max`, `high`, `low`, `min`, and reductions the other way round, so that protection never exceeds
/// the limit. Before all of these a CPU is taken from those that share it, then given to the container that gets it for
/// itself, and only then come those that get CPUs back.
///
/// The cgroups in `outside` are not ours: they are not made, and no controllers are enabled above them.
#[must_use]
pub fn diff(
    plans: &[&CgroupPlan],
    outside: &BTreeSet<&CgroupPath>,
    observed: &Snapshot,
    ledger: &Ledger,
    page: PageSize,
) -> Diff {
    let mut plans: Vec<&CgroupPlan> = plans.to_vec();
    plans.sort_by_key(|plan| depth(&plan.path));
    let mut diff = Diff::default();
    let ours: Vec<&CgroupPlan> = plans.iter().copied().filter(|plan| !outside.contains(&plan.path)).collect();
    let handed_on = structure(&ours, observed, &mut diff.steps);
    let (mut raises, mut lowers, mut cpus) = (Vec::new(), Vec::new(), Vec::new());
    for plan in &plans {
        let known = observed.cgroups.get(&plan.path);
        let controllers = plan.path.parent().and_then(|parent| handed_on.get(&parent));
        let is_outside = outside.contains(&plan.path);
        for (value, released) in wanted(plan, known, ledger) {
            let file = value.file();
            let is_there = is_outside && known.is_some_and(|known| known.files.contains_key(&file));
            let controller = Controller::of_file(file);
            if !is_there && controllers.is_none_or(|handed| !handed.contains(&controller)) {
                let controller = Some(controller);
                diff.missing.push(Missing { path: plan.path.clone(), file, controller });
                continue;
            }
            let held = match known {
                Some(known) => match known.files.get(&file) {
                    Some(held) => Some(held),
                    // Its controller is about to be enabled, and brings the file.
                    None if newly_enabled(controller, plan, observed) => None,
                    None => {
                        diff.missing.push(Missing { path: plan.path.clone(), file, controller: None });
                        continue;
                    }
                },
                None => None,
            };
            let new = page.held(&value);
            // Text that is no value differs from every value, and any value gives more.
            let old = held.map_or_else(|| Some(file.default_value()), Held::value).map(|old| page.held(&old));
            if old.as_ref() == Some(&new) {
                continue;
            }
            let cpu_stage = cpu_stage(old.as_ref(), &new, known.is_some());
            let is_raise = old.is_none_or(|old| old.is_raised_by(&new));
            let write = Write {
                path: plan.path.clone(),
                reason: reason(known, &new, released, ledger, page),
                old: held.cloned(),
                value,
            };
            if let Some(usage_bytes) = usage_above(&new, is_raise, known) {
                diff.withheld.push(Withheld { write, usage_bytes });
            } else if let Some(stage) = cpu_stage {
                cpus.push((stage, write));
            } else if is_raise {
                raises.push(write);
            } else {
                lowers.push(write);
            }
        }
    }
    raises.sort_by_key(|write| (depth(&write.path), write.path.clone(), rank(write.file())));
    lowers.sort_by_key(|write| (depth(&write.path), write.path.clone(), rank(write.file())));
    lowers.reverse();
    cpus.sort_by_key(|(stage, write)| (*stage, depth(&write.path), write.path.clone()));
    let cpus = cpus.into_iter().map(|(_, write)| write);
    diff.steps.extend(cpus.chain(raises).chain(lowers).map(Step::Write));
    diff
}

/// Adds the steps that make cgroups and enable controllers; returns which controllers each cgroup then hands on.
fn structure(
    plans: &[&CgroupPlan],
    observed: &Snapshot,
    steps: &mut Vec<Step>,
) -> BTreeMap<CgroupPath, BTreeSet<Controller>> {
    let inner = inner_paths(plans);
    let planned: BTreeSet<&CgroupPath> = plans.iter().map(|plan| &plan.path).collect();
    let mut all: Vec<&CgroupPath> = planned.iter().copied().chain(&inner).collect();
    all.sort_by_key(|path| (depth(path), path.as_str()));
    all.dedup();
    let mut handed_on: BTreeMap<CgroupPath, BTreeSet<Controller>> = BTreeMap::new();
    for path in all {
        let known = observed.cgroups.get(path);
        if known.is_none() && planned.contains(path) {
            steps.push(Step::Create(path.clone()));
        }
        if !inner.contains(path) {
            continue;
        }
        let from_parent =
            path.parent().and_then(|parent| handed_on.get(&parent)).cloned().unwrap_or_default();
        let available = match known {
            Some(known) => known.available.union(&from_parent).copied().collect(),
            None => from_parent,
        };
        let enabled = known.map(|known| known.enabled.clone()).unwrap_or_default();
        let controllers: Vec<Controller> = available.difference(&enabled).copied().collect();
        if !controllers.is_empty() {
            steps.push(Step::Enable { path: path.clone(), controllers });
        }
        handed_on.insert(path.clone(), available.union(&enabled).copied().collect());
    }
    handed_on
}

/// The values that the files are to hold: the planned ones, and former ones that are restored (`true`).
fn wanted(
    plan: &CgroupPlan,
    known: Option<&Observed>,
    ledger: &Ledger,
) -> impl Iterator<Item = (CgroupValue, bool)> {
    let planned = plan.values.iter().map(|value| (value, false));
    let claimed = known.into_iter().flat_map(|known| ledger.files(known.id).map(move |file| (known, file)));
    let released = claimed.filter(|(_, file)| plan.values.get(*file).is_none());
    planned.chain(released.map(|(known, file)| (ledger.original(known.id, file), true)))
}

fn newly_enabled(controller: Controller, plan: &CgroupPlan, observed: &Snapshot) -> bool {
    let parent = plan.path.parent().and_then(|parent| observed.cgroups.get(&parent));
    parent.is_some_and(|parent| !parent.enabled.contains(&controller))
}

fn reason(
    known: Option<&Observed>,
    new: &CgroupValue,
    released: bool,
    ledger: &Ledger,
    page: PageSize,
) -> Reason {
    let last = known.and_then(|known| ledger.value(known.id, new.file()));
    match last.map(|last| page.held(&last)) {
        _ if released => Reason::Released,
        None => Reason::Initial,
        Some(last) if last == *new => Reason::Drifted,
        Some(_) => Reason::PlanChanged,
    }
}

/// The memory in use, if writing would put `memory.max` below it.
fn usage_above(new: &CgroupValue, is_raise: bool, known: Option<&Observed>) -> Option<u64> {
    let usage_bytes = known?.usage_bytes?;
    match new {
        CgroupValue::MemoryMax(Limit::Amount(limit_bytes)) if !is_raise => {
            (usage_bytes > *limit_bytes).then_some(usage_bytes)
        }
        _ => None,
    }
}

/// When CPUs are written: who only loses some, who gets some instead of others, and who only gets some. `None` for any
/// other file. A cgroup that is yet to be made holds no process that could lose any.
fn cpu_stage(old: Option<&CgroupValue>, new: &CgroupValue, exists: bool) -> Option<u8> {
    let CgroupValue::CpusetCpus(new) = new else { return None };
    let old = match old {
        Some(CgroupValue::CpusetCpus(old)) => Some(old),
        Some(_) | None => None,
    };
    Some(match old {
        // None are those of the cgroup above: all.
        Some(old) if exists && (old.is_empty() || !new.is_empty() && new.is_subset(old)) => 0,
        Some(old) if exists && (new.is_empty() || old.is_subset(new)) => 2,
        Some(_) | None => 1,
    })
}

pub(super) fn depth(path: &CgroupPath) -> usize {
    path.names().count()
}

/// The order of raises within one cgroup.
pub(super) fn rank(file: CgroupFile) -> (u8, CgroupFile) {
    let rank = match file {
        CgroupFile::MemoryMax => 0,
        CgroupFile::MemoryHigh => 1,
        CgroupFile::MemoryLow => 2,
        CgroupFile::MemoryMin => 3,
        _ => 4,
    };
    (rank, file)
}

#[cfg(test)]
mod tests;
