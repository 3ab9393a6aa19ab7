//! What the running kubelet shows: what it calls this host, and its root directory.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    cgroup::KubeletSearch,
    config::{KUBELET_ROOT_DIR, KubeletHostname, KubeletShown, kubelet_shown},
};

const PROC: &str = "/proc";

/// For how long the kubelet's flags count as read: another kubelet may have come since.
pub(super) const FLAGS_LAST: Duration = Duration::from_secs(30);

/// What the running kubelet shows, at any time. Clones know it together.
#[derive(Clone)]
pub(in crate::daemon) struct RunningKubelet {
    /// The configured root directory, which comes before that of the flags.
    configured_root: Option<PathBuf>,
    look: Arc<dyn Fn() -> KubeletShown + Send + Sync>,
    known: Arc<Mutex<Known>>,
}

#[derive(Debug)]
struct Known {
    /// When the flags were read last.
    read: Option<Instant>,
    /// What they said then.
    shown: KubeletShown,
    /// The root directory when it was known last, of a kubelet that may be down or restarted now.
    root_dir: Option<PathBuf>,
}

impl fmt::Debug for RunningKubelet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RunningKubelet").field("known", &self.known).finish_non_exhaustive()
    }
}

impl RunningKubelet {
    /// One of this host. A `configured_root` is its root directory, whatever its flags say.
    pub(super) fn new(configured_root: Option<&Path>) -> Self {
        let search = Mutex::new(KubeletSearch::new(Path::new(PROC)));
        let look = move || {
            let latest = lock(&search).latest(Instant::now()).unwrap_or_else(|error| {
                tracing::debug!(%error, "cannot look for the kubelet among the processes");
                None
            });
            latest.map_or(KubeletShown::NOTHING, |process| kubelet_shown(&process))
        };
        Self::with(configured_root, Arc::new(look))
    }

    pub(super) fn with(
        configured_root: Option<&Path>,
        look: Arc<dyn Fn() -> KubeletShown + Send + Sync>,
    ) -> Self {
        let known = Known { read: None, shown: KubeletShown::NOTHING, root_dir: None };
        let configured_root = configured_root.map(Path::to_owned);
        Self { configured_root, look, known: Arc::new(Mutex::new(known)) }
    }

    /// What it calls this host. May read `/proc`.
    pub(super) fn hostname(&self, now: Instant) -> KubeletHostname {
        self.read(now).shown.hostname.clone()
    }

    /// Its root directory: the configured one, that of its flags, or else the usual one. May read `/proc`.
    pub(in crate::daemon) fn root_dir(&self, now: Instant) -> PathBuf {
        self.root_dir_of(&self.read(now))
    }

    /// The same, as it was read last. Reads nothing.
    pub(in crate::daemon) fn last_root_dir(&self) -> PathBuf {
        self.root_dir_of(&lock(&self.known))
    }

    fn root_dir_of(&self, known: &Known) -> PathBuf {
        let root_dir = self.configured_root.as_ref().or(known.root_dir.as_ref());
        root_dir.map_or_else(|| PathBuf::from(KUBELET_ROOT_DIR), Clone::clone)
    }

    fn read(&self, now: Instant) -> MutexGuard<'_, Known> {
        let mut known = lock(&self.known);
        if known.read.is_none_or(|read| now.saturating_duration_since(read) >= FLAGS_LAST) {
            known.read = Some(now);
            known.shown = (self.look)();
            if let Some(root_dir) = &known.shown.root_dir {
                known.root_dir = Some(root_dir.clone());
            }
        }
        known
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(name: &str, root_dir: Option<&str>) -> KubeletShown {
        let hostname = KubeletHostname::Overridden(name.to_owned());
        KubeletShown { hostname, root_dir: root_dir.map(PathBuf::from) }
    }

    /// A kubelet, and what its flags say.
    fn kubelet(configured: Option<&str>) -> (RunningKubelet, Arc<Mutex<KubeletShown>>) {
        let says = Arc::new(Mutex::new(KubeletShown::NOTHING));
        let flags = Arc::clone(&says);
        let look = Arc::new(move || flags.lock().unwrap().clone());
        (RunningKubelet::with(configured.map(Path::new), look), says)
    }

    #[test]
    fn flags_are_not_read_again_at_once() {
        let (kubelet, says) = kubelet(None);
        let begin = Instant::now();
        *says.lock().unwrap() = shown("a", Some("/a"));
        assert_eq!(kubelet.hostname(begin), shown("a", None).hostname);
        *says.lock().unwrap() = shown("b", Some("/b"));
        let before = begin + FLAGS_LAST.saturating_sub(Duration::from_millis(1));
        for (now, name, root_dir) in [(before, "a", "/a"), (begin + FLAGS_LAST, "b", "/b")] {
            assert_eq!(kubelet.hostname(now), shown(name, None).hostname);
            assert_eq!(kubelet.root_dir(now), Path::new(root_dir));
        }
    }

    #[test]
    fn a_root_directory_stays_known_while_the_kubelet_is_away() {
        let (kubelet, says) = kubelet(None);
        let begin = Instant::now();
        assert_eq!(kubelet.root_dir(begin), Path::new("/var/lib/kubelet"));
        for (passes, says_now, root_dir) in [
            (1, shown("a", Some("/a")), "/a"),
            (2, KubeletShown::NOTHING, "/a"),
            (3, shown("a", Some("/b")), "/b"),
        ] {
            *says.lock().unwrap() = says_now;
            let before = kubelet.last_root_dir();
            assert_eq!(kubelet.root_dir(begin + passes * FLAGS_LAST), Path::new(root_dir));
            assert_eq!(kubelet.last_root_dir(), Path::new(root_dir), "it was {}", before.display());
        }
    }

    #[test]
    fn a_configured_root_directory_comes_before_that_of_the_flags() {
        let (kubelet, says) = kubelet(Some("/set"));
        *says.lock().unwrap() = shown("a", Some("/a"));
        assert_eq!(kubelet.root_dir(Instant::now()), Path::new("/set"));
        assert_eq!(kubelet.last_root_dir(), Path::new("/set"));
    }
}
