//! The course of one run: a house, its pods at rest, the work, and what the witnesses saw of it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    thread::{self, available_parallelism},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use enforcer_tests::{
    contest::{
        outcome::Outcome,
        reckon::{Facts, Pod, Reported, charge_cache_bytes, reckon},
        witness,
    },
    process::Process,
    sampler::{Sampler, now_us},
    trace::Trace,
};
use rustix::process::Signal;

use super::{
    contender::{Contender, Running},
    cost,
    holder::Holder,
    house::House,
    scene::{self, MIB, THRESHOLD_BYTES, TIMEOUT},
    workload::{Spec, WITNESS, Work, Workload},
};

/// How much may be left before the work begins, beyond the threshold: less would be no run-up. A processor keeps pages
/// that were freed on it to itself for a while; they are not counted as available, and taken first, so there may be more.
const LEAST_BYTES: u64 = THRESHOLD_BYTES + 40 * MIB;
const MOST_BYTES: u64 = THRESHOLD_BYTES + scene::RUN_UP_BYTES + 256 * MIB;

/// How long the work is watched after those have died who should: for whom else is killed then.
const AFTERWARDS: Duration = Duration::from_secs(2);

/// And after one has died who should not: there is nothing left to be right.
const AFTER_A_WRONG_ONE: Duration = Duration::from_secs(3);

/// How long work is watched that should kill no pod.
const CALM: Duration = Duration::from_secs(12);

/// Compressed memory as a block device, whose page cache is read and written without any file system.
const ZRAM: &str = "/sys/block/zram0";
const ZRAM_BYTES: u64 = 1_088 * MIB;

/// Runs one contender at one workload.
pub(crate) fn run(contender: Contender, workload: Workload, number: usize) -> anyhow::Result<Outcome> {
    let disk = (workload == Workload::Churn).then(Disk::make).transpose()?;
    let mut house = House::open(contender.is_daemon())?;
    let running = contender.start(&house)?;
    let work = workload.work(scene::ballast_bytes()?);
    house.admit(&work.pods)?;
    let mut running = contender.start_among(&house, &work, running)?;
    let mut held = hold(&house, &work)?;
    let available_bytes = rest(&mut running)?;
    let mut running = contender.start_at_rest(House::anon_bytes()?, available_bytes, running)?;
    rest(&mut running)?;
    let (seen, reported) = measure(&house, &work, &mut held, &mut running, (contender, workload, number))?;
    let facts = Facts {
        threshold_bytes: THRESHOLD_BYTES,
        pods: &seen.pods,
        expected: work.expected,
        any_order: work.any_order,
        charge_cache_bytes: charge_cache_bytes(u64::try_from(available_parallelism()?.get())?),
        began_us: seen.began_us,
        samples: &seen.samples,
        events: &seen.events,
    };
    let outcome = reckon(&facts, reported);
    drop(running);
    drop(held);
    house.close()?;
    drop(disk);
    // What a run has read and cached is not the next one's.
    fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop caches")?;
    Ok(outcome)
}

