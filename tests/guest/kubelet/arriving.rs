//! A kubelet that comes to a node whose pods are the daemon's.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use enforcer_tests::{
    cgroup::Cgroup,
    daemon::Daemon,
    load::workload_as,
    pods::{Container, pod},
    process::Process,
    stream::is,
    wait::{TIMEOUT, wait_until},
};
use serde_json::Value;

const FOLDER: &str = "/tmp/kubelet-arriving";

/// The program, as that user.
fn run(program: &Path, user: u32) -> Process {
    let mut command = Command::new(program);
    command.args(["hold", "--size", "1Mi"]).uid(user).stdout(Stdio::null());
    Process::new(command.spawn().unwrap())
}

fn starts(daemon: &Daemon) -> usize {
    daemon.events().unwrap().iter().filter(|event| is(event, "config.loaded")).count()
}

#[guest_test(daemon)]
fn limits_are_given_back_when_a_kubelet_starts_and_stay_so() {
    // Dropped last, with all below it.
    let _root = Cgroup::create("arriving").unwrap();
    let settings = "mode: enforce\nownership: auto\ncgroupRoot: /arriving";
    // A process that is only called so is no kubelet.
    let fake = run(&workload_as(Path::new("/tmp/kubelet-arriving-fake"), "kubelet").unwrap(), 1_000);
    let mut daemon = Daemon::start(Path::new(FOLDER), settings).unwrap();
    let mut stream = daemon.follow().unwrap();
    let limits = "cpu: 1, memory: 64Mi";
    daemon.manifest("p.yaml", &pod("p", 0, &[Container { name: "app", requests: "", limits }])).unwrap();
    let is_of_app = |event: &Value| is(event, "limits.applied") && event["data"]["container"] == "app";
    let applied = stream.wait_for("the container's limits", TIMEOUT, is_of_app).unwrap();
    let cgroup =
        Path::new("/sys/fs/cgroup").join(applied["data"]["cgroup"].as_str().unwrap().trim_start_matches('/'));
    let held = daemon.hold("default/p/app", "16Mi").unwrap();
    let limit = || fs::read_to_string(cgroup.join("memory.max")).unwrap().trim().to_owned();
    assert_eq!(limit(), "67108864");

    let pid = daemon.pid();
    let kubelet = run(&workload_as(Path::new(FOLDER), "kubelet").unwrap(), 0);
    let is_arrival = |event: &Value| {
        is(event, "degraded.entered")
            && event["data"]["what"] == "ownership"
            && event["data"]["message"].as_str().unwrap().contains(&format!("process {}", kubelet.id()))
    };
    stream.wait_for("the kubelet", TIMEOUT, is_arrival).unwrap();
    wait_until("the next start", || starts(&daemon) == 2);
    daemon.wait_until_ready().unwrap();
    // What limits the end of a process must not end the next one.
    thread::sleep(Duration::from_secs(4));
    assert!(daemon.is_ready().unwrap());
    assert_eq!((daemon.pid(), limit().as_str()), (pid, "max"));

    // The kubelet is away, and the pods' cgroups stay its own.
    drop((kubelet, fake));
    daemon.succeed().unwrap();
    thread::sleep(Duration::from_secs(2));
    assert_eq!((starts(&daemon), limit().as_str()), (3, "max"));
    drop(held);
    daemon.stop().unwrap();
}
