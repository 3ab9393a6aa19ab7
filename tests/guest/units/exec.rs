//! Scopes: how a container's processes come into theirs, and how it goes.

use std::{
    os::unix::process::ExitStatusExt as _,
    process::{Command, Output, Stdio},
};

use enforcer_tests::{
    process::Process,
    rounds::Rounds,
    wait::{TIMEOUT, wait_until},
};
use rustix::process::{Pid, Signal, kill_process};

use super::{Scene, cgroup_of, pod, read, shown, text, wait_until_in};

const LIMITS: &str = "{limits: {cpu: 200m, memory: 64Mi}}";

/// The scope has its limits before the command's first instruction, and the process its score.
#[guest_test(systemd, repeats)]
fn a_command_begins_within_its_limits() {
    let scene = Scene::open("begins", "");
    scene.daemon.manifest("web.yaml", &pod("web", LIMITS)).unwrap();
    let script = "g=/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup); echo $g; cat $g/memory.max $g/cpu.max \
                  $g/memory.oom.group $g/pids.max /proc/self/oom_score_adj; echo $$";
    let scope = scene.slice("podweb").join("enforcer-web-app.scope");
    // Each time another scope: the one before went with its last process.
    let mut rounds = Rounds::new(2, 200);
    while rounds.next().is_some() {
        rounds.note(&scene.daemon).unwrap();
        let mut command = scene.daemon.verb(&["exec", "default/web", "--", "sh", "-c", script]);
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let output = child.wait_with_output().unwrap();
        let said = text(&output.stdout);
        let lines: Vec<&str> = said.lines().collect();
        let pid = pid.to_string();
        let expected =
            [scope.to_str().unwrap(), "67108864", "20000 100000", "1", "max", "-997", pid.as_str()];
        assert_eq!(lines, expected, "{}", text(&output.stderr));
    }
    scene.daemon.stop().unwrap();
}

#[guest_test(systemd)]
fn a_scope_lives_as_long_as_its_processes() {
    let scene = Scene::open("lives", "");
    scene.daemon.manifest("web.yaml", &pod("web", LIMITS)).unwrap();
    let scope = scene.slice("podweb").join("enforcer-web-app.scope");
    let first = scene.exec("default/web", &["sleep", "1000"]);
    wait_until_in(&first, &scope);
    let unit = "enforcer-web-app.scope";
    assert_eq!(shown(unit, "Delegate"), "yes");
    assert_eq!(shown(unit, "Slice"), "lives-kubepods-podweb.slice");
    assert_eq!(shown(unit, "ActiveState"), "active");

    let second = scene.exec("default/web/app", &["sleep", "1000"]);
    wait_until_in(&second, &scope);
    let mut pids: Vec<u32> =
        read(&scope.join("cgroup.procs")).lines().map(|pid| pid.parse().unwrap()).collect();
    let mut expected = [first.id(), second.id()];
    pids.sort_unstable();
    expected.sort_unstable();
    assert_eq!(pids, expected);

    drop(first);
    assert_eq!(read(&scope.join("cgroup.procs")), second.id().to_string());
    drop(second);
    wait_until("the scope's end", || !scope.exists());
    wait_until("its unit's end", || {
        shown(unit, "LoadState") == "not-found" || shown(unit, "ActiveState") == "inactive"
    });
    wait_until("the daemon's word of it", || scene.pods()[0]["containers"][0]["cgroupId"].is_null());
    assert_eq!(scene.pods()[0]["state"], "active", "its slice stands");

    let third = scene.exec("default/web", &["sleep", "1000"]);
    wait_until_in(&third, &scope);
    assert_eq!(read(&scope.join("memory.max")), "67108864");
    scene.daemon.stop().unwrap();
}

