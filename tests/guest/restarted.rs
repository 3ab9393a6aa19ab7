//! `enforcer exec --restart`: a parent outside of the pod, which starts the command again.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use enforcer_tests::{
    daemon::Daemon,
    pods::{Container, pod},
    process::Process,
    wait::{TIMEOUT, wait_until},
};
use rustix::process::Signal;

/// A daemon with a pod, and a file in which its commands say that they have begun.
struct Scene {
    daemon: Daemon,
    begun: PathBuf,
}

impl Scene {
    fn open(name: &str) -> Self {
        let folder = Path::new("/tmp/restarted").join(name);
        let daemon = Daemon::start(&folder, "mode: enforce").unwrap();
        let app = Container { name: "app", requests: "memory: 64Mi", limits: "" };
        daemon.manifest("web.yaml", &pod("web", 0, &[app])).unwrap();
        daemon.wait_until_decided("default/web").unwrap();
        let begun = folder.join("begun");
        fs::write(&begun, "").unwrap();
        Self { daemon, begun }
    }

    /// Starts a command, which says its process id, cgroup and score between two parts.
    fn supervised(&self, restart: &str, before: &str, script: &str) -> Process {
        let begun = self.begun.display();
        let script = format!(
            "{before} echo $$ $(sed -n s/^0:://p /proc/self/cgroup) $(cat /proc/self/oom_score_adj) >> {begun}; {script}"
        );
        let arguments = ["exec", "--restart", restart, "default/web", "--", "sh", "-c", &script];
        let mut command = self.daemon.verb(&arguments);
        let error = fs::File::create(self.begun.with_extension("error")).unwrap();
        Process::new(command.stdin(Stdio::null()).stderr(error).spawn().unwrap())
    }

    /// The process id, the cgroup and the score of each command so far.
    fn begun(&self) -> Vec<(u32, String, i32)> {
        let text = fs::read_to_string(&self.begun).unwrap();
        let line = |line: &str| {
            let [pid, cgroup, score] = <[&str; 3]>::try_from(line.split(' ').collect::<Vec<_>>()).unwrap();
            (pid.parse().unwrap(), cgroup.to_owned(), score.parse().unwrap())
        };
        text.lines().map(line).collect()
    }

    /// Waits until the command has begun so many times.
    fn wait_until_begun(&self, times: usize) {
        wait_until(&format!("start {times}"), || self.begun().len() >= times);
    }

    /// What the parent has said.
    fn said(&self) -> String {
        fs::read_to_string(self.begun.with_extension("error")).unwrap()
    }
}

fn cgroup_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap().trim().to_owned()
}

#[guest_test(daemon)]
fn a_command_that_fails_is_started_again_in_its_container() {
    let scene = Scene::open("fails");
    let gate = scene.begun.with_extension("gate");
    let gate = gate.display();
    let script = format!("[ -e {gate} ] || {{ touch {gate}; exit 3; }}; while :; do sleep 0.1; done");
    let mut parent = scene.supervised("on-failure", "trap 'exit 5' TERM;", &script);
    scene.wait_until_begun(2);
    let begun = scene.begun();
    for (pid, cgroup, score) in &begun {
        assert_ne!(*pid, parent.id());
        assert!(cgroup.starts_with("/kubepods/burstable/pod") && cgroup.ends_with("/app"), "{cgroup}");
        assert_eq!(*score, begun[0].2);
    }
    assert!((2..1000).contains(&begun[0].2), "{begun:?}");
    assert_eq!(cgroup_of(parent.id()), cgroup_of(std::process::id()), "the parent has moved");
    assert!(scene.said().contains("default/web ended with status 3 after "), "{}", scene.said());

    // Its signal reaches the command, whose status is its own.
    parent.signal(Signal::TERM).unwrap();
    assert_eq!(parent.wait_for_end(TIMEOUT).unwrap().code(), Some(5), "{}", scene.said());
    assert_eq!(scene.begun().len(), 2);

    // One that ends well is not started again.
    let mut parent = scene.supervised("on-failure", "", "exit 0");
    assert_eq!(parent.wait_for_end(TIMEOUT).unwrap().code(), Some(0));
    let mut missing = Process::new(
        scene
            .daemon
            .verb(&["exec", "--restart", "always", "default/web", "--", "no-such-command"])
            .spawn()
            .unwrap(),
    );
    assert_eq!(missing.wait_for_end(TIMEOUT).unwrap().code(), Some(127));
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn a_container_that_the_kernel_kills_comes_back_and_one_that_is_evicted_does_not() {
    let scene = Scene::open("evicted");
    let mut parent = scene.supervised("always", "", "exec sleep 1000");
    scene.wait_until_begun(1);
    let first = scene.begun()[0].0;
    rustix::process::kill_process(rustix::process::Pid::from_raw(first.cast_signed()).unwrap(), Signal::KILL)
        .unwrap();
    scene.wait_until_begun(2);
    let evicted = scene.daemon.verb(&["evict", "default/web", "--reason", "a test"]).output().unwrap();
    assert!(evicted.status.success(), "{evicted:?}");
    assert_eq!(parent.wait_for_end(TIMEOUT).unwrap().code(), Some(77), "{}", scene.said());
    assert!(scene.said().contains("was evicted"), "{}", scene.said());
    assert_eq!(scene.begun().len(), 2);
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn a_command_ends_with_its_parent() {
    let scene = Scene::open("orphan");
    let mut parent = scene.supervised("always", "", "exec sleep 1000");
    scene.wait_until_begun(1);
    let command = scene.begun()[0].0;
    parent.signal(Signal::KILL).unwrap();
    parent.wait_for_end(TIMEOUT).unwrap();
    let stat = format!("/proc/{command}/stat");
    wait_until("the command's end", || {
        fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z ") || stat.contains(") X "))
    });
    scene.daemon.stop().unwrap();
}
