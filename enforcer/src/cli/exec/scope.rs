use std::{
    fs, process,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow};

use super::super::Failure;
use crate::{
    cgroup::{CgroupDir, Systemd, UnitName},
    model::CgroupPath,
};

/// How long systemd may take to have this process in its scope: as long as D-Bus waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(25);
/// How often it is asked at the least: on a node that is short of processor time each answer may take many seconds, and
/// the scope may have ended in between each time.
const TRIES: u32 = 20;
/// How long it may take after systemd's answer, until it is asked again: the scope may have ended in between.
const SETTLING: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(10);

/// Moves this process into the scope at that path, which systemd makes for it unless it is there; answers its cgroup.
///
/// The scope may end at any moment before this process is in it, with the last one that was: then it is made anew.
pub(super) async fn enter(root: &CgroupDir, path: &CgroupPath) -> Result<CgroupDir, Failure> {
    let units = UnitName::of(path).zip(path.parent().and_then(|slice| UnitName::of(&slice)));
    let (scope, slice) = units.context("the daemon named a scope that cannot be")?;
    let (systemd, pid, start) = (Systemd::new(), process::id(), Instant::now());
    let mut tries = 0;
    loop {
        tries += 1;
        let is_over = tries >= TRIES && start.elapsed() >= TIMEOUT;
        let entered = match systemd.start_scope(&scope, &slice, pid).await {
            Err(error) if error.is_there_already() => systemd.attach(&scope, pid).await,
            result => result,
        };
        match entered {
            Ok(()) if has_come(path).await? => {
                return Ok(root.open(path).context("cannot open the container's cgroup")?);
            }
            Ok(()) if is_over => {
                return Err(Failure::from(anyhow!(
                    "systemd did not take this process into {scope} within {} s: see `systemctl status {scope}`",
                    start.elapsed().as_secs()
                )));
            }
            Ok(()) => {}
            Err(error) if is_over || !error.is_refusal() => {
                return Err(anyhow::Error::new(error).context("cannot enter the container's scope").into());
            }
            // It is about to end, or has just ended.
            Err(_) => tokio::time::sleep(POLL).await,
        }
    }
}

/// Waits for a while until this process is in the cgroup: a new scope has it a moment after the answer.
async fn has_come(path: &CgroupPath) -> anyhow::Result<bool> {
    let start = Instant::now();
    while start.elapsed() < SETTLING {
        if is_in(path)? {
            return Ok(true);
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(false)
}

/// Whether this process is in the cgroup, by what the kernel says of it.
fn is_in(path: &CgroupPath) -> anyhow::Result<bool> {
    let own = fs::read_to_string("/proc/self/cgroup").context("cannot read /proc/self/cgroup")?;
    Ok(own.lines().any(|line| line.strip_prefix("0::") == Some(path.as_str())))
}
