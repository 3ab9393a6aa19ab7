//! The systemd driver, on a host that systemd has booted: `cargo xtask vm test` runs this module in a guest of its own.
mod bus;
mod cleanup;
mod contain;
mod edits;
mod evict;
mod exec;
mod journald;
mod packaged;
mod values;
mod watchdog;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use enforcer_tests::{daemon::Daemon, process::Process, wait::wait_until};
use serde_json::Value;

/// A daemon whose pods stand in a slice of their own, which is stopped when this is dropped.
struct Scene {
    name: &'static str,
    daemon: Daemon,
    slice: Slice,
}

impl Scene {
    fn open(name: &'static str, settings: &str) -> Self {
        let slice = Slice(name);
        Self { name, daemon: Daemon::start(&folder(name), &settings_of(name, settings)).unwrap(), slice }
    }

    /// The folder of a cgroup of this scene: `podu` is a Guaranteed pod's, `burstable-podu` a Burstable one's.
    fn slice(&self, name: &str) -> PathBuf {
        let root = format!("/sys/fs/cgroup/{0}.slice/{0}-kubepods.slice", self.name);
        let mut names = format!("{}-kubepods", self.name);
        name.split('-').fold(PathBuf::from(root), |folder, part| {
            names = format!("{names}-{part}");
            folder.join(format!("{names}.slice"))
        })
    }

    /// Starts a command in a container.
    fn exec(&self, target: &str, command: &[&str]) -> Process {
        Process::new(self.daemon.exec(target, command).unwrap())
    }

    /// Runs a command in a container to its end.
    fn run(&self, target: &str, script: &str) -> Output {
        self.daemon.verb(&["exec", target, "--", "sh", "-c", script]).output().unwrap()
    }

    /// What the daemon says of its pods.
    fn pods(&self) -> Vec<Value> {
        let answer = self.daemon.get("/v1/pods").unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let view: Value = serde_json::from_str(body).unwrap();
        view["pods"].as_array().unwrap().clone()
    }
}

/// Ends what runs in a slice, and the slice.
struct Slice(&'static str);

impl Drop for Slice {
    fn drop(&mut self) {
        // A scenario that fails is unwinding here: another panic would end the whole run.
        drop(systemctl(&["stop", &format!("{}.slice", self.0)]));
    }
}

fn folder(name: &str) -> PathBuf {
    Path::new("/tmp/units").join(name)
}

fn settings_of(name: &str, settings: &str) -> String {
    format!("mode: enforce\ncgroupDriver: systemd\ncgroupRoot: /{name}\n{settings}")
}

fn systemctl(arguments: &[&str]) -> std::io::Result<Output> {
    Command::new("systemctl").args(arguments).output()
}

/// Has systemd read its units anew, and waits until it has.
fn reload() {
    let output = systemctl(&["daemon-reload"]).unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// A property as `systemctl show` has it.
fn shown(unit: &str, property: &str) -> String {
    let output = systemctl(&["show", "--value", "--property", property, unit]).unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).trim_end().to_owned()
}

fn read(file: &Path) -> String {
    let content = fs::read_to_string(file);
    content.unwrap_or_else(|error| panic!("{}: {error}", file.display())).trim_end().to_owned()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn pod(name: &str, resources: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, uid: {name}}}\nspec:\n  containers:\n  - name: app\n    \
         resources: {resources}\n"
    )
}

/// The cgroup that a process is in, by its path.
fn cgroup_of(pid: u32) -> String {
    let own = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default().to_owned()
}

fn wait_until_in(process: &Process, cgroup: &Path) {
    let path = format!("/{}", cgroup.strip_prefix("/sys/fs/cgroup").unwrap().display());
    wait_until(&format!("the process in {path}"), || {
        cgroup_of(process.id()) == path
            && fs::read_to_string(format!("/proc/{}/comm", process.id()))
                .is_ok_and(|comm| comm != "enforcer\n")
    });
}
