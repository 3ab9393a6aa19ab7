//! Finds everything on the hierarchy that carries a mark or a record of ours, and what it holds now.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
};

use super::Trouble;
use crate::{
    cgroup::{
        CgroupDir, Error, Held, Mark, PageSize, ScoreRecord,
        observe::usage_bytes,
        process::{Processes, is_gone},
        score::lists,
        score_record::ComponentRecord,
    },
    model::{CgroupFile, CgroupId, CgroupPath, TemporaryValue},
};

/// A cgroup with a mark or a record of ours.
#[derive(Clone, Debug)]
pub struct Marked {
    /// Its path.
    pub path: CgroupPath,
    /// Its id: another cgroup at this path is not touched.
    pub id: CgroupId,
    /// Its mark; `None` if it has none that this version reads.
    pub mark: Option<Mark>,
    /// Whether a newer version has marked it.
    pub is_newer: bool,
    /// Whether it was made for a program before a kill, which has no mark.
    pub is_hooks: bool,
    /// What the scores of its processes were.
    pub score: Option<ScoreRecord>,
    /// What the files of its mark hold; missing ones are absent.
    pub files: BTreeMap<CgroupFile, Held>,
    /// `memory.current`, if it has it.
    pub usage_bytes: Option<u64>,
    /// Whether a process is in it or below it.
    pub is_populated: bool,
    /// Its processes and those below, if it is a container's.
    pub processes: Vec<Scored>,
}

/// A process and its score.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Scored {
    /// Its id in our own PID namespace.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// Its `oom_score_adj`.
    pub score: i16,
}

/// A file that holds a temporary value, as the intent page says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Temporarily {
    /// The cgroup.
    pub path: CgroupPath,
    /// Its id.
    pub id: CgroupId,
    /// The file's two values.
    pub value: TemporaryValue,
}

/// Everything that was found.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// The cgroups, by path.
    pub marked: Vec<Marked>,
    /// The root's id, if scores of components are recorded there.
    pub root: Option<CgroupId>,
    /// The processes of components that still live, with what is recorded of them.
    pub components: Vec<(ComponentRecord, Scored)>,
    /// The temporary values that are still there.
    pub temporary: Vec<Temporarily>,
    /// What could not be looked at.
    pub troubles: Vec<Trouble>,
}

/// Looks at the whole hierarchy below `root`.
///
/// `temporary` are the values that may be there for a while, and `unmarked` the marks of cgroups that were made a moment before
/// a kill; both are of the intent page. `is_hooks` says of a cgroup's name whether it was made for a program before a kill.
pub fn survey(
    root: &CgroupDir,
    proc: &Path,
    temporary: &[Temporarily],
    unmarked: &BTreeMap<CgroupPath, Mark>,
    is_hooks: &dyn Fn(&str) -> bool,
) -> io::Result<Survey> {
    let mut surveyor = Surveyor { root, processes: Processes::open(proc)?, found: Survey::default() };
    let mut waiting = vec![CgroupPath::root()];
    while let Some(path) = waiting.pop() {
        match surveyor.look_at(&path, unmarked.get(&path), is_hooks) {
            Ok(children) => waiting.extend(children),
            // What was marked has a path, and so has all that is above it.
            Err(error) if error.is_gone() || error.is_too_deep() => {}
            Err(error) => surveyor.found.troubles.push(Trouble::again(path.as_str(), &error)),
        }
    }
    surveyor.look_at_components();
    surveyor.look_at_temporary(temporary);
    let mut found = surveyor.found;
    found.marked.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(found)
}

struct Surveyor<'root> {
    root: &'root CgroupDir,
    processes: Processes,
    found: Survey,
}

