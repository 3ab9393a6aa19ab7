//! Follows the planned cgroups by inotify: emptied, frozen, or written to by others.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _};
use inotify::{Event, EventMask, EventStream, Inotify};
use rustix::fs::inotify::WatchFlags;
use tokio::time::Instant;

use super::{Author, CgroupDir, Error, WatchId, Watches, desired::pack};
use crate::model::{CgroupId, CgroupPath};

/// The most events taken at once.
const MAX_EVENTS: usize = 4096;

/// How long events gather in the kernel when a flood begins. It doubles as long as they gather faster than they are read.
const REST: Duration = Duration::from_millis(100);

/// How often the rest doubles at most: a change elsewhere is noticed within 0.4 s beside an endless flood.
const MOST_DOUBLINGS: u32 = 2;

/// The file that says whether a cgroup holds processes, and whether it is frozen.
const EVENTS: &str = "cgroup.events";

type Names = Arc<Mutex<BTreeMap<WatchId, CgroupPath>>>;

/// What is watched in a cgroup, besides writes to its files.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sight {
    /// Its id.
    pub id: CgroupId,
    /// Whether it holds processes, and whether it is frozen.
    pub population: bool,
    /// Cgroups made and removed directly below it. Not needed for those that a container makes below its own.
    pub children: bool,
}

/// The cgroups that are watched; held by the reconciler.
#[derive(Debug)]
pub struct Watch {
    watches: Watches,
    names: Names,
    watched: BTreeMap<CgroupPath, Watched>,
}

/// The watches of a cgroup.
#[derive(Debug)]
struct Watched {
    id: CgroupId,
    /// The watch of its directory.
    dir: WatchId,
    /// Whether that reports cgroups made and removed.
    children: bool,
    /// The watch of [`EVENTS`], if that is watched.
    events: Option<WatchId>,
}

impl Watched {
    fn sight(&self) -> Sight {
        Sight { id: self.id, population: self.events.is_some(), children: self.children }
    }
}

/// The changes in the watched cgroups; held by the daemon's loop.
#[derive(Debug)]
pub struct WatchEvents {
    source: Source,
    /// The rests since no event came for as long as a rest.
    rests: u32,
    names: Names,
}

#[derive(Debug)]
enum Source {
    /// The runtime wakes for each event. If not all were read, some may wait in memory.
    Listening {
        stream: EventStream<Vec<u8>>,
        is_drained: bool,
    },
    /// The kernel keeps events until then, and the runtime does not wake for them.
    Resting(Inotify, Instant),
    Broken,
}

/// What the kernel reported since the last time.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Changes {
    /// Cgroups that got their first process or lost their last one, or that were frozen or thawed.
    pub populated: BTreeSet<CgroupPath>,
    /// Files that any process wrote, ours included.
    pub written: BTreeSet<(CgroupPath, String)>,
    /// The process that wrote to each last, if known; inotify does not name it.
    pub authors: BTreeMap<(CgroupPath, String), Author>,
    /// Cgroups in which a cgroup was made or removed.
    pub children: BTreeSet<CgroupPath>,
    /// Whether changes were lost, so that everything has to be looked at.
    pub overflow: bool,
}

/// Starts watching. Must be called inside a tokio runtime.
///
/// inotify reports changes in `cgroup.events`, at most one every 10 ms or so per file, and writes to any other file
/// when it is closed. It does not name the writer.
pub fn watch() -> io::Result<(Watch, WatchEvents)> {
    let inotify = Inotify::init()?;
    let names = Names::default();
    let watch =
        Watch { watches: Watches::of(&inotify)?, names: Arc::clone(&names), watched: BTreeMap::new() };
    Ok((watch, WatchEvents { source: listen(inotify)?, rests: 0, names }))
}

fn listen(inotify: Inotify) -> io::Result<Source> {
    let stream = inotify.into_event_stream(vec![0_u8; 16 * 1024])?;
    Ok(Source::Listening { stream, is_drained: false })
}

