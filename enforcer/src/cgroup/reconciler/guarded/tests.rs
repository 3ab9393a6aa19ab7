use std::fs;

use super::*;
use crate::cgroup::{
    CgroupDir, CgroupsRs, Index, PageSize,
    reconciler::tests::{Fixture, TREE, plan},
};

const POD: &str = "/kubepods/pod1/app";

/// A fixture whose processes are made up.
struct Scene {
    fixture: Fixture,
    proc: tempfile::TempDir,
    container: CgroupId,
}

impl Scene {
    fn new() -> Self {
        let mut fixture = Fixture::new(TREE);
        let proc = tempfile::tempdir().unwrap();
        let root = CgroupDir::unchecked(fixture.temp.path()).unwrap();
        let clock = std::mem::replace(&mut fixture.reconciler.clock, Box::new(Instant::now));
        fixture.reconciler =
            Reconciler::on(root, proc.path(), Box::new(CgroupsRs), PageSize::new(4096), Index::new())
                .unwrap();
        fixture.reconciler.clock = clock;
        drop(fixture.reconcile(&plan("8192")));
        let container = fixture.id(POD);
        Self { fixture, proc, container }
    }

    /// A process of that score, which has to have as many letters as the one that it gets: nothing is cut off.
    fn process(&self, pid: u32, cgroup: &str, score: &str) {
        let folder = self.proc.path().join(pid.to_string());
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("oom_score_adj"), score).unwrap();
        fs::write(folder.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
        let before_start = ["0"; 19].join(" ");
        fs::write(folder.join("stat"), format!("{pid} (a ) b) {before_start} 700 0\n")).unwrap();
    }

    fn score(&self, pid: u32) -> String {
        fs::read_to_string(self.proc.path().join(pid.to_string()).join("oom_score_adj")).unwrap()
    }

    fn seen(&self, pid: u32, is_written: bool) -> ScoreSeen {
        let suspect = Some(ScoreSuspect { pid, start_ns: Some(7_000_000_123) });
        ScoreSeen { container: self.container, suspect, is_written }
    }

    fn put_right(&mut self, seen: ScoreSeen) -> Report {
        self.fixture.reconciler.put_right(&[seen], &self.fixture.permit)
    }
}

#[test]
fn a_new_process_gets_its_own_containers_score() {
    let mut scene = Scene::new();
    scene.process(1, POD, "500");
    scene.process(2, "/kubepods/pod1/app/inner", "500");
    scene.process(3, "/kubepods/pod1/other", "500");
    for pid in 1..=4 {
        let report = scene.put_right(scene.seen(pid, false));
        assert!(report.scores.errors.is_empty() && report.drifted.is_empty(), "{report:?}");
        assert_eq!(report.scores.changed.len(), usize::from(pid < 3), "{pid}");
    }
    assert_eq!(
        (scene.score(1).as_str(), scene.score(2).as_str(), scene.score(3).as_str()),
        ("988", "988", "500")
    );
    let elsewhere = ScoreSeen { container: CgroupId(1), ..scene.seen(3, false) };
    assert!(scene.put_right(elsewhere).is_converged());
}

#[test]
fn a_written_score_is_put_back_thrice_and_then_later() {
    let mut scene = Scene::new();
    for round in 0..3 {
        scene.process(1, POD, &format!("50{round}"));
        let report = scene.put_right(scene.seen(1, true));
        let [drift] = &report.drifted[..] else { panic!("{report:?}") };
        assert_eq!((drift.found.clone(), drift.action), (format!("50{round}"), DriftAction::Restored));
        assert_eq!((drift.planned.as_str(), drift.file), ("988", KeptFile::Score));
        let [write] = &report.written[..] else { panic!("{report:?}") };
        assert_eq!((write.reason, write.change.new.as_str()), (Reason::Drifted, "988"));
        assert_eq!(scene.score(1), "988");
    }
    scene.process(1, POD, "504");
    let report = scene.put_right(scene.seen(1, true));
    assert_eq!(report.drifted.first().map(|drift| drift.action), Some(DriftAction::Delayed));
    assert_eq!((report.written.len(), scene.score(1).as_str()), (0, "504"));
    assert!(scene.put_right(scene.seen(1, true)).drifted.is_empty(), "reported once");
    // It goes on with another program; and a new process of the container is none of this.
    assert!(scene.put_right(scene.seen(1, false)).scores.changed.is_empty());
    scene.process(2, POD, "500");
    assert_eq!(scene.put_right(scene.seen(2, false)).scores.changed.len(), 1);
    scene.fixture.wait(std::time::Duration::from_secs(1));
    let report = scene.fixture.reconciler.write_back(Some(&scene.fixture.permit));
    let [drift] = &report.drifted[..] else { panic!("{report:?}") };
    assert_eq!((drift.found.as_str(), drift.action), ("504", DriftAction::Restored));
    assert_eq!((report.written.len(), scene.score(1).as_str()), (1, "988"));
    assert_eq!(scene.fixture.reconciler.contest_due(), None);
}

#[test]
fn a_process_with_a_reused_id_is_no_drift() {
    let mut scene = Scene::new();
    scene.process(1, POD, "500");
    let other =
        ScoreSeen { suspect: Some(ScoreSuspect { pid: 1, start_ns: Some(1) }), ..scene.seen(1, true) };
    assert!(scene.put_right(other).is_converged());
    assert_eq!(scene.score(1), "500");
    // As a new process it is corrected nevertheless: it is in the container.
    let new = ScoreSeen { is_written: false, ..other };
    assert_eq!(scene.put_right(new).scores.changed.len(), 1);
}

#[test]
fn what_cannot_be_named_is_found_by_a_look_at_its_container() {
    let mut scene = Scene::new();
    scene.process(1, "/../elsewhere", "500");
    fs::write(scene.fixture.temp.path().join("kubepods/pod1/app/cgroup.procs"), "1\n").unwrap();
    let hidden = scene.put_right(scene.seen(1, false));
    assert_eq!((hidden.scores.changed.len(), scene.score(1).as_str()), (1, "988"));
    scene.process(1, POD, "500");
    scene.fixture.reconciler.keeper.forget(&CgroupPath::parse(POD).unwrap());
    let unnamed = ScoreSeen { suspect: None, ..scene.seen(1, false) };
    assert_eq!((scene.put_right(unnamed).scores.changed.len(), scene.score(1).as_str()), (1, "988"));
}

#[test]
fn what_is_guarded_is_what_stands() {
    let scene = Scene::new();
    let guarded = scene.fixture.reconciler.guarded();
    assert_eq!(guarded.scores, BTreeMap::from([(scene.container, 988)]));
    let paths: Vec<&str> = guarded.files.values().map(CgroupPath::as_str).collect();
    assert_eq!(paths.len(), 3, "{paths:?}");
    assert!(guarded.files.contains_key(&scene.container));
}
