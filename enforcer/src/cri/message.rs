//! What the daemon and the runtime process say to each other, and what the daemon takes from it.

use serde::{Deserialize, Serialize};

use crate::helper::{is_id, is_name, plain};

/// The most sandboxes of one listing: a kubelet's own limit is far below, and dead sandboxes are listed too.
const MOST_SANDBOXES: usize = 4_096;

/// The most containers of one listing.
const MOST_CONTAINERS: usize = 16_384;

/// The most containers that are asked for by their ids at a time. Each takes a call.
pub const MOST_WANTED: usize = 128;

/// The longest listing in JSON: everything at its longest takes less.
pub(super) const MOST_LISTING_BYTES: usize = 16 << 20;

/// What a container runtime has that names ids.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Listing {
    /// The runtime's name and version.
    pub runtime: String,
    /// The sandboxes in any state, by id. A pod has several after its sandbox was made again.
    pub sandboxes: Vec<Sandbox>,
    /// The containers that are created or running, by id. The others have no cgroup: of them it has those that were
    /// asked for.
    pub containers: Vec<Container>,
    /// How many were left out because an id or a name cannot be one, or because there are too many.
    pub dropped: usize,
}

/// A pod's sandbox.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// Its id, which its cgroup is named after.
    pub id: String,
    /// The pod's uid as the kubelet knows it: of a static pod that is its hash.
    pub pod_uid: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// How often the pod's sandbox was made before.
    pub attempt: u32,
    /// Whether it runs.
    pub ready: bool,
    /// Whether the kubelet has the pod from a manifest of its own. It notes that itself, whatever a pod's author wrote.
    #[serde(default)]
    pub is_static: bool,
}

/// A container.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// Its id, which its cgroup is named after.
    pub id: String,
    /// The sandbox that it belongs to.
    pub sandbox_id: String,
    /// Its name in the pod.
    pub name: String,
    /// How often the container was made before.
    pub attempt: u32,
    /// Whether it runs; otherwise it was created, and is about to, or it has ended.
    pub running: bool,
}

/// What a runtime has answered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Listed {
    /// What it has.
    pub listing: Listing,
    /// Whether it has answered for each wanted container: it does not know those that the listing is without.
    pub is_whole: bool,
}

/// The head of a question's frame, which has no body.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Ask {
    pub(super) timeout_ms: u64,
    /// The containers that are listed in any state, by id.
    #[serde(default)]
    pub(super) wanted: Vec<String>,
}

/// The head of an answer's frame.
#[derive(Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Outcome {
    /// The body is the listing.
    Listed,
    /// The same, but the runtime has not answered for each wanted container.
    ListedInPart,
    /// What answers there does not know the service, in its words.
    NoService(String),
    /// Why there is no listing.
    Failed(String),
}

impl Listing {
    /// Takes a sandbox, if there is room for it and its texts can be what they are to be.
    pub(super) fn add_sandbox(&mut self, sandbox: Sandbox) {
        let Sandbox { id, pod_uid, namespace, name, attempt: _, ready: _, is_static: _ } = &sandbox;
        let is_sound = is_id(id) && is_id(pod_uid) && is_name(namespace) && is_name(name);
        if is_sound && self.sandboxes.len() < MOST_SANDBOXES {
            self.sandboxes.push(sandbox);
        } else {
            self.dropped = self.dropped.saturating_add(1);
        }
    }

    /// Takes a container in the same way.
    pub(super) fn add_container(&mut self, container: Container) {
        let Container { id, sandbox_id, name, attempt: _, running: _ } = &container;
        let is_sound = is_id(id) && is_id(sandbox_id) && is_name(name);
        if is_sound && self.containers.len() < MOST_CONTAINERS {
            self.containers.push(container);
        } else {
            self.dropped = self.dropped.saturating_add(1);
        }
    }

    /// Whether it has a container or a sandbox with that id.
    pub(super) fn has(&self, id: &str) -> bool {
        self.containers.iter().any(|container| container.id == id)
            || self.sandboxes.iter().any(|sandbox| sandbox.id == id)
    }

