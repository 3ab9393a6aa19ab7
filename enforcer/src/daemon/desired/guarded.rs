//! Handles the eBPF programs' reports of single processes and files.
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use super::{
    Desired, Extent,
    emit::{self, Writer, Writers},
    watch_budget::{self, Watched},
};
use crate::{
    cgroup::{Changes, Guarded, KeptFile, Reconciler, ScoreSeen, ScoreSuspect},
    model::{CgroupId, CgroupPath},
    sense::{ForeignWrite, Guard, GuardEvent, Kept, ScoreCause, Sight, WrongScore},
};

/// What is guarded, and what is to be guarded.
#[derive(Debug, Default)]
pub(super) struct Guarding {
    wanted: Arc<Guarded>,
    put_in: Arc<Guarded>,
}

impl Guarding {
    /// Sets what is guarded from now on. Scores are kept only if the daemon may write; writes are reported in any case.
    pub(super) fn wish(&mut self, guarded: Guarded, may_write: bool) {
        let scores = if may_write { guarded.scores } else { BTreeMap::new() };
        let wanted = Guarded { scores, ..guarded };
        // Equal sets keep their address, by which they are compared after each event of the main loop.
        if *self.wanted != wanted {
            self.wanted = Arc::new(wanted);
        }
    }

    /// The cgroups of pods that no plan names.
    pub(super) fn made_by_runtimes(&self) -> &BTreeSet<CgroupPath> {
        &self.wanted.made_by_runtimes
    }

    fn path(&self, cgroup: CgroupId) -> Option<&CgroupPath> {
        self.put_in.files.get(&cgroup)
    }
}

/// Events of one pass, by the work that they require.
#[derive(Debug, Default)]
struct GuardBatch {
    /// Processes that came into a container.
    new: Vec<ScoreSeen>,
    /// Scores that other processes wrote, by process: the latest counts.
    written: BTreeMap<u32, WrongScore>,
    /// Files that other processes wrote: the latest counts.
    files: BTreeMap<(CgroupPath, String), Writer>,
    /// Containers whose events were not all reported.
    containers: BTreeSet<CgroupId>,
    /// Cgroups whose events were not all reported.
    cgroups: BTreeSet<CgroupPath>,
    lost: u64,
}

impl GuardBatch {
    fn sort(events: Vec<GuardEvent>, guarding: &Guarding) -> Self {
        let mut batch = Self::default();
        for event in events {
            match event {
                GuardEvent::Score(score) => match score.cause {
                    ScoreCause::Attached | ScoreCause::Forked | ScoreCause::Executed => {
                        batch.new.push(seen(&score));
                    }
                    ScoreCause::Written => drop(batch.written.insert(score.process.pid, score)),
                },
                GuardEvent::Written(ForeignWrite { time_ns: _, cgroup, file, writer }) => {
                    // A cgroup that is no longer guarded does not matter.
                    let Some(path) = guarding.path(cgroup) else { continue };
                    batch.files.insert((path.clone(), file), Writer { by: writer, of: None });
                }
                GuardEvent::Overrun { cgroup, of: Kept::Scores } => drop(batch.containers.insert(cgroup)),
                GuardEvent::Overrun { cgroup, of: Kept::Files } => {
                    batch.cgroups.extend(guarding.path(cgroup).cloned());
                }
                GuardEvent::Lost(lost) => batch.lost += lost,
            }
        }
        batch
    }
}

fn seen(score: &WrongScore) -> ScoreSeen {
    ScoreSeen {
        container: score.container,
        suspect: score.pid.map(|pid| ScoreSuspect { pid, start_ns: score.process.start_ns }),
        is_written: score.cause == ScoreCause::Written,
    }
}

impl Desired {
    /// Learns what the programs can see: nothing once they are gone.
    pub(in crate::daemon) fn set_sight(&mut self, sight: Sight) {
        self.schedule.scores_are_reported(self.permit.is_none() || sight.scores);
        self.schedule.writes_are_reported(sight.writes);
    }

    /// Hands the guard the wanted set, if it has changed.
    pub(in crate::daemon) fn put_in(&mut self, guard: &mut Guard) {
        let wanted = Arc::clone(&self.guarding.wanted);
        if Arc::ptr_eq(&self.guarding.put_in, &wanted) {
            return;
        }
        let outcomes =
            [guard.set_wanted(&wanted.scores), guard.set_guarded(&wanted.files.keys().copied().collect())];
        for error in outcomes.into_iter().filter_map(Result::err) {
            let message = crate::chain(&error);
            if self.reported.insert(message.clone()) {
                emit::degraded(&self.journal, "guard", &message);
            }
        }
        // Processes that came before the cgroup was guarded were not reported.
        if wanted.scores.keys().any(|id| !self.guarding.put_in.scores.contains_key(id)) {
            self.schedule.request_sweep(Instant::now());
        }
        self.guarding.put_in = wanted;
        // A table may not hold all of it.
        self.set_sight(guard.sight());
    }

