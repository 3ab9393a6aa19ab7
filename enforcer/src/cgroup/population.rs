use std::{
    collections::{BTreeMap, HashMap},
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::StreamExt as _;
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};

use super::{CgroupDir, Error};
use crate::model::{CgroupId, CgroupPath};

type Names = Arc<Mutex<HashMap<WatchDescriptor, PopulationEvent>>>;

/// The cgroups whose `cgroup.events` or whose children are watched; held by the reconciler.
#[derive(Debug)]
pub struct PopulationWatch {
    watches: Watches,
    names: Names,
    watched: BTreeMap<PopulationEvent, (CgroupId, WatchDescriptor)>,
}

/// The changes of the watched cgroups; held by the daemon's loop.
#[derive(Debug)]
pub struct PopulationEvents {
    stream: EventStream<Vec<u8>>,
    names: Names,
}

/// A change that was told by the kernel.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum PopulationEvent {
    /// The first process came, or the last one went, or the cgroup was frozen or thawed.
    Changed(CgroupPath),
    /// A cgroup was made or removed directly below this one.
    Children(CgroupPath),
    /// Changes were lost: everything has to be looked at.
    Overflow,
}

/// Starts watching. Must be called inside a tokio runtime.
///
/// The kernel tells of changes in `cgroup.events` through inotify, at most one every 10 ms or so a file.
pub fn population_watch() -> io::Result<(PopulationWatch, PopulationEvents)> {
    let inotify = Inotify::init()?;
    let names = Names::default();
    let watch =
        PopulationWatch { watches: inotify.watches(), names: Arc::clone(&names), watched: BTreeMap::new() };
    let stream = inotify.into_event_stream(vec![0_u8; 4096])?;
    Ok((watch, PopulationEvents { stream, names }))
}

impl PopulationWatch {
    /// Watches for exactly these events, each of a cgroup with that id. Answers what could not be watched, such as for
    /// want of inotify watches (`fs.inotify.max_user_watches`); those are then seen by the periodic sweep only.
    pub fn watch(&mut self, root: &CgroupDir, wanted: &BTreeMap<PopulationEvent, CgroupId>) -> Vec<Error> {
        let stale: Vec<PopulationEvent> = self
            .watched
            .iter()
            .filter(|(event, (id, _))| wanted.get(*event) != Some(id))
            .map(|(event, _)| event.clone())
            .collect();
        for event in stale {
            if let Some((_, descriptor)) = self.watched.remove(&event) {
                self.names.lock().unwrap_or_else(PoisonError::into_inner).remove(&descriptor);
                // EINVAL: the kernel dropped it together with the cgroup.
                drop(self.watches.remove(descriptor));
            }
        }
        let mut errors = Vec::new();
        for event in wanted.keys() {
            if self.watched.contains_key(event) {
                continue;
            }
            match self.add(root, event) {
                Ok(()) => {}
                Err(error) if error.is_gone() => {}
                Err(error) => errors.push(error),
            }
        }
        errors
    }

    fn add(&mut self, root: &CgroupDir, event: &PopulationEvent) -> Result<(), Error> {
        let (path, file, mask) = match event {
            PopulationEvent::Changed(path) => (path, "cgroup.events", WatchMask::MODIFY),
            PopulationEvent::Children(path) => (path, ".", WatchMask::CREATE | WatchMask::DELETE),
            // It comes unasked.
            PopulationEvent::Overflow => return Ok(()),
        };
        let dir = root.open(path)?;
        // By way of the handle: the name can lead nowhere else.
        let name = format!("/proc/self/fd/{}/{file}", dir.as_fd().as_raw_fd());
        // The lock is held over both, so that an event never finds its descriptor without a name.
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let descriptor = self.watches.add(name, mask).map_err(|source| Error::Read {
            path: path.to_string(),
            file: file.to_owned(),
            source,
        })?;
        names.insert(descriptor.clone(), event.clone());
        self.watched.insert(event.clone(), (dir.id(), descriptor));
        Ok(())
    }
}

impl PopulationEvents {
    /// Waits for the next change; safe to be cancelled.
    pub async fn next(&mut self) -> io::Result<PopulationEvent> {
        loop {
            let Some(event) = self.stream.next().await else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            let event = event?;
            if event.mask.contains(EventMask::Q_OVERFLOW) {
                return Ok(PopulationEvent::Overflow);
            }
            let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(event) = names.get(&event.wd) {
                return Ok(event.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn wanted(root: &CgroupDir, path: &CgroupPath) -> BTreeMap<PopulationEvent, CgroupId> {
        BTreeMap::from([(PopulationEvent::Changed(path.clone()), root.open(path).unwrap().id())])
    }

    #[tokio::test]
    async fn a_change_names_its_cgroup_until_it_is_no_longer_watched() {
        let temp = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            fs::create_dir(temp.path().join(name)).unwrap();
            fs::write(temp.path().join(name).join("cgroup.events"), "populated 0\n").unwrap();
        }
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        let [a, b] = ["/a", "/b"].map(|path| CgroupPath::parse(path).unwrap());
        let (mut watch, mut events) = population_watch().unwrap();
        assert!(watch.watch(&root, &wanted(&root, &a)).is_empty());
        root.open(&a).unwrap().write("cgroup.events", "populated 1\n").unwrap();
        assert_eq!(events.next().await.unwrap(), PopulationEvent::Changed(a.clone()));
        assert!(watch.watch(&root, &wanted(&root, &b)).is_empty());
        root.open(&a).unwrap().write("cgroup.events", "populated 0\n").unwrap();
        root.open(&b).unwrap().write("cgroup.events", "populated 1\n").unwrap();
        assert_eq!(events.next().await.unwrap(), PopulationEvent::Changed(b));
    }

    #[tokio::test]
    async fn children_are_told_beside_what_the_cgroup_itself_tells() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("pod")).unwrap();
        fs::write(temp.path().join("pod/cgroup.events"), "populated 0\n").unwrap();
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        let pod = CgroupPath::parse("/pod").unwrap();
        let id = root.open(&pod).unwrap().id();
        let [changed, children] =
            [PopulationEvent::Changed, PopulationEvent::Children].map(|of| of(pod.clone()));
        let (mut watch, mut events) = population_watch().unwrap();
        let wanted = BTreeMap::from([(changed.clone(), id), (children.clone(), id)]);
        assert!(watch.watch(&root, &wanted).is_empty());
        fs::create_dir(temp.path().join("pod/app")).unwrap();
        assert_eq!(events.next().await.unwrap(), children);
        root.open(&pod).unwrap().write("cgroup.events", "populated 1\n").unwrap();
        assert_eq!(events.next().await.unwrap(), changed);
        fs::remove_dir(temp.path().join("pod/app")).unwrap();
        assert_eq!(events.next().await.unwrap(), children);
    }

    #[tokio::test]
    async fn a_cgroup_that_is_gone_is_no_error() {
        let temp = tempfile::tempdir().unwrap();
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        let (mut watch, _events) = population_watch().unwrap();
        let gone =
            BTreeMap::from([(PopulationEvent::Changed(CgroupPath::parse("/gone").unwrap()), CgroupId(1))]);
        assert!(watch.watch(&root, &gone).is_empty());
    }
}
