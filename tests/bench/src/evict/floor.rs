//! The floor: a monitor that knows whom to kill, and does nothing else.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    os::unix::fs::FileExt as _,
    path::PathBuf,
    thread,
    time::Duration,
};

use anyhow::Context as _;
use enforcer_tests::sampler::{SAMPLER_PRIORITY, available_bytes, lock_memory, prepare};

/// How long it sleeps between two looks.
const PACE: Duration = Duration::from_millis(1);

/// After the death of one victim its memory may be counted that much later.
const COUNTED_WITHIN: u32 = 200;

/// Kills one cgroup after the other, each when less than the threshold is available and the one before has gone.
#[derive(Debug, clap::Args)]
pub(crate) struct Monitor {
    /// In bytes
    #[arg(long)]
    threshold: u64,
    /// The cgroups' folders, in the order in which they are to die
    #[arg(long)]
    kill: Vec<PathBuf>,
}

/// A cgroup that is to die.
struct Victim {
    kill: File,
    events: File,
}

impl Monitor {
    /// Watches until it is killed.
    pub(crate) fn watch(&self) -> anyhow::Result<()> {
        let mut victims = Vec::new();
        for folder in &self.kill {
            let open = |name: &str, write: bool| {
                let path = folder.join(name);
                let file = OpenOptions::new().read(!write).write(write).open(&path);
                file.with_context(|| format!("cannot open {}", path.display()))
            };
            victims.push(Victim { kill: open("cgroup.kill", true)?, events: open("cgroup.events", false)? });
        }
        lock_memory()?;
        // The sampler comes first all the same.
        let meminfo = prepare(SAMPLER_PRIORITY - 1)?;
        for victim in &mut victims {
            while available_bytes(&meminfo)? >= self.threshold {
                thread::sleep(PACE);
            }
            victim.kill.write_all(b"1").context("cannot kill")?;
            while victim.is_populated() {
                thread::sleep(PACE);
            }
            for _ in 0..COUNTED_WITHIN {
                if available_bytes(&meminfo)? >= self.threshold {
                    break;
                }
                thread::sleep(PACE);
            }
        }
        loop {
            thread::sleep(Duration::from_hours(1));
        }
    }
}

impl Victim {
    /// A cgroup that was removed is empty.
    fn is_populated(&self) -> bool {
        let mut buffer = [0; 128];
        let count = self.events.read_at(&mut buffer, 0).unwrap_or(0);
        buffer.get(..count).is_some_and(|text| text.starts_with(b"populated 1"))
    }
}
