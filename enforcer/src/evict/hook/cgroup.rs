//! The cgroup that a run is kept in: with it, everything that the program has started is killed, wherever it put itself.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::{Component, Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use crate::cgroup::{self, CgroupDir};

/// What all of them are called, below our own cgroup; our process id and a number follow.
const PREFIX: &str = "enforcer-hook-";

/// How many there have been.
static MADE: AtomicU64 = AtomicU64::new(0);

/// Such a cgroup; it is removed with the value, if nobody is in it any more.
#[derive(Debug)]
pub(super) struct HookCgroup {
    path: PathBuf,
    procs: File,
    kill: File,
}

impl HookCgroup {
    pub(super) fn make() -> io::Result<Self> {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = own_cgroup()?.join(format!("{PREFIX}{}-{number}", std::process::id()));
        fs::create_dir(&path)?;
        let open = |file: &str| File::options().write(true).open(path.join(file));
        match (open("cgroup.procs"), open("cgroup.kill")) {
            (Ok(procs), Ok(kill)) => Ok(Self { path, procs, kill }),
            (Err(error), _) | (_, Err(error)) => {
                let _removed = fs::remove_dir(&path);
                Err(error)
            }
        }
    }

    /// Where a process writes itself to be in it.
    pub(super) fn procs(&self) -> BorrowedFd<'_> {
        self.procs.as_fd()
    }

    /// Kills everybody in it.
    pub(super) fn kill(&self) {
        if let Err(error) = rustix::io::write(&self.kill, b"1") {
            tracing::error!(%error, path = %self.path.display(), "what preKillHook started cannot be killed");
        }
    }

    /// Removes it, if nobody is in it any more; whether it is gone.
    pub(super) fn remove(&self) -> bool {
        fs::remove_dir(&self.path).map_or_else(|error| error.kind() == io::ErrorKind::NotFound, |()| true)
    }
}

impl Drop for HookCgroup {
    fn drop(&mut self) {
        // Who is still dying in it keeps it; the next start looks again.
        self.remove();
    }
}

/// Kills what an earlier daemon in this cgroup left running; to be called before any is made.
pub(super) fn clear() {
    let Ok(own) = own_cgroup() else { return };
    for entry in fs::read_dir(&own).into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name();
        let Some(maker) = name.to_str().and_then(maker) else { continue };
        // Where the daemon is a container's first process, it has the same id each time.
        if maker != std::process::id() && Path::new("/proc").join(maker.to_string()).exists() {
            continue;
        }
        let path = entry.path();
        if let Err(error) = fs::write(path.join("cgroup.kill"), "1") {
            tracing::warn!(%error, path = %path.display(), "what an earlier preKillHook left cannot be killed");
        }
        // Not empty yet, it is left to the next start.
        let _removed = fs::remove_dir(&path);
    }
}

/// The process that made the one of that name.
fn maker(name: &str) -> Option<u32> {
    let (maker, number) = name.strip_prefix(PREFIX)?.split_once('-')?;
    number.parse::<u64>().ok()?;
    maker.parse().ok()
}

fn own_cgroup() -> io::Result<PathBuf> {
    let mount = Path::new(cgroup::MOUNT);
    CgroupDir::mount(mount).map_err(io::Error::other)?;
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let own =
        below(&own).ok_or_else(|| io::Error::other("the daemon's cgroup is not below what is mounted"))?;
    Ok(mount.join(own))
}

/// Our own cgroup's path below the mount; none outside of what is mounted, which is told with `..`.
fn below(text: &str) -> Option<&Path> {
    let path = Path::new(text.lines().find_map(|line| line.strip_prefix("0::/"))?);
    path.components().all(|component| matches!(component, Component::Normal(_))).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_of_what_is_mounted_is_meant() {
        assert_eq!(below("0::/\n"), Some(Path::new("")));
        assert_eq!(below("4:memory:/a\n0::/system.slice/x\n"), Some(Path::new("system.slice/x")));
        assert_eq!(below("0::/../../other\n"), None);
        assert_eq!(below("4:memory:/a\n"), None);
    }

    #[test]
    fn a_name_reports_who_made_it() {
        assert_eq!(maker("enforcer-hook-12-3"), Some(12));
        assert_eq!(maker("enforcer-hook-12"), None);
        assert_eq!(maker("enforcer-hook-12-x"), None);
        assert_eq!(maker("system.slice"), None);
    }
}
