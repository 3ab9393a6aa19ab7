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

/// The mean processor time of the process for a list of so many pods, the first one left out, in nanoseconds.
pub(crate) fn reading_ns(pods: u32) -> anyhow::Result<u64> {
    let folder = tempfile::tempdir()?;
    let kubelet = Kubelet::serve(folder.path(), pods)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let specs = Specs::start().context("cannot start a thread")?;
    let list = |state| {
        let look = Look { state, is_of_concern: false };
        runtime.block_on(specs.next(kubelet.feed()?, Some(1), look, WAIT_MS)).context("the list is not read")
    };
    list(0)?;
    let process = helpers(std::process::id(), enforcer::specs::VERB);
    let process = *process.first().context("there is no specs process")?;
    thread::sleep(Duration::from_millis(WAIT_MS));
    let (before, lists_before) = (uses(process)?, kubelet.lists());
    for state in 1..=LISTS {
        list(state)?;
    }
    let lists = kubelet.lists() - lists_before;
    ensure!(lists == LISTS, "{lists} lists were read of {LISTS}");
    Ok((uses(process)? - before) / lists)
}