    /// Corrects what the programs reported.
    pub(in crate::daemon) async fn guarded(&mut self, events: Vec<GuardEvent>) -> anyhow::Result<()> {
        let GuardBatch { new, written, files, containers, cgroups, lost } =
            GuardBatch::sort(events, &self.guarding);
        let (Some(hierarchy), permit) = (self.hierarchy.clone(), self.permit.clone()) else {
            return Ok(());
        };
        if let Some(permit) = &permit {
            if !new.is_empty() {
                let permit = Arc::clone(permit);
                let report = hierarchy.run(move |reconciler| reconciler.put_right(&new, &permit)).await?;
                self.emit_report(&report, &Writers::default());
            }
            for score in written.into_values() {
                let (permit, seen) = (Arc::clone(permit), seen(&score));
                let writer = Writer { by: score.writer, of: Some(score.process) };
                let author = watch_budget::author(&writer);
                let mut writers = Writers::default();
                if let Some(path) = self.guarding.path(score.container) {
                    writers.note(path.clone(), KeptFile::Score, writer);
                }
                let work = move |reconciler: &mut Reconciler| {
                    reconciler.wrote(seen.container, KeptFile::Score, Some(author));
                    let report = reconciler.put_right(&[seen], &permit);
                    (report, reconciler.problems(), reconciler.contest_due())
                };
                let (report, problems, contest_due) = hierarchy.run(work).await?;
                self.emit_report(&report, &writers);
                self.problems.renew(problems, &self.journal);
                self.schedule.write_back_at(contest_due, Instant::now());
            }
        }
        let now = Instant::now();
        let (mut changes, mut writers) = (Changes::default(), Writers::default());
        for ((path, file), writer) in files {
            let thing = Watched::File(path.clone(), file.clone());
            if self.watch_budget.admit(thing, Some(writer.clone()), now) {
                changes.authors.insert((path.clone(), file.clone()), watch_budget::author(&writer));
                changes.written.insert((path.clone(), file.clone()));
                if let Some(kept) = KeptFile::named(&file) {
                    writers.note(path, kept, writer);
                }
            }
        }
        if !changes.written.is_empty() {
            self.look_at(changes, &writers).await?;
        }
        if !containers.is_empty() || !cgroups.is_empty() {
            let permit = permit.clone();
            self.change(Extent::Values, move |reconciler| {
                reconciler.look_over(&containers, &cgroups, permit.as_deref())
            })
            .await?;
        }
        if lost > 0 {
            tracing::info!(lost, "the eBPF programs lost events; looking at everything");
            let all = Changes { overflow: true, ..Changes::default() };
            if let Some(all) = self.watch_budget.sift(all, now) {
                self.look_at(all, &Writers::default()).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sense::Process;

    fn process(pid: u32) -> Process {
        Process { pid, start_ns: Some(7), comm: String::from("sh") }
    }

    fn score(cause: ScoreCause, pid: Option<u32>) -> GuardEvent {
        GuardEvent::Score(WrongScore {
            time_ns: 0,
            container: CgroupId(5),
            process: process(12),
            pid,
            cause,
            score: 0,
            wanted: 900,
            writer: process(3),
        })
    }

    #[test]
    fn each_event_goes_where_it_is_handled() {
        let path = CgroupPath::parse("/kubepods/pod1/app").unwrap();
        let files = BTreeMap::from([(CgroupId(5), path.clone())]);
        let guarding =
            Guarding { put_in: Guarded { files, ..Guarded::default() }.into(), ..Guarding::default() };
        let write = |cgroup| {
            let file = String::from("memory.max");
            GuardEvent::Written(ForeignWrite {
                time_ns: 0,
                cgroup: CgroupId(cgroup),
                file,
                writer: process(3),
            })
        };
        let batch = GuardBatch::sort(
            vec![
                score(ScoreCause::Attached, Some(12)),
                score(ScoreCause::Forked, None),
                score(ScoreCause::Written, None),
                score(ScoreCause::Written, Some(12)),
                write(5),
                write(6),
                GuardEvent::Overrun { cgroup: CgroupId(5), of: Kept::Scores },
                GuardEvent::Overrun { cgroup: CgroupId(5), of: Kept::Files },
                GuardEvent::Overrun { cgroup: CgroupId(6), of: Kept::Files },
                GuardEvent::Lost(2),
                GuardEvent::Lost(3),
            ],
            &guarding,
        );
        let suspect = Some(ScoreSuspect { pid: 12, start_ns: Some(7) });
        let seen = |suspect| ScoreSeen { container: CgroupId(5), suspect, is_written: false };
        assert_eq!(batch.new, [seen(suspect), seen(None)]);
        let written: Vec<_> = batch.written.values().map(|score| score.pid).collect();
        assert_eq!(written, [Some(12)]);
        let files: Vec<_> = batch.files.into_keys().collect();
        assert_eq!(files, [(path.clone(), String::from("memory.max"))]);
        assert_eq!(batch.containers, BTreeSet::from([CgroupId(5)]));
        assert_eq!(batch.cgroups, BTreeSet::from([path]));
        assert_eq!(batch.lost, 5);
    }
}
