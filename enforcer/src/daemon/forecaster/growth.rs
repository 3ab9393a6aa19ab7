//! How fast pods grow, measured only while it matters.
use std::{
    collections::{HashMap, hash_map::Entry},
    os::fd::OwnedFd,
    sync::Arc,
};

use super::GrowthCandidate;
use crate::{
    cgroup::{CgroupDir, Error},
    model::CgroupId,
    policy::engine::Resource,
    sense::{
        snapshot::{BranchFiles, Slope},
        text::{number, read_into},
    },
};

/// The most pods that are named.
const MAX_NAMED: usize = 10;

/// A pod that grows by less than this part of the loss is not its cause.
const CAUSE_SHARE: u64 = 20;

/// A reading of a pod's parts stays valid while the whole has not changed by more than this.
const ALIKE_BYTES: u64 = 256 << 10;

/// `memory.stat` has about 2 KiB.
const BUFFER_BYTES: usize = 8 * 1_024;

/// The pods, with their files open while they are needed: of each the one with the whole, and those with the parts of the
/// pods that change. The others' parts stay as they were read.
#[derive(Default)]
pub(super) struct Growth {
    root: Option<Arc<CgroupDir>>,
    suspects: Vec<GrowthCandidate>,
    open: HashMap<CgroupId, Counters>,
    /// Whether tasks are counted.
    counts_tasks: bool,
}

/// A pod's counters, and how they change.
struct Counters {
    /// `None` where memory is not counted.
    memory: Option<Memory>,
    pids: Option<Tasks>,
}

/// A pod's usage, and its growth a second.
#[derive(Clone, Copy, Debug)]
struct GrowthState {
    usage: u64,
    per_second: Option<i64>,
}

struct Memory {
    current: OwnedFd,
    /// Open while the whole changes from look to look.
    parts_files: Option<BranchFiles>,
    slope: Slope,
    /// The whole at the reading of the parts, if they accounted for it.
    whole_bytes: Option<u64>,
    /// The usage that it is ranked by, and the part of it that the kernel cannot reclaim.
    parts: Option<(u64, u64)>,
    latest: Option<GrowthState>,
}

struct Tasks {
    file: OwnedFd,
    slope: Slope,
    latest: Option<GrowthState>,
}

/// A pod that grew.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grown<'a> {
    pub(super) suspect: &'a GrowthCandidate,
    /// Its usage, in the resource's base unit.
    pub(super) usage: u64,
    pub(super) per_second: u64,
}

impl Growth {
    pub(super) fn suspect(&mut self, root: Arc<CgroupDir>, suspects: Vec<GrowthCandidate>) {
        self.open.retain(|cgroup, _| suspects.iter().any(|suspect| suspect.cgroup == *cgroup));
        self.root = Some(root);
        self.suspects = suspects;
    }

    /// Sets whether tasks are counted, which only a threshold for them needs.
    pub(super) fn count_tasks(&mut self, counts_tasks: bool) {
        if self.counts_tasks != counts_tasks {
            self.counts_tasks = counts_tasks;
            self.rest();
        }
    }

    /// The root of the hierarchy, once it is known.
    pub(super) fn root(&self) -> Option<&CgroupDir> {
        self.root.as_deref()
    }

    /// Looks at every pod.
    pub(super) fn look(&mut self, now_ns: u64) {
        let Self { root: Some(root), suspects, open, counts_tasks } = self else { return };
        let mut buffer = [0; BUFFER_BYTES];
        for suspect in suspects {
            let counters = match open.entry(suspect.cgroup) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => match Counters::open(root, suspect, *counts_tasks) {
                    Ok(Some(opened)) => place.insert(opened),
                    // A cgroup that is gone, or another one by now, is not the cause.
                    Ok(None) | Err(_) => continue,
                },
            };
            counters.look(root, suspect, now_ns, &mut buffer);
        }
    }

    /// Closes all files: at rest nothing is held.
    pub(super) fn rest(&mut self) {
        self.open = HashMap::new();
    }

    /// Returns the pods that cause a loss of that much of the resource a second, the fastest first.
    pub(super) fn causes(&self, resource: Resource, lost_per_second: u64) -> Vec<Grown<'_>> {
        let mut causes: Vec<Grown<'_>> = self
            .suspects
            .iter()
            .filter_map(|suspect| self.grown(suspect, resource))
            .filter(|grown| grown.per_second > lost_per_second / CAUSE_SHARE)
            .collect();
        causes.sort_by_key(|grown| std::cmp::Reverse(grown.per_second));
        causes.truncate(MAX_NAMED);
        causes
    }

    fn grown<'a>(&self, suspect: &'a GrowthCandidate, resource: Resource) -> Option<Grown<'a>> {
        let Counters { memory, pids } = self.open.get(&suspect.cgroup)?;
        let GrowthState { usage, per_second } = match resource {
            Resource::Memory => memory.as_ref()?.latest?,
            Resource::Pids => pids.as_ref()?.latest?,
        };
        let per_second = per_second.and_then(|rate| u64::try_from(rate).ok())?;
        Some(Grown { suspect, usage, per_second })
    }
}

