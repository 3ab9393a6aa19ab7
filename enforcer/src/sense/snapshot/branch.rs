//! Adds up a pod's charge from its containers', whose counters are fresher than its own.

use std::{
    ffi::OsString,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{Charge, ChargeFiles, Missing, ReadResult};
use crate::{
    cgroup::{self, CgroupDir},
    sense::text::number,
};

/// Each pod's share of the budget, in cgroups right below it. All shares fit on a node with the most pods.
pub const SHARE_BELOW: usize = 16;

/// The most cgroups below one that are read: each costs the reflex two system calls. Beyond its [`SHARE_BELOW`] a
/// cgroup uses what others leave.
const MOST_BELOW: usize = 64;

/// Files of each such cgroup.
pub const FILES_BELOW: u64 = 2;

/// How many cgroups below others may be open in this process. A pod that creates cgroups must not use up the files that
/// are needed to evict other pods.
#[derive(Debug)]
pub struct Budget {
    most: AtomicU64,
    open: AtomicU64,
}

/// The budget is per process, as the limit of open files is.
pub static BUDGET: Budget = Budget::of(1_024);

/// A place in the budget, until it is dropped.
#[derive(Debug)]
struct Place(&'static Budget);

impl Budget {
    /// Creates a budget of this many cgroups.
    #[must_use]
    pub const fn of(most: u64) -> Self {
        Self { most: AtomicU64::new(most), open: AtomicU64::new(0) }
    }

    /// Sets the budget from now on; open cgroups stay open.
    pub fn allow(&self, most: u64) {
        self.most.store(most, Ordering::Relaxed);
    }

    /// Takes a place; `None` if all are taken. Places beyond a share come from the first half only: the other half is
    /// kept for the shares of later cgroups.
    fn take(&'static self, is_of_share: bool) -> Option<Place> {
        let most = self.most.load(Ordering::Relaxed);
        let most = if is_of_share { most } else { most / 2 };
        let more = |open: u64| (open < most).then_some(open + 1);
        self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_open| Place(self))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Open files with the charges of a cgroup and of those right below it: a pod and its containers.
#[derive(Debug)]
pub struct BranchFiles {
    own: ChargeFiles,
    below: Vec<(ChargeFiles, Place)>,
}

impl BranchFiles {
    /// Opens them: of the cgroups below it those with the largest charges, as far as the budget allows. Later cgroups
    /// below it are ignored, and those that are not open are covered by the counters above them.
    pub fn open(dir: &CgroupDir) -> Result<Self, cgroup::Error> {
        Self::open_within(dir, &BUDGET)
    }

    /// The same; `None` where memory is not counted.
    pub fn open_counted(dir: &CgroupDir) -> Result<Option<Self>, cgroup::Error> {
        match Self::open(dir) {
            // Each cgroup but the root has this file for as long as it is there.
            Err(error) if error.is_gone() => dir.open_read("cgroup.events").map(|_there| None),
            opened => opened.map(Some),
        }
    }

    fn open_within(dir: &CgroupDir, budget: &'static Budget) -> Result<Self, cgroup::Error> {
        let own = ChargeFiles::open(dir)?;
        let mut below = Vec::new();
        for name in charged_most_first(dir)?.iter().take(MOST_BELOW) {
            let Some(place) = budget.take(below.len() < SHARE_BELOW) else { break };
            match dir.open_below(name).and_then(|dir| ChargeFiles::open(&dir)) {
                Ok(files) => below.push((files, place)),
                // It is gone, or memory is not counted there: then it is counted above.
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { own, below })
    }

    /// For a cgroup with none below it.
    pub(crate) fn leaf(own: ChargeFiles) -> Self {
        Self { own, below: Vec::new() }
    }

    /// The whole, in bytes: one system call, no allocation.
    pub fn current_bytes(&self, buffer: &mut [u8]) -> ReadResult<u64> {
        self.own.current_bytes(buffer)
    }

    /// The whole, with the parts [from those below](Charge::made_of): two system calls for each, no allocation.
    pub fn charge(&self, buffer: &mut [u8]) -> ReadResult<Charge> {
        let (own, below) = self.read(buffer, ChargeFiles::charge, Charge::plus)?;
        Ok(own.made_of(below))
    }

    /// The values of its own files, and the sum of those of the cgroups below.
    pub(super) fn read<T: Default>(
        &self,
        buffer: &mut [u8],
        read: impl Fn(&ChargeFiles, &mut [u8]) -> ReadResult<T>,
        plus: impl Fn(T, T) -> T,
    ) -> ReadResult<(T, T)> {
        let own = read(&self.own, buffer)?;
        let mut below = T::default();
        for (files, _place) in &self.below {
            match read(files, buffer) {
                Ok(more) => below = plus(below, more),
                // Its remaining charge is counted above.
                Err(Missing::Gone) => {}
                Err(missing) => return Err(missing),
            }
        }
        Ok((own, below))
    }
}

/// The cgroups right below one that count memory, largest charge first, by their names.
fn charged_most_first(dir: &CgroupDir) -> Result<Vec<OsString>, cgroup::Error> {
    let names = dir.children()?;
    if names.len() <= SHARE_BELOW {
        return Ok(names);
    }
    let mut charged = Vec::with_capacity(names.len());
    for name in names {
        match dir.open_below(&name).and_then(|dir| dir.read("memory.current")) {
            Ok(text) => charged.push((number(text.as_bytes()).unwrap_or(0), name)),
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    charged.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    Ok(charged.into_iter().map(|(_, name)| name).collect())
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn write(dir: &Path, current: u64, anon: u64, inactive_file: u64) {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("memory.current"), format!("{current}\n")).unwrap();
        let stat = format!("anon {anon}\nfile {inactive_file}\nshmem 0\ninactive_file {inactive_file}\n");
        fs::write(dir.join("memory.stat"), stat).unwrap();
    }

    #[test]
    fn a_pods_parts_are_its_containers() {
        let temp = tempfile::tempdir().unwrap();
        let pod = temp.path();
        write(pod, 700, 100, 0);
        write(&pod.join("app"), 600, 90, 500);
        write(&pod.join("sidecar"), 100, 20, 70);
        // Memory is not counted here, and this is no cgroup.
        fs::create_dir(pod.join("threads")).unwrap();
        fs::write(pod.join("cgroup.procs"), "").unwrap();
        let files = BranchFiles::open(&CgroupDir::unchecked(pod).unwrap()).unwrap();
        let mut buffer = [0; 512];
        let charge = files.charge(&mut buffer).unwrap();
        assert_eq!((charge.current_bytes, charge.split.anon_bytes), (700, 110));
        assert_eq!(charge.usage().working_set_bytes, 130);
        assert_eq!(files.current_bytes(&mut buffer), Ok(700));
        fs::write(pod.join("app/memory.stat"), "anon x\n").unwrap();
        assert_eq!(files.charge(&mut buffer), Err(Missing::Malformed));
    }

    fn budget(most: u64) -> &'static Budget {
        Box::leak(Box::new(Budget::of(most)))
    }

    fn open(dir: &Path, budget: &'static Budget) -> BranchFiles {
        BranchFiles::open_within(&CgroupDir::unchecked(dir).unwrap(), budget).unwrap()
    }

    #[test]
    fn empty_ones_do_not_hide_the_one_that_is_charged() {
        let temp = tempfile::tempdir().unwrap();
        write(temp.path(), 800, 100, 0);
        for number in 0..MOST_BELOW + 9 {
            write(&temp.path().join(format!("a{number:03}")), 0, 0, 0);
        }
        write(&temp.path().join("z"), 800, 700, 0);
        let files = open(temp.path(), budget(1_000));
        assert_eq!(files.below.len(), MOST_BELOW);
        assert_eq!(files.charge(&mut [0; 512]).unwrap().split.anon_bytes, 700);
    }

    #[test]
    fn one_with_many_leaves_the_others_their_share() {
        let temp = tempfile::tempdir().unwrap();
        let pod = |name: &str, containers: usize| {
            let dir = temp.path().join(name);
            write(&dir, 100, 100, 0);
            for number in 0..containers {
                write(&dir.join(number.to_string()), 1, 1, 0);
            }
            dir
        };
        let budget = budget(100);
        let many = open(&pod("many", 500), budget);
        let others = [open(&pod("many", 500), budget), open(&pod("few", 20), budget)];
        // The first half is for anybody, the rest for shares.
        assert_eq!(many.below.len(), 50);
        assert_eq!(others.each_ref().map(|other| other.below.len()), [SHARE_BELOW; 2]);
        drop((many, others));
        assert_eq!(open(&pod("many", 500), budget).below.len(), 50, "what is closed is free again");
    }

    #[test]
    fn without_room_the_whole_is_read_by_its_own_counters() {
        let temp = tempfile::tempdir().unwrap();
        write(temp.path(), 700, 100, 0);
        write(&temp.path().join("app"), 600, 90, 0);
        let files = open(temp.path(), budget(0));
        assert_eq!(files.below.len(), 0);
        assert_eq!(files.charge(&mut [0; 512]).unwrap().split.anon_bytes, 100);
    }
}
