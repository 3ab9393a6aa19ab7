//! Moves a process into a scope through systemd, again and again if it ends meanwhile.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow};

use super::super::Failure;
use crate::{
    cgroup::{CgroupDir, Systemd, UnitName},
    model::CgroupPath,
};

/// How long systemd may take to move this process into the scope: the D-Bus default for a reply.
const TIMEOUT: Duration = Duration::from_secs(25);
/// The minimum number of tries. On a node that is short of CPU time each reply may take many seconds, and the scope may
/// end in between each time.
const TRIES: u32 = 20;
/// How long to wait after systemd's reply before the next try: the scope may have ended in between.
const SETTLING: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(10);
/// The longest wait between two calls that systemd refused.
const PAUSE_MAX: Duration = Duration::from_millis(1280);

/// Moves a process into the scope at that path, which systemd creates if needed; returns its cgroup.
///
/// Until the process is in it, the scope may end at any moment with its last process. Then it is created again.
pub(super) async fn enter(root: &CgroupDir, path: &CgroupPath, pid: u32) -> Result<CgroupDir, Failure> {
    let units = UnitName::of(path).zip(path.parent().and_then(|slice| UnitName::of(&slice)));
    let (scope, slice) = units.context("the daemon named an invalid scope")?;
    let (systemd, start) = (Systemd::new(), Instant::now());
    let (mut tries, mut pause) = (0, POLL);
    loop {
        tries += 1;
        let is_over = tries >= TRIES && start.elapsed() >= TIMEOUT;
        let entered = match systemd.start_scope(&scope, &slice, pid).await {
            Err(error) if error.is_there_already() => systemd.attach(&scope, pid).await,
            result => result,
        };
        match entered {
            Ok(()) if has_come(path, pid).await? => {
                return Ok(root.open(path).context("cannot open the container's cgroup")?);
            }
            Ok(()) if is_over => {
                return Err(Failure::from(anyhow!(
                    "systemd did not move process {pid} into {scope} within {} s: see `systemctl status {scope}`",
                    start.elapsed().as_secs()
                )));
            }
            Ok(()) => {}
            Err(error) if is_over || !error.is_refusal() => {
                return Err(anyhow::Error::new(error).context("cannot enter the container's scope").into());
            }
            // The scope is ending, or has not started yet.
            Err(_) => {
                wait_for_start(root, path, pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

/// Waits until the scope has started, or until `pause` is over.
///
/// It looks at the cgroup and does not ask systemd, which runs the jobs of units only when it has no call to answer:
/// many callers that ask at a high rate together keep each of their scopes from starting.
async fn wait_for_start(root: &CgroupDir, path: &CgroupPath, pause: Duration) {
    let is_populated = || root.open(path).and_then(|scope| scope.is_populated()).unwrap_or(false);
    let (start, was_populated) = (Instant::now(), is_populated());
    loop {
        tokio::time::sleep(POLL).await;
        if start.elapsed() >= pause || (!was_populated && is_populated()) {
            return;
        }
    }
}

/// Waits up to [`SETTLING`] until the process is in the cgroup: systemd moves it a moment after its reply.
async fn has_come(path: &CgroupPath, pid: u32) -> anyhow::Result<bool> {
    let start = Instant::now();
    while start.elapsed() < SETTLING {
        if is_in(path, pid)? {
            return Ok(true);
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(false)
}

/// Whether the process is in the cgroup, according to the kernel.
fn is_in(path: &CgroupPath, pid: u32) -> anyhow::Result<bool> {
    let file = format!("/proc/{pid}/cgroup");
    let own = fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
    Ok(own.lines().any(|line| line.strip_prefix("0::") == Some(path.as_str())))
}
