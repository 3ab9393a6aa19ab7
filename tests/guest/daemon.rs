//! The whole daemon, from manifests to events, on a real kernel.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::{fs::chown, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
    time::Duration,
};

use enforcer_tests::{
    cgroup::Cgroup,
    daemon::Daemon,
    kernel,
    pods::{Container, pod},
    process::Process,
    stream::is,
    wait::{TIMEOUT, wait_until},
};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use serde_json::Value;

const NOBODY: u32 = 65_534;

fn folder(name: &str) -> PathBuf {
    Path::new("/tmp/daemon").join(name)
}

fn daemon(name: &str) -> Daemon {
    Daemon::start(&folder(name), "mode: enforce").unwrap()
}

fn container<'a>(name: &'a str, limits: &'a str) -> Container<'a> {
    Container { name, requests: "", limits }
}

/// Runs a command in a container and waits for its end.
fn exec(daemon: &Daemon, target: &str, command: &[&str]) -> Output {
    let arguments: Vec<_> = ["exec", target, "--"].iter().chain(command).copied().collect();
    daemon.verb(&arguments).output().unwrap()
}

/// Whether a process has come so far that it waits for answers: its runtime has an epoll descriptor.
fn waits_for_events(pid: u32) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let mut targets = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets.any(|target| target == Path::new("anon_inode:[eventpoll]"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The pod's cgroup, by what the daemon wrote there.
fn pod_cgroup(limits_applied: &Value) -> String {
    let cgroup = limits_applied["data"]["cgroup"].as_str().unwrap();
    match limits_applied["data"]["container"].as_str() {
        Some(container) => cgroup.strip_suffix(&format!("/{container}")).unwrap().to_owned(),
        None => cgroup.to_owned(),
    }
}

#[guest_test(daemon)]
fn victims_that_are_gone_at_once_are_all_named_and_none_twice() {
    let daemon = daemon("short-lived");
    let mut stream = daemon.follow().unwrap();
    let names: Vec<_> = (0..8).map(|number| format!("short{number}")).collect();
    for name in &names {
        daemon.manifest(&format!("{name}.yaml"), &pod(name, 0, &[container("app", "memory: 8Mi")])).unwrap();
    }
    let processes: Vec<_> = names
        .iter()
        .map(|name| {
            Process::new(
                daemon.exec(&format!("default/{name}"), &["workload", "spike", "--size", "64Mi"]).unwrap(),
            )
        })
        .collect();
    let pids: Vec<_> = processes.iter().map(Process::id).collect();
    for (name, mut process) in names.iter().zip(processes) {
        process.wait_for_end(TIMEOUT).unwrap();
        // Its cgroup goes while its OOM is still being reported.
        daemon.remove_manifest(&format!("{name}.yaml")).unwrap();
    }
    for (name, pid) in names.iter().zip(pids) {
        let incident = stream.wait_for_pod("oom.incident", &format!("default/{name}"), TIMEOUT).unwrap();
        assert_eq!(incident["data"]["victims"][0]["pid"], pid, "{incident}");
        assert_eq!(incident["data"]["victims"][0]["container"], "app", "{incident}");
    }
    stream.drain(Duration::from_secs(2));
    assert_eq!(stream.of("oom.incident").count(), names.len());
    assert_eq!(stream.of("oom.detected").count(), names.len());
    daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn exec_becomes_the_command_in_its_container() {
    let daemon = daemon("exec");
    daemon.manifest("two.yaml", &pod("two", 0, &[container("a", ""), container("b", "")])).unwrap();
    daemon
        .manifest(
            "web.yaml",
            &pod("web", 0, &[Container { name: "app", requests: "memory: 64Mi", limits: "" }]),
        )
        .unwrap();

    daemon.wait_until_decided("default/two").unwrap();
    daemon.wait_until_decided("default/web").unwrap();
    let script =
        "echo $$; cat /proc/self/oom_score_adj; cat /proc/self/cgroup; sh -c 'cat /proc/self/oom_score_adj'";
    let child = daemon
        .verb(&["exec", "default/web", "--", "sh", "-c", script])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id().to_string();
    let output = child.wait_with_output().unwrap();
    let shown = text(&output.stdout);
    let lines: Vec<_> = shown.lines().collect();
    let memory = kernel::meminfo_bytes("MemTotal").unwrap();
    let score = (1000 - 1000 * (64_u64 << 20) / memory).to_string();
    assert_eq!(lines[0], pid, "not the same process: {shown}");
    assert_eq!((lines[1], lines[3]), (score.as_str(), score.as_str()), "{shown}");
    assert!(lines[2].starts_with("0::/kubepods/burstable/pod") && lines[2].ends_with("/app"), "{shown}");

    assert_eq!(exec(&daemon, "default/web", &["sh", "-c", "exit 37"]).status.code(), Some(37));
    assert_eq!(exec(&daemon, "default/web", &["no-such-command"]).status.code(), Some(127));
    assert_eq!(exec(&daemon, "default/web", &["/etc"]).status.code(), Some(126));
    assert_eq!(exec(&daemon, "default/web/none", &["true"]).status.code(), Some(66));
    let several = exec(&daemon, "default/two", &["true"]);
    assert_eq!(several.status.code(), Some(64));
    assert!(text(&several.stderr).contains("a, b"), "{}", text(&several.stderr));
    assert_eq!(exec(&daemon, "nonsense", &["true"]).status.code(), Some(64));

    // A pod whose manifest comes while it waits.
    let late = daemon.verb(&["exec", "default/late", "--", "true"]).spawn().unwrap();
    wait_until("its first question", || waits_for_events(late.id()));
    daemon.manifest("late.yaml", &pod("late", 0, &[container("app", "")])).unwrap();
    assert!(late.wait_with_output().unwrap().status.success());
    let never = exec(&daemon, "default/never", &["true"]);
    assert_eq!(never.status.code(), Some(66), "{}", text(&never.stderr));
    daemon.stop().unwrap();

    let unreachable = Command::new("enforcer")
        .args(["--config"])
        .arg(folder("exec").join("config.yaml"))
        .args(["exec", "default/web", "--", "true"])
        .output()
        .unwrap();
    assert_eq!(unreachable.status.code(), Some(69));
}

#[guest_test(daemon)]
fn a_manifest_that_changes_or_goes_touches_no_process() {
    let daemon = daemon("changes");
    let mut stream = daemon.follow().unwrap();
    let rejected = |file: &'static str| {
        move |event: &Value| {
            is(event, "pod.rejected") && event["data"]["message"].as_str().unwrap().starts_with(file)
        }
    };
    // Another file's fault is not this pod's.
    daemon.manifest("broken.yaml", "apiVersion: [\n").unwrap();
    stream.wait_for("the broken manifest", TIMEOUT, rejected("broken.yaml")).unwrap();
    daemon.manifest("changes.yaml", &pod("changes", 0, &[container("app", "memory: 64Mi")])).unwrap();
    let mut process = Process::new(daemon.exec("default/changes", &["sleep", "1000"]).unwrap());
    let cgroup = pod_cgroup(&stream.wait_for_pod("limits.applied", "default/changes", TIMEOUT).unwrap());
    let of_container = format!("/sys/fs/cgroup{cgroup}/app");
    let holds = |file: &str, value: &str| {
        fs::read_to_string(format!("{of_container}/{file}")).unwrap().trim() == value
    };
    wait_until("the process in its cgroup", || holds("cgroup.procs", &process.id().to_string()));
    assert!(holds("memory.max", "67108864"));

    daemon.manifest("changes.yaml", &pod("changes", 0, &[container("app", "memory: 128Mi")])).unwrap();
    wait_until("the new limit", || holds("memory.max", "134217728"));
    assert!(process.lives().unwrap());

    // The last good version stays in force.
    daemon.manifest("changes.yaml", "kind: Pod\n").unwrap();
    stream.wait_for("the overwritten manifest", TIMEOUT, rejected("changes.yaml")).unwrap();
    assert!(exec(&daemon, "default/changes", &["true"]).status.success());
    assert!(holds("memory.max", "134217728"));
    assert_eq!(stream.of("pod.removed").count(), 0);

    daemon.remove_manifest("changes.yaml").unwrap();
    stream.wait_for_pod("pod.removed", "default/changes", TIMEOUT).unwrap();
    // The daemon goes over everything again when another comes.
    daemon.manifest("another.yaml", &pod("another", 0, &[container("app", "")])).unwrap();
    daemon.wait_until_decided("default/another").unwrap();
    assert!(holds("cgroup.procs", &process.id().to_string()), "the cgroup went before its process");
    assert!(process.lives().unwrap());
    drop(process);
    wait_until("the end of the cgroup", || !Path::new(&format!("/sys/fs/cgroup{cgroup}")).exists());
    daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn dry_run_and_observe_make_nothing() {
    for mode in ["dry-run", "observe"] {
        let daemon = Daemon::start(&folder(mode), &format!("mode: {mode}\ncgroupRoot: /{mode}")).unwrap();
        let mut stream = daemon.follow().unwrap();
        daemon.manifest("web.yaml", &pod("web", 0, &[container("app", "memory: 64Mi")])).unwrap();
        stream.wait_for_pod("pod.added", "default/web", TIMEOUT).unwrap();
        stream.drain(Duration::from_secs(2));
        assert_eq!(stream.of("limits.applied").count(), 0);
        assert!(!Path::new("/sys/fs/cgroup").join(mode).exists());
        let refused = exec(&daemon, "default/web", &["true"]);
        assert_eq!(refused.status.code(), Some(77));
        assert!(text(&refused.stderr).contains(mode), "{}", text(&refused.stderr));
        daemon.stop().unwrap();
    }
}

/// Runs a daemon for the length of a script, however the command is changed, and returns the events that it reported.
fn reported_by_a_crippled_daemon(name: &str, cripple: impl FnOnce(&str, &Path) -> Command) -> Vec<Value> {
    let folder = folder(&format!("lacks-{name}"));
    // Nothing is left to later daemons: what is made here without a right has no mark, and is foreign to them.
    let _kubepods = Cgroup::create("kubepods").unwrap();
    fs::create_dir_all(folder.join("pods")).unwrap();
    let shown = folder.display();
    // A pod of its own: what an earlier daemon left would need no writes.
    fs::write(folder.join("pods/pod.yaml"), pod(name, 0, &[container("app", "")])).unwrap();
    fs::write(
        folder.join("config.yaml"),
        format!(
            "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\nmode: enforce\nownership: enforcer\n\
             stateDir: {shown}/state\nrunDir: {shown}/run\nstaticPodPath: {shown}/pods\nevictionScheduling: rr\n"
        ),
    )
    .unwrap();
    let enforcer = format!("enforcer --config {shown}/config.yaml");
    let script = format!(
        "{enforcer} run 2>{shown}/log & \
         for i in $(seq 1200); do \
           {enforcer} -o jsonl events --type pod.added 2>/dev/null | grep -q {name} && break; sleep 0.1; \
         done; \
         sleep 1; {enforcer} -o jsonl events; kill $!; wait $!"
    );
    let output = cripple(&script, &folder).output().unwrap();
    let reported = text(&output.stdout);
    let log = || fs::read_to_string(folder.join("log")).unwrap_or_default();
    assert_eq!(output.status.code(), Some(0), "{name}: {reported}\n{}\n{}", text(&output.stderr), log());
    reported.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Asserts that it is reported once, in one line, and that the pods are known nevertheless.
fn assert_reported(name: &str, events: &[Value], what: &str, word: &str) {
    let said: Vec<_> = events
        .iter()
        .filter(|event| is(event, "degraded.entered") && event["data"]["what"] == what)
        .map(|event| event["data"]["message"].as_str().unwrap())
        .collect();
    assert_eq!(said.len(), 1, "{name}: {events:#?}");
    assert!(said[0].contains(word) && !said[0].contains('\n'), "{name}: {}", said[0]);
    assert!(events.iter().any(|event| is(event, "pod.added")), "{name}: {events:#?}");
}

#[guest_test(daemon)]
fn what_a_host_lacks_is_said_in_a_line_and_the_rest_works() {
    // In a mount namespace of its own nothing else on this machine is touched.
    let cases = [
        ("cgroup2", "umount /sys/fs/cgroup", "cgroup2", "cgroup v2"),
        ("bpffs", "umount /sys/fs/bpf", "bpffs", "bpf"),
        ("psi", "mount -t tmpfs none /proc/pressure", "psi", "pressure"),
        ("btf", "mount -t tmpfs none /sys/kernel/btf", "btf", "/sys/kernel/btf/vmlinux"),
    ];
    for (name, without, what, word) in cases {
        let events = reported_by_a_crippled_daemon(name, |script, _| {
            let mut command = Command::new("unshare");
            command.args(["-m", "sh", "-c", &format!("{without} || exit 99; {script}")]);
            command
        });
        assert_reported(name, &events, what, word);
    }
}

#[guest_test(daemon)]
fn without_privileges_it_says_so_and_reports_what_it_can() {
    let events = reported_by_a_crippled_daemon("root", |script, folder| {
        chown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]).uid(NOBODY).gid(NOBODY);
        command
    });
    assert_reported("root", &events, "root", "not running as root");
    assert!(!events.iter().any(|event| is(event, "limits.applied")), "{events:#?}");

    let cases = [
        (
            "sys-resource",
            CapabilitySet::SYS_RESOURCE,
            [("capSysResource", "CAP_SYS_RESOURCE"), ("oomScoreAdj", "-999")].as_slice(),
        ),
        ("sys-admin", CapabilitySet::SYS_ADMIN, &[("cgroup", "cannot mark cgroups")]),
        ("sys-nice", CapabilitySet::SYS_NICE, &[("priority", "-10"), ("scheduling", "CAP_SYS_NICE")]),
    ];
    for (name, capability, reported) in cases {
        // What a thread may not have, the processes that it starts may not either.
        let crippled = thread::spawn(move || {
            remove_capability_from_bounding_set(capability).unwrap();
            reported_by_a_crippled_daemon(name, |script, _| {
                let mut command = Command::new("sh");
                command.args(["-c", script]);
                command
            })
        });
        let events = crippled.join().unwrap();
        for (what, word) in reported {
            assert_reported(name, &events, what, word);
        }
        assert!(events.iter().any(|event| is(event, "limits.applied")), "{events:#?}");
    }
}

/// How the daemon's threads are scheduled, by their names: policy and real-time priority (`policy` and `rt_priority` of
/// `proc_pid_stat(5)`).
fn scheduling(daemon: &Daemon) -> BTreeMap<String, (u32, u32)> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let stats = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("stat")).unwrap());
    let parse = |stat: String| {
        let (start, rest) = stat.rsplit_once(") ").unwrap();
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // The first of the rest is the third of all.
        let field = |number: usize| fields[number - 3].parse().unwrap();
        (start.split_once('(').unwrap().1.to_owned(), (field(41), field(40)))
    };
    stats.map(parse).collect()
}

