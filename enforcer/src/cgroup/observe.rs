//! The first of observe, diff and apply: reads what the planned cgroups hold now.

use std::collections::{BTreeMap, BTreeSet};

use super::{CgroupDir, Controller, Error, Held, Mark, PageSize, ledger::Ledger};
use crate::{
    model::{CgroupFile, CgroupId, CgroupPath, CgroupValue, Limit, SmallMap},
    policy::CgroupPlan,
};

/// The state of the planned cgroups and their ancestors.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Snapshot {
    /// The cgroups that exist.
    pub cgroups: BTreeMap<CgroupPath, Observed>,
}

/// The state of one cgroup.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Observed {
    /// Its id.
    pub id: CgroupId,
    /// The controllers that it may hand on to its children.
    pub available: BTreeSet<Controller>,
    /// The controllers that it does hand on.
    pub enabled: BTreeSet<Controller>,
    /// The files that the plan names or that were written earlier; missing ones are absent.
    pub files: SmallMap<CgroupFile, Held>,
    /// Its mark, read only if the ledger does not know the cgroup yet.
    pub mark: Option<Box<Mark>>,
    /// `memory.current`, read only if `memory.max` would have to go down.
    pub usage_bytes: Option<u64>,
}

/// Reads the state of the planned cgroups and of everything above them.
///
/// A cgroup that does not exist is absent from the snapshot. So is one that cannot be read for another reason, which
/// the errors name.
#[must_use]
pub fn observe(
    root: &CgroupDir,
    plans: &[&CgroupPlan],
    ledger: &Ledger,
    page: PageSize,
) -> (Snapshot, Vec<Error>) {
    let planned: BTreeMap<&CgroupPath, &CgroupPlan> = plans.iter().map(|plan| (&plan.path, *plan)).collect();
    let inner = inner_paths(plans);
    let mut snapshot = Snapshot::default();
    let mut errors = Vec::new();
    let all: BTreeSet<&CgroupPath> = planned.keys().copied().chain(&inner).collect();
    for path in all {
        let plan = planned.get(path).copied();
        match observe_one(root, path, plan, inner.contains(path), ledger, page) {
            Ok(observed) => {
                snapshot.cgroups.insert(path.clone(), observed);
            }
            Err(error) if error.is_gone() => {}
            Err(error) => errors.push(error),
        }
    }
    (snapshot, errors)
}

/// The cgroups that hand controllers on: everything above a planned one.
pub(super) fn inner_paths(plans: &[&CgroupPlan]) -> BTreeSet<CgroupPath> {
    let mut inner = BTreeSet::new();
    for plan in plans {
        let mut above = plan.path.parent();
        while let Some(path) = above {
            above = path.parent();
            if !inner.insert(path) {
                break;
            }
        }
    }
    inner
}

fn observe_one(
    root: &CgroupDir,
    path: &CgroupPath,
    plan: Option<&CgroupPlan>,
    is_inner: bool,
    ledger: &Ledger,
    page: PageSize,
) -> Result<Observed, Error> {
    let dir = root.open(path)?;
    let controllers = |file: &str| -> Result<BTreeSet<Controller>, Error> {
        if is_inner { Ok(Controller::parse_list(&dir.read(file)?)) } else { Ok(BTreeSet::new()) }
    };
    let mut observed = Observed {
        id: dir.id(),
        available: controllers("cgroup.controllers")?,
        enabled: controllers("cgroup.subtree_control")?,
        files: SmallMap::new(),
        mark: None,
        usage_bytes: None,
    };
    let Some(plan) = plan else {
        return Ok(observed);
    };
    if !ledger.knows(dir.id()) {
        observed.mark = dir.mark()?.map(Box::new);
    }
    let marked = observed.mark.iter().flat_map(|mark| mark.files.keys());
    let planned = plan.values.iter().map(|value| value.file());
    let files: BTreeSet<CgroupFile> = planned.chain(ledger.files(dir.id())).chain(marked.copied()).collect();
    for file in files {
        match dir.read(&file.name()) {
            Ok(content) => {
                observed.files.insert(file, Held::read(file, &content));
            }
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    if max_goes_down(plan, &observed, page) {
        observed.usage_bytes = usage_bytes(&dir)?;
    }
    Ok(observed)
}

/// Whether the plan lowers `memory.max`.
fn max_goes_down(plan: &CgroupPlan, observed: &Observed, page: PageSize) -> bool {
    let held = observed.files.get(&CgroupFile::MemoryMax).and_then(Held::value);
    match (plan.values.memory_max.map(CgroupValue::MemoryMax), held) {
        (Some(new), Some(old)) => {
            let (new, old) = (page.held(&new), page.held(&old));
            new != old && !old.is_raised_by(&new)
        }
        (None, _) | (_, None) => false,
    }
}

/// The memory charged to a cgroup; `None` if the memory controller is not enabled.
pub(super) fn usage_bytes(dir: &CgroupDir) -> Result<Option<u64>, Error> {
    match dir.read("memory.current") {
        Ok(content) => Ok(Limit::parse(&content).and_then(Limit::amount)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}
