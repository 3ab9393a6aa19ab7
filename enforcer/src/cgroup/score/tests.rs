use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt as _,
    process::{Child, Command},
};

use super::*;
use crate::cgroup::{Mark, ScoreRecord};

pub(super) struct Sleeper(Child);

impl Sleeper {
    pub(super) fn start() -> Self {
        Self(Command::new("sleep").arg("600").spawn().unwrap())
    }

    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }

    pub(super) fn score(&self) -> String {
        fs::read_to_string(format!("/proc/{}/oom_score_adj", self.0.id())).unwrap().trim().to_owned()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn path(text: &str) -> CgroupPath {
    CgroupPath::parse(text).unwrap()
}

fn tree(procs: &str) -> (tempfile::TempDir, CgroupDir) {
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir_all(temp.path().join("pod/app/inner")).unwrap();
    fs::write(temp.path().join("pod/app/cgroup.procs"), "").unwrap();
    fs::write(temp.path().join("pod/app/cgroup.stat"), "nr_descendants 1\nnr_dying_descendants 0\n").unwrap();
    fs::write(temp.path().join("pod/app/inner/cgroup.procs"), procs).unwrap();
    fs::write(temp.path().join("pod/app/inner/cgroup.stat"), "nr_descendants 0\n").unwrap();
    let root = CgroupDir::unchecked(temp.path()).unwrap();
    (temp, root)
}

#[test]
fn a_process_in_a_nested_cgroup_gets_the_containers_score_once() {
    let sleeper = Sleeper::start();
    let (_temp, root) = tree(&format!("{}\n", sleeper.0.id()));
    let mut keeper = ScoreKeeper::new(Path::new("/proc")).unwrap();
    let permit = Permit::for_enforce_mode();
    let old: i16 = sleeper.score().parse().unwrap();
    let sweep = keeper.sweep(&root, &path("/pod/app"), 988, &permit);
    assert!(sweep.errors.is_empty(), "{:?}", sweep.errors);
    let change = ScoreChange { path: path("/pod/app"), pid: sleeper.0.id(), old, new: 988 };
    assert_eq!(sweep.changed, [change]);
    assert_eq!(sleeper.score(), "988");
    assert_eq!(keeper.sweep(&root, &path("/pod/app"), 988, &permit).changed, []);
    assert_eq!(
        keeper.sweep(&root, &path("/pod/app"), 989, &permit).changed.len(),
        1,
        "a new plan counts at once"
    );
}

#[test]
fn a_process_in_a_cgroup_whose_name_is_no_text_gets_the_containers_score() {
    let sleeper = Sleeper::start();
    let (temp, root) = tree("");
    let nested = temp.path().join("pod/app").join(OsStr::from_bytes(b"x\xff"));
    fs::create_dir(&nested).unwrap();
    fs::write(nested.join("cgroup.procs"), format!("{}\n", sleeper.id())).unwrap();
    let mut keeper = ScoreKeeper::new(Path::new("/proc")).unwrap();
    let sweep = keeper.sweep(&root, &path("/pod/app"), 988, &Permit::for_enforce_mode());
    assert!(sweep.errors.is_empty(), "{:?}", sweep.errors);
    assert_eq!(sleeper.score(), "988");
}

#[test]
fn what_a_container_had_is_recorded_on_its_cgroup() {
    let sleeper = Sleeper::start();
    let (_temp, root) = tree(&format!("{}\n", sleeper.id()));
    let own = root.open(&path("/pod/app")).unwrap();
    if own.set_mark(&Mark::new(true, None)).is_err() {
        // Only root, on some file systems, sets such attributes.
        return;
    }
    let mut keeper = ScoreKeeper::new(Path::new("/proc")).unwrap();
    let permit = Permit::for_enforce_mode();
    let old: i16 = sleeper.score().parse().unwrap();
    assert_eq!(own.score_record().unwrap(), None);
    keeper.sweep(&root, &path("/pod/app"), 900, &permit);
    assert_eq!(own.score_record().unwrap(), Some(ScoreRecord::new(old, 900)));
    // The next daemon adds to it.
    let mut keeper = ScoreKeeper::new(Path::new("/proc")).unwrap();
    keeper.sweep(&root, &path("/pod/app"), 950, &permit);
    let record = own.score_record().unwrap().unwrap();
    assert_eq!((record.before, record.written), (old, vec![900, 950]));
    own.forget_scores().unwrap();
    assert_eq!(own.score_record().unwrap(), None);
}

fn set(sleeper: &Sleeper, score: i16) {
    fs::write(format!("/proc/{}/oom_score_adj", sleeper.id()), score.to_string()).unwrap();
}

#[test]
fn what_still_has_a_score_that_was_given_gets_back_what_it_had_and_no_other_process_does() {
    let [given, earlier, foreign] = [700, 650, 800].map(|score| (Sleeper::start(), score));
    let before: i16 = given.0.score().parse().unwrap();
    let pids: Vec<_> = [&given, &earlier, &foreign].map(|(sleeper, _)| sleeper.id().to_string()).into();
    for (sleeper, score) in [&given, &earlier, &foreign] {
        set(sleeper, *score);
    }
    let (_temp, root) = tree(&pids.join("\n"));
    let own = root.open(&path("/pod/app")).unwrap();
    let keeper = ScoreKeeper::new(Path::new("/proc")).unwrap();
    let record = ScoreRecord { before, written: vec![650, 700] };
    let mut sweep = Sweep::default();
    let is_settled = keeper.undo_as(&root, &own, &record, &Permit::for_enforce_mode(), &mut sweep).unwrap();
    assert!(is_settled && sweep.errors.is_empty(), "{sweep:?}");
    let had = before.to_string();
    assert_eq!([given, earlier, foreign].map(|(sleeper, _)| sleeper.score()), [had.as_str(), &had, "800"]);
    assert_eq!(sweep.changed.len(), 2, "{sweep:?}");
}

#[test]
fn a_process_of_another_cgroup_at_the_same_path_keeps_its_score() {
    let sleeper = Sleeper::start();
    let before: i16 = sleeper.score().parse().unwrap();
    set(&sleeper, 700);
    let (temp, root) = tree(&format!("{}\n", sleeper.id()));
    let own = root.open(&path("/pod/app")).unwrap();
    fs::rename(temp.path().join("pod/app"), temp.path().join("pod/former")).unwrap();
    fs::create_dir(temp.path().join("pod/app")).unwrap();
    fs::write(temp.path().join("pod/app/cgroup.procs"), format!("{}\n", sleeper.id())).unwrap();
    let keeper = ScoreKeeper::new(Path::new("/proc")).unwrap();
    let (record, permit) = (ScoreRecord::new(before, 700), Permit::for_enforce_mode());
    let mut sweep = Sweep::default();
    assert!(!keeper.undo_as(&root, &own, &record, &permit, &mut sweep).unwrap());
    assert_eq!((sweep.changed.len(), sleeper.score().as_str()), (0, "700"));
}

#[test]
fn what_is_recorded_is_undone_once() {
    let sleeper = Sleeper::start();
    let (_temp, root) = tree(&format!("{}\n", sleeper.id()));
    let own = root.open(&path("/pod/app")).unwrap();
    if own.set_mark(&Mark::new(true, None)).is_err() {
        // Only root, on some file systems, sets such attributes.
        return;
    }
    let (container, permit) = (path("/pod/app"), Permit::for_enforce_mode());
    let old = sleeper.score();
    ScoreKeeper::new(Path::new("/proc")).unwrap().sweep(&root, &container, 900, &permit);
    // The next daemon knows of it by the record alone.
    let mut keeper = ScoreKeeper::new(Path::new("/proc")).unwrap();
    let sweep = keeper.undo(&root, &container, &permit);
    assert_eq!((sweep.changed.len(), sleeper.score()), (1, old));
    assert_eq!(own.score_record().unwrap(), None);
    set(&sleeper, 900);
    assert_eq!(keeper.undo(&root, &container, &permit).changed, [], "another has written that");
    assert!(keeper.undo(&root, &path("/pod/gone"), &permit).errors.is_empty());
}

#[test]
fn a_foreign_score_is_found_by_the_next_full_sweep() {
    let sleeper = Sleeper::start();
    let (_temp, root) = tree(&format!("{}\n", sleeper.0.id()));
    let mut keeper = ScoreKeeper::new(Path::new("/proc")).unwrap();
    let permit = Permit::for_enforce_mode();
    keeper.sweep(&root, &path("/pod/app"), 900, &permit);
    fs::write(format!("/proc/{}/oom_score_adj", sleeper.0.id()), "950").unwrap();
    let mut changed = 0;
    for _ in 0..=FULL_SWEEP_EVERY {
        changed += keeper.sweep(&root, &path("/pod/app"), 900, &permit).changed.len();
    }
    assert_eq!(changed, 1);
    assert_eq!(sleeper.score(), "900");
}

#[test]
fn the_dead_and_the_invisible_are_no_errors() {
    let mut sleeper = Sleeper::start();
    let pid = sleeper.0.id();
    sleeper.0.kill().unwrap();
    sleeper.0.wait().unwrap();
    let (_temp, root) = tree(&format!("{pid}\n0\n0\n"));
    let mut keeper = ScoreKeeper::new(Path::new("/proc")).unwrap();
    let sweep = keeper.sweep(&root, &path("/pod/app"), 988, &Permit::for_enforce_mode());
    assert!(sweep.errors.is_empty() && sweep.changed.is_empty());
    assert_eq!(sweep.invisible, 1, "listed twice, counted once");
    assert!(keeper.sweep(&root, &path("/pod/gone"), 988, &Permit::for_enforce_mode()).errors.is_empty());
}

#[test]
fn a_process_that_left_the_cgroup_keeps_its_score() {
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir_all(temp.path().join("42")).unwrap();
    fs::write(temp.path().join("42/oom_score_adj"), "0\n").unwrap();
    let (cgroups, root) = tree("42\n");
    let keeper = ScoreKeeper::new(temp.path()).unwrap();
    let dir = root.open(&path("/pod/app/inner")).unwrap();
    fs::write(cgroups.path().join("pod/app/inner/cgroup.procs"), "").unwrap();
    let mut sweep = Sweep::default();
    let (dirs, permit) = ((&root, &dir), Permit::for_enforce_mode());
    keeper.sweep_batch(dirs, &[42], &path("/pod/app"), 988, &permit, &mut sweep);
    assert_eq!(sweep.changed, []);
    assert_eq!(fs::read_to_string(temp.path().join("42/oom_score_adj")).unwrap(), "0\n");
}

#[test]
fn who_is_left_is_not_swept_until_it_has_the_right_score() {
    let sleeper = Sleeper::start();
    let (_temp, root) = tree(&format!("{}\n", sleeper.id()));
    let mut keeper = ScoreKeeper::new(Path::new("/proc")).unwrap();
    let permit = Permit::for_enforce_mode();
    let container = path("/pod/app");
    let write = |score: &str| fs::write(format!("/proc/{}/oom_score_adj", sleeper.id()), score).unwrap();
    let full_sweep = |keeper: &mut ScoreKeeper| {
        (0..=FULL_SWEEP_EVERY)
            .map(|_| keeper.sweep(&root, &container, 900, &permit).changed.len())
            .sum::<usize>()
    };
    keeper.sweep(&root, &container, 900, &permit);
    write("950");
    keeper.leave(&container, ScoreSuspect { pid: sleeper.id(), start_ns: Some(1) });
    assert!(!keeper.leaves_any(&container), "that was another process");
    keeper.leave(&container, ScoreSuspect { pid: sleeper.id(), start_ns: None });
    assert!(keeper.leaves_any(&container));
    assert!(keeper.leaves(&container, ScoreSuspect { pid: sleeper.id(), start_ns: None }));
    assert!(!keeper.leaves(&container, ScoreSuspect { pid: sleeper.id(), start_ns: Some(1) }));
    assert_eq!(full_sweep(&mut keeper), 0);
    assert_eq!(sleeper.score(), "950");
    write("900");
    full_sweep(&mut keeper);
    assert!(!keeper.leaves_any(&container));
    write("950");
    assert_eq!(full_sweep(&mut keeper), 1, "it is kept as before");
}

/// A list of more than 64 KiB: some 9,300 processes.
#[test]
fn a_container_of_many_processes_is_swept_whole() {
    let sleeper = Sleeper::start();
    // Above every process id that there is.
    let mut procs: Vec<_> = (4_194_305..4_214_305).map(|pid: u32| pid.to_string()).collect();
    procs.push(sleeper.id().to_string());
    let (_temp, root) = tree(&procs.join("\n"));
    let mut keeper = ScoreKeeper::new(Path::new("/proc")).unwrap();
    let sweep = keeper.sweep(&root, &path("/pod/app"), 988, &Permit::for_enforce_mode());
    assert!(sweep.errors.is_empty(), "{:?}", sweep.errors);
    assert_eq!(sleeper.score(), "988");
}
