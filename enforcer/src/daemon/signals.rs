//! What is asked of the daemon by signals.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that it listens for.
#[derive(Debug)]
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

/// What one of them asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Asked {
    /// SIGTERM or SIGINT: to end.
    Stop,
    /// SIGHUP: to read the configuration again.
    Reload,
}

impl Signals {
    /// Listens from now on.
    pub(super) fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
            hang_up: signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?,
        })
    }

    /// Waits for the first that asks it to end; those that ask for something else wait. Safe to cancel.
    pub(super) async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// The next one. Safe to cancel.
    pub(super) async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.terminate.recv() => Asked::Stop,
            _ = self.interrupt.recv() => Asked::Stop,
            _ = self.hang_up.recv() => Asked::Reload,
        }
    }
}
