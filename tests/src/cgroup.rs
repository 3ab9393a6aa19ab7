//! A cgroup of a scenario's own.
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Child,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

/// Where guests mount cgroup2.
pub const ROOT: &str = "/sys/fs/cgroup";

/// How long killed processes may take to exit: an emulated machine frees large memory slowly.
const EMPTY: Duration = crate::wait::TIMEOUT;

/// A cgroup that is killed and removed, with all below it, when this is dropped.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Creates `name`, which is relative to the root and may be nested; the controllers cpu, io, memory and pids are
    /// enabled at every level.
    pub fn create(name: &str) -> anyhow::Result<Self> {
        let mut path = PathBuf::from(ROOT);
        for part in name.split('/') {
            let subtree = path.join("cgroup.subtree_control");
            fs::write(&subtree, "+cpu +io +memory +pids")
                .with_context(|| format!("cannot write {}", subtree.display()))?;
            path.push(part);
            match fs::create_dir(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| format!("cannot create {}", path.display())),
            }
        }
        Ok(Self { path })
    }

    /// Its folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes one of its files.
    pub fn write(&self, file: &str, value: &str) -> anyhow::Result<()> {
        let path = self.path.join(file);
        fs::write(&path, value).with_context(|| format!("cannot write {value:?} to {}", path.display()))
    }

    /// Reads one of its files, without the last line break.
    pub fn read(&self, file: &str) -> anyhow::Result<String> {
        let path = self.path.join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(text.trim_end().to_owned())
    }

    /// One number of a file with a key and a number per line, such as `memory.events`.
    pub fn number(&self, file: &str, key: &str) -> anyhow::Result<u64> {
        let text = self.read(file)?;
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        let value =
            value.with_context(|| format!("{file} of {} has no {key}:\n{text}", self.path.display()))?;
        value.parse().with_context(|| format!("{key} of {file} is {value:?}"))
    }

    /// Moves a child into it.
    pub fn add(&self, child: &Child) -> anyhow::Result<()> {
        self.write("cgroup.procs", &child.id().to_string())
    }

    /// Kills all processes in it and below, and waits until none is left.
    pub fn kill(&self) -> anyhow::Result<()> {
        self.write("cgroup.kill", "1")?;
        let end = Instant::now() + EMPTY;
        while self.number("cgroup.events", "populated")? != 0 {
            if Instant::now() >= end {
                bail!("{} still has processes {EMPTY:?} after it was killed", self.path.display());
            }
            sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Later scenarios fail if it is not removed; a panic here would hide the reason.
        if self.kill().is_ok() {
            drop(remove_tree(&self.path));
        }
    }
}

fn remove_tree(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}
