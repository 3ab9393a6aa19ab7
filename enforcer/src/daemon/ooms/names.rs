//! What cgroups are called that a kill involves, pods' or not, and gone or not.

mod name;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use ulid::Ulid;

use self::name::Name;
use super::{super::backlog::Backlog, evicting::BeingEvicted};
use crate::{
    cgroup::{CgroupDir, Index},
    model::{CgroupId, CgroupPath, Instance, Owner, OwnerLevel},
    sense::{
        Life, Mark,
        incident::{Eviction, OomCounts, World},
    },
    source::Kubelet,
};

/// The most cgroups of the whole hierarchy whose names are kept.
const MAX_CGROUPS: usize = 65_536;
/// The most of them that were gone before their records were read. A kill in one is read with it; then it is kept as any other.
const MAX_BRIEF: usize = 8_192;
/// How long a cgroup that is gone keeps its name, for late records.
const KEEP: Duration = Duration::from_mins(2);
/// No real hierarchy nests cgroups deeper.
const MAX_DEPTH: usize = 64;
/// The file that counts OOM kills.
pub(super) const COUNTERS: &str = "memory.events.local";

/// Names for cgroup ids, kept in memory: those of pods from the index, all others from a scan of the hierarchy at start
/// and from the kernel's records of cgroups made and removed since.
pub(super) struct Names {
    index: Index,
    /// The kubelet that owns the pods' cgroups; `None` without one.
    kubelet: Option<Kubelet>,
    being_evicted: BeingEvicted,
    pub(super) root: Option<Arc<CgroupDir>>,
    nodes: HashMap<CgroupId, Node>,
    gone: VecDeque<(Instant, CgroupId)>,
    /// Cgroups that were gone before their records were read, the latest last. There may be thousands a second, and hardly ever
    /// does a process get killed in one: they are appended, and searched for if need be.
    brief: VecDeque<(CgroupId, Node)>,
    pub(super) backlog: Backlog,
}

/// A cgroup in its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    parent: CgroupId,
    name: Name,
}

/// The result of a scan of the whole hierarchy.
#[derive(Debug, Default)]
pub(super) struct Found {
    nodes: HashMap<CgroupId, Node>,
    counts: Vec<(CgroupId, OomCounts)>,
    /// Whether some cgroups exist that could not be read.
    has_failed: bool,
}

impl Found {
    /// Whether the scan found all existing cgroups.
    pub(super) fn is_whole(&self) -> bool {
        !self.has_failed && !self.nodes.is_empty() && self.nodes.len() <= MAX_CGROUPS
    }
}

impl Names {
    pub(super) fn new(
        index: Index,
        kubelet: Option<Kubelet>,
        being_evicted: BeingEvicted,
        backlog: Backlog,
    ) -> Self {
        let root = CgroupDir::mount(Path::new(crate::cgroup::MOUNT)).ok().map(Arc::new);
        Self { kubelet, ..Self::below(root, index, being_evicted, backlog) }
    }

    fn below(
        root: Option<Arc<CgroupDir>>,
        index: Index,
        being_evicted: BeingEvicted,
        backlog: Backlog,
    ) -> Self {
        Self {
            index,
            kubelet: None,
            being_evicted,
            root,
            nodes: HashMap::new(),
            gone: VecDeque::new(),
            brief: VecDeque::new(),
            backlog,
        }
    }

    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    pub(super) fn knows(&self, cgroup: CgroupId) -> bool {
        self.nodes.contains_key(&cgroup)
            || self.is_root(cgroup)
            || self.index.resolve(cgroup).is_some()
            || self.brief_node(cgroup).is_some()
    }

    /// What is known of a cgroup, gone or not, besides the index.
    fn node(&self, cgroup: CgroupId) -> Option<&Node> {
        self.nodes.get(&cgroup).or_else(|| self.brief_node(cgroup))
    }

    fn brief_node(&self, cgroup: CgroupId) -> Option<&Node> {
        let mut latest_first = self.brief.iter().rev();
        latest_first.find(|(brief, _)| *brief == cgroup).map(|(_, node)| node)
    }

