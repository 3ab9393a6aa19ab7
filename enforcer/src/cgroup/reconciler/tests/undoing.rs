//! Scores that a daemon before this one has left beside a kubelet.

use std::process::{Child, Command};

use super::*;

struct Running(Child);

impl Running {
    fn start() -> Self {
        Self(Command::new("sleep").arg("600").spawn().unwrap())
    }

    fn file(&self) -> String {
        format!("/proc/{}/oom_score_adj", self.0.id())
    }

    fn score(&self) -> String {
        fs::read_to_string(self.file()).unwrap().trim().to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// One container of the plan, and one that no plan names. The ranking agrees with the plan, so that no score is given.
#[test]
fn scores_of_a_killed_daemon_are_undone_in_containers_with_and_without_a_plan() {
    const UNPLANNED: &str = "kubepods/pod2/app";
    let mut fixture = Fixture::new(&[TREE, &["kubepods/pod2", UNPLANNED]].concat());
    fixture.reconciler.set_audit();
    drop(fixture.reconciler.reconcile(&plan("max"), &[], None));
    let running = ["kubepods/pod1/app", UNPLANNED].map(|cgroup| {
        let process = Running::start();
        fixture.write(&format!("{cgroup}/cgroup.procs"), &format!("{}\n", process.0.id()));
        let path = CgroupPath::parse(&format!("/{cgroup}")).unwrap();
        (fixture.reconciler.open(&path).unwrap(), path, process)
    });
    let had: i16 = running[0].2.score().parse().unwrap();
    for (dir, _, process) in &running {
        fs::write(process.file(), "700").unwrap();
        if dir.note_score(had, 700).is_err() {
            // Only root, on some file systems, sets such attributes.
            return;
        }
    }
    let placed = BTreeSet::from([running[1].1.clone()]);
    let report = fixture.reconciler.undo_scores(placed, &fixture.permit);
    let undone: Vec<_> = report
        .written
        .iter()
        .map(|written| (written.reason, written.path.clone(), written.change.new.clone()))
        .collect();
    let expected = |path: &CgroupPath| (Reason::Interrupted, path.clone(), had.to_string());
    assert_eq!(undone, [expected(&running[0].1), expected(&running[1].1)]);
    assert!(running.iter().all(|(_, _, process)| process.score() == had.to_string()));
    assert!(running.iter().all(|(dir, ..)| dir.score_record().unwrap().is_none()));
    assert!(fixture.reconciler.problems().iter().all(|problem| problem.what != "scores"));
    // What is given now is by the scores that are in force.
    let report = fixture.reconciler.align(BTreeMap::new(), &fixture.permit);
    assert!(report.written.is_empty(), "{report:?}");
}

#[test]
fn a_score_that_could_not_be_undone_is_no_problem_once_its_container_is_gone() {
    let mut fixture = Fixture::new(TREE);
    fixture.reconciler.set_audit();
    let path = CgroupPath::parse("/kubepods/pod1/app").unwrap();
    let refused = Sweep { refused: 1, ..Sweep::default() };
    fixture.reconciler.note_scores(&path, &refused);
    let has_problem =
        |reconciler: &Reconciler| reconciler.problems().iter().any(|problem| problem.what == "scores");
    drop(fixture.reconciler.reconcile(&plan("max"), &[], None));
    assert!(has_problem(&fixture.reconciler));
    fs::remove_dir_all(fixture.temp.path().join("kubepods/pod1/app")).unwrap();
    drop(fixture.reconciler.reconcile(&plan("max"), &[], None));
    assert!(!has_problem(&fixture.reconciler));
}
