//! A process of a scenario.

use std::{
    process::{Child, ExitStatus},
    thread,
    time::{Duration, Instant},
};

use anyhow::ensure;

/// A child process that is killed when this is dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Takes the child over.
    #[must_use]
    pub fn new(child: Child) -> Self {
        Self(child)
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Whether it has not ended.
    pub fn lives(&mut self) -> anyhow::Result<bool> {
        Ok(self.0.try_wait()?.is_none())
    }

    /// Waits until it has ended.
    pub fn wait_for_end(&mut self, patience: Duration) -> anyhow::Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            ensure!(start.elapsed() < patience, "process {} lives after {patience:?}", self.id());
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already, which is what is wanted.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
