//! The real binary, over its command line; needs no privileges.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic like the test itself")]

use std::{
    ffi::OsStr,
    fs,
    io::{Read as _, Write as _},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{DirBuilderExt as _, PermissionsExt as _, chown},
        net::UnixStream,
    },
    path::Path,
    process::{Child, Command as Process, Stdio},
    thread,
    time::{Duration, Instant},
};

use assert_cmd::Command;

const TIMEOUT: Duration = Duration::from_secs(30);
const HEAD: &str = "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\n";

fn enforcer() -> Command {
    Command::new(assert_cmd::cargo::cargo_bin!("enforcer"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A configuration whose folders are all in `folder`.
fn config(folder: &Path, more: &str) -> String {
    let path = folder.join("config.yaml");
    let shown = folder.display();
    let content =
        format!("{HEAD}stateDir: {shown}/state\nrunDir: {shown}/run\nstaticPodPath: {shown}/pods\n{more}");
    fs::write(&path, content).unwrap();
    path.display().to_string()
}

/// A process that does not outlive the test.
struct Running(Child);

impl Running {
    /// `enforcer run` with that configuration.
    fn daemon(config: &str) -> Self {
        let mut run = Process::new(assert_cmd::cargo::cargo_bin!("enforcer"));
        Self(run.args(["--config", config, "run"]).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already, which is what is wanted.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// What the daemon answers.
fn get(socket: &Path, target: &str) -> serde_json::Value {
    let mut socket = UnixStream::connect(socket).unwrap();
    write!(socket, "GET {target} HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[test]
fn a_state_or_run_directory_that_others_may_write_to_is_refused() {
    let refused = |which: &str, spoil: fn(&Path), why: &str, remedy: &str| {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path(), "");
        for folder in ["state", "run", "pods"] {
            // Whatever the umask of who runs this lets through.
            fs::DirBuilder::new().mode(0o750).create(dir.path().join(folder)).unwrap();
        }
        spoil(&dir.path().join(which));
        let run = enforcer().args(["--config", &config, "run"]).timeout(TIMEOUT).output().unwrap();
        let said = text(&run.stderr);
        assert_eq!(run.status.code(), Some(1), "{said}");
        assert!(said.contains(why) && said.contains(remedy), "{said}");
        assert!(!dir.path().join("state/journal").exists(), "nothing is written there");
    };
    let everybody = |folder: &Path| fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
    let give_away = |folder: &Path| chown(folder, Some(65_534), None).unwrap();
    for which in ["state", "run"] {
        refused(which, everybody, "may be written to by everybody", "chmod o-w");
        // Only root gives folders away.
        if rustix::process::geteuid().is_root() {
            refused(which, give_away, "belongs to the user 65534", "chown");
        }
    }
}

#[test]
fn names_that_are_no_text_reach_no_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), "");
    let name = OsStr::from_bytes(b"\xff\x1b[2J\n.yaml");
    let folder = dir.path().join("pods");
    fs::create_dir(&folder).unwrap();
    let file = folder.join(name);
    fs::write(&file, "apiVersion: v1\nkind: Pod\n").unwrap();
    let reported = |arguments: &[&OsStr]| {
        let reported = enforcer().arg("--config").arg(&config).args(arguments).output().unwrap();
        for bytes in [&reported.stdout, &reported.stderr] {
            let said = String::from_utf8(bytes.clone()).unwrap_or_else(|_| panic!("{arguments:?}: no text"));
            assert!(said.chars().all(|char| char == '\n' || !char.is_control()), "{arguments:?}: {said:?}");
        }
        assert_ne!(reported.status.code(), Some(0), "{arguments:?}");
    };
    reported(&["why".as_ref(), name]);
    reported(&["events".as_ref(), "--pod".as_ref(), name]);
    reported(&["plan".as_ref(), "-f".as_ref(), file.as_ref()]);
    reported(&["plan".as_ref(), "-f".as_ref(), folder.as_ref()]);
    reported(&["replay".as_ref(), file.as_ref()]);
    reported(&["config".as_ref(), "check".as_ref(), file.as_ref()]);
}

#[test]
fn help_is_an_answer_and_wrong_usage_is_not() {
    let help = enforcer().arg("--help").output().unwrap();
    assert_eq!(help.status.code(), Some(0));
    let shown = text(&help.stdout);
    assert!(["run", "events", "exec"].iter().all(|verb| shown.contains(verb)), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    for wrong in [
        &["frobnicate"][..],
        &["run", "--mode", "fierce"],
        &["exec", "default/web"],
        &["exec", "web", "--", "true"],
    ] {
        let output = enforcer().args(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{wrong:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_configuration_that_this_host_cannot_follow_starts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = config(folder.path(), "mode: observe\nsystemReserved:\n  memory: 1Ei\n");
    let output = enforcer().args(["--config", &path, "run"]).output().unwrap();
    let reported = text(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{reported}");
    assert!(reported.contains("memory"), "{reported}");
    assert!(!folder.path().join("run").exists(), "something was started");
}

#[test]
fn a_wrong_configuration_is_reported_whole_and_starts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = config(folder.path(), "mode: fierce\nevictionHard:\n  memory.available: lots\nnonsense: 1\n");
    let output = enforcer().args(["--config", &path, "run"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let reported = text(&output.stderr);
    for place in [
        "config.yaml:6: mode: ",
        "config.yaml:8: evictionHard.memory.available: ",
        "config.yaml:9: nonsense: ",
    ] {
        assert!(reported.contains(place), "{place} is not in {reported}");
    }
    assert!(!folder.path().join("run").exists());
    let missing = enforcer().args(["--config", "/nonexistent.yaml", "events"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(64));
}

#[test]
fn without_a_daemon_it_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = config(folder.path(), "");
    for verb in [&["events"][..], &["exec", "default/web", "--", "true"]] {
        let output = enforcer().args(["--config", &path]).args(verb).output().unwrap();
        assert_eq!(output.status.code(), Some(69), "{verb:?}");
        let reported = text(&output.stderr);
        assert!(reported.contains("enforcer run") && reported.contains("observe.sock"), "{reported}");
        assert_eq!(reported.lines().count(), 1, "{reported}");
    }
}

/// A pod that does not fit is rejected with the kubelet's reason and message, and is admitted when there is room.
#[test]
fn in_dry_run_pods_are_admitted_as_in_enforce() {
    let folder = tempfile::tempdir().unwrap();
    let path = config(folder.path(), "mode: dry-run\nmaxPods: 2\n");
    let pods = folder.path().join("pods");
    fs::create_dir(&pods).unwrap();
    let manifest = |name: &str, spec: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{{spec}containers: [{{name: c}}]}}\n---\n"
        )
    };
    fs::write(pods.join("all.yaml"), [manifest("a", ""), manifest("b", ""), manifest("c", "")].concat())
        .unwrap();
    let mut daemon = Running::daemon(&path);
    let start = Instant::now();
    let mut rejected = |count: usize| {
        loop {
            let output = enforcer()
                .args(["--config", &path, "-o", "jsonl", "events", "--type", "pod.rejected"])
                .output()
                .unwrap();
            let reported = text(&output.stdout);
            if reported.lines().count() >= count {
                return reported
                    .lines()
                    .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
                    .collect::<Vec<_>>();
            }
            assert!(daemon.0.try_wait().unwrap().is_none(), "the daemon ended");
            assert!(start.elapsed() < Duration::from_mins(1), "no such event after a minute: {reported}");
            thread::sleep(Duration::from_millis(50));
        }
    };
    let first = &rejected(1)[0];
    assert_eq!(first["subject"], "default/c", "{first}");
    assert_eq!(first["data"]["reason"], "OutOfpods", "{first}");
    assert_eq!(
        first["data"]["message"],
        "Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2"
    );
    assert_eq!(first["data"]["dryRun"], true);
    // The first one goes, so the third comes in; a critical one then takes the second's place.
    let critical = manifest("dns", "priority: 2000000000, ");
    fs::write(pods.join(".new"), [manifest("b", ""), manifest("c", ""), critical].concat()).unwrap();
    fs::rename(pods.join(".new"), pods.join("all.yaml")).unwrap();
    let second = &rejected(2)[1];
    assert_eq!(second["data"]["reason"], "Preempting", "{second}");
    assert_eq!(second["data"]["message"], "Preempted in order to admit critical pod");
    assert_eq!(rejected(2).len(), 2);
    let states = || {
        let pods = get(&folder.path().join("run/observe.sock"), "/v1/pods")["pods"].clone();
        let state = |pod: &serde_json::Value| format!("{} {} {}", pod["name"], pod["state"], pod["reason"]);
        pods.as_array().unwrap().iter().map(state).collect::<Vec<_>>()
    };
    // Nothing runs here, so the critical pod waits for no pod's end.
    let expected = [
        r#""b" "pending" null"#,
        r#""c" "rejected" "Preempting: Preempted in order to admit critical pod; it stays so until its manifest changes or goes""#,
        r#""dns" "pending" null"#,
    ];
    while states() != expected {
        assert!(start.elapsed() < Duration::from_mins(1), "{:?}", states());
        thread::sleep(Duration::from_millis(50));
    }
}

/// Each bad manifest is named with file, line and field, the others are taken, and the last good version stays in force.
#[test]
fn bad_manifests_are_named_and_the_others_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = config(folder.path(), "mode: dry-run\n");
    let pods = folder.path().join("pods");
    fs::create_dir(&pods).unwrap();
    let head = "apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec:\n  containers:\n";
    let bad = [
        ("a-broken.yaml", String::from("apiVersion: [\n"), "a-broken.yaml:"),
        ("b-empty.yaml", format!("{head}    []\n"), "spec.containers"),
        (
            "c-negative.yaml",
            format!("{head}  - name: c\n    resources: {{requests: {{memory: -1Gi}}}}\n"),
            "c-negative.yaml:7: spec.containers[0].resources.requests.memory",
        ),
        (
            "d-malformed.yaml",
            format!("{head}  - name: c\n    resources: {{limits: {{cpu: 1e400x}}}}\n"),
            "d-malformed.yaml:7: spec.containers[0].resources.limits.cpu",
        ),
        (
            "e-upside-down.yaml",
            format!(
                "{head}  - name: c\n    resources: {{requests: {{memory: 2Gi}}, limits: {{memory: 1Gi}}}}\n"
            ),
            "e-upside-down.yaml:7: spec.containers[0].resources",
        ),
        ("f.txt", String::from("notes\n"), "f.txt"),
    ];
    let place = |name: &str, content: &str| {
        let fresh = pods.join(format!(".{name}.new"));
        fs::write(&fresh, content).unwrap();
        fs::rename(fresh, pods.join(name)).unwrap();
    };
    let good = |spec: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: good}}\nspec: {{{spec}containers: [{{name: app}}]}}\n"
        )
    };
    for (name, content, _) in &bad {
        place(name, content);
    }
    place("good.yaml", &good(""));
    place("zz-twice.yaml", &good("priority: 7, "));
    let mut daemon = Running::daemon(&path);
    let events = |kind: &str| -> Vec<serde_json::Value> {
        let output =
            enforcer().args(["--config", &path, "-o", "jsonl", "events", "--type", kind]).output().unwrap();
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let mut wait_for_rejection = |says: &dyn Fn(&str) -> bool, what: &str| {
        let start = Instant::now();
        loop {
            let rejected = events("pod.rejected");
            let message = |event: &serde_json::Value| event["data"]["message"].as_str().map(str::to_owned);
            if let Some(message) = rejected.iter().filter_map(message).find(|message| says(message)) {
                return message;
            }
            assert!(daemon.0.try_wait().unwrap().is_none(), "the daemon ended");
            assert!(start.elapsed() < Duration::from_mins(1), "{what} is not rejected: {rejected:?}");
            thread::sleep(Duration::from_millis(50));
        }
    };
    for (name, _, named) in &bad {
        wait_for_rejection(&|message| message.contains(named), name);
    }
    let twice =
        wait_for_rejection(&|message| message.starts_with("zz-twice.yaml"), "the pod that is there twice");
    assert!(twice.contains("good.yaml"), "{twice}");

    place("good.yaml", "kind: Pod\n");
    wait_for_rejection(&|message| message.starts_with("good.yaml"), "the overwritten manifest");
    assert_eq!(events("pod.removed"), Vec::<serde_json::Value>::new());
    let known = get(&folder.path().join("run/observe.sock"), "/v1/pods")["pods"].clone();
    let known: Vec<_> = known.as_array().unwrap().iter().map(|pod| (&pod["name"], &pod["state"])).collect();
    assert_eq!(known, [(&"good".into(), &"pending".into())]);
}

#[test]
fn in_observe_it_runs_anywhere_and_stops_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    let path = config(folder.path(), "mode: observe\n");
    fs::create_dir(folder.path().join("pods")).unwrap();
    fs::write(
        folder.path().join("pods/web.yaml"),
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: app}]}\n",
    )
    .unwrap();
    fs::write(
        folder.path().join("pods/bad.yaml"),
        "apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec: {}\n",
    )
    .unwrap();
    let mut daemon = Process::new(assert_cmd::cargo::cargo_bin!("enforcer"))
        .args(["--config", &path, "run"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let events = loop {
        let output = enforcer().args(["--config", &path, "-o", "jsonl", "events"]).output().unwrap();
        let reported = text(&output.stdout);
        if reported.contains("pod.added") && reported.contains("pod.rejected") {
            break reported;
        }
        assert!(daemon.try_wait().unwrap().is_none(), "the daemon ended");
        assert!(start.elapsed() < Duration::from_mins(1), "no pod after a minute: {reported}");
        thread::sleep(Duration::from_millis(50));
    };
    let events: Vec<serde_json::Value> =
        events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (number, event) in (1..).zip(&events) {
        assert_eq!(event["sequence"], format!("{number:020}"), "{event}");
        assert_eq!(event["specversion"], "1.0");
    }
    let web = events.iter().find(|event| event["type"] == "dev.enforcer.pod.added").unwrap();
    assert_eq!((&web["subject"], &web["data"]["qosClass"]), (&"default/web".into(), &"BestEffort".into()));

    let table = enforcer()
        .args(["--config", &path, "events", "--pod", "web", "--type", "pod.added"])
        .output()
        .unwrap();
    let table = text(&table.stdout);
    assert!(
        table.lines().count() == 1 && table.contains("pod.added") && !table.contains('\u{1b}'),
        "{table}"
    );
    let refused = enforcer().args(["--config", &path, "exec", "default/web", "--", "true"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(77));
    let second = enforcer().args(["--config", &path, "run"]).output().unwrap();
    assert_eq!(second.status.code(), Some(1), "a second daemon took the socket");

    let pid = rustix::process::Pid::from_raw(i32::try_from(daemon.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(daemon.wait().unwrap().code(), Some(0));
}

/// All that a machine has is never available, whatever its pods free.
#[test]
fn a_threshold_that_cannot_be_reached_does_not_pass_the_check() {
    let folder = tempfile::tempdir().unwrap();
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let total = meminfo.split_ascii_whitespace().nth(1).unwrap();
    for (asked, expected) in [(format!("{total}Ki"), "with every pod gone"), ("1Ei".into(), "in all")] {
        let own = config(folder.path(), &format!("evictionHard: {{memory.available: {asked}}}\n"));
        let output = enforcer().args(["--config", &own, "config", "check"]).output().unwrap();
        let reported = text(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{asked}: {reported}");
        let field = "evictionHard.memory.available: asks for";
        assert!(reported.contains(field) && reported.contains(expected), "{asked}: {reported}");
    }
}

#[test]
fn a_configuration_is_checked_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let own = config(folder.path(), "mode: observe\n");
    let kubelets = folder.path().join("kubelet.yaml");
    fs::write(
        &kubelets,
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 7\nclusterDomain: x\n",
    )
    .unwrap();
    let kubelets = kubelets.display().to_string();
    let run = |args: &[&str]| {
        let output =
            enforcer().args(["--config", &own, "--kubelet-config", &kubelets]).args(args).output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (status, shown, reported) = run(&["config", "check"]);
    assert_eq!((status, shown.as_str()), (Some(0), "ok\n"), "{reported}");
    let (_, shown, _) = run(&["config", "effective", "-o", "json"]);
    let document: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(document["configuration"]["maxPods"], 7);
    assert_eq!(document["origins"]["maxPods"], format!("{kubelets}:3"));
    assert_eq!(document["origins"]["mode"], format!("{own}:6"));
    assert_eq!(document["origins"]["cpuCFSQuota"], "default");
    assert_eq!(document["ignored"][0]["field"], "clusterDomain");
    let (_, table, _) = run(&["config", "effective"]);
    assert!(table.contains(&format!("{own}:6\n")), "in a pipe no place is cut: {table}");
    let (_, schema, _) = run(&["config", "schema"]);
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    assert_eq!(schema["properties"]["mode"]["default"], "dry-run");

    // A broken file is what `check` is for; the configuration of the others is not in its way.
    let broken = folder.path().join("broken.yaml");
    fs::write(&broken, format!("{HEAD}mode: fierce\nmaxPods: -1\nevictionHard: {{memory.available: 1Q}}\n"))
        .unwrap();
    let (status, _, reported) = run(&["config", "check", broken.to_str().unwrap()]);
    assert_eq!(status, Some(64));
    assert!(
        [":3: mode: ", ":4: maxPods: ", ":5: evictionHard.memory.available: "]
            .iter()
            .all(|place| reported.contains(place)),
        "{reported}"
    );
    fs::write(&broken, format!("{HEAD}kubeReserved: {{memory: 1Ei}}\n")).unwrap();
    let (status, _, reported) = run(&["config", "check", broken.to_str().unwrap()]);
    assert_eq!(status, Some(64), "{reported}");
    assert!(reported.contains("kubeReserved"), "{reported}");
}

/// Killed at any moment, the daemon's log is there, and the next one goes on behind it.
#[test]
fn events_outlive_the_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let path = config(folder.path(), "mode: observe\n");
    fs::create_dir(folder.path().join("pods")).unwrap();
    let start = || {
        let daemon = Running::daemon(&path);
        let begin = Instant::now();
        while !enforcer().args(["--config", &path, "--live", "events"]).output().unwrap().status.success() {
            assert!(begin.elapsed() < Duration::from_mins(1), "the daemon does not answer");
            thread::sleep(Duration::from_millis(20));
        }
        daemon
    };
    let events = |args: &[&str]| {
        let output = enforcer().args(["--config", &path, "-o", "jsonl"]).args(args).output().unwrap();
        let sequences: Vec<u64> = text(&output.stdout)
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .map(|event| event["sequence"].as_str().unwrap().parse().unwrap())
            .collect();
        (output.status.code(), sequences, text(&output.stderr))
    };
    let mut daemon = start();
    let (_, seen, _) = events(&["events"]);
    daemon.0.kill().unwrap();
    daemon.0.wait().unwrap();

    let (status, kept, reported) = events(&["events"]);
    assert_eq!(status, Some(0), "{reported}");
    assert!(reported.contains("the daemon is down") && reported.lines().count() == 1, "{reported}");
    assert_eq!(kept[..seen.len()], seen, "what was seen is there");
    assert!(kept.windows(2).all(|pair| pair[1] == pair[0] + 1), "{kept:?}");
    let (status, _, _) = events(&["--live", "events"]);
    assert_eq!(status, Some(69), "--live forbids the fall-back");
    let (status, _, reported) = events(&["events", "--after", "nonsense"]);
    assert_eq!(status, Some(64), "{reported}");
    let (_, none, _) = events(&["events", "--type", "oom.detected"]);
    assert!(none.is_empty());

    let daemon = start();
    let (_, all, reported) = events(&["events"]);
    assert!(reported.is_empty(), "{reported}");
    assert!(all.len() > kept.len() && all[..kept.len()] == kept, "{kept:?} then {all:?}");
    assert!(all.windows(2).all(|pair| pair[1] == pair[0] + 1), "{all:?}");
    drop(daemon);
}
