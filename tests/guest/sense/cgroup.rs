//! Cgroups that are gone after the test.
use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use enforcer::model::CgroupId;
use enforcer_tests::wait::TIMEOUT;

const MOUNT: &str = "/sys/fs/cgroup";

/// A cgroup; dropping it kills what is in it and removes it with its children.
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// A cgroup right under the root.
    pub(crate) fn root(name: &str) -> Self {
        Self::make(Path::new(MOUNT), name)
    }

    /// A cgroup in this one.
    pub(crate) fn child(&self, name: &str) -> Self {
        Self::make(&self.path, name)
    }

    fn make(parent: &Path, name: &str) -> Self {
        fs::write(parent.join("cgroup.subtree_control"), "+memory").unwrap();
        let path = parent.join(name);
        fs::create_dir(&path).unwrap();
        Self { path }
    }

    /// With a limit, and without swap to escape to.
    pub(crate) fn limited(self, max: &str) -> Self {
        self.write("memory.max", max);
        self
    }

    pub(crate) fn write(&self, file: &str, value: &str) {
        fs::write(self.path.join(file), value).unwrap();
    }

    /// Its id: the inode number of its directory.
    pub(crate) fn id(&self) -> CgroupId {
        CgroupId(fs::metadata(&self.path).unwrap().ino())
    }

    /// Runs a shell script in it, from its first command on.
    pub(crate) fn run(&self, script: &str) -> Child {
        let procs = self.path.join("cgroup.procs");
        let script = format!("echo $$ > {}; {script}", procs.display());
        Command::new("sh").args(["-c", &script]).spawn().unwrap()
    }

    /// Waits until it holds that much, and takes no more: one that still allocates may hit the limit itself.
    pub(crate) fn wait_for_bytes(&self, bytes: u64, patience: Duration) {
        let end = Instant::now() + patience;
        let mut before = 0;
        loop {
            let text = fs::read_to_string(self.path.join("memory.current")).unwrap();
            let now = text.trim().parse::<u64>().unwrap();
            if now >= bytes && now == before {
                return;
            }
            before = now;
            assert!(Instant::now() < end, "only {text}");
            thread::sleep(Duration::from_millis(300));
        }
    }

    pub(crate) fn kill(&self) {
        self.write("cgroup.kill", "1");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The tests' own assertions say what matters; here it is only cleaned up, and a busy cgroup is waited for.
        drop(fs::write(self.path.join("cgroup.kill"), "1"));
        let end = Instant::now() + TIMEOUT;
        while fs::remove_dir(&self.path).is_err() && self.path.exists() && Instant::now() < end {
            thread::sleep(Duration::from_millis(10));
        }
    }
}
