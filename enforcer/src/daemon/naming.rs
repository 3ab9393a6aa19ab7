//! Asks the container runtime what a kubelet's containers are called, as long as one has no name: one that has a cgroup,
//! or one in which a process was killed.

use std::{
    future, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use tokio::sync::{mpsc, watch};

use super::{desired::Desired, specifying::RunningKubelet};
use crate::{
    config::Config,
    cri::{self, CriError, Listed, Listing, Runtime},
    source::Identities,
};

/// The least time between two listings: containers that come and go without end cost no more than that.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// The most, for something that no runtime names.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// The container runtime as a source of names.
pub(super) struct Naming {
    wanted: watch::Sender<Option<u64>>,
    listings: mpsc::Receiver<Result<Names, CriError>>,
}

/// What the runtime has answered.
pub(super) struct Names {
    /// What it lists.
    pub(super) listing: Listing,
    /// The question of [`Identities::question`] that this answers, if it does.
    pub(super) question: Option<u64>,
}

impl Naming {
    /// Finds the runtime's socket unless it is configured, first where the kubelet has it, and waits until names are
    /// wanted, be it for `identities`. Must be called inside a tokio runtime.
    pub(super) fn start(
        config: &Config,
        kubelet: RunningKubelet,
        identities: Identities,
    ) -> io::Result<Self> {
        let configured = config.cri_socket.clone();
        let runtime = Runtime::start(move || sockets(configured.as_deref(), &kubelet, Path::new("/")))?;
        let (wanted, standing) = watch::channel(None);
        let (sender, listings) = mpsc::channel(1);
        let wants = Wants { standing, killed: identities.wanted() };
        let list = move || {
            let runtime = runtime.clone();
            let (containers, question) = identities.question(Instant::now());
            async move {
                let Listed { listing, is_whole } = runtime.list(&containers).await?;
                Ok::<_, CriError>(Names { listing, question: is_whole.then_some(question) })
            }
        };
        tokio::spawn(run(list, wants, sender));
        Ok(Self { wanted, listings })
    }

    /// Waits for what the runtime lists. Safe to cancel.
    pub(super) async fn next(&mut self) -> Result<Names, CriError> {
        match self.listings.recv().await {
            Some(names) => names,
            // The task ends after this receiver.
            None => future::pending().await,
        }
    }
}

/// The sockets where the runtime may listen, below a root directory. Where the kubelet has it is known from an earlier
/// look: here nothing waits for a disk.
fn sockets(configured: Option<&Path>, kubelet: &RunningKubelet, root: &Path) -> Vec<PathBuf> {
    match configured {
        Some(socket) => vec![socket.to_owned()],
        None => cri::find(root, kubelet.last_places().runtime.as_deref()),
    }
}

/// Says whether names are wanted, and for which state of the cgroups: for another one they are asked for at once.
pub(super) fn want(naming: Option<&Naming>, desired: &Desired) {
    let Some(Naming { wanted, .. }) = naming else { return };
    let state = desired.names_wanted();
    wanted.send_if_modified(|wanted| std::mem::replace(wanted, state) != state);
}

/// Waits for names; for ever where no kubelet is.
pub(super) async fn next(naming: &mut Option<Naming>) -> Result<Names, CriError> {
    match naming {
        Some(naming) => naming.next().await,
        None => future::pending().await,
    }
}

/// What has no name.
struct Wants {
    /// The state of the cgroups, if one of them has none.
    standing: watch::Receiver<Option<u64>>,
    /// What was killed in last, if it has none.
    killed: watch::Receiver<Option<u64>>,
}

/// Both as they were.
type Wanted = [Option<u64>; 2];

/// Whether something is wanted that was not before, or not in that state.
fn has_more(wanted: &Wanted, before: &Wanted) -> bool {
    wanted.iter().zip(before).any(|(wanted, before)| wanted.is_some() && wanted != before)
}

impl Wants {
    /// Waits until they are so; `None` when no names are wanted any more. Safe to cancel.
    async fn wait_for(&mut self, is_so: impl Fn(&Wanted) -> bool) -> Option<Wanted> {
        loop {
            let wanted = [*self.standing.borrow_and_update(), *self.killed.borrow_and_update()];
            if is_so(&wanted) {
                return Some(wanted);
            }
            tokio::select! {
                changed = self.standing.changed() => changed.ok()?,
                changed = self.killed.changed() => changed.ok()?,
            }
        }
    }
}

async fn run<F: Future<Output = Result<Names, CriError>>>(
    list: impl Fn() -> F,
    mut wants: Wants,
    sender: mpsc::Sender<Result<Names, CriError>>,
) {
    let mut pause = SHORTEST_PAUSE;
    let mut latest = [None; 2];
    loop {
        let Some(state) = wants.wait_for(|state| has_more(state, &[None; 2])).await else { return };
        pause = if has_more(&state, &latest) { SHORTEST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        latest = state;
        if sender.send(list().await).await.is_err() {
            return;
        }
        tokio::time::sleep(SHORTEST_PAUSE).await;
        tokio::select! {
            other = wants.wait_for(|state| has_more(state, &latest)) => if other.is_none() { return },
            () = tokio::time::sleep(pause) => {}
        }
    }
}

#[cfg(test)]
mod tests;
