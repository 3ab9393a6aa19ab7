//! A kubelet that comes to a node whose pods are the daemon's.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
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
    stream::{Stream, is},
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

/// Limits a container, and returns its cgroup.
fn limit_one(daemon: &Daemon, stream: &mut Stream) -> PathBuf {
    let limits = "cpu: 1, memory: 64Mi";
    daemon.manifest("p.yaml", &pod("p", 0, &[Container { name: "app", requests: "", limits }])).unwrap();
    let is_of_app = |event: &Value| is(event, "limits.applied") && event["data"]["container"] == "app";
    let applied = stream.wait_for("the container's limits", TIMEOUT, is_of_app).unwrap();
    Path::new("/sys/fs/cgroup").join(applied["data"]["cgroup"].as_str().unwrap().trim_start_matches('/'))
}

fn read(cgroup: &Path, file: &str) -> String {
    fs::read_to_string(cgroup.join(file)).unwrap().trim().to_owned()
}

/// Whether a kubelet has come, by what the message names.
fn is_arrival(event: &Value, by: &str) -> bool {
    is(event, "degraded.entered")
        && event["data"]["what"] == "ownership"
        && event["data"]["message"].as_str().unwrap().contains(by)
}

/// The kubelet writes its limits once, as soon as it runs.
#[guest_test(daemon)]
fn limits_are_given_back_when_a_kubelet_starts_and_stay_so() {
    // Dropped last, with all below it.
    let _root = Cgroup::create("arriving").unwrap();
    let settings = "mode: enforce\nownership: auto\ncgroupRoot: /arriving";
    // A process that is only called so is no kubelet.
    let fake = run(&workload_as(Path::new("/tmp/kubelet-arriving-fake"), "kubelet").unwrap(), 1_000);
    let mut daemon = Daemon::start(Path::new(FOLDER), settings).unwrap();
    let mut stream = daemon.follow().unwrap();
    let cgroup = limit_one(&daemon, &mut stream);
    let held = daemon.hold("default/p/app", "16Mi").unwrap();
    let limit = || read(&cgroup, "memory.max");
    assert_eq!(limit(), "67108864");

    // Its own kubepods, which the daemon before has marked, is no sign of a kubelet.
    daemon.succeed().unwrap();
    let mut stream = daemon.follow().unwrap();
    fs::write(cgroup.join("memory.max"), "max").unwrap();
    wait_until("the limit again", || limit() == "67108864");

    let pid = daemon.pid();
    let kubelet = run(&workload_as(Path::new(FOLDER), "kubelet").unwrap(), 0);
    let kubepods = Path::new("/sys/fs/cgroup/arriving/kubepods");
    let files = ["memory.max", "cpu.weight", "pids.max"];
    let own = || files.map(|file| read(kubepods, file));
    // The last is as the daemon has planned it too.
    let written = [String::from("268435456"), String::from("77"), read(kubepods, "pids.max")];
    for (file, value) in files.iter().zip(&written) {
        fs::write(kubepods.join(file), value).unwrap();
    }
    let is_held = |event: &Value| {
        let data = &event["data"];
        let of_it = data["cgroup"] == "/arriving/kubepods" && data["file"] == "memory.max";
        is(event, "limits.drifted") && of_it && data["action"] == "delayed"
    };
    stream.wait_for("that its limit is left for now", TIMEOUT, is_held).unwrap();
    let by = format!("process {}", kubelet.id());
    stream.wait_for("the kubelet", TIMEOUT, |event| is_arrival(event, &by)).unwrap();
    wait_until("the next start", || starts(&daemon) == 3);
    daemon.wait_until_ready().unwrap();
    assert_eq!(own(), written);
    let events = daemon.events().unwrap();
    let left = events.iter().filter(|event| event["data"]["action"] == "left");
    let left: BTreeSet<&str> = left.map(|event| event["data"]["file"].as_str().unwrap()).collect();
    assert_eq!(left, BTreeSet::from(files));
    // What limits the end of a process must not end the next one.
    thread::sleep(Duration::from_secs(4));
    assert!(daemon.is_ready().unwrap());
    assert_eq!((daemon.pid(), limit().as_str()), (pid, "max"));

    // The kubelet is away, and the pods' cgroups stay its own.
    drop((kubelet, fake));
    daemon.succeed().unwrap();
    thread::sleep(Duration::from_secs(2));
    assert_eq!((starts(&daemon), limit().as_str()), (4, "max"));
    assert_eq!(own(), written);
    drop(held);
    daemon.stop().unwrap();
}

/// Its process is not known, and its driver another.
#[guest_test(daemon)]
fn limits_are_given_back_when_a_kubelet_in_a_container_makes_its_kubepods() {
    let _roots = ["contained", "contained.slice"].map(|name| Cgroup::create(name).unwrap());
    let settings = "mode: enforce\nownership: auto\ncgroupRoot: /contained";
    let mut daemon = Daemon::start(Path::new("/tmp/kubelet-contained"), settings).unwrap();
    let mut stream = daemon.follow().unwrap();
    let cgroup = limit_one(&daemon, &mut stream);
    let held = daemon.hold("default/p/app", "16Mi").unwrap();
    assert_eq!(read(&cgroup, "memory.max"), "67108864");

    let _kubepods = Cgroup::create("contained.slice/contained-kubepods.slice").unwrap();
    let by = "/contained.slice/contained-kubepods.slice";
    stream.wait_for("the kubelet", TIMEOUT, |event| is_arrival(event, by)).unwrap();
    wait_until("the next start", || starts(&daemon) == 2);
    daemon.wait_until_ready().unwrap();
    assert_eq!(read(&cgroup, "memory.max"), "max");
    assert_holds(&document(&daemon, &["--live", "plan"]), &json!({"kubeletOwnsCgroups": true, "steps": []}));
    drop(held);
    daemon.stop().unwrap();
}

/// Also if it is removed then, with all that it made.
#[guest_test(daemon)]
fn a_kubelet_that_makes_its_kubepods_late_owns_the_cgroups_until_the_next_boot() {
    let _root = Cgroup::create("late").unwrap();
    let folder = Path::new("/tmp/kubelet-late");
    let kubelet = run(&workload_as(folder, "kubelet").unwrap(), 0);
    let settings = "mode: enforce\nownership: auto\ncgroupRoot: /late";
    let mut daemon = Daemon::start(&folder.join("daemon"), settings).unwrap();
    let remembered = daemon.folder().join("run/kubelet.json");
    assert!(!remembered.exists(), "it may end at once");
    let kubepods = Cgroup::create("late/kubepods").unwrap();
    wait_until("that the kubelet is remembered", || remembered.exists());
    drop((kubelet, kubepods));
    daemon.succeed().unwrap();
    assert_holds(&document(&daemon, &["--live", "plan"]), &json!({"kubeletOwnsCgroups": true, "steps": []}));
    assert!(!Path::new("/sys/fs/cgroup/late/kubepods").exists(), "nothing is made");
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