impl Surveyor<'_> {
    /// Notes the cgroup if it carries anything of ours. Returns those directly below it.
    fn look_at(
        &mut self,
        path: &CgroupPath,
        unmarked: Option<&Mark>,
        is_hooks: &dyn Fn(&str) -> bool,
    ) -> Result<Vec<CgroupPath>, Error> {
        let dir = self.root.open(path)?;
        let names = dir.children()?;
        // All that is marked has text for a name, as has all that is above it.
        let children = names.iter().filter_map(|name| path.child(name.to_str()?).ok()).collect();
        let (mark, is_newer) = match dir.mark()? {
            Some(mark) => (Some(mark), false),
            None if dir.is_marked()? => (None, true),
            None => (unmarked.cloned(), false),
        };
        let score = dir.score_record()?;
        let is_hooks = path.names().last().is_some_and(is_hooks);
        if mark.is_none() && !is_newer && score.is_none() && !is_hooks {
            return Ok(children);
        }
        let mut files = BTreeMap::new();
        for file in mark.iter().flat_map(|mark| mark.files.keys()) {
            match dir.read(&file.name()) {
                Ok(content) => drop(files.insert(*file, Held::read(*file, &content))),
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        let is_ours = is_hooks || mark.as_ref().is_some_and(|mark| mark.made);
        let is_containers = mark
            .as_ref()
            .and_then(|mark| mark.owner(path))
            .is_some_and(|owner| owner.level.container().is_some());
        let processes = if score.is_some() || is_containers { self.scores(path)? } else { Vec::new() };
        self.found.marked.push(Marked {
            path: path.clone(),
            id: dir.id(),
            is_newer,
            is_hooks,
            score,
            usage_bytes: if files.contains_key(&CgroupFile::MemoryMax) { usage_bytes(&dir)? } else { None },
            is_populated: is_ours && dir.is_populated()?,
            processes,
            mark,
            files,
        });
        Ok(children)
    }

    /// The processes in a cgroup and below, each once.
    fn scores(&mut self, path: &CgroupPath) -> Result<Vec<Scored>, Error> {
        let lists = lists(self.root, path)?;
        let pids: BTreeSet<u32> =
            lists.into_iter().flat_map(|(_, pids)| pids).filter(|pid| *pid != 0).collect();
        Ok(pids.into_iter().filter_map(|pid| self.score(pid)).collect())
    }

    /// A process with its score; `None` if it is gone.
    fn score(&mut self, pid: u32) -> Option<Scored> {
        let found = self.processes.get(pid).and_then(|process| {
            Ok(Scored { pid, start_ticks: process.start_ticks()?, score: process.score()? })
        });
        match found {
            Ok(scored) => Some(scored),
            Err(errno) if is_gone(errno) => None,
            Err(errno) => {
                let path = format!("/proc/{pid}");
                self.found.troubles.push(Trouble::again(path, &io::Error::from(errno)));
                None
            }
        }
    }

    fn look_at_components(&mut self) {
        let records = match self.root.component_records() {
            Ok(records) if records.is_empty() => return,
            Ok(records) => records,
            Err(error) => return self.found.troubles.push(Trouble::again("/", &error)),
        };
        self.found.root = Some(self.root.id());
        for record in records {
            // Another process may have the id by now.
            let scored = self.score(record.pid).filter(|scored| scored.start_ticks == record.start_ticks);
            self.found.components.extend(scored.map(|scored| (record, scored)));
        }
    }

    fn look_at_temporary(&mut self, temporary: &[Temporarily]) {
        for there in temporary {
            let file = there.value.file();
            let held = self.root.open(&there.path).and_then(|dir| {
                Ok((dir.id() == there.id).then_some(Held::read(file, &dir.read(&file.name())?)))
            });
            match held {
                Ok(Some(held)) if held.is(there.value.temporary(), PageSize::of_this_machine()) => {
                    self.found.temporary.push(there.clone());
                }
                Ok(_) => {}
                Err(error) if error.is_gone() => {}
                Err(error) => self.found.troubles.push(Trouble::again(there.path.as_str(), &error)),
            }
        }
    }
}
