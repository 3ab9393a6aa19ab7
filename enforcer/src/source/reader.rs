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
    files::{self, Listing, MAX_ENTRIES, Reading},
    folder::{Absence, Grounds, Identity, Replaced, Writable},
    kept::{Fresh, Kept},
    loaded::{Content, FileContent, Loaded, SourceError, merge},
    manifest,
    watcher::Watcher,
};
use crate::{stamp::Stamp, trust};

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
    /// How many files were read. A file that was written just before has no stamp.
    files: usize,
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
            files: 0,
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

    /// The result of reading the folder, `None` if it is as when it was read last; with `is_accepted` whatever is at its
    /// path counts.
    fn judge(&mut self, is_accepted: bool) -> Option<Loaded> {
        let path = self.path.display().to_string();
        let found = match self.find() {
            Ok(found) if self.is_as_read(&found) => {
                self.rest = RESCAN_CLOSED;
                return None;
            }
            Ok(found) => found,
            Err(Absence::Missing) if is_accepted => {
                self.stamps.clear();
                self.known = None;
                let mut none = Loaded::default();
                self.keep(Fresh::default(), &mut none);
                none.are_known = true;
                return Some(none.away(&path, Absence::Missing));
            }
            Err(absence) => return Some(self.loaded.away(&path, absence)),
        };
        let Found { listing, identity } = found;
        let is_same = self.known == Some(identity);
        if !is_same {
            self.stamps.clear();
        }
        let (mut loaded, stamps, fresh) = self.read_files(&listing);
        if !(Grounds { is_same, is_first: self.is_first, is_accepted }.take(&self.loaded, &loaded)) {
            return Some(
                self.loaded.away(&path, Absence::Another(Replaced { was: self.known, is: identity })),
            );
        }
        loaded.are_known = true;
        self.known = Some(identity);
        self.stamps = stamps;
        self.files = listing.names.len();
        self.keep(fresh, &mut loaded);
        if listing.is_closed {
            self.rest = RESCAN_CLOSED;
        }
        Some(loaded)
    }

    /// Whether the folder that was read last is there, without links, and holds the same files, of which nothing was wrong.
    /// To take hundreds of files as they are costs ten times as much.
    fn is_as_read(&self, Found { listing, identity }: &Found) -> bool {
        let is_as_read = |name: &String| {
            let known = self.stamps.get(name);
            known.is_some() && known.copied() == files::stamp(&listing.directory, name)
        };
        !self.is_first
            && self.known == Some(*identity)
            && self.loaded.errors.is_empty()
            && listing.is_closed
            && listing.names.len() == self.files
            && listing.names.iter().all(is_as_read)
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
        let judged = self.judge(is_accepted);
        let is_first = std::mem::replace(&mut self.is_first, false);
        // Nothing was wrong, and may be now.
        let as_read = || unwatched.is_some().then(|| Loaded::clone(&self.loaded));
        let Some(mut loaded) = judged.or_else(as_read) else { return Arc::clone(&self.loaded) };
        if loaded.errors.iter().any(SourceError::is_down) {
            self.rest = RESCAN_AWAY.max(start.elapsed().saturating_mul(REST_FACTOR));
        }
        if let Some(errno) = unwatched {
            self.rest = self.rest.min(RESCAN);
            loaded.errors.push(SourceError::Unwatched { path: self.path.display().to_string(), errno });
        }
        let is_changed = loaded != *self.loaded;
        // A file that was written just before is read again, and soon: it may have changed once more within the same moment.
        if (is_changed || is_first) && self.stamps.len() < self.files {
            self.rest = self.rest.min(RESCAN);
        }
        if is_changed {
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

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt as _, symlink},
        path::Path,
    };

    use super::*;
    use crate::waker::Waker;

    /// What changes, which files were settled before, and how.
    type Change<'a> = (&'a str, &'a [&'a str], &'a dyn Fn());

    /// Has the reader take these files for settled, which they are two seconds after they were written.
    fn settle(reader: &mut Reader, folder: &Path, names: &[&str]) {
        let directory = files::open_folder(folder).unwrap();
        let stamp = |name: &&str| (String::from(*name), files::stamp(&directory, name).unwrap());
        reader.stamps = names.iter().map(stamp).collect();
    }

    #[test]
    fn a_folder_that_is_as_it_was_read_is_not_taken_again() {
        let (temp, run_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let write = |name: &str, pod: &str| {
            let text = format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {pod}}}\nspec: {{containers: [{{name: app}}]}}\n"
            );
            fs::write(temp.path().join(name), text).unwrap();
        };
        let watcher = || Watcher::new(Arc::new(Waker::new().unwrap()));
        let path = temp.path().to_owned();
        let remove = || fs::remove_file(temp.path().join("a.yaml")).unwrap();
        let both: &[&str] = &["a.yaml", "b.yaml"];
        let changes: [Change<'_>; 8] = [
            ("nothing", both, &|| {}),
            ("a file", both, &|| write("a.yaml", "other")),
            ("one more", both, &|| write("c.yaml", "c")),
            ("one less", both, &remove),
            ("one less, which was written just before", &["b.yaml"], &remove),
            ("a file, and one less", &["b.yaml"], &|| {
                remove();
                write("c.yaml", "c");
            }),
            ("who may write", both, &|| {
                fs::set_permissions(temp.path().join("a.yaml"), fs::Permissions::from_mode(0o666)).unwrap();
            }),
            ("a link", both, &|| {
                fs::rename(temp.path().join("a.yaml"), temp.path().join(".a")).unwrap();
                symlink(".a", temp.path().join("a.yaml")).unwrap();
            }),
        ];
        for (what, settled, change) in changes {
            for entry in fs::read_dir(temp.path()).unwrap() {
                fs::remove_file(entry.unwrap().path()).unwrap();
            }
            write("a.yaml", "a");
            write("b.yaml", "b");
            let mut reader = Reader::new(path.clone(), watcher(), Kept::open(run_dir.path()));
            assert!(reader.judge(false).is_some(), "the first time");
            let loaded = reader.read(false);
            assert_eq!(loaded.pods.len(), 2, "{:?}", loaded.errors);
            assert_eq!(reader.rest(), RESCAN, "they were written just before");
            settle(&mut reader, temp.path(), settled);
            change();
            assert_eq!(reader.judge(false).is_none(), what == "nothing", "{what}");
            reader.read(false);
            let is_new = ["a file", "one more", "a file, and one less"].contains(&what);
            if is_new || what == "nothing" {
                assert_eq!(reader.rest(), if is_new { RESCAN } else { RESCAN_CLOSED }, "{what}");
            }
        }
    }
}
