use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, sync::Arc};

use rustix::process::getuid;
use ulid::Ulid;

use super::{
    HookProgram, HookRun, Hooks, Job, KilledPrograms, Run, UnsafeProgram, begin, environment::environment,
    program::check, unstarted,
};
use crate::{
    clock,
    evict::{
        candidate::Candidate,
        tests::{
            hook::program,
            node::{MIB, Node, Pod},
        },
    },
    policy::{
        engine::{
            Candidates, Decision, Engine, EngineSettings, HookEnd, Input, Mode, NodeSample, Reading, Usage,
            followed,
        },
        threshold::{Signal, Threshold, ThresholdValue},
    },
};

const SECOND: u64 = 1_000_000_000;

fn decision(candidate: &Candidate) -> Decision {
    let threshold = Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(200 * MIB));
    let settings = EngineSettings {
        mode: Mode::Enforce,
        thresholds: followed(&[threshold]),
        ..EngineSettings::default()
    };
    let mut engine = Engine::new(&settings);
    engine.remember_armed(|_| true);
    drop(engine.replace(Candidates::new(&[candidate.facts()])));
    let node = NodeSample::memory(0, 100 * MIB, 1024 * MIB);
    let usage = Usage { working_set_bytes: 600 * MIB, ..Usage::default() };
    let _wishes = engine.step(Input::Node(node));
    let _evict = engine.step(Input::Usages { node, readings: &[Reading::Usage(usage)] });
    *engine.decision().unwrap()
}

fn job(seconds: u64) -> (Node, Job) {
    let (node, hog) = (Node::new(0), Pod::new("hog"));
    node.add(&hog, 600 * MIB);
    let candidate = node.candidate(&hog);
    let decision = decision(&candidate);
    let deadline_ns = clock::boottime_ns() + seconds * SECOND;
    (node, Job { id: Ulid::from_parts(1, 2), decision, candidate: Arc::clone(&candidate), deadline_ns })
}

fn run(program: &HookProgram, seconds: u64) -> HookRun {
    let (_node, job) = job(seconds);
    follow(program, &job, &Hooks::new(None, None).unwrap())
}

/// Without asking whose it is.
fn follow(program: &HookProgram, job: &Job, hooks: &Hooks) -> HookRun {
    let mut undead = KilledPrograms::default();
    match Run::begin(program, job, clock::boottime_ns()) {
        Ok(run) => run.follow(job, hooks, &mut undead),
        Err(error) => HookRun::nothing(unstarted(&error)),
    }
}

fn shell(text: &str) -> HookProgram {
    program("sh", &["-c", text])
}

#[test]
fn its_status_and_the_last_of_its_output_are_known() {
    let HookRun { end, output, output_bytes, ran_ns } =
        run(&shell("echo begun; echo failed >&2; exit 3"), 60);
    assert_eq!((end, &*output, output_bytes), (HookEnd::Exited(3), "begun\nfailed\n", 13));
    assert!(ran_ns > 0);
    let ran = run(&shell("kill -ABRT $$"), 60);
    assert_eq!(ran.end, HookEnd::Signalled(6));
    let ran = run(&shell("head -c 200000 /dev/zero | tr '\\0' a; printf '\\377end'"), 60);
    assert_eq!((ran.output.chars().count(), ran.output_bytes), (1024, 200_004));
    assert!(ran.output.ends_with("a\u{fffd}end"));
}

