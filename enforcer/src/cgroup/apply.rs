//! The last of observe, diff and apply: carries out steps, and reports how each ended.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    CgroupDir, Controller, Driver, Error, Held, Making, Mark, MoveError, PageSize, Permit, Step, Withheld,
    Write, moving::move_processes, observe::usage_bytes,
};
use crate::model::{CgroupFile, CgroupId, CgroupPath, CgroupValue, Limit};

/// The result of a step.
#[derive(Debug)]
pub struct Outcome {
    /// The step.
    pub step: Step,
    /// Its result.
    pub fate: Fate,
}

/// How a step can end.
#[derive(Debug)]
#[non_exhaustive]
pub enum Fate {
    /// It was carried out on the cgroup with this id.
    Done(CgroupId),
    /// This many processes were moved, and none is left.
    Moved(usize),
    /// It was withheld: more memory is in use now than the new limit allows.
    Withheld {
        /// `memory.current` right before the write.
        usage_bytes: u64,
    },
    /// It failed.
    Failed(ApplyError),
    /// It was not tried, because the cgroup or one above it could not be made.
    Skipped {
        /// The cgroup that could not be made.
        because_of: CgroupPath,
    },
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// A cgroup operation failed.
    #[error(transparent)]
    Cgroup(#[from] Error),
    /// A cgroup that holds processes itself cannot hand controllers on (the kernel's no-internal-process rule).
    #[error(
        "cannot enable controllers below {path}: it holds {processes} processes itself; move them into a cgroup of their own below it"
    )]
    InternalProcesses {
        /// The cgroup.
        path: CgroupPath,
        /// How many processes it holds.
        processes: usize,
    },
    /// Some processes were not moved.
    #[error(transparent)]
    Move(#[from] MoveError),
    /// Controllers were refused; the others were enabled.
    #[error("cannot enable {} below {path}", names(.controllers))]
    Controllers {
        /// The cgroup.
        path: CgroupPath,
        /// The refused ones.
        controllers: Vec<Controller>,
        /// The last refusal.
        #[source]
        source: Box<Error>,
    },
}

impl ApplyError {
    /// How many processes were moved despite the failure, if any.
    pub(super) fn moved(&self) -> Option<usize> {
        match self {
            Self::Move(MoveError::Left { moved, .. }) => Some(*moved).filter(|moved| *moved > 0),
            Self::Move(_) | Self::Cgroup(_) | Self::InternalProcesses { .. } | Self::Controllers { .. } => {
                None
            }
        }
    }
}

/// Carries out the steps in order. A failed step stops only those that depend on it.
///
/// A cgroup gets its mark from `marks` right after it is made and before its first file is written, so that the mark
/// covers all that is written. Until then `making` records the owner.
pub fn apply(
    root: &CgroupDir,
    driver: &dyn Driver,
    steps: Vec<Step>,
    marks: &BTreeMap<CgroupPath, Mark>,
    making: &mut Making,
    page: PageSize,
    _permit: &Permit,
) -> (Vec<Outcome>, Vec<Error>) {
    let mut marked: BTreeSet<CgroupPath> = BTreeSet::new();
    let mut unmarked = Vec::new();
    let mut unmade: BTreeSet<CgroupPath> = BTreeSet::new();
    let mut fates = Vec::with_capacity(steps.len());
    let mut reporting = Progress::default();
    for (index, step) in steps.iter().enumerate() {
        let fate = if let Some(because_of) = blocked_by(&unmade, step.path()) {
            Fate::Skipped { because_of }
        } else {
            let is_create = matches!(step, Step::Create(_));
            let mut mark = || {
                let Some(mark) = marks.get(step.path()).filter(|_| marked.insert(step.path().clone())) else {
                    return;
                };
                match root.open(step.path()).and_then(|dir| dir.set_mark(mark)) {
                    Ok(()) => {}
                    Err(error) if error.is_gone() => {}
                    Err(error) => unmarked.push(error),
                }
            };
            let slot = if is_create {
                marks.get(step.path()).and_then(|mark| making.begin(step.path(), mark))
            } else {
                mark();
                None
            };
            let fate =
                apply_one(root, driver, (&steps, index), &mut reporting, page).unwrap_or_else(Fate::Failed);
            if is_create && matches!(fate, Fate::Done(_)) {
                mark();
            }
            making.end(slot);
            fate
        };
        if let (Step::Create(path), Fate::Failed(_)) = (&step, &fate) {
            unmade.insert(path.clone());
        }
        fates.push(fate);
    }
    let outcomes = steps.into_iter().zip(fates).map(|(step, fate)| Outcome { step, fate });
    (outcomes.collect(), unmarked)
}

/// Up to which step the driver knows the values that are to be written.
#[derive(Debug, Default)]
struct Progress(usize);

