//! What the command line does beside a daemon at work.

use std::{
    ffi::OsStr,
    os::unix::{ffi::OsStrExt as _, process::ExitStatusExt as _},
    process::{Command, Output, Stdio},
    time::Duration,
};

use enforcer_tests::{
    daemon::Daemon,
    kernel,
    process::Process,
    stream::is,
    wait::{TIMEOUT, wait_until},
};
use rustix::process::{Pid, Signal, kill_process};

use super::{Scene, folder, settings_of};

const MIB: u64 = 1 << 20;

fn pod(name: &str, resources: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, uid: {name}}}\nspec:\n  containers:\n  - name: app\n    \
         resources: {resources}\n"
    )
}

fn exec(daemon: &Daemon, target: &str) -> Command {
    daemon.verb(&["exec", target, "--"])
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What the command is given is what it gets, and what it ends with is what its caller sees.
#[guest_test(daemon)]
fn exec_passes_everything_on() {
    let scene = Scene::open("exec", "");
    scene.daemon.manifest("web.yaml", &pod("web", "{}")).unwrap();
    scene.daemon.wait_until_decided("default/web").unwrap();
    let run = |command: &mut Command| -> Output { command.output().unwrap() };

    // Arguments: empty ones, ones with blanks, ones that look like options, ones that are no text.
    let odd: [&[u8]; 6] = [b"", b" a  b ", b"--config", b"--", b"it's \"$HOME\"", b"\xff\n\xfe"];
    let words = odd.map(OsStr::from_bytes);
    let shown = run(exec(&scene.daemon, "default/web").args(["printf", "<%s>"]).args(words));
    let expected: Vec<u8> = odd.iter().flat_map(|word| [b"<", *word, b">"].concat()).collect();
    assert_eq!(shown.stdout, expected, "{}", text(&shown.stderr));

    // The environment, the folder, the mask and the streams.
    let script = "env; pwd; umask; cat; echo aside >&2; ls /proc/self/fd";
    let script = ["sh", "-c", script];
    let mut command = exec(&scene.daemon, "default/web");
    command.args(script).env_clear().envs([("PATH", "/usr/local/bin:/bin"), ("ODD", "a=b\nc")]);
    command.current_dir("/etc").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"through\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let mut plain = Command::new("sh");
    plain.args(&script[1..]).env_clear().envs([("PATH", "/usr/local/bin:/bin"), ("ODD", "a=b\nc")]);
    plain.current_dir("/etc").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = plain.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"through\n").unwrap();
    let without = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stderr), "aside\n");
    assert_eq!(text(&output.stdout), text(&without.stdout));
    assert!(text(&output.stdout).contains("\nthrough\n"), "{}", text(&output.stdout));

    // How it ends.
    for status in [0, 1, 64, 69, 77, 255] {
        let ended = run(exec(&scene.daemon, "default/web").args(["sh", "-c", &format!("exit {status}")]));
        assert_eq!(ended.status.code(), Some(status));
    }
    let ended = run(exec(&scene.daemon, "default/web").args(["sh", "-c", "kill -9 $$"]));
    assert_eq!(ended.status.signal(), Some(9));

    // Signals reach the command itself, and find it as it would be without us.
    let mut command = exec(&scene.daemon, "default/web");
    command.args(["sh", "-c", "trap 'exit 42' USR1; echo ready; while :; do sleep 0.1; done"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    kill_process(Pid::from_child(&child), Signal::USR1).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(42));
    let signals = "grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status";
    let with = run(exec(&scene.daemon, "default/web").args(["sh", "-c", signals]));
    let without = run(Command::new("sh").args(["-c", signals]));
    assert_eq!(text(&with.stdout), text(&without.stdout));
    scene.daemon.stop().unwrap();
}

