//! The thread that reads at the API server whether the node is under disk pressure, as its kubelet says.
//!
//! Nothing here watches disks, and nothing follows from the answer but that it is shown: under disk pressure the kubelet admits
//! critical pods alone (`managerImpl.Admit` of `pkg/kubelet/eviction`).

use std::{io, time::Duration};

use tokio::{runtime::Builder, sync::watch};

use super::{
    client::ApiServer,
    message::{Call, Lane, Outcome},
    pace::{EVERY, Pace},
};

const NAME: &str = "kube-disk";

const STACK_BYTES: usize = 512 << 10;

/// What the kubelet says, for as long as this is kept.
#[derive(Debug)]
pub struct DiskPressure(watch::Receiver<Option<bool>>);

impl DiskPressure {
    /// Starts to read it. An API server that does not answer, or does not let the node be read, leaves it unknown.
    pub fn start(server: ApiServer) -> io::Result<Self> {
        Self::start_every(EVERY, server)
    }

    pub(super) fn start_every(every: Duration, server: ApiServer) -> io::Result<Self> {
        let (said, saying) = watch::channel(None);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new()
            .name(NAME.to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || runtime.block_on(run(every, &server, &said)))?;
        Ok(Self(saying))
    }

    /// Waits for another answer than before; `None` is unknown. Safe to cancel.
    pub async fn next(&mut self) -> Option<bool> {
        match self.0.changed().await {
            Ok(()) => *self.0.borrow_and_update(),
            // A thread that is gone says no more.
            Err(_gone) => std::future::pending().await,
        }
    }
}

async fn run(every: Duration, server: &ApiServer, said: &watch::Sender<Option<bool>>) {
    let mut pace = Pace::new(every);
    let mut pause = pace.first();
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = said.closed() => return,
        }
        let answer = look(server).await;
        pause = if answer.is_ok() { pace.answered() } else { pace.failed() };
        let found = answer.unwrap_or_else(|why| {
            tracing::debug!(%why, "whether the node is under disk pressure is not known");
            None
        });
        said.send_if_modified(|said| std::mem::replace(said, found) != found);
    }
}

/// What the node says; the error says why it cannot be read.
async fn look(server: &ApiServer) -> Result<Option<bool>, String> {
    let call = Call::DiskPressure { node: server.node() };
    match server.ask(Lane::Events, call).await? {
        Outcome::DiskPressure(pressed) => Ok(pressed),
        other => Err(format!("the API server answers {other:?}")),
    }
}