impl Watch {
    /// Watches exactly these cgroups. Returns those that are newly watched or watched anew, and what could not be watched, such as
    /// when inotify watches run out (`fs.inotify.max_user_watches`); only the periodic look sees those.
    pub fn watch(
        &mut self,
        root: &CgroupDir,
        wanted: &BTreeMap<CgroupPath, Sight>,
    ) -> (BTreeSet<CgroupPath>, Vec<Error>) {
        let stale: Vec<CgroupPath> = self
            .watched
            .iter()
            .filter(|(path, watched)| wanted.get(*path) != Some(&watched.sight()))
            .map(|(path, _)| path.clone())
            .collect();
        for path in stale {
            let Some(Watched { dir, events, .. }) = self.watched.remove(&path) else { continue };
            for id in std::iter::once(dir).chain(events) {
                self.names.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
                // EINVAL: the kernel dropped it with the cgroup.
                drop(self.watches.remove(id));
            }
        }
        let (mut fresh, mut errors) = (BTreeSet::new(), Vec::new());
        for (path, sight) in wanted {
            if self.watched.contains_key(path) {
                continue;
            }
            match self.add(root, path, *sight) {
                Ok(()) => {
                    fresh.insert(path.clone());
                }
                Err(error) if error.is_gone() => {}
                Err(error) => errors.push(error),
            }
        }
        if !fresh.is_empty() {
            self.pack();
        }
        (fresh, errors)
    }

    /// Makes it [small](pack): watches are numbered in their order, and cgroups come in that of their paths.
    fn pack(&mut self) {
        pack(&mut self.watched);
        pack(&mut self.names.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn add(&mut self, root: &CgroupDir, path: &CgroupPath, sight: Sight) -> Result<(), Error> {
        let dir = root.open(path)?;
        // Through the handle: the path cannot lead elsewhere.
        let handle = format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd());
        // The lock is held over both, so that an event never finds its descriptor without a name.
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let mut add = |file: &str, flags| -> Result<WatchId, Error> {
            let at = if file.is_empty() { handle.clone() } else { format!("{handle}/{file}") };
            let id = self.watches.add(&at, flags).map_err(|source| Error::Read {
                path: path.to_string(),
                file: file.to_owned(),
                source,
            })?;
            names.insert(id, path.clone());
            Ok(id)
        };
        let events = if sight.population { Some(add(EVENTS, WatchFlags::MODIFY)?) } else { None };
        let children =
            if sight.children { WatchFlags::CREATE | WatchFlags::DELETE } else { WatchFlags::empty() };
        let flags = WatchFlags::CLOSE_WRITE | WatchFlags::ONLYDIR | children;
        let watched = Watched { id: dir.id(), dir: add("", flags)?, children: sight.children, events };
        drop(names);
        self.watched.insert(path.clone(), watched);
        Ok(())
    }
}

impl WatchEvents {
    /// Waits for changes and returns all that are there; cancel-safe.
    pub async fn next(&mut self) -> io::Result<Changes> {
        if let Source::Resting(_, until) = self.source {
            tokio::time::sleep_until(until).await;
            self.source = match std::mem::replace(&mut self.source, Source::Broken) {
                Source::Resting(inotify, _) => listen(inotify)?,
                other => other,
            };
        }
        let Source::Listening { stream, is_drained } = &mut self.source else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        *is_drained = false;
        let mut changes = Changes::default();
        let begin = Instant::now();
        let mut next = stream.next().await;
        if begin.elapsed() >= REST {
            self.rests = 0;
        }
        for count in 1.. {
            let Some(event) = next else { return Err(io::ErrorKind::UnexpectedEof.into()) };
            take(&self.names, &event?, &mut changes);
            if count == MAX_EVENTS {
                break;
            }
            let Some(more) = stream.next().now_or_never() else {
                *is_drained = true;
                break;
            };
            next = more;
        }
        Ok(changes)
    }