/// Under pressure a pod without requests does not start, with the kubelet's message; others do.
#[guest_test(daemon)]
fn exec_of_besteffort_is_refused_under_memory_pressure() {
    // More than this node has: the condition is there from the start, and no pod is evicted for it.
    let settings = "evictionHard: {memory.available: 1900Mi}\nevictWithinRequest: false";
    let scene = Scene::open("pressure", settings);
    let mut stream = scene.daemon.follow().unwrap();
    stream.wait_for("the crossing", TIMEOUT, |event| is(event, "threshold.crossed")).unwrap();
    scene.daemon.manifest("besteffort.yaml", &pod("besteffort", "{}")).unwrap();
    scene
        .daemon
        .manifest("burstable.yaml", &pod("burstable", "{requests: {cpu: 10m, memory: 64Mi}}"))
        .unwrap();
    let refused = |target: &str| {
        let output = exec(&scene.daemon, target).arg("true").output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let rejected = stream.wait_for_pod("pod.rejected", "default/besteffort", TIMEOUT).unwrap();
    assert_eq!(rejected["data"]["reason"], "Evicted", "{rejected}");
    let message = rejected["data"]["message"].as_str().unwrap();
    assert_eq!(message, "The node had condition: [MemoryPressure]. ");
    let (status, reported) = refused("default/besteffort");
    assert_eq!(status, Some(77), "{reported}");
    assert!(reported.contains("Evicted: The node had condition: [MemoryPressure]. "), "{reported}");
    scene.daemon.wait_until_decided("default/burstable").unwrap();
    let (status, reported) = refused("default/burstable");
    assert_eq!(status, Some(0), "{reported}");
    scene.daemon.stop().unwrap();
}

/// One that was there before the pressure stays admitted, but takes no further process while it lasts.
#[guest_test(daemon)]
fn exec_into_a_running_besteffort_pod_is_refused_while_pressure_lasts() {
    let threshold_bytes = kernel::meminfo_bytes("MemAvailable").unwrap() - 300 * MIB;
    let scene = Scene::open(
        "later-pressure",
        &format!(
            "evictionPressureTransitionPeriod: 2s\nevictionHard: {{memory.available: \"{threshold_bytes}\"}}"
        ),
    );
    let mut stream = scene.daemon.follow().unwrap();
    scene.daemon.manifest("besteffort.yaml", &pod("besteffort", "{}")).unwrap();
    let critical = pod("critical", "{}").replace("spec:\n", "spec:\n  priority: 2000000000\n");
    scene.daemon.manifest("critical.yaml", &critical).unwrap();
    let status = || exec(&scene.daemon, "default/besteffort").arg("true").output().unwrap();
    scene.daemon.wait_until_decided("default/besteffort").unwrap();
    assert_eq!(status().status.code(), Some(0));
    // No pod may be evicted for it: the besteffort pod has no process, and the other is critical.
    // Measured now: what the scene before gives back late counts as well.
    let above_bytes = kernel::meminfo_bytes("MemAvailable").unwrap().saturating_sub(threshold_bytes);
    let size = (above_bytes + 150 * MIB).to_string();
    let hold = ["workload", "hold", "--huge", "--size", &size];
    let hog = Process::new(scene.daemon.exec("default/critical", &hold).unwrap());
    stream.wait_for("the crossing", TIMEOUT, |event| is(event, "threshold.crossed")).unwrap();
    wait_until("the refusal", || status().status.code() == Some(77));
    let reported = text(&status().stderr);
    assert!(reported.contains("he node had condition: [MemoryPressure]. "), "{reported}");
    drop(hog);
    wait_until("the end of the pressure", || status().status.success());
    scene.daemon.stop().unwrap();
}

/// The node really runs short: a dry run says which pod would go, marks it so, and evicts none.
#[guest_test(daemon)]
fn a_dry_run_under_real_pressure_decides_and_kills_no_pod() {
    let name = "dry";
    let scene = Scene::open(name, "evictionHard: {memory.available: 50Mi}");
    for (name, resources) in [("hog", "{}"), ("modest", "{requests: {memory: 64Mi}}")] {
        scene.daemon.manifest(&format!("{name}.yaml"), &pod(name, resources)).unwrap();
    }
    let start =
        |pod: &str, work: &[&str]| Process::new(scene.daemon.exec(&format!("default/{pod}"), work).unwrap());
    let modest = start("modest", &["workload", "hold", "--size", "16Mi"]);
    let left_bytes = 150 * MIB;
    let size = (kernel::meminfo_bytes("MemAvailable").unwrap() - left_bytes).to_string();
    let hog =
        start("hog", &["workload", "ramp", "--huge", "--no-catch-up", "--rate", "400Mi", "--to", &size]);
    let mut processes = [modest, hog];
    wait_until("the shortage", || kernel::meminfo_bytes("MemAvailable").unwrap() < 2 * left_bytes);
    // In dry-run no cgroup is made, so the ones that stand are those of the daemon before.
    let Scene { name, daemon, _root } = scene;
    daemon.stop().unwrap();
    let settings = settings_of(name, "evictionHard: {memory.available: 500Mi}").replace("enforce", "dry-run");
    let killed_before = kernel::vmstat("oom_kill").unwrap();
    let files_before = super::values(
        &super::kubepods(name).join("besteffort/podhog"),
        &["memory.high", "cpu.max", "cgroup.freeze"],
    );
    let daemon = Daemon::start(&folder(name), &settings).unwrap();
    let mut stream = daemon.follow().unwrap();
    let decided = stream.wait_for_pod("eviction.decided", "default/hog", TIMEOUT).unwrap();
    assert_eq!(decided["data"]["dryRun"], true, "{decided}");
    stream.drain(Duration::from_secs(3));
    // The journal holds the earlier daemon's events as well.
    let start = stream.seen.iter().rposition(|event| is(event, "config.loaded")).unwrap();
    let acts = ["eviction.signalled", "eviction.completed", "limits.applied"];
    let done: Vec<_> = stream.seen[start..]
        .iter()
        .filter(|event| acts.iter().any(|kind| is(event, kind)) && event["data"]["dryRun"] != true)
        .collect();
    assert!(done.is_empty(), "{done:?}");
    for process in &mut processes {
        assert!(process.lives().unwrap(), "process {} was killed in a dry run", process.id());
    }
    assert_eq!(kernel::vmstat("oom_kill").unwrap(), killed_before);
    let files = super::values(
        &super::kubepods(name).join("besteffort/podhog"),
        &["memory.high", "cpu.max", "cgroup.freeze"],
    );
    assert_eq!(files, files_before);
    drop(processes);
    daemon.stop().unwrap();
}