#[guest_test(daemon)]
fn the_thread_that_evicts_alone_is_scheduled_in_real_time_where_that_is_asked_for() {
    const NORMAL: (u32, u32) = (0, 0);
    const ROUND_ROBIN: (u32, u32) = (2, 1);
    for (policy, expected) in [("normal", NORMAL), ("rr", ROUND_ROBIN)] {
        let settings = format!("mode: dry-run\nevictionScheduling: {policy}");
        let daemon = Daemon::start(&folder(&format!("scheduling-{policy}")), &settings).unwrap();
        let mut threads = scheduling(&daemon);
        assert_eq!(threads.remove("enforcer-reflex"), Some(expected), "{threads:?}");
        assert!(threads.len() > 4 && threads.values().all(|scheduling| *scheduling == NORMAL), "{threads:?}");
        daemon.stop().unwrap();
    }
}

#[guest_test(daemon)]
fn pods_run_on_while_the_volume_of_their_manifests_is_away() {
    let folder = folder("volume-away");
    let pods = folder.join("pods");
    let shown = pods.display().to_string();
    fs::create_dir_all(&pods).unwrap();
    let run =
        |command: &str, arguments: &[&str]| Command::new(command).args(arguments).status().unwrap().success();
    let mount = || assert!(run("mount", &["-t", "tmpfs", "-o", "mode=755", "none", &shown]));
    mount();
    let daemon = daemon("volume-away");
    let manifest = pod("kept", 0, &[container("app", "memory: 64Mi")]);
    daemon.manifest("kept.yaml", &manifest).unwrap();
    let mut holder = daemon.hold("default/kept", "8Mi").unwrap();
    let mut stream = daemon.follow().unwrap();
    let cgroup = pod_cgroup(&stream.wait_for_pod("limits.applied", "default/kept", TIMEOUT).unwrap());
    let limit = || fs::read_to_string(format!("/sys/fs/cgroup{cgroup}/app/memory.max")).unwrap();
    let limited = (64_u64 << 20).to_string();
    // Its empty mount point is there instead, and a start finds no other folder.
    wait_until("the volume's end", || run("umount", &[&shown]));
    stream.wait_for("source.down", TIMEOUT, |event| is(event, "source.down")).unwrap();
    drop((stream, daemon));
    let daemon = Daemon::start(&folder, "mode: enforce").unwrap();
    assert!(exec(&daemon, "default/kept", &["true"]).status.success(), "it is admitted as before");
    assert!(holder.lives().unwrap() && limit().trim() == limited);
    let events = daemon.events().unwrap();
    assert!(!events.iter().any(|event| is(event, "pod.removed")), "{events:#?}");
    // Mounted anew it is another folder, with the very same pods.
    let ups = events.iter().filter(|event| is(event, "source.up")).count();
    mount();
    daemon.manifest("kept.yaml", &manifest).unwrap();
    wait_until("the volume's return", || {
        daemon.events().unwrap().iter().filter(|event| is(event, "source.up")).count() > ups
    });
    daemon.remove_manifest("kept.yaml").unwrap();
    let mut stream = daemon.follow().unwrap();
    stream.wait_for_pod("pod.removed", "default/kept", TIMEOUT).unwrap();
    drop(holder);
    daemon.stop().unwrap();
    wait_until("the volume's end", || run("umount", &[&shown]));
}
