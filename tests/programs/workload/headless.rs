//! A process whose main thread has ended while another goes on.
use std::{
    collections::BTreeMap,
    env::consts::ARCH,
    fs, process, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, ensure};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use crate::{memory, report::Clock};

/// How long the main thread may take to end.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Takes memory at once, from a thread whose main thread is a zombie by then.
pub(crate) fn spike(clock: Clock, bytes: u64) -> anyhow::Result<()> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the thread that would return a status from main has ended"
    )]
    let worker = move || {
        if let Err(error) = wait_for_the_zombie().and_then(|()| memory::spike(&clock, bytes)) {
            crate::complain(&error);
            process::exit(1);
        }
        process::exit(0);
    };
    let worker = thread::Builder::new().spawn(worker).context("cannot start a thread")?;
    end_this_thread()?;
    // Only reached where the kernel let the thread live.
    worker.join().map_err(|_panic| anyhow!("the thread panicked"))?;
    Ok(())
}

/// Has the kernel end this thread and no other: returning from `main` would end the process, and only a filter of
/// system calls ends a thread without code that the compiler cannot check.
fn end_this_thread() -> anyhow::Result<()> {
    let target = TargetArch::try_from(ARCH).map_err(|error| anyhow!("{error}"))?;
    let forbidden = BTreeMap::from([(libc::SYS_sched_yield, Vec::new())]);
    let filter = SeccompFilter::new(forbidden, SeccompAction::Allow, SeccompAction::KillThread, target);
    let program: BpfProgram = filter.and_then(BpfProgram::try_from).context("cannot make a filter")?;
    seccompiler::apply_filter(&program).context("cannot filter system calls")?;
    thread::yield_now();
    Ok(())
}

fn wait_for_the_zombie() -> anyhow::Result<()> {
    let stat = format!("/proc/self/task/{}/stat", process::id());
    let begin = Instant::now();
    loop {
        let text = fs::read_to_string(&stat).with_context(|| format!("cannot read {stat}"))?;
        if state(&text) == Some('Z') {
            return Ok(());
        }
        ensure!(begin.elapsed() < TIMEOUT, "the main thread lives after {TIMEOUT:?}: {text}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The state in a line of `stat`; the name before it may hold anything but what follows its last parenthesis.
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use super::state;

    #[test]
    fn state_stands_behind_the_name() {
        assert_eq!(state("7 (a) Z (b) S 1 7 7"), Some('S'));
        assert_eq!(state("7 (workload) Z 1 7 7"), Some('Z'));
        assert_eq!(state("7"), None);
    }
}
