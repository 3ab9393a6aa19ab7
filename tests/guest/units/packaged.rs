//! The unit that packages install: what the daemon has by it, and what a purge gives back.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    process::{Command, Stdio},
};

use enforcer_tests::{cgroup::Cgroup, wait::wait_until};
use serde_json::Value;

use super::{cgroup_of, pod, read, reload, shown, systemctl, text};

const UNIT: &str = "enforcer.service";
const SLICE: &str = "enforcer.slice";

/// What a package installs, at its places, but for the program: a guest has that elsewhere.
const FILES: [(&str, &str); 3] = [
    ("/usr/lib/systemd/system/enforcer.service", include_str!("../../../packaging/systemd/enforcer.service")),
    ("/usr/lib/systemd/system/enforcer.slice", include_str!("../../../packaging/systemd/enforcer.slice")),
    ("/etc/enforcer/config.yaml", include_str!("../../../packaging/config.yaml")),
];
/// What an administrator adds to the configuration.
const ENFORCE: &str =
    "mode: enforce\nownership: enforcer\ncgroupRoot: /packaged\nstaticPodPath: /etc/enforcer/pods";
const PROGRAM: &str = "/usr/bin/enforcer";

/// A secret, the drop-in that has systemd give it to the service, and where the service finds it.
const SECRET: &str = "/etc/enforcer/signing";
const DROP_INS: &str = "/run/systemd/system/enforcer.service.d";
const CREDENTIALS: &str = "/run/credentials/enforcer.service";

/// What dpkg runs before it removes the files.
const BEFORE: &str = include_str!("../../../packaging/deb/prerm");

/// What dpkg runs after it has removed the files.
const AFTERWARDS: &str = include_str!("../../../packaging/deb/postrm");

/// What the daemon leaves at its end: a removal takes the pins, and a purge what was stored.
const LEFT: [&str; 2] = ["/var/lib/enforcer", "/sys/fs/bpf/enforcer"];

/// The files of the package. Other scenarios have a daemon with files of its own, and this one's name.
struct Installed;

impl Installed {
    fn new() -> Self {
        for (path, content) in FILES {
            fs::create_dir_all(Path::new(path).parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        symlink("/usr/local/bin/enforcer", PROGRAM).unwrap();
        fs::create_dir_all("/etc/enforcer/pods").unwrap();
        reload();
        Self
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        // A scenario that fails is unwinding here: another panic would end the whole run.
        drop(systemctl(&["stop", UNIT, SLICE]));
        for path in FILES.map(|(path, _)| path).into_iter().chain([PROGRAM]) {
            drop(fs::remove_file(path));
        }
        drop(systemctl(&["daemon-reload"]));
    }
}

fn succeeds(arguments: &[&str]) {
    let output = systemctl(arguments).unwrap();
    assert!(output.status.success(), "systemctl {arguments:?}: {}", text(&output.stderr));
}

/// The facilities that a host offers, each with how well.
fn facilities(verb: &[&str]) -> BTreeSet<(String, String)> {
    let output = Command::new(PROGRAM).args(["-o", "json", "doctor"]).args(verb).output().unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let of = |one: &Value, field: &str| one[field].as_str().unwrap().to_owned();
    let facilities = document["facilities"].as_array().unwrap().iter();
    facilities.map(|one| (of(one, "name"), of(one, "state"))).collect()
}

/// The manifests that were not taken.
fn rejected() -> String {
    let output =
        Command::new(PROGRAM).args(["-o", "json", "events", "--type", "pod.rejected"]).output().unwrap();
    text(&output.stdout)
}

/// Runs a script of the package as dpkg does.
fn run_by_dpkg(script: &str, action: &str) {
    let mut shell = Command::new("sh");
    let mut shell = shell.args(["-s", action]).stdin(Stdio::piped()).spawn().unwrap();
    shell.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success());
}

/// The head of the first request that arrives, which is accepted.
fn first_request(receiver: &TcpListener) -> String {
    let (mut stream, _) = receiver.accept().unwrap();
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
        head.push(byte[0]);
    }
    stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").unwrap();
    text(&head)
}

