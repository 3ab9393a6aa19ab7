//! Waits for changes of a folder, or of the place where it should be, and for a waker.

use std::{io, path::Path, sync::Arc, time::Instant};

use inotify::{Inotify, WatchDescriptor, WatchMask};
use rustix::io::Errno;

use crate::waker::Waker;

/// Watches a folder for a thread of its own.
#[derive(Debug)]
pub(crate) struct Watcher {
    inotify: Option<Inotify>,
    current: Option<WatchDescriptor>,
    waker: Arc<Waker>,
}

impl Watcher {
    /// Without inotify it waits for the waker only.
    pub(crate) fn new(waker: Arc<Waker>) -> Self {
        Self { inotify: Inotify::init().ok(), current: None, waker }
    }

    /// Waits until something changes or the waker wakes it, but not beyond `due`. Returns whether something changed. It
    /// may return early.
    pub(crate) fn wait(&mut self, due: Instant) -> io::Result<bool> {
        let left = due.saturating_duration_since(Instant::now());
        self.waker.wait_beside(self.inotify.as_ref(), Some(left))?;
        Ok(self.drain())
    }

    /// Reads all pending events; returns whether there were any.
    fn drain(&mut self) -> bool {
        let mut has_changed = false;
        let mut buffer = [0_u8; 4096];
        while let Some(inotify) = &mut self.inotify {
            match inotify.read_events(&mut buffer) {
                Ok(events) => {
                    if events.count() == 0 {
                        break;
                    }
                    has_changed = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Without events the clock remains.
                Err(_) => self.inotify = None,
            }
        }
        has_changed
    }

    /// Watches the folder, or while it does not exist, the nearest one above it.
    pub(crate) fn watch(&mut self, path: &Path) -> Result<(), Errno> {
        let Some(inotify) = &self.inotify else { return Err(Errno::MFILE) };
        let mut watches = inotify.watches();
        let inside = WatchMask::ONLYDIR
            | WatchMask::CREATE
            | WatchMask::CLOSE_WRITE
            | WatchMask::MOVE
            | WatchMask::DELETE
            | WatchMask::ATTRIB
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF;
        let above = WatchMask::ONLYDIR | WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::ATTRIB;
        let mut result = watches.add(path, inside);
        let mut ancestor = path.parent();
        while let (Err(error), Some(next)) = (&result, ancestor) {
            if error.kind() != io::ErrorKind::NotFound {
                break;
            }
            let next_path = if next.as_os_str().is_empty() { Path::new(".") } else { next };
            result = watches.add(next_path, above);
            ancestor = next.parent();
        }
        let descriptor = result.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        if let Some(before) = self.current.replace(descriptor.clone())
            && before != descriptor
        {
            // EINVAL: the kernel dropped it with the folder.
            drop(watches.remove(before));
        }
        Ok(())
    }
}
