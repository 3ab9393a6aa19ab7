use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ffi::OsStr,
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::{FutureExt as _, StreamExt as _};
use inotify::{Event, EventMask, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};

use super::{CgroupDir, Error};
use crate::model::{CgroupId, CgroupPath};

/// The most events that are taken at once.
const MAX_EVENTS: usize = 4096;

/// The file that tells whether processes are in a cgroup, and whether it is frozen.
const EVENTS: &str = "cgroup.events";

type Names = Arc<Mutex<HashMap<WatchDescriptor, CgroupPath>>>;

/// The cgroups that are watched; held by the reconciler.
#[derive(Debug)]
pub struct Watch {
    watches: Watches,
    names: Names,
    watched: BTreeMap<CgroupPath, Watched>,
}

#[derive(Debug)]
struct Watched {
    id: CgroupId,
    dir: WatchDescriptor,
    events: Option<WatchDescriptor>,
}

/// The changes of the watched cgroups; held by the daemon's loop.
#[derive(Debug)]
pub struct WatchEvents {
    stream: EventStream<Vec<u8>>,
    names: Names,
}

/// What the kernel told of since the last time.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Changes {
    /// Cgroups whose first process came or whose last one went, or that were frozen or thawed.
    pub populated: BTreeSet<CgroupPath>,
    /// Files that were written, by whomever: also by us.
    pub written: BTreeSet<(CgroupPath, String)>,
    /// Cgroups in which a cgroup was made or removed.
    pub children: BTreeSet<CgroupPath>,
    /// Whether changes were lost: everything has to be looked at.
    pub overflow: bool,
}

/// Starts watching. Must be called inside a tokio runtime.
///
/// The kernel tells of changes in `cgroup.events` through inotify, at most one every 10 ms or so a file, and of writes
/// to any other file when it is closed. It does not tell whose they were.
pub fn watch() -> io::Result<(Watch, WatchEvents)> {
    let inotify = Inotify::init()?;
    let names = Names::default();
    let watch = Watch { watches: inotify.watches(), names: Arc::clone(&names), watched: BTreeMap::new() };
    let stream = inotify.into_event_stream(vec![0_u8; 16 * 1024])?;
    Ok((watch, WatchEvents { stream, names }))
}

impl Watch {
    /// Watches exactly these cgroups, and the population of those with `true`. Answers what could not be watched, such
    /// as for want of inotify watches (`fs.inotify.max_user_watches`); those are then seen by the periodic look only.
    pub fn watch(&mut self, root: &CgroupDir, wanted: &BTreeMap<CgroupPath, (CgroupId, bool)>) -> Vec<Error> {
        let stale: Vec<CgroupPath> = self
            .watched
            .iter()
            .filter(|(path, watched)| wanted.get(*path) != Some(&(watched.id, watched.events.is_some())))
            .map(|(path, _)| path.clone())
            .collect();
        for path in stale {
            let Some(Watched { id: _, dir, events }) = self.watched.remove(&path) else { continue };
            for descriptor in std::iter::once(dir).chain(events) {
                self.names.lock().unwrap_or_else(PoisonError::into_inner).remove(&descriptor);
                // EINVAL: the kernel dropped it together with the cgroup.
                drop(self.watches.remove(descriptor));
            }
        }
        let mut errors = Vec::new();
        for (path, (_, population)) in wanted {
            if self.watched.contains_key(path) {
                continue;
            }
            match self.add(root, path, *population) {
                Ok(()) => {}
                Err(error) if error.is_gone() => {}
                Err(error) => errors.push(error),
            }
        }
        errors
    }