/// The directory of the pod's cgroup; `None` if another one is there by now.
fn dir(root: &CgroupDir, suspect: &GrowthCandidate) -> Result<Option<CgroupDir>, Error> {
    let dir = root.open(&suspect.path)?;
    Ok((dir.id() == suspect.cgroup).then_some(dir))
}

impl Counters {
    fn open(root: &CgroupDir, suspect: &GrowthCandidate, counts_tasks: bool) -> Result<Option<Self>, Error> {
        let Some(dir) = dir(root, suspect)? else { return Ok(None) };
        let memory = |current| Memory {
            current,
            parts_files: None,
            slope: Slope::default(),
            whole_bytes: None,
            parts: None,
            latest: None,
        };
        let tasks = |file| Tasks { file, slope: Slope::default(), latest: None };
        let pids = counts_tasks.then(|| dir.open_read("pids.current").ok()).flatten();
        let memory = match dir.open_read("memory.current") {
            Err(error) if error.is_gone() => None,
            current => Some(memory(current?)),
        };
        Ok(Some(Self { memory, pids: pids.map(tasks) }))
    }

    fn look(&mut self, root: &CgroupDir, suspect: &GrowthCandidate, now_ns: u64, buffer: &mut [u8]) {
        if let Some(memory) = &mut self.memory {
            memory.look(root, suspect, now_ns, buffer);
        }
        if let Some(pids) = &mut self.pids {
            pids.look(now_ns, buffer);
        }
    }
}

impl Memory {
    /// The parts cost the kernel a hundred times as much as the whole, and are read only when the whole has changed.
    fn look(&mut self, root: &CgroupDir, suspect: &GrowthCandidate, now_ns: u64, buffer: &mut [u8]) {
        let Some(whole_bytes) = read_into(&self.current, buffer).ok().and_then(number) else {
            self.latest = None;
            return;
        };
        if self.whole_bytes.is_none_or(|before| before.abs_diff(whole_bytes) > ALIKE_BYTES) {
            let is_first = self.parts.is_none();
            let files = self.parts_files.take().or_else(|| {
                let dir = dir(root, suspect).ok().flatten()?;
                BranchFiles::open(&dir).ok()
            });
            let read = files.as_ref().and_then(|files| files.charge(buffer).ok());
            // Most pods do not change: after the first look only those that do hold files.
            self.parts_files = files.filter(|_| !is_first);
            self.parts = read.map(|charge| {
                // Page cache apart from shared memory can be dropped, or written and dropped.
                let cache_bytes = charge.split.file_bytes.saturating_sub(charge.split.shmem_bytes);
                (charge.usage().working_set_bytes, charge.current_bytes.saturating_sub(cache_bytes))
            });
            self.whole_bytes =
                read.and_then(|charge| charge.is_accounted_for().then_some(charge.current_bytes));
        } else {
            self.parts_files = None;
        }
        self.latest = self.parts.map(|(usage, held_bytes)| GrowthState {
            usage,
            per_second: self.slope.observe(now_ns, held_bytes),
        });
    }
}