/// The pods that hold what they hold before the work begins, with their names.
type Held = Vec<(&'static str, Holder)>;

/// Starts the pods that do not grow, and waits until they hold what they hold.
fn hold(house: &House, work: &Work) -> anyhow::Result<Held> {
    let mut held = Vec::new();
    for spec in work.pods.iter().filter(|spec| !spec.grows) {
        let mut holder = Holder::follow(house.start(spec, Stdio::piped())?)?;
        holder.wait_until_ready().with_context(|| format!("the pod {}", spec.name))?;
        held.push((spec.name, holder));
    }
    Ok(held)
}

/// Waits until all is at rest, and answers what is available then.
fn rest(running: &mut Running) -> anyhow::Result<u64> {
    let start = Instant::now();
    loop {
        let available_bytes = scene::available_at_rest_bytes(&mut || running.check())?;
        if (LEAST_BYTES..=MOST_BYTES).contains(&available_bytes) {
            return Ok(available_bytes);
        }
        ensure!(
            start.elapsed() < TIMEOUT,
            "{} MiB are available before the work begins",
            available_bytes / MIB
        );
    }
}

/// What the witnesses saw.
struct Seen {
    pods: Vec<Pod>,
    began_us: u64,
    samples: Vec<enforcer_tests::sampler::Sample>,
    events: Vec<witness::Event>,
}

fn measure(
    house: &House,
    work: &Work,
    held: &mut Held,
    running: &mut Running,
    (contender, workload, number): (Contender, Workload, usize),
) -> anyhow::Result<(Seen, Reported)> {
    let folders = work.pods.iter().map(|spec| house.folder(spec.name)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut growing = Vec::new();
    for spec in work.pods.iter().filter(|spec| spec.grows) {
        growing.push((spec.name, Process::new(house.start(spec, Stdio::null())?)));
    }
    for (name, process) in &mut growing {
        process.wait_until_stopped(TIMEOUT).with_context(|| format!("the pod {name}"))?;
    }
    let kills_before = cost::kernel_kills()?;
    let cpu_before_ms = running.pid().map(cost::cpu_ms).transpose()?;
    let trace = Trace::record(&witness::WATCHED)?;
    let looking = Sampler::start(&folders)?;
    let (began_us, began) = (now_us()?, Instant::now());
    for (_, process) in &growing {
        process.signal(Signal::CONT)?;
    }
    watch(work, &folders)?;
    let ended = Instant::now();
    let samples = looking.stop()?;
    let events = witness::events(&trace.seen()?);
    drop(trace);
    let cpu_ms = running.pid().map(cost::cpu_ms).transpose()?;
    let resident_bytes = running.pid().map(cost::resident_bytes).transpose()?;
    running.check()?;
    let kernel_kills_counted = cost::kernel_kills()? - kills_before;
    let (_, witness) = held.iter_mut().find(|(name, _)| *name == WITNESS).context("no Guaranteed pod")?;
    witness.wait_for_a_report_after(ended)?;
    let stall_ms = witness.longest_stall_ms_since(began).unwrap_or_default();
    let root = |name: &str| {
        let held = held.iter().find(|(held, _)| *held == name).map(|(_, holder)| holder.id());
        held.or_else(|| growing.iter().find(|(grown, _)| *grown == name).map(|(_, process)| process.id()))
    };
    let pod = |spec: &Spec| -> anyhow::Result<Pod> {
        Ok(Pod {
            name: spec.name.to_owned(),
            cgroup: house.cgroup(spec.name)?.to_owned(),
            root: root(spec.name).with_context(|| format!("{} was not started", spec.name))?,
            grows: spec.grows,
        })
    };
    let pods = work.pods.iter().map(pod).collect::<anyhow::Result<Vec<_>>>()?;
    let journalled_us = house.journalled_us(&pods)?;
    let reported = Reported {
        contender: contender.to_string(),
        workload: workload.to_string(),
        run: number,
        kernel_kills_counted,
        journalled_us,
        stall_ms,
        cpu_ms: cpu_before_ms.zip(cpu_ms).map(|(before, after)| after - before),
        resident_bytes,
    };
    Ok((Seen { pods, began_us, samples, events }, reported))
}

/// Watches until it is over: those have died who should, one who should not, or the time has passed.
fn watch(work: &Work, folders: &[PathBuf]) -> anyhow::Result<()> {
    let start = Instant::now();
    let mut populated = vec![false; folders.len()];
    let mut over_at: Option<Instant> = None;
    loop {
        let (mut wrong, mut expected_dead) = (false, 0);
        for ((spec, folder), was) in work.pods.iter().zip(folders).zip(&mut populated) {
            let is = is_populated(folder);
            *was |= is;
            let dead = *was && !is;
            let expected = work.expected.contains(&spec.name);
            wrong |= dead && !expected;
            expected_dead += usize::from(dead && expected);
        }
        let now = Instant::now();
        if over_at.is_none() {
            over_at = if wrong {
                Some(now + AFTER_A_WRONG_ONE)
            } else if work.expected.is_empty() {
                Some(start + CALM)
            } else if expected_dead == work.expected.len() {
                Some(now + AFTERWARDS)
            } else {
                None
            };
        }
        if over_at.is_some_and(|over_at| now >= over_at) || start.elapsed() >= TIMEOUT {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Whether there are processes in a cgroup; in one that is gone there are none.
fn is_populated(folder: &Path) -> bool {
    fs::read_to_string(folder.join("cgroup.events")).is_ok_and(|text| text.starts_with("populated 1"))
}

/// A block device for as long as this lives.
#[derive(Debug)]
struct Disk(());

impl Disk {
    fn make() -> anyhow::Result<Self> {
        let disk = Self(());
        fs::write(format!("{ZRAM}/disksize"), ZRAM_BYTES.to_string())
            .context("cannot give zram0 its size")?;
        Ok(disk)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The next one that wants it says what is wrong.
        drop(fs::write(format!("{ZRAM}/reset"), "1"));
    }
}
