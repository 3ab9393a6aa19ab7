//! Asks the container runtime what a kubelet's containers are called, as long as one has no name.

use std::{future, io, path::Path, time::Duration};

use tokio::sync::{mpsc, watch};

use super::desired::Desired;
use crate::{
    config::Config,
    cri::{self, CriError, Listing, Runtime},
};

/// The least time between two listings: containers that come and go without end cost no more than that.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// The most, for something that no runtime names.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// The container runtime as a source of names.
pub(super) struct Naming {
    wanted: watch::Sender<Option<u64>>,
    listings: mpsc::Receiver<Result<Listing, CriError>>,
}

impl Naming {
    /// Finds the runtime's socket unless it is configured, and waits until names are wanted. Must be called inside a tokio
    /// runtime.
    pub(super) fn start(config: &Config) -> io::Result<Self> {
        let configured = config.cri_socket.clone();
        let runtime = Runtime::start(move || match &configured {
            Some(socket) => vec![socket.clone()],
            None => cri::find(Path::new("/")),
        })?;
        let (wanted, want) = watch::channel(None);
        let (sender, listings) = mpsc::channel(1);
        let list = move || {
            let runtime = runtime.clone();
            async move { runtime.list().await }
        };
        tokio::spawn(run(list, want, sender));
        Ok(Self { wanted, listings })
    }

    /// Waits for what the runtime lists. Safe to cancel.
    pub(super) async fn next(&mut self) -> Result<Listing, CriError> {
        match self.listings.recv().await {
            Some(listing) => listing,
            // The task ends after this receiver.
            None => future::pending().await,
        }
    }
}

/// Says whether names are wanted, and for which state of the cgroups: for another one they are asked for at once.
pub(super) fn want(naming: Option<&Naming>, desired: &Desired) {
    let Some(Naming { wanted, .. }) = naming else { return };
    let state = desired.names_wanted();
    wanted.send_if_modified(|wanted| std::mem::replace(wanted, state) != state);
}

/// Waits for names; for ever where no kubelet is.
pub(super) async fn next(naming: &mut Option<Naming>) -> Result<Listing, CriError> {
    match naming {
        Some(naming) => naming.next().await,
        None => future::pending().await,
    }
}

async fn run<F: Future<Output = Result<Listing, CriError>>>(
    list: impl Fn() -> F,
    mut wanted: watch::Receiver<Option<u64>>,
    sender: mpsc::Sender<Result<Listing, CriError>>,
) {
    let mut pause = SHORTEST_PAUSE;
    let mut latest = None;
    loop {
        let Ok(state) = wanted.wait_for(Option::is_some).await.map(|state| *state) else { return };
        pause = if state == latest { (pause * 2).min(LONGEST_PAUSE) } else { SHORTEST_PAUSE };
        latest = state;
        if sender.send(list().await).await.is_err() {
            return;
        }
        tokio::time::sleep(SHORTEST_PAUSE).await;
        let is_other = |state: &Option<u64>| state.is_some() && *state != latest;
        tokio::select! {
            other = wanted.wait_for(is_other) => if other.is_err() { return },
            () = tokio::time::sleep(pause) => {}
        }
    }
}

#[cfg(test)]
mod tests;