    fn is_root(&self, cgroup: CgroupId) -> bool {
        self.root.as_ref().is_some_and(|root| root.id() == cgroup)
    }

    /// Scans all cgroups. Takes a while; the result is for [`take`](Self::take).
    pub(super) async fn scan(&self) -> Found {
        let Some(root) = self.root.clone() else { return Found::default() };
        crate::threads::blocking(move || walk(&root)).await
    }

    /// Takes the names that a scan found, and returns the counters of the cgroups that have the memory controller. `brief` are
    /// those that are gone since and were made meanwhile: nothing would ever forget them.
    pub(super) fn take(&mut self, mut found: Found, brief: &[CgroupId]) -> Vec<(CgroupId, OomCounts)> {
        for cgroup in brief {
            found.nodes.remove(cgroup);
        }
        found.counts.retain(|(cgroup, _)| found.nodes.contains_key(cgroup));
        for (cgroup, node) in found.nodes {
            self.insert(cgroup, node);
        }
        found.counts
    }

    /// Marks cgroups as gone that a scan of all cgroups no longer found, and returns them.
    pub(super) fn gone_since(&mut self, found: &Found) -> Vec<CgroupId> {
        let known_gone: HashSet<_> = self.gone.iter().map(|(_, cgroup)| *cgroup).collect();
        let is_gone = |cgroup: &CgroupId| !found.nodes.contains_key(cgroup) && !known_gone.contains(cgroup);
        let gone: Vec<_> = self.nodes.keys().copied().filter(is_gone).collect();
        let now = Instant::now();
        for cgroup in &gone {
            self.learn(Life::Gone(*cgroup), now);
        }
        gone
    }

    /// Learns of a cgroup made or removed.
    pub(super) fn learn(&mut self, life: Life, now: Instant) {
        // Makes room for the next one: a flood of cgroups evicts its own names first.
        while self.gone.front().is_some_and(|(until, _)| *until <= now) || self.nodes.len() >= MAX_CGROUPS {
            let Some((_, cgroup)) = self.gone.pop_front() else { break };
            self.nodes.remove(&cgroup);
        }
        match life {
            Life::Made { cgroup, parent, name } => self.insert(cgroup, Node { parent, name: name.into() }),
            Life::Gone(cgroup) => self.gone.push_back((now + KEEP, cgroup)),
        }
    }

    /// Learns of a cgroup that was made and removed before its records were read.
    pub(super) fn learn_brief(&mut self, cgroup: CgroupId, parent: CgroupId, name: Box<str>) {
        if self.brief.len() >= MAX_BRIEF {
            self.brief.pop_front();
        }
        self.brief.push_back((cgroup, Node { parent, name: name.into() }));
    }

    /// Keeps those of a cgroup and its ancestors that were gone before their records were read as any other that is gone, and
    /// returns them.
    pub(super) fn take_in_brief(&mut self, cgroup: CgroupId, now: Instant) -> Vec<CgroupId> {
        let mut taken = Vec::new();
        let mut at = cgroup;
        for _ in 0..MAX_DEPTH {
            if self.is_root(at) {
                break;
            }
            if let Some(node) = self.nodes.get(&at) {
                at = node.parent;
                continue;
            }
            let Some(node) = self.brief_node(at) else { break };
            let (parent, name) = (node.parent, node.name.as_str().into());
            let brief = std::mem::replace(&mut at, parent);
            self.learn(Life::Made { cgroup: brief, parent, name }, now);
            self.learn(Life::Gone(brief), now);
            taken.push(brief);
        }
        taken
    }

    /// Has the pod and the container named that the cgroup belongs to, gone or not: a kubelet's container may be killed
    /// before the roster names it, and be gone before the container runtime is asked.
    pub(super) fn want_name(&self, cgroup: CgroupId) {
        if let Some(kubelet) = &self.kubelet
            && let Some(path) = self.find(cgroup)
        {
            kubelet.want_name(&path, Instant::now());
        }
    }

