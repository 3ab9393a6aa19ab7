//! What this node is called: in the cluster, and by its kubelet.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use serde::{Deserialize, Serialize};

use super::running_kubelet::{FLAGS_LAST, RunningKubelet};
use crate::{
    config::KubeletHostname,
    durable::{self, State},
    kube::Named,
};

/// The file in the state directory.
pub(in crate::daemon) const FILE: &str = "node-name.json";

/// This node's name, at any time. Clones know together what the kubelet's flags have said.
#[derive(Clone)]
pub(in crate::daemon) struct NodeName {
    /// The configured name, or that which the cluster gives.
    given: Option<String>,
    /// This machine's, as a kubelet takes it.
    host: String,
    kubelet: RunningKubelet,
    /// What the kubelet called its host when that was known last.
    known: Arc<Mutex<Option<String>>>,
    /// Held while it writes, which may hang: who only asks for the name does not wait for it.
    record: Arc<Mutex<Record>>,
}

/// What is on the disk of it.
#[derive(Debug, Default)]
struct Record {
    /// Where; `None` as long as the state directory is not this daemon's.
    path: Option<PathBuf>,
    name: Option<String>,
    /// When the last try to write failed.
    failed: Option<Instant>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Content {
    name: String,
}

impl State for Content {
    const MAX_BYTES: u64 = 4 << 10;
}

impl fmt::Debug for NodeName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("NodeName").field("given", &self.given).finish_non_exhaustive()
    }
}

impl NodeName {
    /// The configured name comes before that which the cluster gives. `host` is this machine's.
    pub(super) fn new(
        configured: Option<&str>,
        given: Option<String>,
        host: &str,
        kubelet: RunningKubelet,
    ) -> Self {
        Self {
            given: configured.map(str::to_owned).or(given),
            host: host.trim().to_lowercase(),
            kubelet,
            known: Arc::default(),
            record: Arc::default(),
        }
    }

    /// Takes up what an earlier daemon has kept in that directory, and keeps there what is known from now on. Until the
    /// kubelet's flags say otherwise, a name that was known once is this node's: the kubelet may be down.
    pub(super) fn remember(&self, state_dir: &Path) {
        let path = state_dir.join(FILE);
        let kept = durable::read::<Content>(&path).unwrap_or_else(|error| {
            tracing::warn!(
                "until the kubelet shows its flags, the node's name is taken to be the host's: {}",
                crate::chain(&error)
            );
            None
        });
        let kept = kept.map(|content| content.name);
        let known = {
            let mut known = lock(&self.known);
            *known = known.take().or_else(|| kept.clone());
            known.clone()
        };
        *lock(&self.record) = Record { path: Some(path), name: kept, failed: None };
        self.keep(known.as_deref(), Instant::now());
    }

    /// The node's name in the cluster: as it is given, or what the kubelet calls its host. May read `/proc`, and write to the
    /// disk.
    pub(in crate::daemon) fn in_cluster(&self) -> Named {
        match &self.given {
            Some(name) => Named { name: name.clone(), is_guess: false },
            None => self.by_kubelet_at(Instant::now()),
        }
    }

    /// What the kubelet calls its host, which its certificate is for: by its flag, or else this machine's name. May read
    /// `/proc`, and write to the disk.
    pub(in crate::daemon) fn by_kubelet(&self) -> String {
        self.by_kubelet_at(Instant::now()).name
    }

    fn by_kubelet_at(&self, now: Instant) -> Named {
        let name = {
            let shown = self.kubelet.hostname(now);
            let mut known = lock(&self.known);
            match shown {
                KubeletHostname::Overridden(name) => *known = Some(name),
                KubeletHostname::Own => *known = Some(self.host.clone()),
                // While the kubelet is down or restarted, nothing shows its flags.
                KubeletHostname::Unknown => {}
            }
            known.clone()
        };
        self.keep(name.as_deref(), now);
        let is_guess = name.is_none();
        Named { name: name.unwrap_or_else(|| self.host.clone()), is_guess }
    }

