//! The cgroup that a command runs in, and what is left in it when the command has ended.

use std::{
    os::fd::OwnedFd,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow};
use rustix::{fs::FlockOperation, io::Errno};

use crate::{
    cgroup::{CgroupDir, Guard, Origin},
    model::CgroupId,
    serve::ContainerView,
};

/// How long what is left may take to be gone.
const DEATH: Duration = Duration::from_secs(10);

/// The pause between two looks whether it is.
const LOOK: Duration = Duration::from_millis(20);

/// A container's cgroup, through the handle that was compared with the container's id.
#[derive(Debug)]
pub(super) struct Place {
    dir: CgroupDir,
    /// A file of the cgroup, locked as long as this parent has commands there; `None` if nothing in it may be killed.
    lock: Option<OwnedFd>,
}

impl Place {
    /// The cgroup that the daemon made for the container. One that the manifest adopts may hold anything else, and so may one
    /// of which an older daemon does not say: there nothing is killed.
    pub(super) fn of(dir: CgroupDir, container: &ContainerView) -> anyhow::Result<Self> {
        let lock = if container.adopted == Some(false) {
            let lock = dir.open_read("cgroup.procs").context("cannot open the container's cgroup")?;
            // Another parent's lock is shared too.
            rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared)
                .with_context(|| format!("cannot lock cgroup {}", dir.path()))?;
            Some(lock)
        } else {
            None
        };
        Ok(Self { dir, lock })
    }

    /// The cgroup's id.
    pub(super) fn id(&self) -> CgroupId {
        self.dir.id()
    }

    /// Ends all that is left in the cgroup, as a kubelet ends a whole container, and waits until nothing is.
    ///
    /// Nothing is ended beside commands of another parent, and in a cgroup of which the rules of eviction say that it must
    /// not be killed; the latter is an error.
    pub(super) fn clear(&self, proc: &Path) -> anyhow::Result<()> {
        let Some(lock) = &self.lock else { return Ok(()) };
        let path = self.dir.path();
        if !self.is_populated()? {
            return Ok(());
        }
        if !is_alone(lock).with_context(|| format!("cannot lock cgroup {path}"))? {
            return Ok(());
        }
        let cannot = || format!("cannot end what is left in cgroup {path}");
        if let Some(reason) = Guard::new(proc, &[]).forbidden(&self.dir, Origin::Made).with_context(cannot)? {
            return Err(anyhow!(reason).context(cannot()));
        }
        match self.dir.write("cgroup.kill", "1") {
            Err(error) if error.is_gone() => return Ok(()),
            written => written.with_context(cannot)?,
        }
        let start = Instant::now();
        while self.is_populated()? {
            if start.elapsed() >= DEATH {
                return Err(anyhow!(
                    "cgroup {path} still holds processes {} s after they were killed: they wait in the kernel, see \
                     /proc/PID/stack of those in its cgroup.procs",
                    DEATH.as_secs()
                ));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    fn is_populated(&self) -> anyhow::Result<bool> {
        match self.dir.is_populated() {
            Err(error) if error.is_gone() => Ok(false),
            populated => Ok(populated.context("cannot look into the container's cgroup")?),
        }
    }
}

/// Whether no other parent has locked it. The lock stays shared.
fn is_alone(lock: &OwnedFd) -> rustix::io::Result<bool> {
    let alone = rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive);
    // What could not be had may have cost what was held (flock(2)).
    rustix::fs::flock(lock, FlockOperation::LockShared)?;
    match alone {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::model::CgroupPath;

    /// A container's cgroup of ordinary files.
    struct Scene(tempfile::TempDir);

    impl Scene {
        fn new(populated: u8) -> Self {
            let scene = Self(tempfile::tempdir().unwrap());
            fs::create_dir(scene.0.path().join("app")).unwrap();
            scene.write("cgroup.kill", "");
            scene.write("cgroup.procs", "");
            scene.write("cgroup.events", &format!("populated {populated}\nfrozen 0\n"));
            scene
        }

        fn write(&self, file: &str, text: &str) {
            fs::write(self.0.path().join("app").join(file), text).unwrap();
        }

        fn place(&self, adopted: Option<bool>) -> Place {
            let root = CgroupDir::unchecked(self.0.path()).unwrap();
            let dir = root.open(&CgroupPath::parse("/app").unwrap()).unwrap();
            let container = ContainerView {
                name: "app".into(),
                kind: "app".into(),
                attempt: None,
                oom_score_adj: 0,
                cgroup: "/app".into(),
                cgroup_id: Some(dir.id().0),
                adopted,
            };
            Place::of(dir, &container).unwrap()
        }

        /// Has what is left die once it is killed.
        fn obey(&self) -> thread::JoinHandle<()> {
            let folder = self.0.path().join("app");
            thread::spawn(move || {
                while fs::read_to_string(folder.join("cgroup.kill")).unwrap() != "1" {
                    thread::sleep(Duration::from_millis(1));
                }
                fs::write(folder.join("cgroup.events"), "populated 0\nfrozen 0\n").unwrap();
            })
        }

        fn is_killed(&self) -> bool {
            fs::read_to_string(self.0.path().join("app/cgroup.kill")).unwrap() == "1"
        }
    }

    const PROC: &str = "/proc";

    #[test]
    fn what_is_left_is_killed_and_awaited() {
        let scene = Scene::new(1);
        let place = scene.place(Some(false));
        let dying = scene.obey();
        place.clear(Path::new(PROC)).unwrap();
        dying.join().unwrap();
        assert!(!place.is_populated().unwrap());
    }

    #[test]
    fn an_empty_cgroup_and_one_that_is_gone_are_left_alone() {
        let scene = Scene::new(0);
        let place = scene.place(Some(false));
        place.clear(Path::new(PROC)).unwrap();
        assert!(!scene.is_killed());
        fs::remove_dir_all(scene.0.path().join("app")).unwrap();
        place.clear(Path::new(PROC)).unwrap();
    }

    #[test]
    fn nothing_is_killed_in_a_cgroup_that_is_adopted_or_may_be() {
        for adopted in [Some(true), None] {
            let scene = Scene::new(1);
            scene.place(adopted).clear(Path::new(PROC)).unwrap();
            assert!(!scene.is_killed(), "{adopted:?}");
        }
    }

    #[test]
    fn the_cgroup_that_this_process_is_in_is_not_killed() {
        let scene = Scene::new(1);
        scene.write("cgroup.procs", &format!("{}\n", std::process::id()));
        let error = scene.place(Some(false)).clear(Path::new(PROC)).unwrap_err();
        assert!(format!("{error:#}").contains("it holds this daemon"), "{error:#}");
        assert!(!scene.is_killed());
    }

    #[test]
    fn commands_of_another_parent_are_left_alone_until_it_has_ended() {
        let scene = Scene::new(1);
        let (one, other) = (scene.place(Some(false)), scene.place(Some(false)));
        for place in [&one, &other, &one] {
            place.clear(Path::new(PROC)).unwrap();
            assert!(!scene.is_killed());
        }
        drop(other);
        let dying = scene.obey();
        one.clear(Path::new(PROC)).unwrap();
        dying.join().unwrap();
    }
}