    fn insert(&mut self, cgroup: CgroupId, node: Node) {
        let known = self.nodes.get(&cgroup);
        if known == Some(&node) {
            // Its name may be shared.
            return;
        }
        // No real host has as many. A process that still makes them loses names; the daemon's memory stays bounded.
        if self.nodes.len() < MAX_CGROUPS || known.is_some() {
            self.nodes.insert(cgroup, node);
        }
    }

    /// Shares a cgroup's name with its owner: most cgroups are pods' and containers'.
    pub(super) fn share(&mut self, cgroup: CgroupId, owner: &Arc<Owner>) {
        if let Some(node) = self.nodes.get_mut(&cgroup) {
            node.name.share(owner);
        }
    }

    fn find(&self, cgroup: CgroupId) -> Option<CgroupPath> {
        let of_pod = self.index.resolve(cgroup).map(|resolved| resolved.owner.path.clone());
        of_pod.or_else(|| self.path_of(cgroup))
    }

    fn path_of(&self, cgroup: CgroupId) -> Option<CgroupPath> {
        let mut names = Vec::new();
        let mut at = cgroup;
        while !self.is_root(at) {
            if names.len() == MAX_DEPTH {
                return None;
            }
            // The index has the path of a pod's cgroup, whatever is below it.
            if let Some(resolved) = self.index.resolve(at) {
                return join(resolved.owner.path.clone(), &names);
            }
            let node = self.node(at)?;
            names.push(node.name.as_str());
            at = node.parent;
        }
        join(CgroupPath::root(), &names)
    }

    /// Opens the cgroup's directory, if it is still the same cgroup.
    pub(super) fn open(&self, cgroup: CgroupId) -> Option<CgroupDir> {
        let dir = self.root.as_ref()?.open(&self.find(cgroup)?).ok()?;
        // Another cgroup may have its name by now.
        (dir.id() == cgroup).then_some(dir)
    }

    /// Reads the cgroup's counters, if possible.
    pub(super) fn counters(&self, cgroup: CgroupId) -> Option<OomCounts> {
        read_counters(&self.open(cgroup)?)
    }
}

pub(super) fn read_counters(dir: &CgroupDir) -> Option<OomCounts> {
    dir.read(COUNTERS).ok().map(|text| OomCounts::parse(&text))
}

/// Joins a path and the names below it, lowest first.
fn join(above: CgroupPath, names: &[&str]) -> Option<CgroupPath> {
    names.iter().rev().try_fold(above, |path, name| path.child(name).ok())
}

/// Walks every cgroup from the root down, for name and counters.
fn walk(root: &CgroupDir) -> Found {
    let mut found = Found::default();
    let mut pending = vec![(root.id(), PathBuf::new())];
    while let Some((parent, path)) = pending.pop() {
        // A cgroup that was removed meanwhile has no children either.
        let children = root.open_below(&path).and_then(|dir| dir.children()).unwrap_or_else(|error| {
            found.has_failed |= !error.is_gone();
            Vec::new()
        });
        for name in children {
            let child = path.join(&name);
            let dir = match root.open_below(&child) {
                Ok(dir) => dir,
                Err(error) => {
                    found.has_failed |= !error.is_gone();
                    continue;
                }
            };
            let name = Name::Text(name::last(dir.path()).into());
            found.nodes.insert(dir.id(), Node { parent, name });
            match dir.read(COUNTERS) {
                Ok(text) => found.counts.push((dir.id(), OomCounts::parse(&text))),
                // The memory controller is not enabled there.
                Err(error) => found.has_failed |= !error.is_gone(),
            }
            pending.push((dir.id(), child));
        }
        if found.nodes.len() > MAX_CGROUPS {
            break;
        }
    }
    found
}

