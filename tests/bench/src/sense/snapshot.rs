//! A snapshot of 500 pods: time, system calls and allocations, beside a plain loop over the same files.
//!
//! System calls are counted by the kernel's own tracepoint, between two marks; allocations by the program's allocator.

use std::{
    fs::{self, File},
    hint::black_box,
    io::Read as _,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context as _, ensure};
use enforcer::{
    cgroup::CgroupDir,
    model::CgroupPath,
    sense::snapshot::{Guarded, Missing, NodeFiles, NodePaths, Snapshot, Snapshots},
};
use enforcer_tests::{
    cgroup::{Cgroup, ROOT},
    figures::rank,
    trace::{Trace, Watched},
};
use rustix::{
    process::{Resource, Rlimit, getppid, setrlimit},
    thread::gettid,
    time::{ClockId, clock_gettime},
};

use super::allocator;

const PODS: usize = 500;
/// The most that a snapshot may take of the plain loop's time.
const BAR: f64 = 0.5;
const PARENT: &str = "bench-snapshot";
/// What each pod is charged for.
const CHARGE_BYTES: usize = 64 << 10;
/// Five for each pod, and some.
const OPEN_FILES: u64 = 4_096;
/// More than any pod here uses.
const LARGE_REQUEST_BYTES: u64 = 1 << 30;
/// A call that no other code makes, as the tracepoint shows it.
const MARK: &str = "NR 110 ";

