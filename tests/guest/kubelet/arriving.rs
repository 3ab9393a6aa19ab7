//! A kubelet that comes to a node whose pods are the daemon's.

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use enforcer_tests::{
    cgroup::Cgroup,
    daemon::Daemon,
    expect::assert_holds,
    load::workload_as,
    pods::{Container, pod},
    process::Process,
    stream::is,
    wait::{TIMEOUT, wait_until},
};
use serde_json::{Value, json};

const FOLDER: &str = "/tmp/kubelet-arriving";

const MIB: u64 = 1 << 20;

/// The program, as that user.
fn run(program: &Path, user: u32) -> Process {
    run_with(program, user, &[])
}

/// The same with further arguments.
pub(super) fn run_with(program: &Path, user: u32, arguments: &[&str]) -> Process {
    let mut command = Command::new(program);
    command.args(["hold", "--size", "1Mi"]).args(arguments).uid(user).stdout(Stdio::null());
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

    // Its own kubepods, which the daemon before has marked, is no sign of a kubelet.
    daemon.succeed().unwrap();
    let mut stream = daemon.follow().unwrap();
    fs::write(cgroup.join("memory.max"), "max").unwrap();
    wait_until("the limit again", || limit() == "67108864");

    let pid = daemon.pid();
    let kubelet = run(&workload_as(Path::new(FOLDER), "kubelet").unwrap(), 0);
    let is_arrival = |event: &Value| {
        is(event, "degraded.entered")
            && event["data"]["what"] == "ownership"
            && event["data"]["message"].as_str().unwrap().contains(&format!("process {}", kubelet.id()))
    };
    stream.wait_for("the kubelet", TIMEOUT, is_arrival).unwrap();
    wait_until("the next start", || starts(&daemon) == 3);
    daemon.wait_until_ready().unwrap();
    // What limits the end of a process must not end the next one.
    thread::sleep(Duration::from_secs(4));
    assert!(daemon.is_ready().unwrap());
    assert_eq!((daemon.pid(), limit().as_str()), (pid, "max"));

    // The kubelet is away, and the pods' cgroups stay its own.
    drop((kubelet, fake));
    daemon.succeed().unwrap();
    thread::sleep(Duration::from_secs(2));
    assert_eq!((starts(&daemon), limit().as_str()), (4, "max"));
    drop(held);
    daemon.stop().unwrap();
}

/// The threshold at the start, in MiB.
fn threshold_mib(daemon: &Daemon) -> u64 {
    let events = daemon.events().unwrap();
    let started = events.iter().find(|event| is(event, "config.loaded")).unwrap();
    started["data"]["memoryAvailableThresholdBytes"].as_u64().unwrap() / MIB
}

fn document(daemon: &Daemon, arguments: &[&str]) -> Value {
    let output = daemon.verb(&[&["-o", "json"], arguments].concat()).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

#[guest_test(daemon)]
fn the_default_threshold_is_above_the_kubelets_and_one_below_it_is_reported() {
    let folder = Path::new("/tmp/kubelet-beside");
    let _root = Cgroup::create("beside").unwrap();
    let program = workload_as(folder, "kubelet").unwrap();
    let file = folder.join("kubelet.yaml");
    let write = |threshold: &str| {
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        fs::write(&file, format!("{head}evictionHard: {{memory.available: {threshold}}}\n")).unwrap();
    };
    write("150Mi");
    let kubelet = run_with(&program, 0, &["--config", file.to_str().unwrap()]);
    let settings = "ownership: auto\ncgroupRoot: /beside\n";

    let daemon = Daemon::start(&folder.join("default"), settings).unwrap();
    assert_eq!(threshold_mib(&daemon), 250);
    let doctor = document(&daemon, &["doctor"]);
    let shown = json!([
        format!(
            "evictionHard.memory.available: 250Mi (by default); the kubelet's own is 150Mi ({}:3)",
            file.display()
        ),
        "memoryAvailableSource: kubelet (by default)",
    ]);
    assert_holds(&doctor, &json!({"besideKubelet": shown}));
    assert!(doctor["evictors"].is_null(), "{doctor}");
    let live = document(&daemon, &["--live", "plan"]);
    assert_holds(&live, &json!({"kubeletOwnsCgroups": true, "steps": [], "besideKubelet": shown}));
    // It is read again with each reload.
    write("300Mi");
    let mut stream = daemon.follow().unwrap();
    assert!(daemon.verb(&["reload"]).status().unwrap().success());
    let is_change = |event: &Value| {
        is(event, "config.loaded")
            && event["data"]["message"]
                .as_str()
                .is_some_and(|said| said.starts_with("changed: evictionHard: "))
    };
    stream.wait_for("the new threshold", TIMEOUT, is_change).unwrap();
    daemon.stop().unwrap();

    // Our own file decides, also to no good.
    let explicit = format!("{settings}evictionHard: {{memory.available: 300Mi}}");
    let daemon = Daemon::start(&folder.join("explicit"), &explicit).unwrap();
    assert_eq!(threshold_mib(&daemon), 300);
    let mut stream = daemon.follow().unwrap();
    let is_contest = |event: &Value| {
        is(event, "degraded.entered")
            && event["data"]["what"] == "evictors"
            && event["data"]["place"] == "kubelet"
    };
    let contest = stream.wait_for("the contest", TIMEOUT, is_contest).unwrap();
    let message = contest["data"]["message"].as_str().unwrap();
    let at = format!("{}/config.yaml:", daemon.folder().display());
    assert!(
        message.starts_with(&at) && message.ends_with("evictionHard.memory.available: 400Mi or more"),
        "{message}"
    );
    let doctor = document(&daemon, &["doctor"]);
    assert_eq!(doctor["evictors"], json!([message]), "{doctor}");

    // A file that others may change is no word of the kubelet.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let doctor = document(&daemon, &["doctor"]);
    let shown = doctor["besideKubelet"][0].as_str().unwrap();
    assert!(
        shown.contains("not known: the kubelet's /tmp/kubelet-beside/kubelet.yaml may be written to by"),
        "{shown}"
    );
    drop(kubelet);
    daemon.stop().unwrap();
}
