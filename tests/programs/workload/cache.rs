//! Page cache: a file that is written and read again and again.
use std::{
    fs::File,
    io::{Read as _, Seek as _, Write as _},
    path::Path,
};

use anyhow::Context as _;
use serde::Serialize;

use crate::report::{Clock, EverySecond, State};

const BLOCK_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Progress {
    file_bytes: u64,
    /// How often it was read as a whole.
    reads: u64,
}

/// Writes the file, then reads it once a second, so that the kernel sees it in use.
pub(crate) fn cache(clock: &Clock, path: &Path, bytes: u64) -> anyhow::Result<()> {
    let context = |what: &str| format!("cannot {what} {}", path.display());
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .with_context(|| context("create"))?;
    let mut block = vec![0xa5; BLOCK_BYTES];
    let mut progress = Progress::default();
    while progress.file_bytes < bytes && !clock.is_over() {
        let length = usize::try_from(bytes - progress.file_bytes).unwrap_or(usize::MAX).min(BLOCK_BYTES);
        file.write_all(block.get(..length).unwrap_or_default()).with_context(|| context("write"))?;
        progress.file_bytes += u64::try_from(length)?;
    }
    // Clean pages are what the kernel may drop; dirty ones it must write first.
    file.sync_data().with_context(|| context("write"))?;
    clock.report("cache", State::Ready, progress)?;
    let mut second = EverySecond::after(clock.elapsed());
    while clock.wait_until(second.next()) {
        second = EverySecond::after(clock.elapsed());
        file.rewind().with_context(|| context("read"))?;
        while !clock.is_over() && file.read(&mut block).with_context(|| context("read"))? > 0 {}
        progress.reads += 1;
        clock.report("cache", State::Running, progress)?;
    }
    clock.report("cache", State::Done, progress)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn file_has_exactly_the_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let clock = Clock::start(Some(Duration::from_millis(300))).unwrap();
        cache(&clock, &path, 1_500_000).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 1_500_000);
    }
}
