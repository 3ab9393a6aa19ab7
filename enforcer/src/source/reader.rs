//! Reads the folder of manifests, and decides whether its contents count.

use std::{
    collections::HashMap,
    io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::io::Errno;

use super::{
    files::{self, Listing, MAX_ENTRIES, Reading, Stamp},
    folder::{Absence, Grounds, Identity, Replaced, Writable},
    kept::{Fresh, Kept},
    loaded::{Content, FileContent, Loaded, SourceError, merge},
    manifest,
    watcher::Watcher,
};
use crate::trust;

/// How often the folder is read even if no change was seen.
const RESCAN: Duration = Duration::from_secs(20);
/// If inotify reports every change: those of files in the folder itself, not of those that links lead to.
const RESCAN_CLOSED: Duration = Duration::from_mins(10);
/// While it is away: inotify does not report mounts.
const RESCAN_AWAY: Duration = Duration::from_secs(2);
/// It then rests this many times as long as a reading took: another folder may hold much, and is read in vain.
const REST_FACTOR: u32 = 100;

/// Reads the folder, and keeps all that is known about it.
#[derive(Debug)]
pub(super) struct Reader {
    path: PathBuf,
    watcher: Watcher,
    /// The folder that was read last.
    known: Option<Identity>,
    loaded: Arc<Loaded>,
    stamps: HashMap<String, Stamp>,
    kept: Kept,
    /// Whether nothing was read yet.
    is_first: bool,
    rest: Duration,
}

/// A folder that can be read.
struct Found {
    listing: Listing,
    identity: Identity,
}

impl Reader {
    /// Starts with what an earlier process kept, which is in force until the folder is read.
    pub(super) fn new(path: PathBuf, watcher: Watcher, kept: (Kept, Option<Identity>, Loaded)) -> Self {
        let (kept, known, mut remembered) = kept;
        remembered.are_known = known.is_some();
        Self {
            path,
            watcher,
            known,
            loaded: Arc::new(remembered),
            stamps: HashMap::new(),
            kept,
            is_first: true,
            rest: RESCAN,
        }
    }

    /// What is in force, if nothing was read since.
    pub(super) fn loaded(&self) -> &Arc<Loaded> {
        &self.loaded
    }

    fn find(&self) -> Result<Found, Absence> {
        let missing = |errno| match errno {
            Errno::NOENT | Errno::NOTDIR => Absence::Missing,
            errno => Absence::Unreadable(errno),
        };
        let directory = files::open_folder(&self.path).map_err(missing)?;
        match trust::check_open(&self.path, &directory) {
            Ok(Ok(())) => {}
            Ok(Err(untrusted)) => return Err(Absence::Untrusted(Writable(untrusted))),
            Err(error) => return Err(missing(Errno::from_io_error(&error).unwrap_or(Errno::IO))),
        }
        let identity = Identity::of(&directory).map_err(missing)?;
        // A folder that is removed while it is listed does not count as empty.
        let listing = files::list(directory).map_err(missing)?;
        Ok(Found { listing, identity })
    }

    /// The result of reading the folder; with `is_accepted` whatever is at its path counts.
    fn judge(&mut self, is_accepted: bool) -> Loaded {
        let path = self.path.display().to_string();
        let found = match self.find() {
            Ok(found) => found,
            Err(Absence::Missing) if is_accepted => {
                self.stamps.clear();
                self.known = None;
                let mut none = Loaded::default();
                self.keep(Fresh::default(), &mut none);
                none.are_known = true;
                return none.away(&path, Absence::Missing);
            }
            Err(absence) => return self.loaded.away(&path, absence),
        };
        let Found { listing, identity } = found;
        let is_same = self.known == Some(identity);
        if !is_same {
            self.stamps.clear();
        }
        let (mut loaded, stamps, fresh) = self.read_files(&listing);
        if !(Grounds { is_same, is_first: self.is_first, is_accepted }.take(&self.loaded, &loaded)) {
            return self.loaded.away(&path, Absence::Another(Replaced { was: self.known, is: identity }));
        }
        loaded.are_known = true;
        self.known = Some(identity);
        self.stamps = stamps;
        self.keep(fresh, &mut loaded);
        if listing.is_closed {
            self.rest = RESCAN_CLOSED;
        }
        loaded
    }

    fn read_files(&self, listing: &Listing) -> (Loaded, HashMap<String, Stamp>, Fresh) {
        let (mut errors, mut stamps, mut fresh) = (Vec::new(), HashMap::new(), Fresh::default());
        let mut reading = Reading::guarded(&self.path);
        if listing.truncated {
            let path = self.path.display().to_string();
            errors.push(SourceError::TooManyFiles { path, limit: MAX_ENTRIES });
        }
        // Files are read and parsed one at a time.
        let files = listing.names.iter().filter_map(|name| {
            let not_taken = || SourceError::NotAManifest { file: name.clone() };
            if !files::is_manifest_name(name) {
                errors.push(not_taken());
                return None;
            }
            let known = self.stamps.get(name).copied();
            let content = match files::read_unless_known(&listing.directory, name, known, &mut reading) {
                Ok(Some((content, stamp))) => {
                    stamps.extend(stamp.map(|stamp| (name.clone(), stamp)));
                    content
                }
                Ok(None) => {
                    errors.push(not_taken());
                    return None;
                }
                // It was removed between listing and opening; a dangling link is an error.
                Err(Errno::NOENT) if !files::is_symlink(&listing.directory, name) => return None,
                Err(errno) => Content::Failed(SourceError::Unreadable { file: name.clone(), errno }),
            };
            Some(FileContent { name: name.clone(), content })
        });
        let mut loaded = merge(&self.loaded, files, |name, bytes| {
            let parsed = manifest::parse(name, bytes);
            if parsed.errors.is_empty() || !self.loaded.has_whole(name) {
                fresh.note(name, bytes);
            }
            parsed
        });
        loaded.errors.extend(errors);
        (loaded, stamps, fresh)
    }

    /// Keeps what is in force for the next start.
    fn keep(&mut self, fresh: Fresh, loaded: &mut Loaded) {
        if let Err(error) = self.kept.keep(self.known, fresh, loaded) {
            let path = self.kept.path().display().to_string();
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            loaded.errors.push(SourceError::Unkept { path, errno });
        }
    }
}

/// The folder, as the thread that reads it uses it; a test has another implementation, which hangs.
pub(super) trait Read: Send {
    /// Reads what is in force now; with `is_accepted` whatever is at the folder's path counts.
    fn read(&mut self, is_accepted: bool) -> Arc<Loaded>;
    /// How long until it is to be read again even if no change was seen.
    fn rest(&self) -> Duration;
    /// Waits for a change until `due`; returns whether one was seen.
    fn wait(&mut self, due: Instant) -> io::Result<bool>;
}

impl Read for Reader {
    fn read(&mut self, is_accepted: bool) -> Arc<Loaded> {
        // Watched first: changes from here on are seen.
        let unwatched = self.watcher.watch(&self.path).err();
        self.rest = RESCAN;
        let start = Instant::now();
        let mut loaded = self.judge(is_accepted);
        self.is_first = false;
        if loaded.errors.iter().any(SourceError::is_down) {
            self.rest = RESCAN_AWAY.max(start.elapsed().saturating_mul(REST_FACTOR));
        }
        if let Some(errno) = unwatched {
            self.rest = self.rest.min(RESCAN);
            loaded.errors.push(SourceError::Unwatched { path: self.path.display().to_string(), errno });
        }
        if loaded != *self.loaded {
            self.loaded = Arc::new(loaded);
        }
        Arc::clone(&self.loaded)
    }

    fn rest(&self) -> Duration {
        self.rest
    }

    fn wait(&mut self, due: Instant) -> io::Result<bool> {
        self.watcher.wait(due)
    }
}
