//! What the running kubelet shows: what it calls this host, its folders, and where its pods and its runtime are.

use std::{
    fmt,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    cgroup::{KubeletProcess, KubeletSearch},
    config::{KubeletHostname, KubeletPlaces, KubeletShown, KubeletUnknown, kubelet_places, kubelet_shown},
    specs::KubeletFolders,
};

const PROC: &str = "/proc";

/// For how long the kubelet's flags count as read: another kubelet may have come since.
pub(super) const FLAGS_LAST: Duration = Duration::from_secs(30);

/// Where the running kubelet's pods and its runtime are; `None` if none runs.
type Places = Result<Option<KubeletPlaces>, KubeletUnknown>;

/// What the running kubelet shows, at any time. Clones know it together.
#[derive(Clone)]
pub(in crate::daemon) struct RunningKubelet {
    /// The folders below the configured root directory, which come before those of the flags.
    configured: Option<KubeletFolders>,
    /// All that is read of it finds it with this one, which looks at each process once.
    search: Arc<Mutex<KubeletSearch>>,
    look: Arc<dyn Fn() -> KubeletShown + Send + Sync>,
    /// Reads the kubelet's files too.
    look_for_places: Arc<dyn Fn() -> Places + Send + Sync>,
    known: Arc<Mutex<Known>>,
    /// Held while one looks, which may hang: who only wants what is known does not wait for it.
    looking: Arc<Mutex<()>>,
}

#[derive(Debug)]
struct Known {
    /// When the flags were read last.
    read: Option<Instant>,
    /// What the kubelet called its host then.
    hostname: KubeletHostname,
    /// The folders when they were known last, of a kubelet that may be down or restarted now.
    folders: Option<KubeletFolders>,
    /// Where its pods and its runtime were when that was known last.
    places: Option<KubeletPlaces>,
}

impl fmt::Debug for RunningKubelet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RunningKubelet").field("configured", &self.configured).finish_non_exhaustive()
    }
}

impl RunningKubelet {
    /// One of this host. Everything is below a `configured_root`, whatever its flags say.
    pub(super) fn new(configured_root: Option<&Path>) -> Self {
        let search = Arc::new(Mutex::new(KubeletSearch::new(Path::new(PROC))));
        let (shared, searched) = (Arc::clone(&search), Arc::clone(&search));
        let look_for_places = move || {
            let latest = lock(&shared).latest(Instant::now())?;
            latest.as_ref().map(kubelet_places).transpose()
        };
        let look = move || {
            let latest = lock(&search).latest(Instant::now()).unwrap_or_else(|error| {
                tracing::debug!(%error, "cannot look for the kubelet among the processes");
                None
            });
            latest.map_or(KubeletShown::NOTHING, |process| kubelet_shown(&process))
        };
        let kubelet = Self::with(configured_root, Arc::new(look));
        Self { search: searched, look_for_places: Arc::new(look_for_places), ..kubelet }
    }

    /// One that shows only where its pods and its runtime are.
    #[cfg(test)]
    pub(in crate::daemon) fn that_shows(places: impl Fn() -> Places + Send + Sync + 'static) -> Self {
        let look = Arc::new(|| KubeletShown::NOTHING);
        Self { look_for_places: Arc::new(places), ..Self::with(None, look) }
    }

    pub(super) fn with(
        configured_root: Option<&Path>,
        look: Arc<dyn Fn() -> KubeletShown + Send + Sync>,
    ) -> Self {
        let known = Known { read: None, hostname: KubeletHostname::Unknown, folders: None, places: None };
        Self {
            configured: configured_root.map(KubeletFolders::below),
            search: Arc::new(Mutex::new(KubeletSearch::new(Path::new(PROC)))),
            look,
            look_for_places: Arc::new(|| Ok(None)),
            known: Arc::new(Mutex::new(known)),
            looking: Arc::default(),
        }
    }

    /// Its process; `None` if none runs. Reads `/proc`.
    pub(in crate::daemon) fn process(&self, now: Instant) -> rustix::io::Result<Option<KubeletProcess>> {
        lock(&self.search).latest(now)
    }

    /// What it calls this host. May read `/proc`, and the files that have its flags.
    pub(super) fn hostname(&self, now: Instant) -> KubeletHostname {
        self.read(now);
        lock(&self.known).hostname.clone()
    }

    /// Its folders: those below the configured root directory, those of its flags, or else the usual ones. May read `/proc`,
    /// and the files that have its flags.
    pub(in crate::daemon) fn folders(&self, now: Instant) -> KubeletFolders {
        if self.configured.is_none() {
            self.read(now);
        }
        self.last_folders()
    }

    /// The same, as they were read last. Reads nothing, and waits for nothing.
    pub(in crate::daemon) fn last_folders(&self) -> KubeletFolders {
        let known = || lock(&self.known).folders.clone();
        self.configured.clone().or_else(known).unwrap_or_default()
    }

