//! What an administrator has run before a victim is signalled: in time, apart, and never in the way.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use enforcer_tests::{
    daemon::Daemon,
    kernel,
    process::Process,
    stream::is,
    wait::{TIMEOUT, wait_until},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{MIB, Scene, THRESHOLD_BYTES, to_leave};

/// A script in a folder of its own, which belongs to root, as all above it do.
struct Hook {
    folder: PathBuf,
}

impl Hook {
    fn new(name: &str, script: &str) -> Self {
        let folder = Path::new("/hooks").join(name);
        fs::create_dir_all(&folder).unwrap();
        let hook = Self { folder };
        let script = format!("#!/bin/sh\ncd {} || exit 99\n{script}", hook.folder.display());
        fs::write(hook.path(), script).unwrap();
        hook.set_mode(0o755);
        hook
    }

    fn path(&self) -> PathBuf {
        self.folder.join("hook")
    }

    fn set_mode(&self, mode: u32) {
        fs::set_permissions(self.path(), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// What it has left there.
    fn left(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.folder.join(file)).ok()
    }

    /// The process whose id it has left there.
    fn process(&self, file: &str) -> PathBuf {
        wait_until(file, || self.left(file).is_some_and(|text| text.ends_with('\n')));
        Path::new("/proc").join(self.left(file).unwrap().trim())
    }

    fn settings(&self, timeout: &str) -> String {
        self.settings_at(THRESHOLD_BYTES, timeout)
    }

    fn settings_at(&self, threshold_bytes: u64, timeout: &str) -> String {
        format!(
            "evictionHard: {{memory.available: {}Mi}}\npreKillHook: {{path: {}, args: [one, \"two 2\"], timeout: {timeout}}}",
            threshold_bytes / MIB,
            self.path().display()
        )
    }
}

impl Scene {
    /// A pod that takes the node slowly below the threshold, so that there are seconds for a hook, and not by half of what is
    /// left there, so that they are not cut short.
    fn creep(&self) -> (Process, Process) {
        let filler = self.fill(&to_leave(THRESHOLD_BYTES + 60 * MIB));
        (filler, self.ramp("hog", "20Mi", THRESHOLD_BYTES - 60 * MIB))
    }

    /// The cgroups that runs of hooks are kept in.
    fn pens(&self) -> Vec<PathBuf> {
        let own = fs::read_to_string(format!("/proc/{}/cgroup", self.daemon.pid())).unwrap();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap().to_owned();
        let entries = fs::read_dir(Path::new("/sys/fs/cgroup").join(own)).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.to_string_lossy().contains("/enforcer-hook-")).collect()
    }

    fn killed(&mut self) -> Value {
        let killed = |event: &Value| {
            is(event, "eviction.signalled")
                && event["subject"] == "default/hog"
                && event["data"]["sent"] == "SIGKILL"
        };
        self.stream.wait_for("the kill", TIMEOUT, killed).unwrap()
    }
}

#[guest_test(daemon)]
fn it_runs_apart_and_with_all_it_has_to_know_before_the_kill() {
    let hook = Hook::new(
        "runs",
        "env > told; printf '%s\\n' \"$@\" > args; cat \"/sys/fs/cgroup$ENFORCER_CGROUP/cgroup.events\" > events\n\
         cat /proc/self/cgroup /proc/self/oom_score_adj > mine; ls /proc/self/fd > fds; echo done\n",
    );
    let mut scene = Scene::open_with("hook-runs", &hook.settings("30s"));
    let (mut filler, mut hog) = scene.creep();
    let decided = scene.wait("eviction.decided", "hog");
    assert!(decided["data"]["hook"]["allowedMs"].as_u64().unwrap() <= 30_000, "{decided}");
    // An earlier decision is taken back if memory comes to light meanwhile.
    let signalled = scene.killed();
    let reported = &signalled["data"]["hook"];
    assert_eq!((&reported["outcome"], &reported["exitStatus"]), (&"exited".into(), &0.into()), "{signalled}");
    assert_eq!(reported["output"], "done\n", "{signalled}");
    assert!(reported["ranMs"].as_f64().unwrap() > 0.0, "{signalled}");
    scene.wait("eviction.completed", "hog");
    hog.wait_for_end(TIMEOUT).unwrap();
    let environment = hook.left("told").unwrap();
    let id = signalled["data"]["evictionId"].as_str().unwrap();
    for line in [
        format!("ENFORCER_EVICTION_ID={id}"),
        String::from("ENFORCER_SIGNAL=memory.available"),
        String::from("ENFORCER_NAMESPACE=default"),
        String::from("ENFORCER_POD=hog"),
        String::from("ENFORCER_DRY_RUN=false"),
    ] {
        assert!(environment.lines().any(|reported| reported == line), "no {line} in {environment}");
    }
    assert_eq!(hook.left("args").unwrap(), "one\ntwo 2\n");
    assert!(hook.left("events").unwrap().contains("populated 1"), "it ran after the kill");
    let mine = hook.left("mine").unwrap();
    assert!(mine.contains("/enforcer-hook-") && mine.ends_with("\n1000\n"), "{mine}");
    // The fourth is the folder that `ls` reads.
    assert_eq!(hook.left("fds").unwrap(), "0\n1\n2\n3\n");
    wait_until("the end of its cgroup", || scene.pens().is_empty());
    assert!(filler.lives().unwrap());
    drop(filler);
    scene.clear(&["hog", "filler"]);
    assert_eq!(scene.daemon.stop_and_replay().unwrap(), 1);
}

