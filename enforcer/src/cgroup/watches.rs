//! The watches of an inotify instance, by their numbers.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use inotify::{Inotify, WatchDescriptor};
use rustix::fs::inotify::{WatchFlags, add_watch, remove_watch};

/// The number of a watch within its instance, which the events of the watch bear.
///
/// There is one for each watched file of each cgroup, and a [`WatchDescriptor`] is four times as large.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct WatchId(i32);

impl From<&WatchDescriptor> for WatchId {
    fn from(descriptor: &WatchDescriptor) -> Self {
        Self(descriptor.get_watch_descriptor_id())
    }
}

/// Adds and removes watches, while another reads the events.
#[derive(Debug)]
pub struct Watches(OwnedFd);

impl Watches {
    /// Those of that instance.
    pub fn of(inotify: &Inotify) -> io::Result<Self> {
        Ok(Self(inotify.as_fd().try_clone_to_owned()?))
    }

    /// Watches a file. One that is watched already keeps its number.
    pub fn add(&self, path: &str, flags: WatchFlags) -> io::Result<WatchId> {
        Ok(WatchId(add_watch(&self.0, path, flags)?))
    }

    /// Ends a watch.
    pub fn remove(&self, id: WatchId) -> io::Result<()> {
        Ok(remove_watch(&self.0, id.0)?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn events_bear_the_number_of_their_watch_until_it_ends() {
        assert_eq!(size_of::<WatchId>(), 4);
        let temp = tempfile::tempdir().unwrap();
        let (first, second) = (temp.path().join("a"), temp.path().join("b"));
        fs::write(&first, "0").unwrap();
        fs::write(&second, "0").unwrap();
        let mut inotify = Inotify::init().unwrap();
        let watches = Watches::of(&inotify).unwrap();
        let add = |path: &std::path::Path| watches.add(path.to_str().unwrap(), WatchFlags::MODIFY).unwrap();
        let ids = [add(&first), add(&second)];
        assert_ne!(ids[0], ids[1]);
        assert_eq!(add(&first), ids[0], "it is watched already");
        watches.remove(ids[0]).unwrap();
        assert!(watches.remove(ids[0]).is_err(), "it has ended");
        fs::write(&first, "1").unwrap();
        fs::write(&second, "1").unwrap();
        let mut buffer = [0_u8; 1024];
        let changed: Vec<WatchId> = inotify
            .read_events(&mut buffer)
            .unwrap()
            .filter(|event| event.mask.contains(inotify::EventMask::MODIFY))
            .map(|event| WatchId::from(&event.wd))
            .collect();
        assert!(!changed.is_empty() && changed.iter().all(|id| *id == ids[1]), "{changed:?}");
    }
}
