//! Busy processors.
use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use anyhow::{Context as _, anyhow};
use serde::Serialize;

use crate::report::{Clock, EverySecond, State};

/// Steps in one unit of work: some tens of microseconds, so that counting costs nothing.
const STEPS_A_UNIT: u32 = 20_000;

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Progress {
    /// Units of work done by all threads.
    work: u64,
    /// The same since the last report.
    recent_work: u64,
}

/// Keeps threads busy and counts what they do.
pub(crate) fn spin(clock: &Clock, threads: u32) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let work = Arc::new(AtomicU64::new(0));
    let mut running = Vec::new();
    for number in 0..threads {
        let (stop, work) = (Arc::clone(&stop), Arc::clone(&work));
        let busy = move || {
            let mut value = u64::from(number) + 1;
            while !stop.load(Ordering::Relaxed) {
                value = black_box(unit(value));
                work.fetch_add(1, Ordering::Relaxed);
            }
        };
        running.push(thread::Builder::new().spawn(busy).context("cannot start a thread")?);
    }
    let mut progress = Progress::default();
    clock.report("spin", State::Ready, &progress)?;
    let mut second = EverySecond::after(clock.elapsed());
    while clock.wait_until(second.next()) {
        second = EverySecond::after(clock.elapsed());
        progress = since(&progress, work.load(Ordering::Relaxed));
        clock.report("spin", State::Running, &progress)?;
    }
    stop.store(true, Ordering::Relaxed);
    for thread in running {
        thread.join().map_err(|_panic| anyhow!("a thread panicked"))?;
    }
    clock.report("spin", State::Done, since(&progress, work.load(Ordering::Relaxed)))
}

fn since(before: &Progress, work: u64) -> Progress {
    Progress { work, recent_work: work - before.work }
}

/// One unit: a generator's steps, each of which needs the one before.
fn unit(mut value: u64) -> u64 {
    for _ in 0..STEPS_A_UNIT {
        value = black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
    value
}