impl World for Names {
    /// A cgroup in a container belongs to that container. A pod's cgroup that the roster does not name yet is a
    /// container by its own name.
    fn owner(&self, cgroup: CgroupId) -> Option<Owner> {
        if let Some(resolved) = self.index.resolve(cgroup) {
            return Some(Owner::clone(&resolved.owner));
        }
        // A container may be killed before the roster names it.
        if let Some(kubelet) = &self.kubelet {
            return kubelet.owner(&self.path_of(cgroup)?);
        }
        let mut at = cgroup;
        for _ in 0..MAX_DEPTH {
            let node = self.node(at)?;
            let Some(above) = self.index.resolve(node.parent) else {
                at = node.parent;
                continue;
            };
            let level = match &above.owner.level {
                OwnerLevel::Node | OwnerLevel::Qos(_) => return None,
                OwnerLevel::Pod { pod, uid } => OwnerLevel::Container {
                    pod: pod.clone(),
                    uid: uid.clone(),
                    container: node.name.as_str().to_owned(),
                },
                container @ OwnerLevel::Container { .. } => container.clone(),
            };
            return Some(Owner { path: self.path_of(cgroup)?, level });
        }
        None
    }

    fn path(&self, cgroup: CgroupId) -> Option<CgroupPath> {
        self.find(cgroup)
    }

    fn instance(&self, owner: &CgroupPath) -> Instance {
        self.kubelet.as_ref().map_or_else(Instance::default, |kubelet| kubelet.instance(owner))
    }

    fn parent(&self, cgroup: CgroupId) -> Option<CgroupId> {
        if let Some(node) = self.node(cgroup) {
            return Some(node.parent);
        }
        // Only if neither a scan nor the kernel reported it.
        let parent = self.find(cgroup)?.parent()?;
        Some(self.root.as_ref()?.open(&parent).ok()?.id())
    }

    fn awaits_name(&self, cgroup: CgroupId) -> bool {
        let Some(kubelet) = &self.kubelet else { return false };
        self.find(cgroup).is_some_and(|path| kubelet.awaits_name(&path))
    }

    fn eviction(&self, cgroup: CgroupId, at_ns: u64) -> Option<Eviction> {
        self.being_evicted.at(cgroup, at_ns, || self.find(cgroup))
    }

