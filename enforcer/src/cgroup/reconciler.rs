//! Keeps the whole hierarchy as planned: runs observe, diff and apply, on change and in turn.

mod alignment;
mod arriving;
mod findings;
mod former;
mod going;
mod guarded;
mod leaving;
mod pass;
mod runtime;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    sync::Arc,
    time::Instant,
};

pub use self::guarded::{Guarded, ScoreSeen};
use self::{arriving::Arrival, findings::Seen};
use super::{
    CgroupDir, CgroupsRs, Changes, DriftPolicy, Driver, Error, Guard, Index, KeptFile, Ledger, Lowering,
    Making, OnDrift, PageSize, Permit, Report, ScoreKeeper, Sight, Sweep, Throttled, Watch,
    desired::Desired,
    failing::Failing,
    live::{Known, LiveCgroups},
};
use crate::{
    model::{CgroupFile, CgroupId, CgroupPath, Owner, PodName, PodUid},
    policy::Plan,
};

/// Makes the hierarchy as planned, and keeps it so.
///
/// It reads and writes files and may block in the kernel: call it where blocking is allowed.
pub struct Reconciler {
    root: CgroupDir,
    page: PageSize,
    driver: Box<dyn Driver + Send>,
    ledger: Ledger,
    standing: LiveCgroups,
    keeper: ScoreKeeper,
    watch: Option<Watch>,
    /// Whether that watches each cgroup.
    all_are_watched: bool,
    desired: Desired,
    /// The scores that containers have instead of the plan's.
    aligned: BTreeMap<CgroupPath, i16>,
    failing: Failing,
    drift: DriftPolicy,
    lowering: Lowering,
    making: Making,
    guard: Arc<Guard>,
    throttled: Throttled,
    /// The pods' former cgroups whose processes may be moved.
    movable: BTreeSet<CgroupPath>,
    /// The parents of pods' cgroups under another driver.
    former_parents: Vec<CgroupPath>,
    /// When to look at former cgroups again.
    former_due: Option<Instant>,
    /// The cgroups that pods name but must not have: their processes keep their scores too.
    refused: BTreeSet<CgroupPath>,
    /// The foreign cgroups that an earlier start wrote to, until they are planned again or have their values back;
    /// `None` before the first look.
    recalled: Option<BTreeSet<CgroupPath>>,
    /// Whether differences are only reported, as the kubelet's doing.
    is_audit: bool,
    arrival: Arrival,
    seen: Seen,
    clock: Box<dyn Fn() -> Instant + Send>,
}

/// How often in a row cgroups are made again that were gone before they were watched.
const WATCH_ROUNDS: u32 = 2;

