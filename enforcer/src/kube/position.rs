//! Writes the position from which the journal's evictions are read again after a restart: on a thread of its own, as a request
//! must not wait for the disk. A position that is behind is safe: each pod is looked at before anything is asked again.

use std::{
    io,
    sync::mpsc,
    thread::{self, JoinHandle},
};

use tokio::{runtime::Builder, sync::watch};

use super::evictions::sleep_until;
use crate::{
    journal::{Cursor, CursorFile},
    threads,
};

const NAME: &str = "kube-position";

const STACK_BYTES: usize = 256 << 10;

/// The position that is to be on the disk.
pub(super) struct Position {
    newest: watch::Sender<Option<Cursor>>,
    file: mpsc::Sender<CursorFile>,
    thread: JoinHandle<()>,
}

impl Position {
    /// Starts the thread. It waits for [`begin`](Self::begin).
    pub(super) fn start() -> io::Result<Self> {
        let (newest, next) = watch::channel(None);
        let (file, begun) = mpsc::channel();
        let runtime = Builder::new_current_thread().enable_time().build()?;
        let thread =
            thread::Builder::new().name(NAME.to_owned()).stack_size(STACK_BYTES).spawn(move || {
                if let Ok(file) = begun.recv() {
                    runtime.block_on(run(file, next));
                }
            })?;
        Ok(Self { newest, file, thread })
    }

    /// Writes to that file from now on, which no one else writes to.
    pub(super) fn begin(&self, file: CursorFile) {
        // The thread ends with us.
        drop(self.file.send(file));
    }

    /// Has this position written soon. Waits for nothing.
    pub(super) fn set(&self, position: Cursor) {
        self.newest.send_if_modified(|newest| {
            let differs = newest.as_ref() != Some(&position);
            if differs {
                *newest = Some(position);
            }
            differs
        });
    }

    /// Waits until the last position is written, or cannot be.
    pub(super) fn finish(self) {
        let Self { newest, file, thread } = self;
        drop((newest, file));
        threads::join(thread);
    }
}

/// Writes each position, unless another follows within the pace of the file.
async fn run(mut file: CursorFile, mut next: watch::Receiver<Option<Cursor>>) {
    let mut is_unwritten = false;
    loop {
        let due = next.borrow_and_update().as_ref().and_then(|position| file.due(position));
        let is_last = tokio::select! {
            () = sleep_until(due) => false,
            changed = next.changed() => match changed {
                Ok(()) => continue,
                Err(_ended) => true,
            },
        };
        let position = next.borrow().clone();
        if let Some(position) = position.filter(|position| file.due(position).is_some()) {
            let written = file.write(&position);
            if let Err(error) = &written
                && !is_unwritten
            {
                tracing::warn!(%error, "cannot write the cursor of API evictions");
            }
            is_unwritten = written.is_err();
        }
        if is_last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Journal;

    #[test]
    fn the_newest_position_is_written_in_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::new("n", "b");
        let position = Position::start().unwrap();
        // There is no file yet, and nothing waits for it.
        for sequence in 1..=100 {
            position.set(journal.cursor(sequence));
        }
        position.begin(CursorFile::new(folder.path(), "of-a-test"));
        position.finish();
        let kept = CursorFile::new(folder.path(), "of-a-test").read().unwrap();
        assert_eq!(kept, Some(journal.cursor(100)));
    }
}