/// What the command ends with is what its caller sees, and signals reach it.
#[guest_test(systemd)]
fn exec_passes_status_and_signals_on() {
    let scene = Scene::open("passes", "");
    scene.daemon.manifest("web.yaml", &pod("web", LIMITS)).unwrap();
    let keeper = scene.exec("default/web", &["sleep", "1000"]);
    wait_until_in(&keeper, &scene.slice("podweb").join("enforcer-web-app.scope"));
    for status in [0, 1, 64, 77, 255] {
        let ended = scene.run("default/web", &format!("exit {status}"));
        assert_eq!(ended.status.code(), Some(status), "{}", text(&ended.stderr));
    }
    assert_eq!(scene.run("default/web", "kill -9 $$").status.signal(), Some(9));
    assert_eq!(scene.run("default/web", "kill -TERM $$").status.signal(), Some(15));
    let script = "trap 'exit 42' USR1; echo ready; while :; do sleep 0.1; done";
    let mut command = scene.daemon.verb(&["exec", "default/web", "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
    kill_process(Pid::from_child(&child), Signal::USR1).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(42));
    // Signals are as they would be without us, but for those that the C library keeps to itself.
    let signals = "grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status; ls /proc/self/fd";
    let with = scene.run("default/web", signals);
    let without = Command::new("sh").args(["-c", signals]).output().unwrap();
    assert_eq!(without_own_signals(&with), without_own_signals(&without));
    scene.daemon.stop().unwrap();
}

/// A parent of systemd's own scope: the command is in the container's, and the parent is not.
#[guest_test(systemd)]
fn a_command_is_started_again_in_its_scope() {
    let scene = Scene::open("again", "");
    scene.daemon.manifest("web.yaml", &pod("web", LIMITS)).unwrap();
    let scope = scene.slice("podweb").join("enforcer-web-app.scope");
    let arguments = ["exec", "--restart", "always", "default/web", "--", "sleep", "1000"];
    let mut parent = Process::new(scene.daemon.verb(&arguments).stdin(Stdio::null()).spawn().unwrap());
    let first = only_process(&scope, 0);
    assert_eq!(read(&scope.join("memory.max")), "67108864");
    assert_ne!(first, parent.id());
    kill_process(Pid::from_raw(first.cast_signed()).unwrap(), Signal::KILL).unwrap();
    let second = only_process(&scope, first);
    assert_eq!(read(&scope.join("memory.max")), "67108864");
    assert_ne!(second, parent.id());
    parent.signal(Signal::TERM).unwrap();
    assert_eq!(parent.wait_for_end(TIMEOUT).unwrap().code(), Some(143));
    scene.daemon.stop().unwrap();
}

/// The unit in docs/pods.md: systemd starts the command again, until the pod is evicted.
#[guest_test(systemd)]
fn a_unit_of_systemd_starts_it_again_until_its_pod_is_evicted() {
    const PAGE: &str = include_str!("../../../docs/pods.md");
    let scene = Scene::open("unit", "");
    scene.daemon.manifest("web.yaml", &pod("web", LIMITS)).unwrap();
    let (_, unit) = PAGE.split_once("```ini\n").unwrap();
    let (unit, _) = unit.split_once("```").unwrap();
    let verb = scene.daemon.verb(&["exec", "default/web", "--", "/bin/sleep", "1000"]);
    let words = std::iter::once(verb.get_program()).chain(verb.get_args());
    let words: Vec<&str> = words.map(|word| word.to_str().unwrap()).collect();
    let documented = "/usr/local/bin/enforcer exec default/web -- /usr/bin/myserver";
    assert!(unit.contains(documented) && unit.contains("RestartSec=10s"), "{unit}");
    let unit = unit.replace(documented, &words.join(" ")).replace("RestartSec=10s", "RestartSec=1s");
    let file = std::path::Path::new("/run/systemd/system/of-a-pod.service");
    std::fs::write(file, unit).unwrap();
    let systemctl = |arguments: &[&str]| {
        let status = Command::new("systemctl").args(arguments).status().unwrap();
        assert!(status.success(), "systemctl {arguments:?}: {status}");
    };
    systemctl(&["daemon-reload"]);
    systemctl(&["start", "of-a-pod.service"]);

    let scope = scene.slice("podweb").join("enforcer-web-app.scope");
    let first = only_process(&scope, 0);
    assert_eq!(shown("of-a-pod.service", "MainPID"), first.to_string());
    kill_process(Pid::from_raw(first.cast_signed()).unwrap(), Signal::KILL).unwrap();
    only_process(&scope, first);
    let evicted = scene.daemon.verb(&["evict", "default/web", "--reason", "a test"]).output().unwrap();
    assert!(evicted.status.success(), "{evicted:?}");
    wait_until("the unit's end", || shown("of-a-pod.service", "ActiveState") == "failed");
    assert_eq!(shown("of-a-pod.service", "ExecMainStatus"), "77");
    std::fs::remove_file(file).unwrap();
    systemctl(&["daemon-reload"]);
    scene.daemon.stop().unwrap();
}

/// The only process of a scope, once it is not `before` and has become its command: until then it waits for its limits.
fn only_process(scope: &std::path::Path, before: u32) -> u32 {
    let mut found = None;
    wait_until("a command in the scope", || {
        let processes = std::fs::read_to_string(scope.join("cgroup.procs")).unwrap_or_default();
        let runs = |pid: &u32| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "sleep")
        };
        found = processes.trim().parse().ok().filter(|pid| *pid != before).filter(runs);
        found.is_some()
    });
    found.unwrap()
}

/// What was printed, without the signals 32 and 33 in the masks.
fn without_own_signals(output: &Output) -> Vec<String> {
    const OWN: u64 = 0b11 << 31;
    let mask = |line: &str| {
        let (name, mask) = line.split_once(":\t")?;
        Some(format!("{name} {:x}", u64::from_str_radix(mask, 16).ok()? & !OWN))
    };
    text(&output.stdout).lines().map(|line| mask(line).unwrap_or_else(|| line.to_owned())).collect()
}

/// Many at once: each is in its own container's scope, one that ends does not take another along.
#[guest_test(systemd, repeats)]
fn many_come_and_go_at_once() {
    const PODS: usize = 8;
    let scene = Scene::open("many", "");
    let names: Vec<String> = (0..PODS).map(|number| format!("p{number}")).collect();
    for name in &names {
        scene.daemon.manifest(&format!("{name}.yaml"), &pod(name, LIMITS)).unwrap();
    }
    let mut rounds = Rounds::new(1, 100);
    while rounds.next().is_some() {
        // Into each pod a process that stays, and some beside it that are about to end.
        let long: Vec<_> =
            names.iter().map(|name| scene.exec(&format!("default/{name}"), &["sleep", "1000"])).collect();
        let short: Vec<_> = (0..3)
            .flat_map(|_| &names)
            .map(|name| (name, scene.daemon.exec(&format!("default/{name}"), &["true"]).unwrap()))
            .collect();
        for (name, child) in short {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{name}: {}", text(&output.stderr));
        }
        for (name, process) in names.iter().zip(&long) {
            let scope = scene.slice(&format!("pod{name}")).join(format!("enforcer-{name}-app.scope"));
            wait_until_in(process, &scope);
            assert_eq!(read(&scope.join("cgroup.procs")), process.id().to_string());
            assert_eq!(read(&scope.join("memory.max")), "67108864");
        }
        rounds.note(&scene.daemon).unwrap();
    }
    assert!(!cgroup_of(std::process::id()).contains("kubepods"));
    scene.daemon.stop().unwrap();
}
