//! Keeps on disk what the container runtime called a kubelet's pods and containers, so that a daemon that starts while it is
//! away knows which container is which.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    path::Path,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::emit;
use crate::{
    cri::{Container, Listing, Sandbox},
    durable::{self, State, StateError},
    journal::Journal,
    keeper::Keeper,
};

/// The file in the state directory.
const FILE: &str = "names.json";

/// The least time between two writes: a container that is started again and again has another id each time.
const PAUSE: Duration = Duration::from_secs(10);

/// What the runtime listed last. An id is never given again, so what is old is not wrong.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct KeptNames {
    sandboxes: Vec<Sandbox>,
    containers: Vec<Container>,
}

impl State for KeptNames {
    /// More than a node's containers have together.
    const MAX_BYTES: u64 = 16 << 20;
}

impl KeptNames {
    /// Those of a listing that may have a cgroup, and a few that were asked for and have none any more.
    pub(super) fn of(listing: &Listing) -> Self {
        let used: BTreeSet<&str> = listing.containers.iter().map(|of| of.sandbox_id.as_str()).collect();
        let stands = |sandbox: &&Sandbox| sandbox.ready || used.contains(sandbox.id.as_str());
        Self {
            sandboxes: listing.sandboxes.iter().filter(stands).cloned().collect(),
            containers: listing.containers.clone(),
        }
    }

    /// The same as a runtime lists it.
    pub(super) fn into_listing(self) -> Listing {
        let Self { sandboxes, containers } = self;
        Listing { runtime: String::new(), sandboxes, containers, dropped: 0 }
    }

    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for of in &self.sandboxes {
            (&of.id, &of.pod_uid, &of.namespace, &of.name, of.attempt, of.is_static).hash(&mut hasher);
        }
        for of in &self.containers {
            (&of.id, &of.sandbox_id, &of.name, of.attempt).hash(&mut hasher);
        }
        hasher.finish()
    }
}

/// Reads what an earlier daemon kept; nothing if there is no file.
pub(super) fn read(state_dir: &Path) -> Result<Option<KeptNames>, StateError> {
    durable::read(&state_dir.join(FILE))
}

/// Starts the thread that writes the file.
pub(super) fn start(state_dir: &Path, journal: Journal) -> io::Result<Keeper<KeptNames>> {
    let path = state_dir.join(FILE);
    let (mut written, mut is_reported) = (None, false);
    Keeper::start("names-keeper", PAUSE, move |names: KeptNames| {
        // The runtime is asked again and again for what it has no name of.
        let digest = names.digest();
        if written == Some(digest) {
            return;
        }
        match durable::write(&path, &names) {
            Ok(()) => (written, is_reported) = (Some(digest), false),
            Err(error) if !std::mem::replace(&mut is_reported, true) => {
                let message = format!(
                    "after a restart, containers have no names until the container runtime answers: cannot write {}: {error}",
                    path.display()
                );
                emit::degraded(&journal, "names", &message);
            }
            Err(_) => {}
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(id: &str, ready: bool) -> Sandbox {
        let [namespace, name] = ["shop", "web"].map(String::from);
        let (id, pod_uid) = (id.to_owned(), format!("u-{id}"));
        Sandbox { id, pod_uid, namespace, name, attempt: 1, ready, is_static: true }
    }

    #[test]
    fn what_may_have_a_cgroup_is_kept_for_the_next() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).unwrap().is_none());
        let keeper = start(dir.path(), Journal::new("n", "b")).unwrap();
        let [id, sandbox_id, name] = ["c1", "ended", "app"].map(String::from);
        let listing = Listing {
            runtime: String::from("r 1"),
            sandboxes: vec![sandbox("ready", true), sandbox("ended", false), sandbox("gone", false)],
            containers: vec![Container { id, sandbox_id, name, attempt: 3, running: true }],
            dropped: 2,
        };
        for _ in 0..2 {
            keeper.keep(KeptNames::of(&listing));
        }
        drop(keeper);
        let kept = read(dir.path()).unwrap().unwrap().into_listing();
        assert_eq!(kept.sandboxes, listing.sandboxes[..2]);
        assert_eq!(kept.containers, listing.containers);
    }
}