impl Progress {
    /// Announces a write to the driver, with those to the same cgroup that directly follow it; `memory.max` alone and
    /// only when it is due, as it may be withheld.
    fn emit(
        &mut self,
        driver: &dyn Driver,
        dir: &CgroupDir,
        (steps, index): (&[Step], usize),
    ) -> Result<(), Error> {
        let run = steps.get(index..).unwrap_or_default().iter().map_while(|step| match step {
            Step::Write(write) if write.path == *dir.path() => Some(write),
            Step::Create(_) | Step::Enable { .. } | Step::Write(_) | Step::Move { .. } => None,
        });
        let mut run: Vec<&Write> = run.collect();
        if run.first().is_some_and(|write| write.file() == CgroupFile::MemoryMax) {
            run.truncate(1);
        } else if index < self.0 {
            return Ok(());
        } else {
            self.0 = index + run.len();
            run.retain(|write| write.file() != CgroupFile::MemoryMax);
        }
        let reported =
            driver.emit(dir, &run.into_iter().map(|write| write.value.clone()).collect::<Vec<_>>());
        if reported.is_err() {
            // The next write tries again.
            self.0 = index + 1;
        }
        reported
    }
}

impl Outcome {
    /// The withheld write, if it is one.
    #[must_use]
    pub fn withheld(&self) -> Option<Withheld> {
        match (&self.step, &self.fate) {
            (Step::Write(write), Fate::Withheld { usage_bytes }) => {
                Some(Withheld { write: write.clone(), usage_bytes: *usage_bytes })
            }
            _ => None,
        }
    }
}

fn apply_one(
    root: &CgroupDir,
    driver: &dyn Driver,
    (steps, index): (&[Step], usize),
    reporting: &mut Progress,
    page: PageSize,
) -> Result<Fate, ApplyError> {
    let Some(step) = steps.get(index) else { return Ok(Fate::Done(root.id())) };
    match step {
        Step::Create(path) => Ok(Fate::Done(driver.create(root, path)?)),
        Step::Enable { path, controllers } => {
            let dir = root.open(path)?;
            enable(&dir, controllers)?;
            Ok(Fate::Done(dir.id()))
        }
        Step::Write(write) => {
            let dir = root.open(&write.path)?;
            if let Some(usage_bytes) = usage_above(&dir, write, page)? {
                return Ok(Fate::Withheld { usage_bytes });
            }
            reporting.emit(driver, &dir, (steps, index))?;
            driver.settle(&dir, &write.value)?;
            driver.set(&dir, &write.value)?;
            Ok(Fate::Done(dir.id()))
        }
        Step::Move { from, to } => Ok(Fate::Moved(move_processes(root, from, to)?)),
    }
}

/// Usage may have grown since it was observed, so it is read again right before `memory.max` is written.
fn usage_above(dir: &CgroupDir, write: &Write, page: PageSize) -> Result<Option<u64>, Error> {
    let new = page.held(&write.value);
    let CgroupValue::MemoryMax(Limit::Amount(limit_bytes)) = new else { return Ok(None) };
    let held = Held::read(new.file(), &dir.read(&new.file().name())?).value();
    if held.is_none_or(|held| page.held(&held).is_raised_by(&new)) {
        return Ok(None);
    }
    Ok(usage_bytes(dir)?.filter(|usage_bytes| *usage_bytes > limit_bytes))
}

/// Enables controllers at once, or one by one if the kernel refuses the set.
fn enable(dir: &CgroupDir, controllers: &[Controller]) -> Result<(), ApplyError> {
    let Err(error) = enable_at_once(dir, controllers) else {
        return Ok(());
    };
    if error.is_busy() {
        let processes = dir.processes()?.len();
        if processes > 0 && !dir.path().is_root() {
            return Err(ApplyError::InternalProcesses { path: dir.path().clone(), processes });
        }
        // Never one by one: that would turn a cgroup that holds processes into a threaded one.
        return Err(error.into());
    }
    let mut refused = Vec::new();
    let mut last = error;
    for controller in controllers {
        if let Err(error) = enable_at_once(dir, &[*controller]) {
            refused.push(*controller);
            last = error;
        }
    }
    if refused.is_empty() {
        return Ok(());
    }
    Err(ApplyError::Controllers { path: dir.path().clone(), controllers: refused, source: Box::new(last) })
}

fn enable_at_once(dir: &CgroupDir, controllers: &[Controller]) -> Result<(), Error> {
    let value: Vec<String> = controllers.iter().map(|controller| format!("+{controller}")).collect();
    dir.write("cgroup.subtree_control", &value.join(" "))
}

fn blocked_by(unmade: &BTreeSet<CgroupPath>, path: &CgroupPath) -> Option<CgroupPath> {
    if unmade.is_empty() {
        return None;
    }
    let mut next = Some(path.clone());
    while let Some(path) = next {
        if unmade.contains(&path) {
            return Some(path);
        }
        next = path.parent();
    }
    None
}

fn names(controllers: &[Controller]) -> String {
    controllers.iter().map(|controller| controller.name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
