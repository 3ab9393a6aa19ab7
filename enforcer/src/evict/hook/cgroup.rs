//! The cgroup of a run. Killing it kills everything that the program started, even in other sessions.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::{Component, Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use crate::cgroup::{self, CgroupDir};

/// The prefix of their names below our own cgroup; our process id and a number follow.
const PREFIX: &str = "enforcer-hook-";

/// The number of cgroups made so far.
static MADE: AtomicU64 = AtomicU64::new(0);

/// Such a cgroup. Dropping this removes it, if it is empty.
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

    /// The file that a process writes to in order to join it.
    pub(super) fn procs(&self) -> BorrowedFd<'_> {
        self.procs.as_fd()
    }

    /// Kills all processes in it.
    pub(super) fn kill(&self) {
        if let Err(error) = rustix::io::write(&self.kill, b"1") {
            tracing::error!(%error, path = %self.path.display(), "cannot kill the processes that preKillHook started");
        }
    }

    /// Removes it, if it is empty; returns whether it is gone.
    pub(super) fn remove(&self) -> bool {
        fs::remove_dir(&self.path).map_or_else(|error| error.kind() == io::ErrorKind::NotFound, |()| true)
    }
}

impl Drop for HookCgroup {
    fn drop(&mut self) {
        // A process that is still dying in it keeps it; the next start tries again.
        self.remove();
    }
}

/// Kills processes that an earlier daemon in this cgroup left running. Call it before any such cgroup is made.
pub(super) fn clear() {
    let Ok(own) = own_cgroup() else { return };
    for entry in fs::read_dir(&own).into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name();
        let Some(maker) = name.to_str().and_then(maker) else { continue };
        // As a container's first process, the daemon has the same id each time.
        if maker != std::process::id() && Path::new("/proc").join(maker.to_string()).exists() {
            continue;
        }
        let path = entry.path();
        if let Err(error) = fs::write(path.join("cgroup.kill"), "1") {
            tracing::warn!(%error, path = %path.display(), "cannot kill processes that an earlier preKillHook left");
        }
        // If it is not empty yet, the next start tries again.
        let _removed = fs::remove_dir(&path);
    }
}

/// Whether a cgroup of that name was made for a run, by a process that is gone.
pub(super) fn is_left(name: &str, proc: &Path) -> bool {
    maker(name).is_some_and(|maker| !proc.join(maker.to_string()).exists())
}

/// The process that made the cgroup of that name.
fn maker(name: &str) -> Option<u32> {
    let (maker, number) = name.strip_prefix(PREFIX)?.split_once('-')?;
    number.parse::<u64>().ok()?;
    maker.parse().ok()
}

fn own_cgroup() -> io::Result<PathBuf> {
    let mount = Path::new(cgroup::MOUNT);
    CgroupDir::mount(mount).map_err(io::Error::other)?;
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let own = below(&own)
        .ok_or_else(|| io::Error::other("the daemon's cgroup is outside of the mounted hierarchy"))?;
    Ok(mount.join(own))
}

/// Our own cgroup's path below the mount; `None` outside of the mounted hierarchy, which the kernel shows as `..`.
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
        let own = format!("{PREFIX}{}-0", std::process::id());
        assert!(!is_left(&own, Path::new("/proc")));
        // Above every process id that there is.
        assert!(is_left("enforcer-hook-4194305-0", Path::new("/proc")));
        assert!(!is_left("system.slice", Path::new("/proc")));
    }
}
