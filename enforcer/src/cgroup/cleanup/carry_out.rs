//! Does what was decided, each step only if it is still about the same cgroup, process and value.

use std::{collections::BTreeSet, io, path::Path};

use rustix::io::Errno;

use super::{AGAIN, Temporarily, Trouble, Undo, plan::in_use};
use crate::{
    cgroup::{
        CgroupDir, Driver, Error, Held, PageSize, Permit, Removal,
        observe::usage_bytes,
        process::{Processes, is_gone},
        temporary::restore,
    },
    model::{CgroupId, CgroupPath, CgroupValue, Limit, SmallMap},
};

/// How often a removal goes on that takes down only so many cgroups at once.
const ATTEMPTS: usize = 20;

/// How a step ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Undone {
    /// It was undone.
    Done(Undo),
    /// Another has written the value meanwhile, which stays.
    Skipped(Undo),
    /// It could not be undone.
    Failed(Undo, Trouble),
}

/// How a step ended that met no trouble.
enum Outcome {
    Done,
    /// What it was about is gone, or was as it should be.
    Moot,
    /// Another has written the value meanwhile.
    Skipped,
}

impl Outcome {
    fn of(is_done: bool) -> Self {
        if is_done { Self::Done } else { Self::Moot }
    }
}

/// Carries out the steps in order. What is gone meanwhile is left out. A cgroup keeps its mark if something of it was not
/// undone, also because others have changed it meanwhile, so that the next cleanup finds it.
pub fn carry_out(
    root: &CgroupDir,
    proc: &Path,
    driver: &dyn Driver,
    steps: Vec<Undo>,
    page: PageSize,
    permit: &Permit,
) -> io::Result<Vec<Undone>> {
    let hands = Hands { root, processes: Processes::open(proc)?, driver, page, permit };
    let mut kept: BTreeSet<CgroupPath> = BTreeSet::new();
    let mut undone = Vec::new();
    for step in steps {
        let place = place(&step);
        if matches!(step, Undo::Forget { .. }) && kept.contains(&place) {
            continue;
        }
        match hands.undo(&step) {
            Ok(Outcome::Done) => undone.push(Undone::Done(step)),
            Ok(Outcome::Moot) => {}
            Ok(Outcome::Skipped) => {
                kept.insert(place);
                undone.push(Undone::Skipped(step));
            }
            Err(trouble) => {
                kept.insert(place);
                undone.push(Undone::Failed(step, trouble));
            }
        }
    }
    Ok(undone)
}

/// The cgroup whose mark stays if the step is not done.
fn place(step: &Undo) -> CgroupPath {
    match step {
        Undo::Temporary(Temporarily { path, .. })
        | Undo::Value { path, .. }
        | Undo::Remove { path, .. }
        | Undo::Forget { path, .. } => path.clone(),
        Undo::Score { path, .. } => path.clone().unwrap_or_else(CgroupPath::root),
    }
}

/// What came of writing a value.
enum Written {
    /// It is as it was before.
    Back,
    /// It is so already.
    AsBefore,
    /// Another has written it since the survey.
    ByAnother,
    /// Why it cannot be written now.
    InUse(String),
}

struct Hands<'a> {
    root: &'a CgroupDir,
    processes: Processes,
    driver: &'a dyn Driver,
    page: PageSize,
    permit: &'a Permit,
}

