use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    path::Path,
};

use super::{
    ApplyError, CgroupDir, CgroupsRs, Diff, Driver, Error, Failure, Fate, Index, Ledger, Missing, Outcome,
    PageSize, Permit, PopulationEvent, PopulationWatch, Removal, Report, ScoreKeeper, Step, Sweep, apply,
    desired::Desired, diff, observe,
};
use crate::{
    model::{CgroupId, CgroupPath, Owner, OwnerLevel, PodName, PodUid},
    policy::Plan,
};

/// Makes the hierarchy as planned, and keeps it so.
///
/// It reads and writes files and may wait for the kernel: call it where blocking is allowed.
pub struct Reconciler {
    root: CgroupDir,
    page: PageSize,
    driver: Box<dyn Driver + Send>,
    ledger: Ledger,
    index: Index,
    keeper: ScoreKeeper,
    watch: Option<PopulationWatch>,
    /// The cgroups that a plan names or has named, and that exist.
    known: BTreeMap<CgroupPath, Known>,
    /// The pods whose containers' cgroups come and go with their processes.
    nurseries: BTreeSet<CgroupPath>,
    /// The score of each planned container.
    scores: BTreeMap<CgroupPath, i16>,
    /// What failed at the last reconciliation.
    told: HashMap<CgroupPath, BTreeSet<String>>,
}

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
        /// Why.
        #[source]
        source: io::Error,
    },
}

