//! A kubelet that comes to a node whose cgroups are this daemon's.
//!
//! With the same driver and root it takes the kubepods that stands, and writes its limits there once: if they are
//! overwritten, they are gone until it is started again. So what it may have written is left, both until it is certain
//! that it stays and when everything is given back.

use std::collections::{BTreeMap, BTreeSet};

use super::{Desired, Known, Reconciler};
use crate::{
    cgroup::{Author, Drift, DriftAction, KeptFile, Permit, Report, Step, Withheld, Write, desired::Target},
    model::{CgroupFile, CgroupId, CgroupPath, OwnerLevel},
};

/// The id of the process that also writes what others ask it to: systemd.
const INIT: u32 = 1;

/// What is known of a kubelet that may come.
#[derive(Default)]
pub(super) struct Arrival {
    /// Whether one runs; `None` where none is to take the cgroups over.
    runs: Option<Box<dyn FnMut() -> bool + Send>>,
    /// Whether everything is given back to one.
    has_come: bool,
    /// The files of shared cgroups that another process has written since this daemon did, maybe with the same value.
    written: BTreeSet<(CgroupId, CgroupFile)>,
}

impl Arrival {
    fn runs(&mut self) -> bool {
        self.runs.as_mut().is_some_and(|runs| runs())
    }

    /// Notes a write of this daemon.
    pub(super) fn wrote(&mut self, id: CgroupId, file: CgroupFile) {
        self.written.remove(&(id, file));
    }

    /// Forgets the cgroups that are not among these.
    pub(super) fn retain(&mut self, ids: &BTreeMap<CgroupPath, CgroupId>) {
        self.written.retain(|(id, _)| ids.values().any(|known| known == id));
    }
}

impl Reconciler {
    /// Leaves what a kubelet may have written that has just come. `runs` says whether one runs: it is asked when
    /// another process has changed a value that a kubelet writes too, and at the end.
    pub fn set_arrival(&mut self, runs: impl FnMut() -> bool + Send + 'static) {
        self.arrival.runs = Some(Box::new(runs));
    }

    /// Does the same as [`release`](Self::release) for a kubelet that has come: what it may have written stays, and so
    /// do kubepods and the classes' cgroups. Call it last.
    pub fn hand_over(&mut self, permit: &Permit) -> Report {
        self.arrival.has_come = true;
        self.release(permit)
    }

    /// Looks once more whether a kubelet runs, before everything is given back.
    pub(super) fn look_for_kubelet(&mut self) {
        self.arrival.has_come = self.arrival.has_come || self.arrival.runs();
    }

    /// Whether a cgroup is not removed at the end: a kubelet makes kubepods and the classes' cgroups when it starts.
    pub(super) fn is_for_kubelet(&self, known: &Known) -> bool {
        self.arrival.has_come
            && match known.owner.level {
                OwnerLevel::Node | OwnerLevel::Qos(_) => true,
                OwnerLevel::Pod { .. } | OwnerLevel::Container { .. } => false,
            }
    }

    /// Notes which process has written to a file of a cgroup, as far as it is shared with a kubelet.
    pub(super) fn note_author(
        &mut self,
        path: &CgroupPath,
        (id, file): (CgroupId, KeptFile),
        author: Option<&Author>,
    ) {
        if let KeptFile::Cgroup(file) = file
            && author.is_some_and(|author| author.pid != INIT)
            && self.desired.targets.get(path).is_some_and(Target::is_shared)
        {
            self.arrival.written.insert((id, file));
        }
    }

    /// Takes out the writes over values that may be a kubelet's: for a while if one runs that may not stay, and for
    /// good if one has come. Returns the files.
    pub(super) fn spare(
        &mut self,
        desired: &Desired,
        ids: &BTreeMap<CgroupPath, CgroupId>,
        (steps, withheld): (&mut Vec<Step>, &mut Vec<Withheld>),
        report: &mut Report,
    ) -> BTreeSet<(CgroupPath, CgroupFile)> {
        let written = steps.iter().filter_map(|step| match step {
            Step::Write(write) => Some(write),
            Step::Create(_) | Step::Enable { .. } | Step::Move { .. } => None,
        });
        let others: Vec<(CgroupId, Write)> = written
            .chain(withheld.iter().map(|withheld| &withheld.write))
            .filter(|write| desired.targets.get(&write.path).is_some_and(Target::is_shared))
            .filter_map(|write| Some((*ids.get(&write.path)?, write)))
            .filter(|(id, write)| self.is_anothers(*id, write))
            .map(|(id, write)| (id, write.clone()))
            .collect();
        let mut spared = BTreeSet::new();
        if others.is_empty() {
            return spared;
        }
        let now = (self.clock)();
        let has_come = self.arrival.has_come;
        let runs = has_come || self.arrival.runs();
        for (id, write) in others {
            let file = KeptFile::from(write.file());
            let (action, is_reported) = if has_come {
                (DriftAction::Left, true)
            } else if let Some(is_news) = self.drift.hold_back((&write.path, id, file), runs, now) {
                (DriftAction::Delayed, is_news)
            } else {
                continue;
            };
            if is_reported {
                // What is given back at the end is not what was planned.
                let last = self.ledger.value(id, write.file()).filter(|_| has_come);
                report.drifted.push(Drift {
                    path: write.path.clone(),
                    cgroup: id,
                    file,
                    planned: last.as_ref().unwrap_or(&write.value).to_string(),
                    found: write.old.as_ref().map(ToString::to_string).unwrap_or_default(),
                    action,
                    author: self.drift.author(id, file),
                });
            }
            if has_come {
                self.ledger.leave(id, write.file());
                self.shrink_mark(&write.path, Some(id));
            }
            spared.insert((write.path.clone(), write.file()));
        }
        let is_spared = |write: &Write| spared.contains(&(write.path.clone(), write.file()));
        steps.retain(|step| !matches!(step, Step::Write(write) if is_spared(write)));
        withheld.retain(|withheld| !is_spared(&withheld.write));
        spared
    }

    /// Whether the file that is to be written holds what another process wrote, as far as that is known.
    fn is_anothers(&self, id: CgroupId, write: &Write) -> bool {
        let file = write.file();
        let Some(found) = &write.old else { return false };
        // What holds it down puts it back.
        if file == CgroupFile::MemoryHigh && self.lowering.holds(&write.path) {
            return false;
        }
        let last = self.ledger.value(id, file);
        // At the end, what this daemon is not known to have written is not its own.
        self.arrival.written.contains(&(id, file))
            || last.map_or(self.arrival.has_come, |last| !found.is(&last, self.page))
    }
}