/// Prints the figures; whether the bars hold.
pub(crate) fn measure(rounds: u32) -> anyhow::Result<bool> {
    let files = Path::new("/tmp/bench-snapshot");
    fs::create_dir_all(files)?;
    let pods = pods(files)?;
    // As the daemon does for itself; a shell allows 1,024.
    setrlimit(Resource::Nofile, Rlimit { current: Some(OPEN_FILES), maximum: Some(OPEN_FILES) })?;
    let mut snapshots = Snapshots::new(NodeFiles::open(&NodePaths::default())?);
    snapshots.guard(guarded()?);
    // The kernel makes its own buffer for a file when it is first read.
    let read = paths(snapshots.take(now_ns()?))?;
    let mut buffer = vec![0; 64 << 10];

    let (mut ours_us, mut plain_us) = (Vec::new(), Vec::new());
    let mut allocations = 0;
    for _ in 0..rounds {
        let begin = Instant::now();
        let (taken, counted) =
            allocator::count(|| now_ns().map(|now_ns| snapshots.take(now_ns).cgroups.len()));
        ours_us.push(begin.elapsed().as_secs_f64() * 1e6);
        ensure!(taken? == PODS, "a pod is missing");
        allocations += counted;
        let begin = Instant::now();
        plain(&read, &mut buffer)?;
        plain_us.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    let ours_calls = calls(|| {
        now_ns().map(|now_ns| {
            black_box(snapshots.take(now_ns));
        })
    })?;
    let plain_calls = calls(|| plain(&read, &mut buffer))?;
    check(snapshots.latest())?;
    drop(pods);
    fs::remove_dir_all(files)?;

    println!("snapshot: {PODS} pods, {} files, {rounds} of each in turn", read.len());
    println!("{:<44} {:>12} {:>12} {:>14}", "", "median µs", "p99 µs", "system calls");
    let ours = print("snapshot", ours_us, ours_calls);
    let plain = print("plain loop: open, read, close", plain_us, plain_calls);
    println!("allocations in {rounds} snapshots: {allocations}");
    let ratio = ours / plain;
    let holds = ratio <= BAR && allocations == 0;
    println!(
        "ratio of the medians: {ratio:.2} (bars: ratio <= {BAR}, allocations 0: {})",
        if holds { "ok" } else { "TOO MUCH" }
    );
    Ok(holds)
}

fn print(what: &str, mut times_us: Vec<f64>, calls: usize) -> f64 {
    times_us.sort_by(f64::total_cmp);
    let median_us = rank(&times_us, 50);
    println!("{what:<44} {median_us:>12.0} {:>12.0} {calls:>14}", rank(&times_us, 99));
    median_us
}

fn name(number: usize) -> String {
    format!("{PARENT}/pod{number}")
}

/// Every pod is charged for a file in memory, written by this process from within its cgroup.
fn pods(files: &Path) -> anyhow::Result<Cgroup> {
    let parent = Cgroup::create(PARENT)?;
    let content = vec![0xa5; CHARGE_BYTES];
    for number in 0..PODS {
        // The parent holds them all, and removes them.
        let pod = parent.path().join(format!("pod{number}"));
        if number == 0 {
            parent.write("cgroup.subtree_control", "+memory")?;
        }
        fs::create_dir(&pod).with_context(|| pod.display().to_string())?;
        fs::write(pod.join("cgroup.procs"), "0")?;
        fs::write(files.join(number.to_string()), &content)?;
    }
    fs::write(format!("{ROOT}/cgroup.procs"), "0")?;
    Ok(parent)
}

/// Every second one uses more than it asked for.
fn guarded() -> anyhow::Result<Vec<Guarded>> {
    let root = CgroupDir::mount(Path::new(ROOT))?;
    let open = |number| {
        let dir = root.open(&CgroupPath::parse(&name(number))?)?;
        let request_bytes = if number % 2 == 0 { 0 } else { LARGE_REQUEST_BYTES };
        anyhow::Ok(Guarded::open(&dir, request_bytes)?)
    };
    (0..PODS).map(open).collect()
}

/// The files that a snapshot reads, by what it holds.
fn paths(snapshot: &Snapshot) -> anyhow::Result<Vec<PathBuf>> {
    let NodePaths { meminfo, pressure, zoneinfo } = NodePaths::default();
    let mut paths = vec![meminfo, pressure, zoneinfo];
    for (number, view) in snapshot.cgroups.iter().enumerate() {
        let folder = Path::new(ROOT).join(name(number));
        let read = [
            ("memory.current", view.current_bytes.is_ok()),
            ("memory.stat", view.split.is_ok()),
            ("memory.swap.current", view.swap_bytes.is_ok()),
            ("memory.events", view.events.is_ok()),
            ("memory.pressure", view.pressure.is_ok()),
        ];
        paths.extend(read.iter().filter(|(_, read)| *read).map(|(file, _)| folder.join(file)));
    }
    ensure!(paths.len() > 3 * PODS, "only {} files were read", paths.len());
    Ok(paths)
}

/// What anybody would write; what was read is looked at no further.
fn plain(paths: &[PathBuf], buffer: &mut [u8]) -> anyhow::Result<()> {
    for path in paths {
        let count = File::open(path)?.read(buffer)?;
        black_box(buffer.get(..count));
    }
    Ok(())
}

/// How many system calls that made, by the kernel's count.
fn calls(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<usize> {
    let filter = format!("common_pid == {}", gettid().as_raw_nonzero());
    let trace = Trace::record(&[Watched::Event("raw_syscalls/sys_enter", &filter)])?;
    let _mark = getppid();
    work()?;
    let _mark = getppid();
    let seen = trace.seen()?;
    let marks: Vec<usize> = seen
        .iter()
        .enumerate()
        .filter(|(_, seen)| seen.fields.starts_with(MARK))
        .map(|(place, _)| place)
        .collect();
    let [begin, end] = marks[..] else { anyhow::bail!("{} marks in {} calls", marks.len(), seen.len()) };
    Ok(end - begin - 1)
}

/// The snapshot holds what the files say: it would be no use to be fast and wrong.
fn check(snapshot: &Snapshot) -> anyhow::Result<()> {
    for (number, view) in snapshot.cgroups.iter().enumerate() {
        let text = fs::read_to_string(Path::new(ROOT).join(name(number)).join("memory.current"))?;
        let bytes: u64 = text.trim_end().parse()?;
        ensure!(view.current_bytes == Ok(bytes), "pod {number}: {:?}, but {bytes}", view.current_bytes);
        let expected = if number % 2 == 0 { view.split.is_ok() } else { view.split == Err(Missing::Unread) };
        ensure!(expected, "pod {number}: {:?}", view.split);
    }
    Ok(())
}

fn now_ns() -> anyhow::Result<u64> {
    let now = clock_gettime(ClockId::Boottime);
    Ok(u64::try_from(now.tv_sec)? * 1_000_000_000 + u64::try_from(now.tv_nsec)?)
}
