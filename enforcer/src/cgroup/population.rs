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

type Names = Arc<Mutex<HashMap<WatchDescriptor, CgroupPath>>>;

/// The cgroups whose `cgroup.events` is watched; held by the reconciler.
#[derive(Debug)]
pub struct PopulationWatch {
    watches: Watches,
    names: Names,
    watched: BTreeMap<CgroupPath, (CgroupId, WatchDescriptor)>,
}

/// The changes of the watched cgroups; held by the daemon's loop.
#[derive(Debug)]
pub struct PopulationEvents {
    stream: EventStream<Vec<u8>>,
    names: Names,
}

/// A change that was told by the kernel.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PopulationEvent {
    /// The first process came, or the last one went, or the cgroup was frozen or thawed.
    Changed(CgroupPath),
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
    /// Watches exactly these cgroups. Answers what could not be watched, such as for want of inotify watches
    /// (`fs.inotify.max_user_watches`); those are then seen by the periodic sweep only.
    pub fn watch(&mut self, root: &CgroupDir, wanted: &BTreeMap<CgroupPath, CgroupId>) -> Vec<Error> {
        let stale: Vec<CgroupPath> = self
            .watched
            .iter()
            .filter(|(path, (id, _))| wanted.get(*path) != Some(id))
            .map(|(path, _)| path.clone())
            .collect();
        for path in stale {
            if let Some((_, descriptor)) = self.watched.remove(&path) {
                self.names.lock().unwrap_or_else(PoisonError::into_inner).remove(&descriptor);
                // EINVAL: the kernel dropped it together with the cgroup.
                drop(self.watches.remove(descriptor));
            }
        }
        let mut errors = Vec::new();
        for path in wanted.keys() {
            if self.watched.contains_key(path) {
                continue;
            }
            match self.add(root, path) {
                Ok(()) => {}
                Err(error) if error.is_gone() => {}
                Err(error) => errors.push(error),
            }
        }
        errors
    }

    fn add(&mut self, root: &CgroupDir, path: &CgroupPath) -> Result<(), Error> {
        let dir = root.open(path)?;
        // By way of the handle: the name can lead nowhere else.
        let file = format!("/proc/self/fd/{}/cgroup.events", dir.as_fd().as_raw_fd());
        // The lock is held over both, so that an event never finds its descriptor without a name.
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let descriptor = self.watches.add(file, WatchMask::MODIFY).map_err(|source| Error::Read {
            path: path.to_string(),
            file: String::from("cgroup.events"),
            source,
        })?;
        names.insert(descriptor.clone(), path.clone());
        self.watched.insert(path.clone(), (dir.id(), descriptor));
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
            if let Some(path) = names.get(&event.wd) {
                return Ok(PopulationEvent::Changed(path.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn wanted(root: &CgroupDir, path: &CgroupPath) -> BTreeMap<CgroupPath, CgroupId> {
        BTreeMap::from([(path.clone(), root.open(path).unwrap().id())])
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
    async fn a_cgroup_that_is_gone_is_no_error() {
        let temp = tempfile::tempdir().unwrap();
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        let (mut watch, _events) = population_watch().unwrap();
        let gone = BTreeMap::from([(CgroupPath::parse("/gone").unwrap(), CgroupId(1))]);
        assert!(watch.watch(&root, &gone).is_empty());
    }
}