    fn new_id(&mut self, first: Option<&Mark>) -> Ulid {
        match first {
            Some(mark) => self.backlog.id(mark),
            None => self.backlog.fresh_id(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{
        journal::Journal,
        model::{PodName, PodUid},
    };

    const POD: CgroupId = CgroupId(10);

    fn made(cgroup: u64, parent: CgroupId, name: &str) -> Life {
        Life::Made { cgroup: CgroupId(cgroup), parent, name: name.into() }
    }

    fn names() -> (tempfile::TempDir, Names, CgroupId) {
        let temp = tempfile::tempdir().unwrap();
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        let id = root.id();
        let index = Index::new();
        let pod = PodName { namespace: "default".into(), name: "p".into() };
        let level = OwnerLevel::Pod { pod: pod.into(), uid: PodUid::new("u").unwrap() };
        index.insert(POD, Owner { path: CgroupPath::parse("/kubepods/podu").unwrap(), level });
        let backlog = Backlog::open(temp.path(), "boot", &Journal::new("node", "boot"));
        (temp, Names::below(Some(Arc::new(root)), index, BeingEvicted::default(), backlog), id)
    }

    #[test]
    fn a_container_of_a_moment_keeps_its_pod_and_path() {
        let (_temp, mut names, _) = names();
        let now = Instant::now();
        names.learn(made(11, POD, "app"), now);
        names.learn(made(12, CgroupId(11), "inner"), now);
        names.learn(Life::Gone(CgroupId(12)), now);
        names.learn(Life::Gone(CgroupId(11)), now);
        for (cgroup, path) in [(11, "/kubepods/podu/app"), (12, "/kubepods/podu/app/inner")] {
            let owner = names.owner(CgroupId(cgroup)).unwrap();
            assert_eq!(owner.path.as_str(), path);
            assert_eq!(
                (owner.level.container(), owner.level.pod().map(|pod| pod.name.as_str())),
                (Some("app"), Some("p"))
            );
        }
        assert_eq!(names.parent(CgroupId(12)), Some(CgroupId(11)));
    }

    #[test]
    fn a_shared_name_outlives_what_the_index_has_and_a_second_look() {
        assert_eq!(size_of::<Node>(), 24, "there is one for each cgroup");
        let (_temp, mut names, _) = names();
        let (app, other) = (CgroupId(11), CgroupId(12));
        let now = Instant::now();
        for (cgroup, name) in [(11, "app"), (12, "other")] {
            names.learn(made(cgroup, POD, name), now);
        }
        let level = names.index.resolve(POD).unwrap().owner.level.clone();
        let owner = Arc::new(Owner { path: CgroupPath::parse("/kubepods/podu/app").unwrap(), level });
        names.index.insert(app, Arc::clone(&owner));
        for cgroup in [app, other, CgroupId(13)] {
            names.share(cgroup, &owner);
        }
        let shared = |names: &Names, cgroup: CgroupId| matches!(names.nodes[&cgroup].name, Name::OfOwner(_));
        assert!(shared(&names, app) && !shared(&names, other), "only what is called so");
        assert!(!names.nodes.contains_key(&CgroupId(13)));
        let found = |name: &str| Found {
            nodes: [(app, Node { parent: POD, name: Name::Text(name.into()) })].into(),
            ..Found::default()
        };
        names.take(found("app"), &[]);
        assert!(shared(&names, app));
        names.learn(Life::Gone(app), now);
        names.index.remove(app);
        for cgroup in 100..10_000 {
            names.index.insert(CgroupId(cgroup), Arc::clone(&owner));
            names.index.remove(CgroupId(cgroup));
        }
        assert_eq!(names.index.resolve(app), None, "forgotten");
        assert_eq!(names.path(app).unwrap().as_str(), "/kubepods/podu/app");
        names.take(found("b"), &[]);
        assert_eq!(names.path(app).unwrap().as_str(), "/kubepods/podu/b", "the latest one counts");
    }

    #[test]
    fn what_is_gone_is_kept_for_a_while_only() {
        let (_temp, mut names, root) = names();
        let now = Instant::now();
        names.learn(made(7, root, "a"), now);
        names.learn(Life::Gone(CgroupId(7)), now);
        names.learn(made(8, root, "b"), now + KEEP.saturating_sub(Duration::from_millis(1)));
        assert_eq!(names.path(CgroupId(7)).unwrap().as_str(), "/a");
        names.learn(made(9, root, "c"), now + KEEP);
        assert_eq!(names.path(CgroupId(7)), None);
    }

    #[test]
    fn a_flood_of_cgroups_costs_names_and_no_memory() {
        let (_temp, mut names, root) = names();
        let now = Instant::now();
        let most = u64::try_from(MAX_CGROUPS).unwrap();
        for cgroup in 100..100 + most + 50 {
            names.learn(made(cgroup, root, "x"), now);
        }
        assert!(names.nodes.len() <= MAX_CGROUPS);
        names.learn(Life::Gone(CgroupId(100)), now);
        for cgroup in 1..5 {
            names.learn(made(cgroup, root, "y"), now);
        }
        assert!(names.nodes.len() <= MAX_CGROUPS);
    }

    /// Where the kernel does not report them.
    #[test]
    fn a_second_look_finds_what_a_container_made_and_misses_what_is_gone() {
        let (temp, mut names, _) = names();
        let dir = |path: &str| {
            let dir = temp.path().join(path);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(COUNTERS), "oom 1\noom_kill 1\n").unwrap();
            dir
        };
        let app = dir("kubepods/podu/app");
        let first = walk(names.root.as_ref().unwrap());
        assert!(first.is_whole());
        assert_eq!(names.take(first, &[]).len(), 1);
        dir("kubepods/podu/app/inner");
        let second = walk(names.root.as_ref().unwrap());
        assert_eq!(names.gone_since(&second), []);
        let counts = names.take(second, &[]);
        let path = |cgroup: &CgroupId| names.path(*cgroup).unwrap().to_string();
        let mut paths: Vec<_> = counts.iter().map(|(cgroup, _)| path(cgroup)).collect();
        paths.sort();
        assert_eq!(paths, ["/kubepods/podu/app", "/kubepods/podu/app/inner"]);
        fs::remove_dir_all(&app).unwrap();
        let third = walk(names.root.as_ref().unwrap());
        assert_eq!(names.gone_since(&third).len(), 2);
        assert_eq!(names.gone_since(&third), [], "once");
    }

    #[test]
    fn what_was_there_for_a_moment_takes_no_room_from_the_next() {
        let (_temp, mut names, root) = names();
        let now = Instant::now();
        let most = u64::try_from(MAX_CGROUPS).unwrap();
        for cgroup in 100..100 + most + 50 {
            names.learn(made(cgroup, root, "x"), now);
            names.learn(Life::Gone(CgroupId(cgroup)), now);
        }
        let last = 100 + most + 50;
        names.learn(made(last, root, "web"), now);
        assert_eq!(names.path(CgroupId(last)).unwrap().as_str(), "/web");
        assert_eq!(names.path(CgroupId(last - 1)).unwrap().as_str(), "/x");
        assert!(names.nodes.len() <= MAX_CGROUPS);
    }

    #[test]
    fn what_was_gone_before_its_record_was_read_has_a_name_and_keeps_it_if_it_matters() {
        let (_temp, mut names, root) = names();
        let now = Instant::now();
        names.learn(made(20, POD, "app"), now);
        names.learn_brief(CgroupId(21), CgroupId(20), "job".into());
        names.learn_brief(CgroupId(22), CgroupId(21), "step".into());
        names.learn_brief(CgroupId(23), CgroupId(20), "other".into());
        assert_eq!(names.path(CgroupId(22)).unwrap().as_str(), "/kubepods/podu/app/job/step");
        assert_eq!(names.owner(CgroupId(22)).unwrap().level.container(), Some("app"));
        assert_eq!(names.take_in_brief(CgroupId(22), now), [CgroupId(22), CgroupId(21)]);
        assert_eq!(names.take_in_brief(CgroupId(22), now), [], "once");

        for cgroup in 100..200 + u64::try_from(MAX_BRIEF).unwrap() {
            names.learn_brief(CgroupId(cgroup), root, "x".into());
        }
        assert_eq!(names.brief.len(), MAX_BRIEF);
        assert_eq!(names.path(CgroupId(150)), None);
        assert_eq!(names.path(CgroupId(23)), None);
        assert_eq!(names.path(CgroupId(22)).unwrap().as_str(), "/kubepods/podu/app/job/step");
        names.learn(made(7, root, "a"), now + KEEP);
        assert_eq!(names.path(CgroupId(22)), None, "as any other that is gone");
    }

    #[test]
    fn one_in_an_unknown_cgroup_says_so() {
        let (_temp, mut names, _) = names();
        names.learn(made(7, CgroupId(6), "a"), Instant::now());
        assert!(!names.knows(CgroupId(6)));
        assert_eq!(names.path(CgroupId(7)), None);
    }

    #[test]
    fn a_look_finds_all_with_their_counters() {
        let (temp, mut names, root) = names();
        fs::create_dir_all(temp.path().join("system.slice/db.service")).unwrap();
        fs::write(temp.path().join("system.slice/db.service").join(COUNTERS), "oom 2\noom_kill 1\n").unwrap();
        let found = walk(names.root.as_ref().unwrap());
        let counts = names.take(found, &[]);
        assert_eq!(counts.len(), 1);
        let (db, counts) = counts[0];
        assert_eq!((counts.oom, counts.oom_kill), (2, 1));
        assert_eq!(names.path(db).unwrap().as_str(), "/system.slice/db.service");
        assert_eq!(names.parent(names.parent(db).unwrap()), Some(root));
        assert_eq!(names.counters(db), Some(counts));
        assert!(names.owner(db).is_none());
    }
}