    fn add(&mut self, root: &CgroupDir, path: &CgroupPath, population: bool) -> Result<(), Error> {
        let dir = root.open(path)?;
        // By way of the handle: the name can lead nowhere else.
        let handle = format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd());
        // The lock is held over both, so that an event never finds its descriptor without a name.
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let mut add = |file: &str, mask| -> Result<WatchDescriptor, Error> {
            let at = if file.is_empty() { handle.clone() } else { format!("{handle}/{file}") };
            let descriptor = self.watches.add(at, mask).map_err(|source| Error::Read {
                path: path.to_string(),
                file: file.to_owned(),
                source,
            })?;
            names.insert(descriptor.clone(), path.clone());
            Ok(descriptor)
        };
        let events = if population { Some(add(EVENTS, WatchMask::MODIFY)?) } else { None };
        let mask = WatchMask::CLOSE_WRITE | WatchMask::CREATE | WatchMask::DELETE | WatchMask::ONLYDIR;
        let watched = Watched { id: dir.id(), dir: add("", mask)?, events };
        drop(names);
        self.watched.insert(path.clone(), watched);
        Ok(())
    }
}

impl WatchEvents {
    /// Waits for changes, and answers all that are there; safe to be cancelled.
    pub async fn next(&mut self) -> io::Result<Changes> {
        let mut changes = Changes::default();
        let mut next = self.stream.next().await;
        for _ in 0..MAX_EVENTS {
            let Some(event) = next else { return Err(io::ErrorKind::UnexpectedEof.into()) };
            self.take(&event?, &mut changes);
            match self.stream.next().now_or_never() {
                Some(more) => next = more,
                None => break,
            }
        }
        Ok(changes)
    }

    fn take(&self, event: &Event<impl AsRef<OsStr>>, changes: &mut Changes) {
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            changes.overflow = true;
            return;
        }
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(path) = names.get(&event.wd) else { return };
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
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn path(text: &str) -> CgroupPath {
        CgroupPath::parse(text).unwrap()
    }

    fn wanted(root: &CgroupDir, at: &str) -> BTreeMap<CgroupPath, (CgroupId, bool)> {
        BTreeMap::from([(path(at), (root.open(&path(at)).unwrap().id(), true))])
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

    #[tokio::test]
    async fn a_change_names_its_cgroup_until_it_is_no_longer_watched() {
        let (_temp, root) = tree();
        let (mut watch, mut events) = watch().unwrap();
        assert!(watch.watch(&root, &wanted(&root, "/a")).is_empty());
        root.open(&path("/a")).unwrap().write(EVENTS, "populated 1\n").unwrap();
        let changes = until(&mut events, |changes| !changes.populated.is_empty()).await;
        assert_eq!(changes.populated, BTreeSet::from([path("/a")]));
        assert!(watch.watch(&root, &wanted(&root, "/b")).is_empty());
        root.open(&path("/a")).unwrap().write(EVENTS, "populated 0\n").unwrap();
        root.open(&path("/b")).unwrap().write(EVENTS, "populated 0\n").unwrap();
        let changes = until(&mut events, |changes| !changes.populated.is_empty()).await;
        assert_eq!(changes.populated, BTreeSet::from([path("/b")]));
    }

    #[tokio::test]
    async fn writes_and_new_cgroups_are_told_with_their_names() {
        let (temp, root) = tree();
        fs::write(temp.path().join("a/cpu.weight"), "100\n").unwrap();
        let (mut watch, mut events) = watch().unwrap();
        assert!(watch.watch(&root, &wanted(&root, "/a")).is_empty());
        root.open(&path("/a")).unwrap().write("cpu.weight", "7").unwrap();
        let changes = until(&mut events, |changes| !changes.written.is_empty()).await;
        assert_eq!(changes.written, BTreeSet::from([(path("/a"), String::from("cpu.weight"))]));
        fs::create_dir(temp.path().join("a/new")).unwrap();
        let changes = until(&mut events, |changes| !changes.children.is_empty()).await;
        assert_eq!(changes.children, BTreeSet::from([path("/a")]));
    }

    #[tokio::test]
    async fn a_cgroup_that_is_gone_is_no_error() {
        let (_temp, root) = tree();
        let (mut watch, _events) = watch().unwrap();
        let gone = BTreeMap::from([(path("/gone"), (CgroupId(1), true))]);
        assert!(watch.watch(&root, &gone).is_empty());
    }
}