    /// Lets events gather in the kernel for 100 to 400 ms, so that an endless flood of them costs a few reads a second.
    pub fn rest(&mut self) {
        self.source = match std::mem::replace(&mut self.source, Source::Broken) {
            Source::Listening { stream, is_drained: true } => {
                let rest = REST * (1 << self.rests.min(MOST_DOUBLINGS));
                self.rests = self.rests.saturating_add(1);
                Source::Resting(stream.into_inotify(), Instant::now() + rest)
            }
            other => other,
        };
    }
}

fn take(names: &Names, event: &Event<impl AsRef<OsStr>>, changes: &mut Changes) {
    if event.mask.contains(EventMask::Q_OVERFLOW) {
        changes.overflow = true;
        return;
    }
    let names = names.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(path) = names.get(&WatchId::from(&event.wd)) else { return };
    let name = event.name.as_ref().map(|name| name.as_ref().to_string_lossy());
    match name {
        Some(file) if event.mask.contains(EventMask::CLOSE_WRITE) => {
            changes.written.insert((path.clone(), file.into_owned()));
        }
        Some(_) if event.mask.contains(EventMask::ISDIR) => {
            changes.children.insert(path.clone());
        }
        None if event.mask.contains(EventMask::MODIFY) => {
            changes.populated.insert(path.clone());
        }
        Some(_) | None => {}
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn path(text: &str) -> CgroupPath {
        CgroupPath::parse(text).unwrap()
    }

    fn wanted(root: &CgroupDir, at: &str) -> BTreeMap<CgroupPath, Sight> {
        let id = root.open(&path(at)).unwrap().id();
        BTreeMap::from([(path(at), Sight { id, population: true, children: true })])
    }

    /// Watches that cgroup alone. Returns the paths that were not watched before.
    fn watch_anew(watch: &mut Watch, root: &CgroupDir, at: &str) -> Vec<String> {
        let (fresh, errors) = watch.watch(root, &wanted(root, at));
        assert!(errors.is_empty(), "{errors:?}");
        fresh.iter().map(ToString::to_string).collect()
    }

    fn tree() -> (tempfile::TempDir, CgroupDir) {
        let temp = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            fs::create_dir(temp.path().join(name)).unwrap();
            fs::write(temp.path().join(name).join(EVENTS), "populated 0\n").unwrap();
        }
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        (temp, root)
    }

    /// Reads events until one is as it should be.
    async fn until(events: &mut WatchEvents, is: impl Fn(&Changes) -> bool) -> Changes {
        loop {
            let changes = events.next().await.unwrap();
            if is(&changes) {
                return changes;
            }
        }
    }

    #[test]
    fn what_is_held_of_a_cgroup_is_small() {
        assert_eq!(size_of::<Watched>(), 24, "there is one for each cgroup");
    }

    #[tokio::test]
    async fn a_change_names_its_cgroup_until_it_is_no_longer_watched() {
        let (_temp, root) = tree();
        let (mut watch, mut events) = watch().unwrap();
        assert_eq!(watch_anew(&mut watch, &root, "/a"), ["/a"]);
        root.open(&path("/a")).unwrap().write(EVENTS, "populated 1\n").unwrap();
        let changes = until(&mut events, |changes| !changes.populated.is_empty()).await;
        assert_eq!(changes.populated, BTreeSet::from([path("/a")]));
        assert_eq!(watch_anew(&mut watch, &root, "/b"), ["/b"]);
        assert_eq!(watch_anew(&mut watch, &root, "/b"), [""; 0]);
        root.open(&path("/a")).unwrap().write(EVENTS, "populated 0\n").unwrap();
        root.open(&path("/b")).unwrap().write(EVENTS, "populated 0\n").unwrap();
        let changes = until(&mut events, |changes| !changes.populated.is_empty()).await;
        assert_eq!(changes.populated, BTreeSet::from([path("/b")]));
    }

    #[tokio::test]
    async fn writes_and_new_cgroups_are_reported_with_their_names() {
        let (temp, root) = tree();
        fs::write(temp.path().join("a/cpu.weight"), "100\n").unwrap();
        let (mut watch, mut events) = watch().unwrap();
        assert_eq!(watch_anew(&mut watch, &root, "/a"), ["/a"]);
        root.open(&path("/a")).unwrap().write("cpu.weight", "7").unwrap();
        let changes = until(&mut events, |changes| !changes.written.is_empty()).await;
        assert_eq!(changes.written, BTreeSet::from([(path("/a"), String::from("cpu.weight"))]));
        fs::create_dir(temp.path().join("a/new")).unwrap();
        let changes = until(&mut events, |changes| !changes.children.is_empty()).await;
        assert_eq!(changes.children, BTreeSet::from([path("/a")]));
    }

    #[tokio::test]
    async fn what_is_made_below_a_container_is_not_reported() {
        let (temp, root) = tree();
        let (mut watch, mut events) = watch().unwrap();
        let id = root.open(&path("/a")).unwrap().id();
        let sight = Sight { id, population: true, children: false };
        assert!(watch.watch(&root, &BTreeMap::from([(path("/a"), sight)])).1.is_empty());
        fs::create_dir(temp.path().join("a/new")).unwrap();
        fs::remove_dir(temp.path().join("a/new")).unwrap();
        root.open(&path("/a")).unwrap().write(EVENTS, "populated 1\n").unwrap();
        let changes = until(&mut events, |changes| !changes.populated.is_empty()).await;
        assert!(changes.children.is_empty(), "{changes:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_during_a_rest_is_reported_after_it_once() {
        let (_temp, root) = tree();
        let (mut watch, mut events) = watch().unwrap();
        assert_eq!(watch_anew(&mut watch, &root, "/a"), ["/a"]);
        let write = || root.open(&path("/a")).unwrap().write(EVENTS, "populated 1\n").unwrap();
        write();
        until(&mut events, |changes| !changes.populated.is_empty()).await;
        events.rest();
        let begin = Instant::now();
        (0..100).for_each(|_| write());
        let changes = until(&mut events, |changes| !changes.populated.is_empty()).await;
        assert_eq!(changes.populated, BTreeSet::from([path("/a")]));
        assert!(begin.elapsed() >= REST);
    }

    #[tokio::test(start_paused = true)]
    async fn rests_become_longer_in_an_endless_flood_until_it_ends() {
        let (_temp, root) = tree();
        let (mut watch, mut events) = watch().unwrap();
        assert_eq!(watch_anew(&mut watch, &root, "/a"), ["/a"]);
        let write = || root.open(&path("/a")).unwrap().write(EVENTS, "populated 1\n").unwrap();
        for rest in [1, 2, 4, 4] {
            write();
            until(&mut events, |changes| !changes.populated.is_empty()).await;
            events.rest();
            let Source::Resting(_, end) = &events.source else { panic!("it does not rest") };
            assert_eq!(*end - Instant::now(), REST * rest);
        }
        write();
        until(&mut events, |changes| !changes.populated.is_empty()).await;
        let pause = async {
            tokio::time::sleep(REST).await;
            write();
        };
        tokio::join!(until(&mut events, |changes| !changes.populated.is_empty()), pause);
        events.rest();
        let Source::Resting(_, end) = &events.source else { panic!("it does not rest") };
        assert_eq!(*end - Instant::now(), REST);
    }

    #[tokio::test]
    async fn a_cgroup_that_is_gone_is_no_error() {
        let (_temp, root) = tree();
        let (mut watch, _events) = watch().unwrap();
        let gone =
            BTreeMap::from([(path("/gone"), Sight { id: CgroupId(1), population: true, children: true })]);
        let (fresh, errors) = watch.watch(&root, &gone);
        assert!(fresh.is_empty() && errors.is_empty(), "{errors:?}");
    }
}