/// Why the reconciler cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// There is no cgroup v2 hierarchy.
    #[error(transparent)]
    Cgroup(#[from] Error),
    /// The process file system is not there.
    #[error("cannot open the process file system at {path}")]
    Proc {
        /// Where it was looked for.
        path: String,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
}

impl Reconciler {
    /// Works on the hierarchy mounted at `mount`, usually `/sys/fs/cgroup`, and on `/proc`. Feeds `index`.
    pub fn new(mount: &Path, index: Index) -> Result<Self, StartError> {
        let root = CgroupDir::mount(mount)?;
        Self::on(root, Path::new("/proc"), Box::new(CgroupsRs), PageSize::of_this_machine(), index)
    }

    /// Works on any directory as the hierarchy's root, for tests.
    pub fn on(
        root: CgroupDir,
        proc: &Path,
        driver: Box<dyn Driver + Send>,
        page: PageSize,
        index: Index,
    ) -> Result<Self, StartError> {
        let keeper = ScoreKeeper::new(proc)
            .map_err(|source| StartError::Proc { path: proc.display().to_string(), source })?;
        Ok(Self {
            root,
            page,
            driver,
            ledger: Ledger::default(),
            standing: LiveCgroups::new(index),
            keeper,
            watch: None,
            all_are_watched: false,
            desired: Desired::default(),
            aligned: BTreeMap::new(),
            failing: Failing::default(),
            drift: DriftPolicy::default(),
            lowering: Lowering::default(),
            making: Making::default(),
            guard: Arc::new(Guard::new(proc, &[])),
            throttled: Throttled::default(),
            movable: BTreeSet::new(),
            former_parents: Vec::new(),
            former_due: None,
            refused: BTreeSet::new(),
            recalled: None,
            is_audit: false,
            arrival: Arrival::default(),
            seen: Seen::default(),
            clock: Box::new(Instant::now),
        })
    }

    /// Makes cgroups and keeps values through this driver from now on; the initial one uses files alone.
    pub fn set_driver(&mut self, driver: Box<dyn Driver + Send>) {
        self.driver = driver;
    }

    /// Watches the planned and the retired cgroups from the next reconciliation on.
    pub fn set_watch(&mut self, watch: Watch) {
        self.watch = Some(watch);
    }

    /// Lowers limits below usage step by step. Without it, such a limit waits until usage is below it.
    pub fn set_lowering(&mut self, lowering: Lowering) {
        self.lowering = lowering;
    }

    /// Adopts no cgroup that this guard spares, besides those that are always spared.
    pub fn set_guard(&mut self, guard: Arc<Guard>) {
        self.guard = guard;
    }

    /// Records which cgroup is being made, so that a kill does not lose it.
    pub fn set_making(&mut self, making: Making) {
        self.making = making;
    }

    /// Leaves `memory.high` alone in the cgroups that are throttled on purpose.
    pub fn set_throttled(&mut self, throttled: Throttled) {
        self.throttled = throttled;
    }

    /// Sets what is done about values that others write.
    pub fn set_drift(&mut self, drift: DriftPolicy) {
        self.drift = drift;
    }

    /// Changes what is done about values that others write, unless the kubelet owns the cgroups.
    pub fn set_on_drift(&mut self, on_drift: OnDrift) {
        if !self.is_audit {
            self.drift = DriftPolicy::new(on_drift);
        }
    }

    /// Reports every difference from the plan as the doing of the kubelet, which owns the cgroups. Call it only without
    /// a permit.
    pub fn set_audit(&mut self) {
        self.is_audit = true;
        self.drift = DriftPolicy::audit();
    }

    /// Makes the hierarchy as `plan` says. Without a permit nothing is changed, and the report says what would be.
    ///
    /// A cgroup that an earlier plan named and this one does not is retired: its files stay unchanged, except that a
    /// container is kept off the CPUs that others have of their own, and it is removed once it is empty. If its pod has
    /// other cgroups in this plan, its processes are moved there, as far as that is possible and
    /// [allowed](Self::set_movable), and it has the pod's values until it is empty. The same holds for the pods of the
    /// plan whose uid is in `retired`, such as evicted ones, which stay in the plan while their manifest does.
    pub fn reconcile(&mut self, plan: &Plan, retired: &[PodUid], permit: Option<&Permit>) -> Report {
        let before = std::mem::replace(&mut self.desired, Desired::new(plan, &retired.iter().collect()));
        self.desired.share_with(&before);
        // Nothing else is needed of the last plan: it is not held beside this one while everything is looked at.
        let outside_before: BTreeSet<CgroupPath> = before.outside().cloned().collect();
        drop(before);
        self.desired.align(&self.aligned);
        self.recall_former(plan);
        self.recall(&plan.node.path);
        self.keep_former();
        self.adopt_runtimes(None);
        self.retain_orphans(&outside_before);
        self.keep_off(plan);
        self.desired.pack();
        let mut report = Report::default();
        self.pass(None, permit, &mut report);
        for error in std::mem::take(&mut self.desired.refused) {
            self.seen.errors.insert(error.path().to_owned(), error.to_string());
            report.errors.push(error);
        }
        if let Some(permit) = permit {
            self.restore_scores(&outside_before, permit, &mut report);
        }
        self.keeper.retain(&self.desired.scores);
        self.forget_gone_scores();
        // Due values are written back later, by `write_back`.
        drop(self.drift.advance((self.clock)()));
        self.renew_watch(permit, &mut report);
        self.retire(permit, &mut report);
        self.find_strangers(&mut report);
        // It may have recognised some.
        self.watch_live(&mut report);
        // A first pass fills both.
        self.ledger.pack();
        self.standing.pack();
        self.plan_look_at_former();
        if let Some(permit) = permit {
            report.scores.absorb(self.sweep_scores(permit));
        }
        report
    }

    /// Whether inotify watches each cgroup: writes to another are seen by a look at everything alone.
    #[must_use]
    pub fn watches_all(&self) -> bool {
        self.all_are_watched
    }

    /// Looks at everything once more, by the last plan.
    pub fn look_at_all(&mut self, permit: Option<&Permit>) -> Report {
        let mut report = Report::default();
        self.drop_gone_runtimes();
        self.adopt_runtimes(None);
        self.pass(None, permit, &mut report);
        self.renew_watch(permit, &mut report);
        self.retire(permit, &mut report);
        self.plan_look_at_former();
        if let Some(permit) = permit {
            report.scores.absorb(self.sweep_scores(permit));
        }
        report
    }

    /// Reads once which foreign cgroups an earlier start wrote to.
    fn recall(&mut self, kubepods: &CgroupPath) {
        if self.recalled.is_some() {
            return;
        }
        let mark = self.root.open(kubepods).and_then(|dir| dir.mark()).ok().flatten();
        let paths = mark.into_iter().flat_map(|mark| mark.outside);
        self.recalled = Some(paths.filter_map(|path| CgroupPath::parse(&path).ok()).collect());
    }

    /// Sets the scores of new processes.
    pub fn sweep(&mut self, permit: &Permit) -> Report {
        let mut report = Report::default();
        self.renew_watch(Some(permit), &mut report);
        report.scores.absorb(self.sweep_scores(permit));
        self.retire(Some(permit), &mut report);
        report
    }

    /// Looks at what the kernel has just reported.
    pub fn look_at(&mut self, changes: &Changes, permit: Option<&Permit>) -> Report {
        if changes.overflow {
            return self.look_at_all(permit);
        }
        let mut paths: BTreeSet<CgroupPath> = BTreeSet::new();
        for (path, file) in &changes.written {
            let concerned = self.concerned(path, file);
            if !concerned.is_empty()
                && let (Some(id), Some(kept)) = (self.id(path), KeptFile::named(file))
            {
                let author = changes.authors.get(&(path.clone(), file.clone())).cloned();
                self.note_author(path, (id, kept), author.as_ref());
                self.wrote(id, kept, author);
            }
            paths.extend(concerned);
        }
        if !changes.children.is_empty() {
            self.drop_gone_runtimes();
            paths.extend(self.adopt_runtimes(Some(&changes.children)));
        }
        // A process was started in a former cgroup.
        paths.extend(self.moved_by(&changes.populated));
        // A cgroup that is gone is made again, under the same name; one that appeared by itself is taken in.
        let is_concerned = |path: &&CgroupPath| {
            path.parent().is_some_and(|parent| changes.children.contains(&parent))
                && (self.standing.get(path).is_none() || self.is_gone(path))
        };
        if !changes.children.is_empty() {
            paths.extend(self.desired.targets.keys().filter(is_concerned).cloned());
        }
        let mut report = Report::default();
        if !paths.is_empty() {
            self.pass(Some(&paths), permit, &mut report);
            if self.standing.have_changed() {
                self.renew_watch(permit, &mut report);
            }
        }
        // Memory charged to a pod that has ended no longer keeps its former cgroup.
        let mut emptied = !changes.populated.is_empty() && self.has_former();
        for path in &changes.populated {
            self.note_frozen(path);
            match (permit, self.desired.scores.get(path)) {
                (Some(permit), Some(score)) if !self.refused.contains(path) => {
                    let sweep = self.keeper.sweep(&self.root, path, *score, permit);
                    self.note_scores(path, &sweep);
                    report.scores.absorb(sweep);
                }
                _ => emptied |= self.standing.get(path).is_some_and(|known| known.is_retired),
            }
        }
        if emptied || !changes.children.is_empty() {
            self.retire(permit, &mut report);
        }
        if !changes.children.is_empty() {
            self.find_strangers(&mut report);
            self.watch_live(&mut report);
        }
        report
    }

    /// Whether a cgroup came, went or became another since the last call: what is [guarded](Self::guarded) and which pods
    /// [stand](Self::standing) follow from that and from the plan.
    pub fn take_change(&mut self) -> bool {
        self.standing.take_change()
    }

    /// When to look again at something that waits, although no event comes.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        [self.failing.due(), self.lowering.due(), self.former_due()].into_iter().flatten().min()
    }

    /// The cgroup of a container that exists and is not retired.
    #[must_use]
    pub fn container_path(&self, pod: &PodName, container: &str) -> Option<&CgroupPath> {
        self.standing.find(pod, Some(container))
    }

    /// The cgroup of a pod that exists and is not retired.
    #[must_use]
    pub fn pod_path(&self, pod: &PodName) -> Option<&CgroupPath> {
        self.standing.find(pod, None)
    }

    /// The score of a planned container's processes.
    #[must_use]
    pub fn score(&self, container: &CgroupPath) -> Option<i16> {
        self.desired.scores.get(container).copied()
    }

    /// The planned cgroups that exist, with their ids, by path: the reflex opens its files there.
    pub fn cgroups(&self) -> impl Iterator<Item = (CgroupId, &Owner)> {
        self.standing
            .iter()
            .filter(|(_, known)| !known.is_retired)
            .map(|(_, known)| (known.id, &*known.owner))
    }

    /// The cgroups of pods that are removed once they are empty, with their ids, by path.
    pub fn going(&self) -> impl Iterator<Item = (CgroupId, &Owner)> {
        let going = self.standing.iter().filter(|(_, known)| known.is_retired && !known.is_outside);
        going.map(|(_, known)| (known.id, &*known.owner))
    }

    /// The pods that have a cgroup, planned or removed once it is empty; some more than once.
    pub fn standing(&self) -> impl Iterator<Item = &PodUid> {
        self.standing.iter().filter_map(|(_, known)| known.owner.level.uid())
    }

    /// Opens a cgroup below the hierarchy that it works on.
    pub fn open(&self, path: &CgroupPath) -> Result<CgroupDir, Error> {
        self.root.open(path)
    }

    /// The index that it feeds.
    #[must_use]
    pub fn index(&self) -> &Index {
        self.standing.index()
    }

    /// The cgroups whose values may have changed through a write to the file.
    fn concerned(&self, path: &CgroupPath, file: &str) -> Vec<CgroupPath> {
        let targets = &self.desired.targets;
        if file == "cgroup.subtree_control" {
            // Controllers that are no longer handed on take their files away further down.
            return targets.keys().filter(|target| target.parent().as_ref() == Some(path)).cloned().collect();
        }
        let is_ours = |file| targets.get(path).is_some_and(|target| target.plan.values.get(file).is_some());
        let is_ours = CgroupFile::named(file).is_some_and(is_ours);
        if is_ours { vec![path.clone()] } else { Vec::new() }
    }

    /// The id of a planned cgroup.
    fn id(&self, path: &CgroupPath) -> Option<CgroupId> {
        match self.standing.get(path) {
            Some(known) => Some(known.id),
            // The system's own cgroups have no owner.
            None if self.desired.targets.get(path)?.owner.is_none() => {
                self.root.open(path).ok().map(|dir| dir.id())
            }
            None => None,
        }
    }

    fn is_gone(&self, path: &CgroupPath) -> bool {
        self.root.open(path).is_err_and(|error| error.is_gone())
    }

    fn remove(&mut self, path: &CgroupPath) -> Option<Arc<Owner>> {
        let known = self.standing.remove(path)?;
        // A foreign cgroup may still exist, and its values may still be due.
        if !known.is_outside || self.is_gone(path) {
            self.forget(known.id);
        }
        self.seen.frozen.remove(path);
        Some(known.owner)
    }

    fn forget(&mut self, id: CgroupId) {
        self.ledger.forget(id);
        self.drift.forget(id);
    }

    fn sweep_scores(&mut self, permit: &Permit) -> Sweep {
        let mut whole = Sweep::default();
        self.seen.scores.clear();
        let scores = std::mem::take(&mut self.desired.scores);
        for (path, score) in &scores {
            if self.refused.contains(path) {
                continue;
            }
            let sweep = self.keeper.sweep(&self.root, path, *score, permit);
            self.note_scores(path, &sweep);
            if !self.keeper.leaves_any(path)
                && let Some(known) = self.standing.get(path)
            {
                self.drift.settled(known.id, KeptFile::Score);
            }
            whole.absorb(sweep);
        }
        self.desired.scores = scores;
        whole
    }

    /// Watches the cgroups that exist. What happened in one before it was watched has no event: call this before looking
    /// at processes, and see here which cgroups went meanwhile.
    fn renew_watch(&mut self, permit: Option<&Permit>, report: &mut Report) {
        // Another may remove them as fast as they are made: the periodic look goes on then.
        for _ in 0..WATCH_ROUNDS {
            let fresh = self.watch_live(report);
            let mut gone: BTreeSet<CgroupPath> = BTreeSet::new();
            for (path, known) in self.standing.iter().filter(|_| !fresh.is_empty()) {
                let is_in = |cgroups: &BTreeSet<CgroupPath>| {
                    path.parent().is_some_and(|parent| cgroups.contains(&parent))
                };
                if !known.is_retired && (is_in(&fresh) || is_in(&gone)) && self.is_gone(path) {
                    gone.insert(path.clone());
                }
            }
            if gone.is_empty() {
                return;
            }
            self.pass(Some(&gone), permit, report);
        }
        self.watch_live(report);
    }

    /// Returns the cgroups that are watched only from now on.
    fn watch_live(&mut self, report: &mut Report) -> BTreeSet<CgroupPath> {
        let Some(watch) = &mut self.watch else { return BTreeSet::new() };
        let pods = self.standing.iter().map(|(path, known)| {
            let is_container = known.owner.level.container().is_some();
            let population = known.is_retired || is_container;
            (path.clone(), Sight { id: known.id, population, children: !is_container })
        });
        let outside = self.desired.outside().filter_map(|path| {
            let id = self.root.open(path).ok()?.id();
            Some((path.clone(), Sight { id, population: false, children: false }))
        });
        let mut wanted: BTreeMap<CgroupPath, Sight> = outside.collect();
        wanted.extend(pods);
        let (fresh, errors) = watch.watch(&self.root, &wanted);
        self.all_are_watched = errors.is_empty();
        for error in errors {
            self.seen.errors.insert(String::from("inotify"), crate::chain(&error));
            report.errors.push(error);
        }
        fresh
    }
}

impl std::fmt::Debug for Reconciler {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Reconciler")
            .field("root", &self.root)
            .field("standing", &self.standing)
            .field("scores", &self.desired.scores)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