    /// The same with each id once, and nothing that it may not hold: it comes from a process that is not trusted.
    pub(super) fn checked(self) -> Self {
        let mut checked = Self { runtime: plain(&self.runtime), dropped: self.dropped, ..Self::default() };
        self.sandboxes.into_iter().for_each(|sandbox| checked.add_sandbox(sandbox));
        self.containers.into_iter().for_each(|container| checked.add_container(container));
        checked.sandboxes.sort_by(|one, other| (&one.id, other.ready).cmp(&(&other.id, one.ready)));
        checked.sandboxes.dedup_by(|later, first| later.id == first.id);
        // A container that starts while they are listed was first found created, and then running.
        checked.containers.sort_by(|one, other| (&one.id, other.running).cmp(&(&other.id, one.running)));
        checked.containers.dedup_by(|later, first| later.id == first.id);
        checked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::helper::{MOST_CHARACTERS, MOST_ID_BYTES, MOST_NAME_BYTES};

    fn sandbox(id: &str) -> Sandbox {
        let text = String::from;
        Sandbox {
            id: text(id),
            pod_uid: text("u"),
            namespace: text("n"),
            name: text("p"),
            attempt: 0,
            ready: true,
            is_static: false,
        }
    }

    fn container(id: &str) -> Container {
        let text = String::from;
        Container { id: text(id), sandbox_id: text("s"), name: text("c"), attempt: 0, running: true }
    }

    #[test]
    fn what_cannot_be_an_id_or_a_name_is_dropped_and_counted() {
        let long = "x".repeat(MOST_NAME_BYTES + 1);
        let hostile = [
            "",
            ".",
            "..",
            "a/b",
            "../../etc",
            "a\nb",
            "a\0",
            "\u{1b}[2J",
            "a b",
            "a\"b",
            "a\\b",
            "ä",
            "\u{202e}a",
            &long,
        ];
        for text in hostile {
            let mut listing = Listing::default();
            let own = || text.to_owned();
            listing.add_sandbox(Sandbox { id: own(), ..sandbox("s") });
            listing.add_sandbox(Sandbox { pod_uid: own(), ..sandbox("s") });
            listing.add_sandbox(Sandbox { namespace: own(), ..sandbox("s") });
            listing.add_sandbox(Sandbox { name: own(), ..sandbox("s") });
            listing.add_container(Container { id: own(), ..container("c") });
            listing.add_container(Container { sandbox_id: own(), ..container("c") });
            listing.add_container(Container { name: own(), ..container("c") });
            assert_eq!(listing, Listing { dropped: 7, ..Listing::default() }, "{text:?}");
        }
    }

    #[test]
    fn what_runtimes_and_kubernetes_use_is_taken() {
        let mut listing = Listing::default();
        listing.add_sandbox(Sandbox {
            id: "ab12".repeat(16),
            pod_uid: String::from("0f5e7a4c-3f0b-4a51-8d6f-0c8b7d7f6f10"),
            namespace: String::from("kube-system"),
            name: format!("{}.example", "x".repeat(MOST_NAME_BYTES - 8)),
            attempt: u32::MAX,
            ready: false,
            is_static: false,
        });
        listing.add_container(container("crio_c.1"));
        assert_eq!((listing.sandboxes.len(), listing.containers.len(), listing.dropped), (1, 1, 0));
    }

    #[test]
    fn there_are_at_most_so_many_of_each() {
        let number = |number: usize| number.to_string();
        let sandboxes = (0..MOST_SANDBOXES + 3).map(|at| sandbox(&number(at))).collect();
        let containers = (0..MOST_CONTAINERS + 2).map(|at| container(&number(at))).collect();
        let all = Listing { sandboxes, containers, ..Listing::default() }.checked();
        assert_eq!((all.sandboxes.len(), all.containers.len()), (MOST_SANDBOXES, MOST_CONTAINERS));
        assert_eq!(all.dropped, 5);
    }

    #[test]
    fn the_longest_listing_has_room_in_a_frame() {
        let (id, name) = ("x".repeat(MOST_ID_BYTES), "x".repeat(MOST_NAME_BYTES));
        let sandbox = Sandbox {
            id: id.clone(),
            pod_uid: id.clone(),
            namespace: name.clone(),
            name: name.clone(),
            attempt: u32::MAX,
            ready: false,
            is_static: false,
        };
        let container = Container { id: id.clone(), sandbox_id: id, name, attempt: u32::MAX, running: false };
        let bytes = |item: String| item.len() + 1;
        let sandbox_bytes = bytes(serde_json::to_string(&sandbox).unwrap());
        let container_bytes = bytes(serde_json::to_string(&container).unwrap());
        let all = MOST_SANDBOXES * sandbox_bytes + MOST_CONTAINERS * container_bytes + 10 * MOST_CHARACTERS;
        assert!(all < MOST_LISTING_BYTES, "{all}");
    }

    #[test]
    fn each_id_is_there_once_and_a_container_that_runs_counts_as_running() {
        let created = Container { running: false, ..container("b") };
        let gone = Sandbox { ready: false, ..sandbox("s") };
        let listing = Listing {
            sandboxes: vec![gone, sandbox("s")],
            containers: vec![created, container("b"), container("a")],
            runtime: String::from("con\u{1b}tainerd\n 2.1"),
            dropped: 1,
        };
        let checked = Listing {
            runtime: String::from("containerd 2.1"),
            sandboxes: vec![sandbox("s")],
            containers: vec![container("a"), container("b")],
            dropped: 1,
        };
        assert_eq!(listing.checked(), checked);
    }
}