    /// Has that name on the disk, if it is not there already.
    fn keep(&self, name: Option<&str>, now: Instant) {
        // While another thread writes, perhaps for ever, the next question for the name comes back to this.
        let (Some(name), Ok(mut record)) = (name, self.record.try_lock()) else { return };
        let Record { path: Some(path), name: kept, failed } = &mut *record else { return };
        let is_too_soon = failed.is_some_and(|at| now.saturating_duration_since(at) < FLAGS_LAST);
        if kept.as_deref() == Some(name) || is_too_soon {
            return;
        }
        match durable::write(path, &Content { name: name.to_owned() }) {
            Ok(()) => (*kept, *failed) = (Some(name.to_owned()), None),
            Err(error) => {
                *failed = Some(now);
                tracing::warn!(
                    "a later start of the daemon may not know the node's name {name:?} while the kubelet is down: cannot write \
                     {}: {error}",
                    path.display()
                );
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::KubeletShown;

    /// A node on the machine `Host`, and what the kubelet's flags say.
    fn node(configured: Option<&str>, given: Option<&str>) -> (NodeName, Arc<Mutex<KubeletHostname>>) {
        let says = Arc::new(Mutex::new(KubeletHostname::Unknown));
        let shown = Arc::clone(&says);
        let look = move || KubeletShown { hostname: shown.lock().unwrap().clone(), folders: None };
        let kubelet = RunningKubelet::with(None, Arc::new(look));
        (NodeName::new(configured, given.map(str::to_owned), "Host.Example", kubelet), says)
    }

    fn overridden(name: &str) -> KubeletHostname {
        KubeletHostname::Overridden(name.to_owned())
    }

    #[test]
    fn the_nodes_name_is_the_kubelets_or_the_machines_unless_it_is_given() {
        for (configured, given, says, named) in [
            (Some("set"), Some("given"), overridden("flag"), "set"),
            (None, Some("given"), overridden("flag"), "given"),
            (None, None, overridden("flag"), "flag"),
            (None, None, KubeletHostname::Own, "host.example"),
            (None, None, KubeletHostname::Unknown, "host.example"),
        ] {
            let (name, shown) = node(configured, given);
            *shown.lock().unwrap() = says.clone();
            assert_eq!(name.in_cluster().name, named, "{configured:?} {given:?} {says:?}");
        }
    }

    /// Its certificate is for that, whatever the cluster calls the node.
    #[test]
    fn a_given_name_is_not_what_the_kubelet_calls_its_host() {
        let (name, shown) = node(Some("set"), None);
        *shown.lock().unwrap() = overridden("flag");
        assert_eq!(name.by_kubelet(), "flag");
    }

    #[test]
    fn a_kubelet_that_comes_later_gives_its_name_and_one_that_is_away_keeps_it() {
        let (name, shown) = node(None, None);
        let begin = Instant::now();
        let mut passes = 0_u32;
        let mut next = |says: KubeletHostname| {
            *shown.lock().unwrap() = says;
            passes += 1;
            name.by_kubelet_at(begin + passes * FLAGS_LAST).name
        };
        assert_eq!(next(KubeletHostname::Unknown), "host.example");
        assert_eq!(next(overridden("flag")), "flag");
        assert_eq!(next(KubeletHostname::Unknown), "flag", "it is restarted");
        assert_eq!(next(overridden("other")), "other");
        assert_eq!(next(KubeletHostname::Own), "host.example");
    }

    #[test]
    fn only_a_name_that_nothing_has_said_is_a_guess() {
        for (configured, given, says, is_guess) in [
            (Some("set"), None, KubeletHostname::Unknown, false),
            (None, Some("given"), KubeletHostname::Unknown, false),
            (None, None, overridden("flag"), false),
            (None, None, KubeletHostname::Own, false),
            (None, None, KubeletHostname::Unknown, true),
        ] {
            let (name, shown) = node(configured, given);
            *shown.lock().unwrap() = says.clone();
            assert_eq!(name.in_cluster().is_guess, is_guess, "{configured:?} {given:?} {says:?}");
        }
    }

    /// The daemon is restarted while the kubelet is down: the host's name is that of no node, or of another one.
    #[test]
    fn a_name_that_was_known_outlives_the_daemon_until_the_kubelets_flags_say_otherwise() {
        let state = tempfile::tempdir().unwrap();
        let begin = Instant::now();
        let started = |says: KubeletHostname| {
            let (name, shown) = node(None, None);
            *shown.lock().unwrap() = says;
            name.remember(state.path());
            (name, shown)
        };
        let named = |name: &str, is_guess| Named { name: name.to_owned(), is_guess };
        let (name, _) = started(KubeletHostname::Unknown);
        assert_eq!(name.by_kubelet_at(begin), named("host.example", true));
        assert!(!state.path().join(FILE).exists(), "a guess is not kept");
        // It is known while the daemon runs.
        let (name, shown) = started(KubeletHostname::Unknown);
        assert_eq!(name.by_kubelet_at(begin), named("host.example", true));
        *shown.lock().unwrap() = overridden("flag");
        assert_eq!(name.by_kubelet_at(begin + FLAGS_LAST), named("flag", false));
        let (name, shown) = started(KubeletHostname::Unknown);
        assert_eq!(name.by_kubelet_at(begin), named("flag", false), "the kubelet is down");
        *shown.lock().unwrap() = KubeletHostname::Own;
        assert_eq!(name.by_kubelet_at(begin + FLAGS_LAST), named("host.example", false));
        // The machine has another name since, and the kubelet is down.
        let away = RunningKubelet::with(None, Arc::new(|| KubeletShown::NOTHING));
        let renamed = NodeName::new(None, None, "later", away);
        renamed.remember(state.path());
        assert_eq!(renamed.by_kubelet_at(begin), named("host.example", false));
    }

    /// The state directory belongs to a daemon only once it has the lock.
    #[test]
    fn a_name_that_is_known_before_the_state_directory_is_kept_and_not_replaced_by_an_older_one() {
        let state = tempfile::tempdir().unwrap();
        durable::write(&state.path().join(FILE), &Content { name: String::from("before") }).unwrap();
        let (name, shown) = node(None, None);
        *shown.lock().unwrap() = overridden("flag");
        assert_eq!(name.by_kubelet(), "flag");
        name.remember(state.path());
        assert_eq!(name.by_kubelet(), "flag");
        let kept = durable::read::<Content>(&state.path().join(FILE)).unwrap().unwrap();
        assert_eq!(kept.name, "flag");
    }
}