#[test]
fn what_cannot_be_started_is_reported() {
    let nothing = HookProgram { path: "/nowhere/at/all".into(), args: Vec::new() };
    assert_eq!(run(&nothing, 60).end, HookEnd::Unstarted(2));
    // No shell takes it for a script.
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("hook");
    fs::write(&path, "exit 0\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(run(&HookProgram { path, args: Vec::new() }, 60).end, HookEnd::Unstarted(8));
}

#[test]
fn who_writes_without_end_is_ended_and_little_of_it_is_kept() {
    let ran = run(&program("yes", &["a line"]), 1);
    assert_eq!(ran.end, HookEnd::TimedOut);
    assert_eq!(ran.output.len(), 1024);
    assert!(ran.output_bytes > 100_000, "{}", ran.output_bytes);
}

#[test]
fn what_is_gone_or_not_set_or_foreign_is_not_begun() {
    let (_node, job) = job(60);
    let begun = |hook: Option<HookProgram>| {
        let hooks = Hooks::new(hook, None).unwrap();
        begin(&job, &hooks, &mut KilledPrograms::default()).map(|_run| ()).unwrap_err()
    };
    let foreign = tempfile::NamedTempFile::new().unwrap();
    let hook = |path: &Path| Some(HookProgram { path: path.to_owned(), args: Vec::new() });
    assert_eq!(begun(None), HookEnd::Unset);
    assert_eq!(begun(hook(foreign.path())), HookEnd::Unsafe);
    assert_eq!(begun(hook(Path::new("/usr/no-such-hook"))), HookEnd::Unstarted(2));
    assert_eq!(begun(hook(Path::new("/usr"))), HookEnd::Unstarted(13));
}

#[test]
fn while_one_is_being_begun_no_other_is_taken_and_one_that_runs_makes_room() {
    let hooks = Hooks::new(None, None).unwrap();
    assert!(hooks.take(1));
    // It may be stuck.
    assert!(!hooks.take(2) && !hooks.is_cut(1));
    hooks.follows();
    assert!(hooks.take(3));
    assert!(hooks.is_cut(2) && !hooks.is_cut(3));
    // The first has ended, and the third is still to be begun.
    hooks.is_done();
    assert!(!hooks.take(4));
    hooks.follows();
    hooks.is_done();
    assert!(hooks.take(5));
    hooks.gave_up();
    assert!(hooks.take(6));
}

#[test]
fn when_its_time_is_up_it_is_killed_with_all_that_it_started() {
    let temp = tempfile::tempdir().unwrap();
    let pids = temp.path().join("pids");
    let text =
        format!("sleep 1000 & echo $! > {0}; setsid sleep 1001 & echo $! >> {0}; wait", pids.display());
    assert_eq!(run(&shell(&text), 1).end, HookEnd::TimedOut);
    let pids = fs::read_to_string(&pids).unwrap();
    let first = pids.lines().next().unwrap();
    // It may be a zombie for a moment; what put itself into another session is caught by the cgroup, where there can be one.
    let state = || fs::read_to_string(format!("/proc/{first}/stat")).ok();
    let lives = || state().is_some_and(|stat| !stat.contains(") Z"));
    for _ in 0..100 {
        if !lives() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(!lives());
    for pid in pids.lines().skip(1) {
        let _cleared = std::process::Command::new("kill").args(["-9", pid]).status();
    }
}

#[test]
fn what_it_leaves_behind_does_not_keep_the_eviction_waiting() {
    let ran = run(&shell("sleep 1000 & exit 0"), 60);
    assert_eq!(ran.end, HookEnd::Exited(0));
}

#[test]
fn it_is_cut_when_the_eviction_goes_on() {
    let (_node, job) = job(60);
    let hooks = Hooks::new(None, None).unwrap();
    let ran = std::thread::scope(|scope| {
        let run = scope.spawn(|| follow(&shell("sleep 1000"), &job, &hooks));
        std::thread::sleep(std::time::Duration::from_millis(200));
        hooks.cut(job.decision.number);
        run.join().unwrap()
    });
    assert_eq!(ran.end, HookEnd::Cut);
}

#[test]
fn it_inherits_nothing_of_the_daemons() {
    // Kept open across exec, as no descriptor of the daemon should be.
    let open = fs::File::open("/dev/null").unwrap();
    rustix::io::fcntl_setfd(&open, rustix::io::FdFlags::empty()).unwrap();
    let ran = run(&shell("ls /proc/$$/fd; cat /proc/self/oom_score_adj; echo $PPID"), 60);
    drop(open);
    let lines: Vec<_> = ran.output.lines().collect();
    let [fds @ .., score, parent] = &*lines else { panic!("{ran:?}") };
    // A shell keeps its script elsewhere than in the first three.
    assert!(fds.iter().all(|fd| fd.parse::<u32>().is_ok_and(|fd| fd <= 2 || fd >= 10)), "{fds:?}");
    assert_eq!((*score, *parent), ("1000", &*std::process::id().to_string()));
    // A signal that is blocked or ignored would stay so: the runtime ignores SIGPIPE.
    let ran = run(&program("grep", &["-E", "^Sig(Blk|Ign)|^Umask", "/proc/self/status"]), 60);
    let values: Vec<_> = ran.output.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(values, ["0077", "0000000000000000", "0000000000000000"]);
}

#[test]
fn it_is_reported_what_is_decided_and_nothing_else() {
    let (_node, job) = job(60);
    let reported: Vec<_> = environment(job.id, &job.decision, &job.candidate, 2 * SECOND)
        .into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    insta::assert_snapshot!(reported.join("\n"));
    let ran = run(&program("env", &[]), 60);
    let mut names: Vec<_> = ran.output.lines().filter_map(|line| line.split('=').next()).collect();
    let mut expected: Vec<_> = reported.iter().filter_map(|line| line.split('=').next()).collect();
    names.sort_unstable();
    expected.sort_unstable();
    assert_eq!(names, expected);
}

#[test]
fn only_its_owner_may_change_it_or_a_folder_above_it() {
    let owner = getuid().as_raw();
    let temp = tempfile::tempdir_in(std::env::var("HOME").unwrap()).unwrap();
    let real = temp.path().canonicalize().unwrap();
    let (folder, file) = (real.join("folder"), real.join("folder/hook"));
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    fs::create_dir(&folder).unwrap();
    fs::write(&file, "#!/bin/sh\n").unwrap();
    mode(&folder, 0o755);
    mode(&file, 0o755);
    check(&file, owner).unwrap();
    mode(&file, 0o775);
    assert!(matches!(check(&file, owner), Err(UnsafeProgram::Changeable { path, .. }) if path == file));
    mode(&file, 0o644);
    assert!(matches!(check(&file, owner), Err(UnsafeProgram::NotExecutable { .. })));
    mode(&file, 0o755);
    mode(&folder, 0o757);
    assert!(matches!(check(&file, owner), Err(UnsafeProgram::Changeable { path, .. }) if path == folder));
    mode(&folder, 0o755);
    std::os::unix::fs::symlink(&folder, real.join("link")).unwrap();
    assert!(matches!(check(&real.join("link/hook"), owner), Err(UnsafeProgram::NotReal { .. })));
    assert!(matches!(check(&folder.join("../folder/hook"), owner), Err(UnsafeProgram::NotReal { .. })));
    assert!(matches!(check(&folder, owner), Err(UnsafeProgram::NotExecutable { .. })));
    assert!(matches!(check(&real.join("gone"), owner), Err(UnsafeProgram::Unreadable { .. })));
    if owner != 0 {
        assert!(matches!(check(&file, 0), Err(UnsafeProgram::Changeable { .. })));
    }
}