#[guest_test(systemd)]
fn the_packaged_unit_gives_the_daemon_all_that_it_uses_and_a_purge_leaves_nothing() {
    let installed = Installed::new();
    // Type=notify: it has returned when the daemon was ready.
    succeeds(&["start", UNIT]);
    assert_eq!(shown(UNIT, "ActiveState"), "active");
    assert_eq!(shown(UNIT, "WatchdogUSec"), "30s");
    assert_eq!(shown(UNIT, "Delegate"), "yes");
    let pid = shown(UNIT, "MainPID");

    let cgroup = cgroup_of(pid.parse().unwrap());
    assert!(cgroup.starts_with("/enforcer.slice/enforcer.service"), "{cgroup}");
    let slice = Path::new("/sys/fs/cgroup/enforcer.slice");
    let unit = slice.join(UNIT);
    for (file, expected) in [
        (slice.join("memory.min"), "67108864"),
        (unit.join("memory.min"), "67108864"),
        (unit.join("pids.max"), "512"),
    ] {
        assert_eq!(read(&file), expected, "{}", file.display());
    }
    let of_process = |file: &str| read(&Path::new("/proc").join(&pid).join(file));
    assert_eq!(of_process("oom_score_adj"), "-999");
    let limits = of_process("limits");
    let limit = |name: &str| {
        let row = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        row.split_whitespace().next().unwrap().to_owned()
    };
    assert_eq!(limit("Max locked memory"), "unlimited");
    assert_eq!(limit("Max open files"), "1048576");
    let status = of_process("status");
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.lines().any(|own| own == line), "{status}");
    }
    // Of the kernel's settings it may change those two alone that it sets during evictions.
    let may_write = |sysctl: &str| {
        let path = Path::new("/proc").join(&pid).join("root/proc/sys/vm").join(sysctl);
        fs::OpenOptions::new().write(true).open(path).is_ok()
    };
    for (sysctl, expected) in
        [("stat_refresh", true), ("percpu_pagelist_high_fraction", true), ("swappiness", false)]
    {
        assert_eq!(may_write(sysctl), expected, "{sysctl}");
    }
    // No restriction of the unit takes anything away from it.
    assert_eq!(facilities(&[]), facilities(&["--here"]));

    succeeds(&["reload", UNIT]);

    let _root = Cgroup::create("packaged").unwrap();
    let (path, configuration) = FILES[2];
    // A secret that systemd gives to the service alone.
    fs::write(SECRET, "a secret that is long enough to sign with\n").unwrap();
    fs::create_dir_all(DROP_INS).unwrap();
    let drop_in = format!("[Service]\nLoadCredential=signing:{SECRET}\n");
    fs::write(Path::new(DROP_INS).join("secret.conf"), drop_in).unwrap();
    succeeds(&["daemon-reload"]);
    let receiver = TcpListener::bind("127.0.0.1:0").unwrap();
    let sinks = format!(
        "sinks: {{webhook: [{{name: pager, url: 'http://{}/', secretFile: {CREDENTIALS}/signing}}]}}\n",
        receiver.local_addr().unwrap()
    );
    let configuration = configuration.replace("mode: dry-run", ENFORCE);
    fs::write(path, format!("{configuration}\n{sinks}")).unwrap();
    let manifest = "/etc/enforcer/pods/web.yaml";
    fs::write(manifest, pod("web", "{limits: {cpu: 50m, memory: 48Mi}}")).unwrap();
    // What the unit makes read-only for the daemon, others may write to all the same.
    let shared = "/etc/enforcer/pods/shared.yaml";
    fs::write(shared, pod("shared", "{limits: {cpu: 50m, memory: 48Mi}}")).unwrap();
    fs::set_permissions(shared, fs::Permissions::from_mode(0o666)).unwrap();
    succeeds(&["restart", UNIT]);
    let cgroup = Path::new("/sys/fs/cgroup/packaged/kubepods/podweb");
    let limit = cgroup.join("memory.max");
    wait_until("the pod's limit", || fs::read_to_string(&limit).is_ok_and(|limit| limit == "50331648\n"));
    assert_eq!(fs::metadata(cgroup).unwrap().permissions().mode() & 0o777, 0o755);
    wait_until("the manifest that others may write to", || rejected().contains("shared.yaml"));
    let request = first_request(&receiver);
    assert!(request.to_ascii_lowercase().contains("\r\nenforcer-signature: t="), "{request}");
    fs::remove_dir_all(DROP_INS).unwrap();
    fs::remove_file(SECRET).unwrap();
    fs::remove_file(shared).unwrap();
    fs::remove_file(manifest).unwrap();
    succeeds(&["stop", UNIT]);
    assert_eq!(shown(UNIT, "Result"), "success");
    for path in LEFT {
        assert!(Path::new(path).exists(), "{path} was never there");
    }
    // Kubepods at least: the daemon leaves it at its end.
    let left = Path::new("/sys/fs/cgroup/packaged/kubepods");
    run_by_dpkg(BEFORE, "remove");
    assert!(!left.exists(), "the cgroups are still there");
    assert!(!Path::new("/sys/fs/bpf/enforcer").exists(), "the programs are still pinned");
    assert!(Path::new("/var/lib/enforcer").exists(), "what was stored goes with a purge only");
    drop(installed);
    run_by_dpkg(AFTERWARDS, "purge");
    for path in LEFT.into_iter().chain(["/run/enforcer", "/etc/enforcer"]) {
        assert!(!Path::new(path).exists(), "{path} is still there");
    }
    assert!(!slice.exists(), "the slice's cgroup is still there");
}
