//! The daemon's end: what is restored, and what is waited for.

use std::time::Duration;

use anyhow::Context as _;
use tokio::{sync::mpsc, task::JoinHandle};

use super::{Ended, EngineEvent, OnExit, desired::Desired, emit, sinks::Sinks};
use crate::{journal::Journal, sense, serve};

/// How long open connections may take to end.
pub(super) const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Takes in the reflex's last events, and restores what must not outlive the daemon. A kubelet that has come gets
/// everything back, whatever is to be kept otherwise.
pub(super) async fn restore_on_exit(
    desired: &mut Desired,
    mut engine_events: mpsc::UnboundedReceiver<EngineEvent>,
    (ended, on_exit): (Ended, OnExit),
) -> anyhow::Result<()> {
    while let Ok(last) = engine_events.try_recv() {
        desired.on_engine_event(&last);
    }
    desired.settle();
    // Without the daemon, nothing keeps scores aligned with the ranking.
    desired.unalign().await?;
    match (ended, on_exit) {
        (Ended::Stopped, OnExit::Keep) => Ok(()),
        (Ended::Stopped, OnExit::Restore) | (Ended::KubeletCame, _) => desired.release(ended).await,
    }
}

/// Stops tracing. Programs that would stay in the kernel are removed if nothing is to be kept.
pub(super) async fn detach(tracing: JoinHandle<()>, on_exit: OnExit, journal: &Journal) {
    tracing.abort();
    // The task releases the programs when it ends.
    let _aborted = tracing.await;
    match on_exit {
        OnExit::Keep => return,
        OnExit::Restore => {}
    }
    let problem = match sense::unpin() {
        Ok(sense::Unpinned { removed: _, left }) if left.is_empty() => return,
        Ok(sense::Unpinned { removed: _, left }) => {
            let left: Vec<_> = left.iter().map(|path| path.display().to_string()).collect();
            format!("left in place, not created by enforcer: {}", left.join(", "))
        }
        Err(error) => crate::chain(&error),
    };
    emit::degraded(journal, "bpffs", &format!("cannot unpin everything: {problem}"));
}

/// Waits for the end of sinks and open connections, and closes the journal.
pub(super) async fn shutdown(
    server: JoinHandle<Result<(), serve::Error>>,
    sinks: Sinks,
    journal: &Journal,
) -> anyhow::Result<()> {
    sinks.close().await;
    let ended = tokio::time::timeout(DRAIN_TIMEOUT, server).await;
    // A disk that accepts no writes does not block the exit: the writer gives up on the first refusal.
    journal.close();
    match ended {
        Ok(outcome) => outcome.context("the server ended early")?.context("the observe socket failed"),
        // A client that does not read does not block the exit.
        Err(_elapsed) => Ok(()),
    }
}
