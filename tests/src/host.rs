//! Swap, huge pages and process ids of a guest, for the length of a scenario.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};

const ZRAM: &str = "/dev/zram0";
const PAGES: &str = "/proc/sys/vm/nr_hugepages";
const PID_MAX: &str = "/proc/sys/kernel/pid_max";

/// Swap space in compressed memory, until this is dropped.
#[derive(Debug)]
pub struct Swap(());

impl Swap {
    /// Turns it on.
    pub fn on(bytes: u64) -> anyhow::Result<Self> {
        let zram = Path::new("/sys/block/zram0");
        ensure!(zram.is_dir(), "this kernel has no zram");
        fs::write(zram.join("disksize"), bytes.to_string()).context("cannot give zram0 its size")?;
        run("mkswap")?;
        run("swapon")?;
        Ok(Self(()))
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        // A scenario that finds unwanted swap fails; a panic here would hide the reason.
        if run("swapoff").is_ok() {
            drop(fs::write("/sys/block/zram0/reset", "1"));
        }
    }
}

fn run(program: &str) -> anyhow::Result<()> {
    let output = Command::new(program).arg(ZRAM).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    let reported = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {ZRAM}: {}: {reported}", output.status);
    Ok(())
}

/// A pool of huge pages of 2 MiB, until this is dropped.
#[derive(Debug)]
pub struct HugePages(());

impl HugePages {
    /// Reserves that many pages.
    pub fn reserve(pages: u64) -> anyhow::Result<Self> {
        fs::write(PAGES, pages.to_string()).with_context(|| format!("cannot write {PAGES}"))?;
        let reserved = Self(());
        let found = fs::read_to_string(PAGES)?;
        ensure!(found.trim_end() == pages.to_string(), "{} huge pages, not {pages}", found.trim_end());
        Ok(reserved)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // As above.
        drop(fs::write(PAGES, "0"));
    }
}

/// Changes the maximum of process ids, until this is dropped.
#[derive(Debug)]
pub struct PidMax(String);

impl PidMax {
    /// Sets it.
    pub fn set(most: u64) -> anyhow::Result<Self> {
        let before = fs::read_to_string(PID_MAX).with_context(|| format!("cannot read {PID_MAX}"))?;
        fs::write(PID_MAX, most.to_string()).with_context(|| format!("cannot write {most} to {PID_MAX}"))?;
        Ok(Self(before))
    }

    /// The same, so that this many are left beside the running tasks.
    pub fn leave(free: u64) -> anyhow::Result<Self> {
        // The fourth field: runnable tasks, and all tasks.
        let load = fs::read_to_string("/proc/loadavg").context("cannot read /proc/loadavg")?;
        let all = load.split_whitespace().nth(3).and_then(|counts| counts.split_once('/'));
        let (_, all) = all.with_context(|| format!("/proc/loadavg holds {load:?}"))?;
        Self::set(all.parse::<u64>()? + free)
    }
}

impl Drop for PidMax {
    fn drop(&mut self) {
        // As above.
        drop(fs::write(PID_MAX, &self.0));
    }
}
