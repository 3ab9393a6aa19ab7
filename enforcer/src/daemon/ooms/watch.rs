//! Notices OOM kills by the kernel's counters, those too that no eBPF program recorded.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _};
use inotify::{EventMask, EventStream, Inotify};
use rustix::fs::inotify::WatchFlags;
use tokio::time::Instant;

use super::names::COUNTERS;
use crate::{
    cgroup::{CgroupDir, WatchId, Watches},
    model::{CgroupId, SmallMap},
};

/// The most cgroups whose counters are watched. Each watch takes about 1 KiB of the kernel's memory.
pub(super) const MAX_WATCHES: usize = 8192;
/// The most events taken at once.
const MAX_EVENTS: usize = 4096;
/// How long events gather after some were taken.
const REST: Duration = Duration::from_millis(100);
/// How long a cgroup is not looked at again: one that lives at its limit changes its counters all the time.
const PAUSE: Duration = Duration::from_millis(250);

/// Reports when the OOM counters of cgroups may have changed.
///
/// The file also counts how often limits were reached, so that most changes are not OOMs.
#[derive(Debug)]
pub(super) struct CounterWatch {
    watches: Watches,
    stream: EventStream<Vec<u8>>,
    /// Sorted lists, although these may be long: they take half of what hash tables take, and making room for an entry
    /// costs less than its watch.
    cgroups: SmallMap<WatchId, CgroupId>,
    ids: SmallMap<CgroupId, WatchId>,
    rest_until: Instant,
    looked: BTreeMap<CgroupId, Instant>,
    /// Cgroups that changed during their pause, by its end.
    later: BTreeSet<(Instant, CgroupId)>,
}

/// Cgroups whose counters may have changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    /// Cgroups to be looked at.
    pub(super) cgroups: BTreeSet<CgroupId>,
    /// Changes were lost: all cgroups are to be looked at.
    pub(super) overflow: bool,
}

/// The reason that a cgroup is not watched.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unwatched {
    /// There are too many watches.
    #[error("more than {MAX_WATCHES} cgroups")]
    Full,
    /// The kernel refused the watch.
    #[error("the kernel accepts no further watch (fs.inotify.max_user_watches)")]
    Refused(#[source] io::Error),
}

impl CounterWatch {
    /// Starts without watches. Must be called inside a tokio runtime.
    pub(super) fn new() -> io::Result<Self> {
        let inotify = Inotify::init()?;
        Ok(Self {
            watches: Watches::of(&inotify)?,
            stream: inotify.into_event_stream(vec![0_u8; 4096])?,
            cgroups: SmallMap::new(),
            ids: SmallMap::new(),
            rest_until: Instant::now(),
            looked: BTreeMap::new(),
            later: BTreeSet::new(),
        })
    }

    /// Watches a cgroup, which may be gone already; returns whether the watch is new.
    pub(super) fn add(&mut self, dir: &CgroupDir) -> Result<bool, Unwatched> {
        if self.ids.contains_key(&dir.id()) {
            return Ok(false);
        }
        if self.ids.len() >= MAX_WATCHES {
            return Err(Unwatched::Full);
        }
        // Through the handle, the name cannot resolve to another cgroup.
        let file = format!("/proc/self/fd/{}/{COUNTERS}", dir.as_fd().as_raw_fd());
        match self.watches.add(&file, WatchFlags::MODIFY) {
            Ok(id) => {
                self.cgroups.insert(id, dir.id());
                self.ids.insert(dir.id(), id);
                Ok(true)
            }
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) =>
            {
                Ok(false)
            }
            // ENODEV: it is being removed.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => Ok(false),
            Err(error) => Err(Unwatched::Refused(error)),
        }
    }

    /// Stops watching a cgroup that is gone.
    pub(super) fn remove(&mut self, cgroup: CgroupId) {
        if let Some(id) = self.ids.remove(&cgroup) {
            self.cgroups.remove(&id);
            // EINVAL: the kernel dropped it together with the cgroup.
            drop(self.watches.remove(id));
        }
        if let Some(looked) = self.looked.remove(&cgroup) {
            self.later.remove(&(looked + PAUSE, cgroup));
        }
    }

    /// Returns the watched cgroups.
    pub(super) fn cgroups(&self) -> impl Iterator<Item = CgroupId> {
        self.ids.keys().copied()
    }

    /// Waits for changes. Safe to cancel.
    pub(super) async fn changed(&mut self) -> io::Result<Changed> {
        loop {
            let due = self.later.first().map(|(due, _)| *due);
            tokio::select! {
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
                taken = next(&mut self.stream, self.rest_until) => {
                    let mut changed = Changed::default();
                    self.take(&taken?, &mut changed);
                    for _ in 0..MAX_EVENTS {
                        let Some(Some(event)) = self.stream.next().now_or_never() else { break };
                        self.take(&event?, &mut changed);
                    }
                    self.rest_until = Instant::now() + REST;
                    self.pause(&mut changed);
                    if changed != Changed::default() {
                        return Ok(changed);
                    }
                }
            }
            let changed = self.due();
            if changed != Changed::default() {
                return Ok(changed);
            }
        }
    }

    fn take(&mut self, event: &inotify::Event<std::ffi::OsString>, changed: &mut Changed) {
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            changed.overflow = true;
        } else if event.mask.contains(EventMask::MODIFY) {
            changed.cgroups.extend(self.cgroups.get(&WatchId::from(&event.wd)));
        } else if event.mask.contains(EventMask::IGNORED)
            && let Some(cgroup) = self.cgroups.remove(&WatchId::from(&event.wd))
        {
            self.ids.remove(&cgroup);
        }
    }

    /// Defers the cgroups that were looked at just now.
    fn pause(&mut self, changed: &mut Changed) {
        let now = Instant::now();
        changed.cgroups.retain(|cgroup| match self.looked.get(cgroup) {
            Some(looked) if now < *looked + PAUSE => {
                self.later.insert((*looked + PAUSE, *cgroup));
                false
            }
            Some(_) | None => {
                self.looked.insert(*cgroup, now);
                true
            }
        });
    }

    /// Takes the cgroups whose pause is over.
    fn due(&mut self) -> Changed {
        let now = Instant::now();
        let mut changed = Changed::default();
        while let Some((due, cgroup)) = self.later.first().copied().filter(|(due, _)| *due <= now) {
            self.later.remove(&(due, cgroup));
            self.looked.insert(cgroup, now);
            changed.cgroups.insert(cgroup);
        }
        changed
    }
}

async fn next(
    stream: &mut EventStream<Vec<u8>>,
    rest_until: Instant,
) -> io::Result<inotify::Event<std::ffi::OsString>> {
    tokio::time::sleep_until(rest_until).await;
    stream.next().await.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))
}
