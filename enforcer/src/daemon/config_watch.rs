//! Follows the configuration's file, for `configReload: auto`. What counts is its content: a mounted `ConfigMap` changes by
//! another target of a symlink in the folder, an editor replaces the file, and both may touch it without a change.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{regular, source::Watcher, waker::Waker};

/// How long a content must last before it counts: a file that is being written is read once.
const SETTLE: Duration = Duration::from_millis(200);

/// How often the content is compared without an event: the folder that a symlink leads to is not watched, and inotify may
/// be exhausted.
const POLL: Duration = Duration::from_secs(20);

/// The most that is compared. A longer file is refused when it is read.
const MAX_BYTES: u64 = 1 << 20;

/// The thread's stack, in bytes.
const STACK_BYTES: usize = 256 << 10;

/// What is at the file's path.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Content {
    /// A file that can be read; more than [`MAX_BYTES`] are cut.
    Bytes(Vec<u8>),
    /// Nothing.
    Missing,
    /// Something that cannot be read.
    Unreadable(io::ErrorKind),
}

impl Content {
    fn read(path: &Path) -> Self {
        let mut bytes = Vec::new();
        let read = |file: File| file.take(MAX_BYTES + 1).read_to_end(&mut bytes);
        match regular::open(path).and_then(read) {
            Ok(_) => Self::Bytes(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::Missing,
            Err(error) => Self::Unreadable(error.kind()),
        }
    }
}

/// Follows the file on a thread of its own: its disk may hang.
#[derive(Debug)]
pub(super) struct ConfigWatch {
    is_over: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl ConfigWatch {
    /// Starts the thread. `changed` gets each content that lasts: the first one too, as the file may have changed since it
    /// was read. Fails if there is no thread or no descriptor for it.
    pub(super) fn start(path: PathBuf, changed: impl Fn(&Content) + Send + 'static) -> io::Result<Self> {
        let waker = Arc::new(Waker::new()?);
        let is_over = Arc::new(AtomicBool::new(false));
        let (watcher, over) = (Watcher::new(Arc::clone(&waker)), Arc::clone(&is_over));
        let follow = move || {
            let followed = follow(&path, watcher, &over, changed);
            if let Err(error) = followed {
                tracing::error!(%error, "changes of the configuration are no longer seen: reload it by SIGHUP");
            }
        };
        // It is not joined: a read may hang.
        let _detached = thread::Builder::new()
            .name(String::from("config-watch"))
            .stack_size(STACK_BYTES)
            .spawn(follow)?;
        Ok(Self { is_over, waker })
    }
}

impl Drop for ConfigWatch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.waker.wake();
    }
}

fn follow(
    path: &Path,
    mut watcher: Watcher,
    is_over: &AtomicBool,
    changed: impl Fn(&Content),
) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (mut reported, mut is_unwatched) = (None, false);
    while !is_over.load(Ordering::Acquire) {
        // Before it is read, so that no change is lost; and each time, as the folder may be another one.
        let unwatched = watcher.watch(folder).err();
        if let Some(error) = unwatched
            && !is_unwatched
        {
            let seconds = POLL.as_secs();
            tracing::warn!(%error, folder = %folder.display(), "cannot watch the folder of the configuration, which is compared every {seconds} s");
        }
        is_unwatched = unwatched.is_some();
        let content = Content::read(path);
        if reported.as_ref() != Some(&content) {
            thread::sleep(SETTLE);
            if Content::read(path) != content {
                continue;
            }
            changed(&content);
            reported = Some(content);
        }
        if watcher.wait(Instant::now() + POLL)? {
            // Other users may make as many events as they like in a folder such as /tmp.
            thread::sleep(SETTLE);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::symlink,
        sync::mpsc::{self, Receiver},
    };

    use tempfile::TempDir;

    use super::*;

    /// Replaces what `..data` leads to, as a kubelet does in a mounted `ConfigMap`.
    fn swap(folder: &Path, version: &str, text: Option<&str>) {
        let of_version = folder.join(version);
        fs::create_dir(&of_version).unwrap();
        if let Some(text) = text {
            fs::write(of_version.join("config.yaml"), text).unwrap();
        }
        symlink(version, folder.join("..data_tmp")).unwrap();
        fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    }

    fn watched(path: PathBuf) -> (ConfigWatch, Receiver<Content>) {
        let (sender, contents) = mpsc::channel();
        let watch = ConfigWatch::start(path, move |content| drop(sender.send(content.clone())));
        (watch.unwrap(), contents)
    }

    fn bytes(text: &str) -> Content {
        Content::Bytes(text.as_bytes().to_vec())
    }

    fn config_map(text: &str) -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        swap(folder.path(), "..1", Some(text));
        let path = folder.path().join("config.yaml");
        symlink("..data/config.yaml", &path).unwrap();
        (folder, path)
    }

    #[test]
    fn a_config_map_that_changes_is_seen_by_the_swap_of_its_symlink() {
        let (folder, path) = config_map("mode: observe\n");
        let (_watch, contents) = watched(path);
        assert_eq!(contents.recv().unwrap(), bytes("mode: observe\n"));
        swap(folder.path(), "..2", Some("mode: dry-run\n"));
        assert_eq!(contents.recv().unwrap(), bytes("mode: dry-run\n"));
        swap(folder.path(), "..3", None);
        assert_eq!(contents.recv().unwrap(), Content::Missing);
        swap(folder.path(), "..4", Some("mode: observe\n"));
        assert_eq!(contents.recv().unwrap(), bytes("mode: observe\n"));
    }

    #[test]
    fn a_file_that_is_touched_without_a_change_is_no_news() {
        let (folder, path) = config_map("mode: observe\n");
        let (_watch, contents) = watched(path.clone());
        contents.recv().unwrap();
        swap(folder.path(), "..2", Some("mode: observe\n"));
        fs::write(&path, "mode: observe\n").unwrap();
        fs::write(folder.path().join("other"), "text").unwrap();
        // A file that replaces the symlink, as an editor does.
        let new = folder.path().join("new");
        fs::write(&new, "mode: dry-run\n").unwrap();
        fs::rename(new, path).unwrap();
        assert_eq!(contents.recv().unwrap(), bytes("mode: dry-run\n"), "nothing before it");
    }

    #[test]
    fn the_thread_ends_with_who_watches() {
        let (_folder, path) = config_map("");
        let (watch, contents) = watched(path);
        contents.recv().unwrap();
        drop(watch);
        assert!(contents.recv().is_err(), "the sender is gone with the thread");
    }
}