impl Hands<'_> {
    fn undo(&self, step: &Undo) -> Result<Outcome, Trouble> {
        let failed = |error: Error| Trouble::again(place(step).as_str(), &error);
        let unless_gone = |result: Result<bool, Error>| match result {
            Err(error) if error.is_gone() => Ok(Outcome::Moot),
            other => other.map(Outcome::of).map_err(failed),
        };
        match step {
            Undo::Temporary(Temporarily { path, id, value }) => unless_gone(
                self.open(path, *id).and_then(|dir| dir.map_or(Ok(false), |dir| restore(&dir, value))),
            ),
            Undo::Score { path: _, pid, start_ticks, old, new } => {
                self.score((*pid, *start_ticks), *old, *new).map(Outcome::of)
            }
            Undo::Value { path, id, old, new } => match self.value(path, *id, old, new) {
                Ok(Written::InUse(in_use)) => Err(Trouble {
                    path: path.to_string(),
                    error: in_use,
                    remedy: String::from("free memory there, and run enforcer cleanup again"),
                }),
                Ok(Written::ByAnother) => Ok(Outcome::Skipped),
                Ok(Written::Back) => Ok(Outcome::Done),
                Ok(Written::AsBefore) => Ok(Outcome::Moot),
                Err(error) => unless_gone(Err(error)),
            },
            Undo::Remove { path, id } => self.remove(path, *id).map(Outcome::of),
            Undo::Forget { path, id, stays_ours } => unless_gone(self.forget(path, *id, *stays_ours)),
        }
    }

    /// The cgroup, if it is still that one.
    fn open(&self, path: &CgroupPath, id: CgroupId) -> Result<Option<CgroupDir>, Error> {
        Ok(Some(self.root.open(path)?).filter(|dir| dir.id() == id))
    }

    fn score(&self, (pid, start_ticks): (u32, u64), old: i16, new: i16) -> Result<bool, Trouble> {
        let written = self.processes.get(pid).and_then(|process| {
            let is_same = process.start_ticks()? == start_ticks && process.score()? == old;
            if is_same {
                process.set_score(new)?;
            }
            Ok(is_same)
        });
        match written {
            Ok(is_done) => Ok(is_done),
            Err(errno) if is_gone(errno) => Ok(false),
            Err(errno) => {
                let remedy = match errno {
                    Errno::ACCESS | Errno::PERM => {
                        format!("echo {new} > /proc/{pid}/oom_score_adj, with CAP_SYS_RESOURCE")
                    }
                    _ => String::from(AGAIN),
                };
                let error = format!("cannot set its oom_score_adj to {new}: {}", io::Error::from(errno));
                Err(Trouble { path: format!("/proc/{pid}"), error, remedy })
            }
        }
    }

    fn value(
        &self,
        path: &CgroupPath,
        id: CgroupId,
        old: &Held,
        new: &CgroupValue,
    ) -> Result<Written, Error> {
        let file = new.file();
        let gone = || Error::Open { path: path.to_string(), source: io::ErrorKind::NotFound.into() };
        let dir = self.open(path, id)?.ok_or_else(gone)?;
        let present = Held::read(file, &dir.read(&file.name())?);
        if present != *old && !old.value().is_some_and(|old| present.is(&old, self.page)) {
            // systemd writes all files of a unit when it is given one value.
            let is_back = present.is(new, self.page);
            return Ok(if is_back { Written::AsBefore } else { Written::ByAnother });
        }
        if let CgroupValue::MemoryMax(Limit::Amount(limit_bytes)) = new
            && !present.value().is_none_or(|present| present.is_raised_by(new))
            && let Some(usage_bytes) = usage_bytes(&dir)?.filter(|usage_bytes| usage_bytes > limit_bytes)
        {
            return Ok(Written::InUse(in_use(usage_bytes, *limit_bytes)));
        }
        match self.driver.emit(&dir, std::slice::from_ref(new)) {
            // systemd has no such unit, and so nothing of it.
            Err(Error::Unit(error)) if error.is_gone() => {}
            result => result?,
        }
        self.driver.settle(&dir, new)?;
        self.driver.set(&dir, new)?;
        Ok(Written::Back)
    }

    fn remove(&self, path: &CgroupPath, id: CgroupId) -> Result<bool, Trouble> {
        let trouble = |error: &str, remedy: &str| {
            Err(Trouble { path: path.to_string(), error: error.to_owned(), remedy: remedy.to_owned() })
        };
        match self.open(path, id) {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(false),
            Err(error) if error.is_gone() => return Ok(false),
            Err(error) => return Err(Trouble::again(path.as_str(), &error)),
        }
        for _ in 0..ATTEMPTS {
            match self.driver.remove(self.root, path, self.permit) {
                Ok(Removal::Gone) => return Ok(true),
                Ok(Removal::Populated) => return trouble("it holds processes meanwhile", AGAIN),
                Ok(Removal::Partial) => {}
                Err(error) if error.is_gone() => return Ok(true),
                Err(error) => return Err(Trouble::again(path.as_str(), &error)),
            }
        }
        trouble("it is still there", AGAIN)
    }

    fn forget(&self, path: &CgroupPath, id: CgroupId, stays_ours: bool) -> Result<bool, Error> {
        let Some(dir) = self.open(path, id)? else { return Ok(false) };
        dir.forget_scores()?;
        if !stays_ours {
            return dir.unmark().map(|()| true);
        }
        if let Some(mut mark) = dir.mark()? {
            (mark.files, mark.outside) = (SmallMap::default(), BTreeSet::new());
            dir.set_mark(&mark)?;
        }
        Ok(true)
    }
}
