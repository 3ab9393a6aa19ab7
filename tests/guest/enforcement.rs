//! What is planned is what the kernel holds: the whole daemon in mode enforce, on a real kernel.
mod crash;
mod edits;
mod hostile;
mod limits;
mod protection;
mod reserved;
mod shares;
mod table;
mod verbs;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use enforcer_tests::{
    cgroup::{Cgroup, ROOT},
    daemon::Daemon,
    process::Process,
};

/// A daemon whose kubepods stands in a cgroup of its own, in which nothing is left when it is dropped.
struct Scene {
    name: &'static str,
    daemon: Daemon,
    _root: Cgroup,
}

impl Scene {
    fn open(name: &'static str, settings: &str) -> Self {
        let root = Cgroup::create(name).unwrap();
        let daemon = Daemon::start(&folder(name), &settings_of(name, settings)).unwrap();
        Self { name, daemon, _root: root }
    }

    /// A cgroup's folder, by its path below kubepods.
    fn cgroup(&self, path: &str) -> PathBuf {
        kubepods(self.name).join(path)
    }

    fn read(&self, path: &str) -> String {
        read(&self.cgroup(path))
    }
}

/// Where the daemon of a scene has its files.
fn folder(name: &str) -> PathBuf {
    Path::new("/tmp/enforcement").join(name)
}

fn kubepods(name: &str) -> PathBuf {
    Path::new(ROOT).join(name).join("kubepods")
}

/// In mode enforce, with kubepods in the cgroup of that name.
fn settings_of(name: &str, settings: &str) -> String {
    format!("mode: enforce\ncgroupRoot: /{name}\n{settings}")
}

fn read(file: &Path) -> String {
    let content = fs::read_to_string(file);
    content.unwrap_or_else(|error| panic!("{}: {error}", file.display())).trim_end().to_owned()
}

/// Starts a script in a cgroup as a runtime would, behind the daemon's back.
fn join(cgroup: &Path, script: &str) -> Process {
    let script = format!("echo 0 > {}/cgroup.procs || exit 1; {script}", cgroup.display());
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null());
    Process::new(command.spawn().unwrap())
}

/// When a process was started, in the kernel's ticks: with its pid, it identifies the process.
fn start_time(pid: u32) -> String {
    let stat = read(Path::new(&format!("/proc/{pid}/stat")));
    // The name may hold anything; what follows its last parenthesis does not.
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').nth(19).unwrap().to_owned()
}

/// The values of some files of a cgroup, as far as it has them.
fn values(cgroup: &Path, files: &[&str]) -> BTreeMap<String, String> {
    files
        .iter()
        .filter(|file| cgroup.join(file).exists())
        .map(|file| ((*file).to_owned(), read(&cgroup.join(file))))
        .collect()
}
