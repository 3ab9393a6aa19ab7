use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures_util::StreamExt as _;
use inotify::{EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use rustix::io::Errno;
use tokio::time::Instant;

use super::{
    files::{self, Listing, MAX_ENTRIES, Stamp},
    loaded::{Content, FileContent, Loaded, SourceError, merge},
    manifest,
};

/// How long changes are gathered before they are read, so that a file which is being written is read once.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// How often the directory is read although nothing told of a change.
const RESCAN: Duration = Duration::from_secs(20);
/// Where inotify tells of every change: of files in the directory itself, not of those that symlinks lead to.
const RESCAN_TOLD: Duration = Duration::from_mins(2);

/// The pods of a manifest directory (`staticPodPath`), and what is wrong with it.
///
/// Changes are told by inotify; the directory is read again every 2 min nevertheless, with a symlink in it every 20 s.
/// Manifests are regular files `*.yaml`, `*.yml` and `*.json`, also by way of a symlink, as a mounted `ConfigMap` has
/// them; names that begin with a dot are passed over. The directory may come later than the daemon.
#[derive(Debug)]
pub struct StaticDir {
    path: PathBuf,
    loaded: Arc<Loaded>,
    stamps: HashMap<String, Stamp>,
    watcher: Option<Watcher>,
    /// When the directory is to be read next; none until the first time.
    due: Option<Instant>,
    /// Whether anything was told yet.
    told: bool,
    /// Whether inotify tells of every change in it.
    is_closed: bool,
}

#[derive(Debug)]
struct Watcher {
    stream: EventStream<Vec<u8>>,
    watches: Watches,
    current: Option<WatchDescriptor>,
}

impl StaticDir {
    /// Looks at `path`, which need not exist yet. Must be called inside a tokio runtime.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        let watcher = Watcher::start().ok();
        Self {
            path,
            loaded: Arc::default(),
            stamps: HashMap::new(),
            watcher,
            due: None,
            told: false,
            is_closed: false,
        }
    }

    /// What the directory holds: at once the first time, then whenever pods or errors are others than before.
    ///
    /// Safe to be cancelled. It reads files where it is polled, as they are few and small.
    pub async fn next(&mut self) -> Arc<Loaded> {
        loop {
            self.wait().await;
            let first = !std::mem::replace(&mut self.told, true);
            let loaded = self.scan();
            let is_told = self.is_closed && self.watcher.is_some();
            self.due = Some(Instant::now() + if is_told { RESCAN_TOLD } else { RESCAN });
            if first || loaded != *self.loaded {
                self.loaded = Arc::new(loaded);
                return Arc::clone(&self.loaded);
            }
        }
    }

    /// Waits until the directory is to be read.
    async fn wait(&mut self) {
        // The first time it is read at once.
        let Some(mut due) = self.due else { return };
        while let Some(watcher) = &mut self.watcher {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(due) => return,
                event = watcher.stream.next() => match event {
                    // Kept, so that a call that is cancelled does not lose the event.
                    Some(Ok(_)) => {
                        due = due.min(Instant::now() + DEBOUNCE);
                        self.due = Some(due);
                    }
                    // Without events there is still the clock.
                    Some(Err(_)) | None => self.watcher = None,
                },
            }
        }
        tokio::time::sleep_until(due).await;
    }

    fn scan(&mut self) -> Loaded {
        // Watched first: what changes from here on is told.
        let unwatched = match &mut self.watcher {
            Some(watcher) => watcher.watch(&self.path).err(),
            None => Some(Errno::MFILE),
        };
        let mut errors = Vec::new();
        let mut loaded = match files::list(&self.path) {
            Ok(listing) => {
                self.is_closed = listing.is_closed;
                let files = self.read(&listing, &mut errors);
                merge(&self.loaded, files, manifest::parse)
            }
            Err(errno) => {
                self.is_closed = false;
                let error = SourceError::Directory { path: self.path.display().to_string(), errno };
                self.stamps.clear();
                if errno == Errno::NOENT || errno == Errno::NOTDIR {
                    errors.push(error);
                    merge(&self.loaded, Vec::new(), manifest::parse)
                } else {
                    self.loaded.with_error(error)
                }
            }
        };
        if let Some(errno) = unwatched {
            errors.push(SourceError::Unwatched { path: self.path.display().to_string(), errno });
        }
        loaded.errors.extend(errors);
        loaded
    }

    fn read(&mut self, listing: &Listing, errors: &mut Vec<SourceError>) -> Vec<FileContent> {
        if listing.truncated {
            let path = self.path.display().to_string();
            errors.push(SourceError::TooManyFiles { path, limit: MAX_ENTRIES });
        }
        let mut stamps = HashMap::new();
        let mut files = Vec::new();
        for name in &listing.names {
            if !files::is_manifest_name(name) {
                errors.push(SourceError::NotAManifest { file: name.clone() });
                continue;
            }
            let known = self.stamps.get(name).copied();
            match files::read_unless_known(&listing.directory, name, known) {
                Ok(Some((content, stamp))) => {
                    if let Some(stamp) = stamp {
                        stamps.insert(name.clone(), stamp);
                    }
                    files.push(FileContent { name: name.clone(), content });
                }
                Ok(None) => errors.push(SourceError::NotAManifest { file: name.clone() }),
                // It went between listing and opening, or a symlink leads nowhere.
                Err(Errno::NOENT) if !files::is_symlink(&listing.directory, name) => {}
                Err(errno) => {
                    let error = SourceError::Unreadable { file: name.clone(), errno };
                    files.push(FileContent { name: name.clone(), content: Content::Failed(error) });
                }
            }
        }
        self.stamps = stamps;
        files
    }
}

impl Watcher {
    fn start() -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let watches = inotify.watches();
        let stream = inotify.into_event_stream(vec![0_u8; 4096])?;
        Ok(Self { stream, watches, current: None })
    }

    /// Watches the directory, or as long as there is none, the nearest one above it.
    fn watch(&mut self, path: &Path) -> Result<(), Errno> {
        let inside = WatchMask::ONLYDIR
            | WatchMask::CREATE
            | WatchMask::CLOSE_WRITE
            | WatchMask::MOVE
            | WatchMask::DELETE
            | WatchMask::ATTRIB
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF;
        let above = WatchMask::ONLYDIR | WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::ATTRIB;
        let mut result = self.watches.add(path, inside);
        let mut ancestor = path.parent();
        while let (Err(error), Some(next)) = (&result, ancestor) {
            if error.kind() != io::ErrorKind::NotFound {
                break;
            }
            let next_path = if next.as_os_str().is_empty() { Path::new(".") } else { next };
            result = self.watches.add(next_path, above);
            ancestor = next.parent();
        }
        let descriptor = result.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        if let Some(before) = self.current.replace(descriptor.clone())
            && before != descriptor
        {
            // EINVAL: the kernel dropped it together with the directory.
            drop(self.watches.remove(before));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
