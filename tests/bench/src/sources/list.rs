//! What one list of a kubelet's HTTPS server costs the process that reads it. It is measured where nothing is emulated: a
//! processor deciphers with instructions of its own, which no loop of ours stands for.

use std::{thread, time::Duration};

use anyhow::{Context as _, ensure};
use enforcer::specs::{Look, Specs};

use super::{beside::Kubelet, uses};
use crate::resident::helpers;

/// How many lists are read.
const LISTS: u64 = 8;
/// For each; the kubelet is left alone for half a second after one.
const WAIT_MS: u64 = 1_000;
const FIRST_WAIT_MS: u64 = 10_000;

/// The mean processor time of the process for a list of so many pods, the first one left out, in nanoseconds.
pub(crate) fn reading_ns(pods: u32) -> anyhow::Result<u64> {
    let folder = tempfile::tempdir()?;
    let kubelet = Kubelet::serve(folder.path(), pods)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let specs = Specs::start().context("cannot start a thread")?;
    let list = |after, state, wait_ms| -> anyhow::Result<Option<u64>> {
        let look = Look { state, is_of_concern: false };
        let update = runtime.block_on(specs.next(kubelet.feed()?, after, look, wait_ms))?;
        Ok(update.change.map(|(revision, _pods)| revision))
    };
    let revision = list(None, 0, FIRST_WAIT_MS)?;
    ensure!(revision.is_some(), "the list is not read");
    let process = helpers(std::process::id(), enforcer::specs::VERB);
    let process = *process.first().context("there is no specs process")?;
    thread::sleep(Duration::from_millis(WAIT_MS));
    let (before, lists_before) = (uses(process)?, kubelet.lists());
    for state in 1..=LISTS {
        // It has nothing new, which is known when the time is over.
        ensure!(list(revision, state, WAIT_MS)?.is_none(), "a list differs from the one before");
    }
    let lists = kubelet.lists() - lists_before;
    ensure!(lists == LISTS, "{lists} lists were read of {LISTS}");
    Ok((uses(process)? - before) / lists)
}