#[derive(Clone, Debug)]
struct Known {
    id: CgroupId,
    owner: Owner,
    /// Whether no plan names it any longer: it goes once it is empty.
    retired: bool,
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
            index,
            keeper,
            watch: None,
            known: BTreeMap::new(),
            nurseries: BTreeSet::new(),
            scores: BTreeMap::new(),
            told: HashMap::new(),
        })
    }

    /// Has cgroups made and values kept that way from now on; it begins with files alone.
    pub fn set_driver(&mut self, driver: Box<dyn Driver + Send>) {
        self.driver = driver;
    }

    /// Has the planned containers and the retired cgroups watched from the next reconciliation on.
    pub fn set_watch(&mut self, watch: PopulationWatch) {
        self.watch = Some(watch);
    }

    /// Makes the hierarchy as `plan` says. Without a permit nothing is changed, and the report says what would be.
    ///
    /// A cgroup that an earlier plan named and this one does not is retired: its files stay as they are, and once it
    /// is empty it is removed. The same goes for the pods of the plan whose uid is among `retired`, such as evicted
    /// ones, which stay in the plan while their manifest does.
    pub fn reconcile(&mut self, plan: &Plan, retired: &[PodUid], permit: Option<&Permit>) -> Report {
        let mut desired = Desired::new(plan, &retired.iter().collect());
        let (snapshot, mut errors) = observe(&self.root, &desired.plans, &self.ledger, self.page);
        // What is not there now is not made, even if it was there a moment ago.
        desired.plans.retain(|plan| {
            let is_reserved = desired.reserved.contains(&plan.path);
            let lacks = (is_reserved || desired.awaited.contains(&plan.path))
                && !snapshot.cgroups.contains_key(&plan.path);
            // One that is there and cannot be read was told of already.
            if lacks && is_reserved && self.root.open(&plan.path).is_err_and(|error| error.is_gone()) {
                errors.push(Error::NoReserved { path: plan.path.to_string() });
            }
            !lacks
        });
        let Diff { steps, withheld, missing } = diff(&desired.plans, &snapshot, &self.ledger, self.page);
        let steps = self.driver.arrange(steps);
        let mut report = Report { withheld, missing, errors, ..Report::default() };
        let mut ids: BTreeMap<CgroupPath, CgroupId> =
            snapshot.cgroups.iter().map(|(path, observed)| (path.clone(), observed.id)).collect();
        if let Some(permit) = permit {
            let outcomes = apply(&self.root, self.driver.as_ref(), steps, self.page, permit);
            self.take_in(outcomes, &desired, &mut ids, &mut report);
        } else {
            report.planned = steps;
        }
        self.note_found(&desired, &ids, &report);
        self.learn(&desired, &ids);
        self.scores.clone_from(&desired.scores);
        self.nurseries = desired.awaited.iter().filter_map(|container| container.parent()).collect();
        self.keeper.retain(&self.scores);
        self.retire(permit, &mut report);
        self.find_strangers(plan, &mut report);
        if let Some(permit) = permit {
            report.scores = self.sweep_scores(permit);
        }
        self.watch_population(&mut report);
        report
    }

    /// The periodic look: sets the scores of processes that are new, and removes what is retired and empty by now.
    pub fn sweep(&mut self, permit: &Permit) -> Report {
        let mut report = Report { scores: self.sweep_scores(permit), ..Report::default() };
        self.retire(Some(permit), &mut report);
        self.watch_population(&mut report);
        report
    }

    /// Looks at the one cgroup that the kernel told of, right when it did. A cgroup that was made or removed is
    /// [`reconcile`](Self::reconcile)'s.
    pub fn populated(&mut self, event: &PopulationEvent, permit: &Permit) -> Report {
        let path = match event {
            PopulationEvent::Overflow => return self.sweep(permit),
            PopulationEvent::Changed(path) => path,
            // What is new is only known by the plan.
            PopulationEvent::Children(_) => return Report::default(),
        };
        let mut report = Report::default();
        if let Some(score) = self.scores.get(path) {
            report.scores = self.keeper.sweep(&self.root, path, *score, permit);
        } else if self.known.get(path).is_some_and(|known| known.retired) {
            self.retire(Some(permit), &mut report);
            self.watch_population(&mut report);
        }
        report
    }

    /// The cgroup of a container that exists and is not retired.
    #[must_use]
    pub fn container_path(&self, pod: &PodName, container: &str) -> Option<&CgroupPath> {
        self.known
            .iter()
            .find(|(_, known)| {
                !known.retired
                    && known.owner.level.pod() == Some(pod)
                    && known.owner.level.container() == Some(container)
            })
            .map(|(path, _)| path)
    }

    /// The cgroup of a pod that exists and is not retired.
    #[must_use]
    pub fn pod_path(&self, pod: &PodName) -> Option<&CgroupPath> {
        self.known
            .iter()
            .find(|(_, known)| {
                !known.retired
                    && known.owner.level.pod() == Some(pod)
                    && known.owner.level.container().is_none()
            })
            .map(|(path, _)| path)
    }

    /// The score that the processes of a planned container have.
    #[must_use]
    pub fn score(&self, container: &CgroupPath) -> Option<i16> {
        self.scores.get(container).copied()
    }

    /// The planned cgroups that exist, with their ids, by path: what the reflex opens its files in.
    pub fn cgroups(&self) -> impl Iterator<Item = (CgroupId, &Owner)> {
        self.known.values().filter(|known| !known.retired).map(|known| (known.id, &known.owner))
    }

    /// The pods that have a cgroup, whether it is wanted or goes once it is empty; some more than once.
    pub fn standing(&self) -> impl Iterator<Item = &PodUid> {
        self.known.values().filter_map(|known| known.owner.level.uid())
    }

    /// Opens a cgroup below the hierarchy that it works on.
    pub fn open(&self, path: &CgroupPath) -> Result<CgroupDir, Error> {
        self.root.open(path)
    }

    /// The index that it feeds.
    #[must_use]
    pub fn index(&self) -> &Index {
        &self.index
    }

    fn take_in(
        &mut self,
        outcomes: Vec<Outcome>,
        desired: &Desired<'_>,
        ids: &mut BTreeMap<CgroupPath, CgroupId>,
        report: &mut Report,
    ) {
        let mut failures: HashMap<CgroupPath, BTreeSet<String>> = HashMap::new();
        for outcome in outcomes {
            report.withheld.extend(outcome.withheld());
            let Outcome { step, fate } = outcome;
            match (step, fate) {
                (Step::Create(path), Fate::Done(id)) => {
                    report.created.extend(desired.owners.get(&path).cloned());
                    ids.insert(path, id);
                }
                (Step::Enable { path, controllers }, Fate::Done(_)) => {
                    report.enabled.push((path, controllers));
                }
                (Step::Write(write), Fate::Done(id)) => {
                    self.ledger.note_write(id, &write);
                    report.written.push(write);
                }
                (step, Fate::Failed(error)) => {
                    let told = describe(&step, &error);
                    let before = self.told.get(step.path());
                    let repeated = before.is_some_and(|before| before.contains(&told));
                    failures.entry(step.path().clone()).or_default().insert(told);
                    report.failed.push(Failure { step, error, repeated });
                }
                // Told by `outcome.withheld()`, and by the failure that it follows from.
                (_, Fate::Withheld { .. } | Fate::Skipped { .. }) => {}
            }
        }
        self.told = failures;
    }

    /// Notes the planned values that were found in force, so that a later plan without them gives them back.
    fn note_found(&mut self, desired: &Desired<'_>, ids: &BTreeMap<CgroupPath, CgroupId>, report: &Report) {
        let open: BTreeSet<(&CgroupPath, &str)> = report
            .withheld
            .iter()
            .map(|withheld| &withheld.write)
            .chain(report.planned.iter().filter_map(|step| match step {
                Step::Write(write) => Some(write),
                Step::Create(_) | Step::Enable { .. } => None,
            }))
            .chain(report.failed.iter().filter_map(|failure| match &failure.step {
                Step::Write(write) => Some(write),
                Step::Create(_) | Step::Enable { .. } => None,
            }))
            .map(|write| (&write.path, write.file.as_ref()))
            .chain(report.missing.iter().map(|Missing { path, file, .. }| (path, file.as_ref())))
            .collect();
        for plan in &desired.plans {
            let Some(id) = ids.get(&plan.path) else { continue };
            for (file, value) in &plan.files {
                if !open.contains(&(&plan.path, file.as_ref())) {
                    self.ledger.note(*id, file, value);
                }
            }
        }
    }

    /// Brings what is known, and the index, in line with what exists.
    fn learn(&mut self, desired: &Desired<'_>, ids: &BTreeMap<CgroupPath, CgroupId>) {
        for (path, owner) in &desired.owners {
            match ids.get(path) {
                Some(id) => self.know(path, *id, owner, false),
                None => drop(self.bury(path)),
            }
        }
        for (path, owner) in &desired.retired {
            match self.root.open(path) {
                Ok(dir) => self.know(path, dir.id(), owner, true),
                Err(error) if error.is_gone() => drop(self.bury(path)),
                // It is looked at again at the next reconciliation.
                Err(_) => {}
            }
        }
        for (path, known) in &mut self.known {
            known.retired = !desired.owners.contains_key(path);
        }
    }

    fn know(&mut self, path: &CgroupPath, id: CgroupId, owner: &Owner, retired: bool) {
        if self.known.get(path).is_some_and(|known| known.id != id) {
            // It was removed and made again behind our back.
            self.bury(path);
        }
        self.index.insert(id, owner.clone());
        self.known.insert(path.clone(), Known { id, owner: owner.clone(), retired });
    }

    fn bury(&mut self, path: &CgroupPath) -> Option<Owner> {
        let known = self.known.remove(path)?;
        self.index.bury(known.id);
        self.ledger.forget(known.id);
        Some(known.owner)
    }

    /// Removes the retired cgroups that are empty, containers before their pods.
    fn retire(&mut self, permit: Option<&Permit>, report: &mut Report) {
        let retired: Vec<(CgroupPath, Known)> = self
            .known
            .iter()
            .rev()
            .filter(|(_, known)| known.retired)
            .map(|(path, known)| (path.clone(), known.clone()))
            .collect();
        for (path, known) in retired {
            let gone = match self.root.open(&path) {
                Ok(dir) => dir.id() != known.id,
                Err(error) => error.is_gone(),
            };
            let removable = match known.owner.level {
                OwnerLevel::Pod { .. } | OwnerLevel::Container { .. } => true,
                OwnerLevel::Node | OwnerLevel::Qos(_) => false,
            };
            let removal = match permit {
                _ if gone => Ok(Removal::Gone),
                Some(permit) if removable => self.driver.remove(&self.root, &path, permit),
                Some(_) | None => Ok(Removal::Populated),
            };
            match removal {
                Ok(Removal::Gone) => report.removed.extend(self.bury(&path)),
                Ok(Removal::Populated | Removal::Partial) => report.draining.push(known.owner),
                Err(error) => {
                    report.draining.push(known.owner);
                    report.errors.push(error);
                }
            }
        }
    }

    /// Lists the cgroups beside the pods that no pod names.
    fn find_strangers(&self, plan: &Plan, report: &mut Report) {
        for above in std::iter::once(&plan.node).chain(plan.qos.iter().map(|(_, cgroup)| cgroup)) {
            match self.root.open(&above.path).and_then(|dir| dir.children()) {
                Ok(names) => report.strangers.extend(
                    names
                        .iter()
                        .filter_map(|name| above.path.child(name).ok())
                        .filter(|path| !self.known.contains_key(path)),
                ),
                Err(error) if error.is_gone() => {}
                Err(error) => report.errors.push(error),
            }
        }
    }

    fn sweep_scores(&mut self, permit: &Permit) -> Sweep {
        let mut sweep = Sweep::default();
        for (path, score) in &self.scores {
            sweep.absorb(self.keeper.sweep(&self.root, path, *score, permit));
        }
        sweep
    }

    fn watch_population(&mut self, report: &mut Report) {
        let Some(watch) = &mut self.watch else { return };
        let wanted = self
            .known
            .iter()
            .filter(|(_, known)| known.retired || known.owner.level.container().is_some())
            .map(|(path, known)| (PopulationEvent::Changed(path.clone()), known.id));
        let children = self
            .nurseries
            .iter()
            .filter_map(|path| Some((PopulationEvent::Children(path.clone()), self.known.get(path)?.id)));
        let wanted = wanted.chain(children).collect();
        report.errors.extend(watch.watch(&self.root, &wanted));
    }
}

impl std::fmt::Debug for Reconciler {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Reconciler")
            .field("root", &self.root)
            .field("known", &self.known)
            .field("scores", &self.scores)
            .finish_non_exhaustive()
    }
}

/// A failure's text, by which a repetition is known.
fn describe(step: &Step, error: &ApplyError) -> String {
    match step {
        Step::Create(_) => format!("create: {error}"),
        Step::Enable { .. } => format!("enable: {error}"),
        Step::Write(write) => format!("{}: {error}", write.file),
    }
}

#[cfg(test)]
mod tests;
