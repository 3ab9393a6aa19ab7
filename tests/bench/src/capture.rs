//! Records of real OOM kills, as bytes, for tests that run without a kernel of their own.
//!
//! `cargo xtask bench capture --kernel 6.12 > enforcer/src/sense/record/recorded/6.12.txt`

use std::{
    fs, io,
    io::Write as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use enforcer::sense::{self, Attached, Facts, KernelRing, Programs, RecordRing as _};

const MOUNT: &str = "/sys/fs/cgroup";
/// How long nothing must come until a scene is over.
const SILENCE: Duration = Duration::from_secs(2);
/// A program that takes memory until it is killed.
const EATER: &str = "exec tail /dev/zero";

/// Has the kernel kill in each scene, and prints what the programs report of it.
pub(crate) fn capture() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(print())
}

async fn print() -> anyhow::Result<()> {
    let choice = sense::choose(&Facts::gather());
    let Attached { events, failed, programs, .. } = Programs::load(&choice).context("cannot load")?;
    ensure!(failed.is_empty(), "{failed:?}");
    let mut ring = KernelRing::register(events)?;
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "# Records of Linux {release}, by `bench capture` in a guest: one a line, in hexadecimal."
    )?;
    for scene in SCENES {
        writeln!(out, "# scene {}", scene.name)?;
        let stage = (scene.play)()?;
        for cgroup in &stage.cgroups {
            writeln!(out, "# cgroup {} {}", cgroup.id()?, cgroup.shown())?;
        }
        loop {
            if tokio::time::timeout(SILENCE, ring.readable()).await.is_err() {
                break;
            }
            while let Some(record) = ring.next(<[u8]>::to_vec) {
                for byte in record {
                    write!(out, "{byte:02x}")?;
                }
                writeln!(out)?;
            }
            tokio::task::yield_now().await;
        }
    }
    drop(programs);
    Ok(())
}

/// Something that ends in OOM kills.
struct Scene {
    name: &'static str,
    play: fn() -> anyhow::Result<Stage>,
}

/// What a scene leaves: it goes when this is dropped.
struct Stage {
    cgroups: Vec<Cgroup>,
}

const SCENES: [Scene; 3] = [
    Scene { name: "a container over its own limit", play: own_limit },
    Scene { name: "a group of five", play: group },
    Scene { name: "a sibling allocates and the other dies", play: sibling },
];

fn own_limit() -> anyhow::Result<Stage> {
    let pod = Cgroup::make("recorded-own")?;
    let container = pod.child("c1")?;
    container.write("memory.max", "64M")?;
    container.run(EATER)?.wait()?;
    Ok(Stage { cgroups: vec![container, pod] })
}

fn group() -> anyhow::Result<Stage> {
    let pod = Cgroup::make("recorded-group")?;
    let container = pod.child("c1")?;
    container.write("memory.max", "64M")?;
    container.write("memory.oom.group", "1")?;
    container.run("for i in 1 2 3 4; do sleep 600 & done; exec tail /dev/zero")?.wait()?;
    Ok(Stage { cgroups: vec![container, pod] })
}

fn sibling() -> anyhow::Result<Stage> {
    let pod = Cgroup::make("recorded-sibling")?;
    pod.write("memory.max", "64M")?;
    let (first, second) = (pod.child("c1")?, pod.child("c2")?);
    let mut victim = first.run(
        "echo 1000 > /proc/self/oom_score_adj; head -c 40000000 /dev/zero | tail -c 40000000 | sleep 600",
    )?;
    first.wait_for_bytes(38 << 20)?;
    let mut trigger = second.run(EATER)?;
    trigger.wait()?;
    first.write("cgroup.kill", "1")?;
    victim.wait()?;
    Ok(Stage { cgroups: vec![first, second, pod] })
}

/// A cgroup that is removed with its processes.
struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    fn make(name: &str) -> anyhow::Result<Self> {
        Self::below(Path::new(MOUNT), name)
    }

    fn child(&self, name: &str) -> anyhow::Result<Self> {
        Self::below(&self.path, name)
    }

    fn below(parent: &Path, name: &str) -> anyhow::Result<Self> {
        fs::write(parent.join("cgroup.subtree_control"), "+memory")?;
        let path = parent.join(name);
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self { path })
    }

    fn write(&self, file: &str, value: &str) -> anyhow::Result<()> {
        fs::write(self.path.join(file), value).with_context(|| format!("cannot write {file}"))
    }

    fn id(&self) -> anyhow::Result<u64> {
        Ok(fs::metadata(&self.path)?.ino())
    }

    /// Its path below the mount point.
    fn shown(&self) -> String {
        format!("/{}", self.path.strip_prefix(MOUNT).unwrap_or(&self.path).display())
    }

    fn run(&self, script: &str) -> anyhow::Result<Child> {
        let script = format!("echo $$ > {}; {script}", self.path.join("cgroup.procs").display());
        Command::new("sh").args(["-c", &script]).spawn().context("cannot run sh")
    }

    fn wait_for_bytes(&self, bytes: u64) -> anyhow::Result<()> {
        let end = Instant::now() + Duration::from_mins(1);
        let mut before = 0;
        loop {
            let text = fs::read_to_string(self.path.join("memory.current"))?;
            let now: u64 = text.trim().parse()?;
            if now >= bytes && now == before {
                return Ok(());
            }
            ensure!(Instant::now() < end, "only {text} bytes");
            before = now;
            thread::sleep(Duration::from_millis(300));
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // What is left behind goes with the guest.
        drop(fs::write(self.path.join("cgroup.kill"), "1"));
        for _ in 0..200 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}