    /// Where its pods and its runtime are, by its flags and its files. Reads both, from a disk that may hang: who asks for
    /// the rest does not wait for it.
    pub(in crate::daemon) fn places(&self) -> Places {
        let places = (self.look_for_places)();
        if let Ok(Some(places)) = &places {
            lock(&self.known).places = Some(places.clone());
        }
        places
    }

    /// The same, as it was known last, of a kubelet that may be down now. Reads nothing, and waits for nothing.
    pub(in crate::daemon) fn last_places(&self) -> KubeletPlaces {
        lock(&self.known).places.clone().unwrap_or_default()
    }

    /// Reads the flags, if that was long ago.
    fn read(&self, now: Instant) {
        let _looking = lock(&self.looking);
        let is_due = |read: Instant| now.saturating_duration_since(read) >= FLAGS_LAST;
        if !lock(&self.known).read.is_none_or(is_due) {
            return;
        }
        let KubeletShown { hostname, folders } = (self.look)();
        let mut known = lock(&self.known);
        (known.read, known.hostname) = (Some(now), hostname);
        known.folders = folders.or(known.folders.take());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    fn shown(name: &str, root: &str) -> KubeletShown {
        let hostname = KubeletHostname::Overridden(name.to_owned());
        KubeletShown { hostname, folders: Some(KubeletFolders::below(Path::new(root))) }
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
        *says.lock().unwrap() = shown("a", "/a");
        assert_eq!(kubelet.hostname(begin), shown("a", "/a").hostname);
        *says.lock().unwrap() = shown("b", "/b");
        let before = begin + FLAGS_LAST.saturating_sub(Duration::from_millis(1));
        for (now, name, root) in [(before, "a", "/a"), (begin + FLAGS_LAST, "b", "/b")] {
            assert_eq!(kubelet.hostname(now), shown(name, root).hostname);
            assert_eq!(kubelet.folders(now), KubeletFolders::below(Path::new(root)));
        }
    }

    #[test]
    fn folders_stay_known_while_the_kubelet_is_away() {
        let (kubelet, says) = kubelet(None);
        let begin = Instant::now();
        let root = |folders: KubeletFolders| folders.root.display().to_string();
        assert_eq!(root(kubelet.folders(begin)), "/var/lib/kubelet");
        for (passes, says_now, before, after) in [
            (1, shown("a", "/a"), "/var/lib/kubelet", "/a"),
            (2, KubeletShown::NOTHING, "/a", "/a"),
            (3, shown("a", "/b"), "/a", "/b"),
        ] {
            *says.lock().unwrap() = says_now;
            assert_eq!(root(kubelet.last_folders()), before, "it looks by itself");
            assert_eq!(root(kubelet.folders(begin + passes * FLAGS_LAST)), after);
            assert_eq!(root(kubelet.last_folders()), after);
        }
    }

    #[test]
    fn a_configured_root_directory_comes_before_the_flags() {
        let (kubelet, says) = kubelet(Some("/set"));
        *says.lock().unwrap() = shown("a", "/a");
        let below = KubeletFolders::below(Path::new("/set"));
        assert_eq!((kubelet.folders(Instant::now()), kubelet.last_folders()), (below.clone(), below));
    }

    #[test]
    fn where_its_pods_are_stays_known_while_the_kubelet_is_away_or_cannot_be_read() {
        let says = Arc::new(Mutex::new(Vec::new()));
        let shown = Arc::clone(&says);
        let kubelet = RunningKubelet::that_shows(move || shown.lock().unwrap().pop().unwrap_or(Ok(None)));
        let places = |runtime: &str| KubeletPlaces { cgroup_root: None, runtime: Some(runtime.into()) };
        assert_eq!((kubelet.places().unwrap(), kubelet.last_places()), (None, KubeletPlaces::default()));
        let unknown = KubeletUnknown::Hidden { program: String::from("k3s"), pid: 7 };
        for (says_now, last) in [
            (Ok(Some(places("/a"))), "/a"),
            (Ok(None), "/a"),
            (Err(unknown), "/a"),
            (Ok(Some(places("/b"))), "/b"),
        ] {
            says.lock().unwrap().push(says_now);
            drop(kubelet.places());
            assert_eq!(kubelet.clone().last_places(), places(last));
        }
    }

    /// `/proc` and the disk may hang.
    #[test]
    fn what_is_known_is_there_while_another_looks() {
        let (begun, begins) = mpsc::channel();
        let (end, ends) = mpsc::channel();
        let ends = Mutex::new(ends);
        let look = move || {
            begun.send(()).unwrap();
            ends.lock().unwrap().recv().unwrap();
            shown("a", "/a")
        };
        let kubelet = RunningKubelet::with(None, Arc::new(look));
        let other = kubelet.clone();
        let looking = thread::spawn(move || other.folders(Instant::now()));
        begins.recv().unwrap();
        assert_eq!(kubelet.last_folders(), KubeletFolders::default());
        end.send(()).unwrap();
        assert_eq!(looking.join().unwrap(), KubeletFolders::below(Path::new("/a")));
        assert_eq!(kubelet.last_folders(), KubeletFolders::below(Path::new("/a")));
    }
}