/// A line of a process's status.
fn line(status: &str, key: &str) -> String {
    let value = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t"));
    value.unwrap_or_else(|| panic!("no {key} in {status}")).to_owned()
}

#[guest_test(daemon)]
fn it_has_the_rights_that_the_daemon_has_given_up_and_another_program_needs_a_restart() {
    let hook = Hook::new("rights", "cat /proc/self/status > status\n");
    let mut scene = Scene::open_with("hook-rights", &hook.settings("30s"));
    let config = scene.daemon.folder().join("config.yaml");
    let other = fs::read_to_string(&config).unwrap().replace("args: [one", "args: [other");
    fs::write(&config, other).unwrap();
    let daemon = Pid::from_raw(i32::try_from(scene.daemon.pid()).unwrap()).unwrap();
    kill_process(daemon, Signal::HUP).unwrap();
    let rejected = |event: &Value| is(event, "config.rejected");
    let rejected = scene.stream.wait_for("the refusal", TIMEOUT, rejected).unwrap().to_string();
    assert!(rejected.contains("preKillHook.args") && rejected.contains("restart it"), "{rejected}");

    let (mut filler, mut hog) = scene.creep();
    let signalled = scene.killed();
    assert_eq!(signalled["data"]["hook"]["outcome"], "exited", "{signalled}");
    hog.wait_for_end(TIMEOUT).unwrap();
    let of = |pid: &str| fs::read_to_string(Path::new("/proc").join(pid).join("status")).unwrap();
    let (own, mine) = (of("self"), hook.left("status").unwrap());
    let daemon = of(&scene.daemon.pid().to_string());
    for key in ["CapEff", "CapBnd", "NoNewPrivs", "Seccomp"] {
        assert_eq!(line(&mine, key), line(&own, key), "{key}");
    }
    assert_ne!(line(&daemon, "CapEff"), line(&own, "CapEff"));
    assert!(filler.lives().unwrap());
    drop(filler);
    scene.clear(&["hog", "filler"]);
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn one_that_hangs_is_ended_at_its_deadline_with_all_that_it_started_and_the_kill_follows() {
    let hook = Hook::new(
        "hangs",
        "setsid sh -c 'trap \"\" TERM HUP INT; echo $$ > escaped; while :; do sleep 1; done' &\n\
         echo $$ > main; trap '' TERM; while :; do sleep 1; done\n",
    );
    let mut scene = Scene::open_with("hook-hangs", &hook.settings("5s"));
    let (mut filler, mut hog) = scene.creep();
    let signalled = scene.killed();
    assert_eq!(signalled["data"]["hook"]["outcome"], "timedOut", "{signalled}");
    hog.wait_for_end(TIMEOUT).unwrap();
    scene.wait("eviction.completed", "hog");
    let (main, escaped) = (hook.process("main"), hook.process("escaped"));
    wait_until("the end of the hook", || !main.exists() && !escaped.exists());
    assert!(filler.lives().unwrap());
    drop(filler);
    scene.clear(&["hog", "filler"]);
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn when_it_ends_the_shortage_itself_no_pod_is_signalled() {
    let ballast = Path::new("/run/ballast");
    let hook = Hook::new("frees", "rm /run/ballast; echo freed\n");
    let mut scene = Scene::open_with("hook-frees", &hook.settings("30s"));
    fs::write(ballast, vec![1_u8; 300 << 20]).unwrap();
    let (mut filler, mut hog) = scene.creep();
    let failed = scene.wait("eviction.failed", "hog");
    assert_eq!(failed["data"]["reason"], "relieved", "{failed}");
    assert_eq!(failed["data"]["hook"]["output"], "freed\n", "{failed}");
    scene.wait_for_end_of_shortage();
    assert_eq!(scene.stream.of("eviction.signalled").count(), 0);
    assert_eq!(scene.stream.of("eviction.decided").count(), 1);
    assert!(!ballast.exists() && hog.lives().unwrap() && filler.lives().unwrap());
    drop((filler, hog));
    scene.clear(&["hog", "filler"]);
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn what_others_may_write_to_is_refused_at_the_start_and_at_a_reload_and_is_not_run() {
    let hook = Hook::new("foreign", "touch ran\n");
    hook.set_mode(0o757);
    let folder = Path::new("/tmp/hook-foreign-start");
    let refused = Daemon::start(folder, &hook.settings("5s")).map(drop).unwrap_err().to_string();
    assert!(refused.contains("exit status: 64") && refused.contains("preKillHook.path"), "{refused}");
    assert!(refused.contains("chmod go-w"), "{refused}");

    hook.set_mode(0o755);
    let mut scene = Scene::open_with("hook-foreign", &hook.settings("5s"));
    hook.set_mode(0o775);
    let daemon = Pid::from_raw(i32::try_from(scene.daemon.pid()).unwrap()).unwrap();
    kill_process(daemon, Signal::HUP).unwrap();
    let rejected = |event: &Value| is(event, "config.rejected");
    let rejected = scene.stream.wait_for("the refusal", TIMEOUT, rejected).unwrap();
    assert!(rejected.to_string().contains("preKillHook.path"), "{rejected}");

    let (mut filler, mut hog) = scene.creep();
    let signalled = scene.killed();
    assert_eq!(signalled["data"]["hook"]["outcome"], "unsafe", "{signalled}");
    scene.wait("eviction.completed", "hog");
    hog.wait_for_end(TIMEOUT).unwrap();
    assert_eq!(hook.left("ran"), None);
    assert!(filler.lives().unwrap());
    drop(filler);
    scene.clear(&["hog", "filler"]);
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn where_memory_goes_too_fast_it_is_cut_short_or_not_begun() {
    let hook = Hook::new("late", "touch ran\n");
    // What is left at the crossing lasts 170 ms, and the hog's memory is given half a second to come back: there is no time
    // for a hook. A busy machine that fills at less than a third of that rate has some, but never half a minute.
    let mut scene = Scene::open_with("hook-late", &hook.settings_at(100 * MIB, "30s"));
    let killed_by_kernel = kernel::vmstat("oom_kill").unwrap();
    // So long that the rate is known when the threshold is crossed.
    let filler = scene.fill(&to_leave(1_200 * MIB));
    let mut hog = scene.ramp("hog", "600Mi", 50 * MIB);
    let decided = scene.wait("eviction.decided", "hog");
    let plan = &decided["data"]["hook"];
    let signalled = scene.killed();
    if plan["skipped"] == "noTime" {
        assert!(signalled["data"]["hook"].is_null(), "{signalled}");
    } else {
        assert!((50..30_000).contains(&plan["allowedMs"].as_u64().unwrap()), "{decided}");
        assert!(signalled["data"]["hook"].is_object(), "{signalled}");
    }
    scene.wait("eviction.completed", "hog");
    hog.wait_for_end(TIMEOUT).unwrap();
    assert!(plan["skipped"] != "noTime" || hook.left("ran").is_none(), "{decided}");
    assert_eq!(
        kernel::vmstat("oom_kill").unwrap(),
        killed_by_kernel,
        "the kernel's OOM killer killed as well"
    );
    drop(filler);
    scene.clear(&["hog", "filler"]);
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn what_a_killed_daemon_leaves_of_it_is_killed_by_the_next() {
    let hook = Hook::new(
        "left",
        "setsid sh -c 'echo $$ > escaped; while :; do sleep 1; done' &\n\
         echo $$ > main; while :; do sleep 1; done\n",
    );
    let scene = Scene::open_with("hook-left", &hook.settings("1m"));
    let (filler, mut hog) = scene.creep();
    let (main, escaped) = (hook.process("main"), hook.process("escaped"));
    // The daemon is killed: dropping it is SIGKILL.
    drop(scene);
    wait_until("the end of what it started", || !main.exists());
    assert!(escaped.exists() && hog.lives().unwrap());
    drop((filler, hog));
    let scene = Scene::open_with("hook-left", &hook.settings("1m"));
    wait_until("the end of what had got away", || !escaped.exists());
    scene.daemon.stop().unwrap();
}