impl Tasks {
    fn look(&mut self, now_ns: u64, buffer: &mut [u8]) {
        let count = read_into(&self.file, buffer).ok().and_then(number);
        self.latest = count.map(|usage| GrowthState { usage, per_second: self.slope.observe(now_ns, usage) });
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{
        model::{CgroupPath, PodName, PodUid},
        policy::PodPlan,
    };

    const SECOND: u64 = 1_000_000_000;

    fn suspect(root: &CgroupDir, name: &str) -> GrowthCandidate {
        let path = CgroupPath::parse(name).unwrap();
        let pod = PodName { namespace: String::from("default"), name: name.to_owned() };
        let plan = PodPlan::new(pod, PodUid::new(name).unwrap(), path.clone()).into();
        GrowthCandidate { plan, cgroup: root.open(&path).unwrap().id(), path }
    }

    #[test]
    fn who_grows_most_is_named_first_and_who_does_not_is_not() {
        let temp = tempfile::tempdir().unwrap();
        let root = Arc::new(CgroupDir::unchecked(temp.path()).unwrap());
        let set = |name: &str, bytes: u64| {
            fs::create_dir_all(temp.path().join(name)).unwrap();
            let (anon, cache) = (bytes << 20, if name == "cache" { bytes << 21 } else { 5 << 20 });
            let folder = temp.path().join(name);
            fs::write(folder.join("memory.current"), (anon + cache + (1 << 20)).to_string()).unwrap();
            // Shared memory is in `file` and cannot be dropped.
            let stat = format!(
                "anon {anon}\nfile {}\nshmem {}\ninactive_file {cache}\n",
                cache + (1 << 20),
                1 << 20
            );
            fs::write(folder.join("memory.stat"), stat).unwrap();
        };
        let suspects = ["slow", "fast", "still", "tiny", "gone", "cache"].map(|name| {
            set(name, 1_000);
            suspect(&root, name)
        });
        let mut growth = Growth::default();
        growth.suspect(root, suspects.to_vec());
        fs::remove_dir_all(temp.path().join("gone")).unwrap();
        growth.look(0);
        assert!(growth.open.values().all(|counters| counters.memory.as_ref().unwrap().parts_files.is_none()));
        assert!(growth.causes(Resource::Memory, 1_000 << 20).is_empty(), "one look says nothing");
        for (name, bytes) in [("slow", 1_300), ("fast", 1_900), ("still", 900), ("tiny", 1_010)] {
            set(name, bytes);
        }
        // Its cache grows by a gigabyte, and it by next to nothing.
        set("cache", 1_001);
        fs::write(temp.path().join("cache/memory.current"), (3_500_u64 << 20).to_string()).unwrap();
        let stat = format!("anon {}\nfile {}\nshmem 0\ninactive_file 0\n", 1_001 << 20, 2_499_u64 << 20);
        fs::write(temp.path().join("cache/memory.stat"), stat).unwrap();
        growth.look(SECOND);
        let holding = |growth: &Growth| {
            growth
                .open
                .values()
                .filter(|counters| counters.memory.as_ref().unwrap().parts_files.is_some())
                .count()
        };
        assert_eq!(holding(&growth), 5, "all that changed");
        let causes = growth.causes(Resource::Memory, 1_000 << 20);
        let named: Vec<_> = causes
            .iter()
            .map(|grown| (grown.suspect.plan.name.name.as_str(), grown.per_second >> 20, grown.usage >> 20))
            .collect();
        assert_eq!(named, [("fast", 900, 1_901), ("slow", 300, 1_301)]);
        assert!(growth.causes(Resource::Pids, 1).is_empty());
        set("fast", 2_000);
        growth.look(2 * SECOND);
        assert_eq!(holding(&growth), 1, "the others are still");
        growth.rest();
        assert!(growth.causes(Resource::Memory, 1_000 << 20).is_empty());
    }

    #[test]
    fn tasks_are_counted_only_on_request() {
        let temp = tempfile::tempdir().unwrap();
        let root = Arc::new(CgroupDir::unchecked(temp.path()).unwrap());
        let folder = temp.path().join("p");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("memory.current"), "0").unwrap();
        fs::write(folder.join("memory.stat"), "anon 0\nfile 0\nshmem 0\ninactive_file 0\n").unwrap();
        let suspect = suspect(&root, "p");
        let mut growth = Growth::default();
        growth.suspect(root, vec![suspect]);
        for (counts_tasks, named) in [(false, 0), (true, 1), (false, 0)] {
            growth.count_tasks(counts_tasks);
            for (second, count) in [(0, 1), (1, 101)] {
                fs::write(folder.join("pids.current"), count.to_string()).unwrap();
                growth.look(second * SECOND);
            }
            assert_eq!(growth.causes(Resource::Pids, 100).len(), named, "{counts_tasks}");
        }
    }
}
