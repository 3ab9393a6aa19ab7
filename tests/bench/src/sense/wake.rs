//! From the kernel's own moment of a shortage to the daemon's eviction thread running for it.
//!
//! Both ends are the kernel's: the onset is where it counts a breach or begins to reclaim, and the end is where the
//! scheduler runs the thread, woken by that very task. Nothing is asked of the daemon.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use enforcer_tests::{
    cgroup::Cgroup,
    daemon::Daemon,
    figures::{float, rank},
    load::Load,
    reflex,
    trace::{Seen, Trace, Watched},
};

/// The longest that the 99th percentile may be.
const BAR_MS: f64 = 5.0;
/// The kernel's function by which a cgroup's event file notifies its readers, called where an event is counted.
const NOTIFY: &str = "cgroup_file_notify";
const LOAD: &str = "workload";
/// The kernel's thread behind a PSI trigger.
const PSI: &str = "psimon";
/// Emulated guests are slow.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A trigger fires at most once in a window, which is as long as this.
const WINDOW: Duration = Duration::from_millis(500);
/// Of how many rounds one fills the whole node, which takes seconds.
const NODE_SHARE: u32 = 5;

/// Milliseconds of each way, one a round.
#[derive(Debug, Default)]
struct Times {
    events: Vec<f64>,
    trigger: Vec<f64>,
    kswapd: Vec<f64>,
    direct_reclaim: Vec<f64>,
}

/// Prints the figures; whether the bar holds.
pub(crate) fn measure(rounds: u32) -> anyhow::Result<bool> {
    let place = Path::new("/tmp/bench-wake");
    if place.exists() {
        fs::remove_dir_all(place)?;
    }
    // It senses and decides nothing: the loads belong to no pod.
    let daemon = Daemon::start(place, "mode: enforce\nevictionHard: {memory.available: 1Mi}")?;
    let mut times = Times::default();
    for _ in 0..rounds {
        breach(&mut times)?;
    }
    for _ in 0..rounds.div_ceil(NODE_SHARE) {
        fill(&mut times)?;
    }
    daemon.stop()?;

    println!("wake: from the kernel's onset to being awake");
    println!("{:<52} {:>6} {:>10} {:>10} {:>10}", "", "times", "median ms", "p99 ms", "max ms");
    let high = print("memory.high breached -> reflex, by memory.events", times.events);
    let _slower = print("memory.high breached -> reflex, by PSI of 500 ms", times.trigger);
    let _kswapd = print("kswapd first woken -> reflex, whoever woke it", times.kswapd);
    let _direct = print("direct reclaim first begun -> reflex", times.direct_reclaim);
    let holds = high <= BAR_MS;
    println!(
        "bar: memory.high breached -> reflex p99 <= {BAR_MS} ms: {}",
        if holds { "ok" } else { "TOO SLOW" }
    );
    Ok(holds)
}

fn print(what: &str, mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    let p99_ms = rank(&times, 99);
    let (median_ms, max_ms) = (rank(&times, 50), rank(&times, 100));
    if times.is_empty() {
        println!("{what:<52} {:>6} {:>10}", 0, "not seen");
        return f64::INFINITY;
    }
    println!("{what:<52} {:>6} {median_ms:>10.2} {p99_ms:>10.2} {max_ms:>10.2}", times.len());
    p99_ms
}

/// One breach of a limit below kubepods.
fn breach(times: &mut Times) -> anyhow::Result<()> {
    let cgroup = Cgroup::create("kubepods/bench-wake")?;
    cgroup.write("memory.high", "16M")?;
    // The daemon's triggers are to be ready again, and the file's notices due at once.
    thread::sleep(WINDOW * 2);
    let [waking, switch] = reflex::WATCHED;
    let trace = Trace::record(&[Watched::Function(NOTIFY), waking, switch])?;
    let mut load = Load::start(&cgroup, &["spike", "--size", "24Mi"])?;
    // The trigger is the last to tell.
    let begin = Instant::now();
    while reflex::ran_by(&trace.seen()?, PSI, 0).is_none() {
        ensure!(begin.elapsed() < TIMEOUT, "the trigger did not fire within {TIMEOUT:?}");
        thread::sleep(WINDOW / 2);
    }
    // It sleeps at its limit, and would for minutes.
    cgroup.kill()?;
    load.wait()?;
    ensure!(cgroup.number("memory.events", "high")? > 0, "the limit was not breached");
    let seen = trace.seen()?;
    // What is counted under a lock, with interrupts off, is that the cgroup holds processes.
    let is_breach = |seen: &&Seen| seen.what == NOTIFY && seen.comm == LOAD && !seen.interrupts_off;
    let onset_us = seen.iter().find(is_breach).context("the kernel counted no breach")?.time_us;
    for (waker, times) in [(LOAD, &mut times.events), (PSI, &mut times.trigger)] {
        let ran_us = reflex::ran_by(&seen, waker, onset_us);
        times.push(since_ms(onset_us, ran_us.with_context(|| format!("{waker} did not wake the reflex"))?));
    }
    Ok(())
}

/// Fills the node until the kernel kills the load.
fn fill(times: &mut Times) -> anyhow::Result<()> {
    const WOKEN: &str = "mm_vmscan_kswapd_wake";
    const BEGUN: &str = "mm_vmscan_direct_reclaim_begin";
    let cgroup = Cgroup::create("bench-fill")?;
    let [waking, switch] = reflex::WATCHED;
    let trace = Trace::record(&[
        Watched::Event("vmscan/mm_vmscan_kswapd_wake", ""),
        Watched::Event("vmscan/mm_vmscan_direct_reclaim_begin", ""),
        waking,
        switch,
    ])?;
    let mut load = Load::start(&cgroup, &["spike", "--size", "1Ti"])?;
    fs::write(format!("/proc/{}/oom_score_adj", load.pid()), "1000")?;
    load.wait()?;
    let seen = trace.seen()?;
    for (onset, times) in [(WOKEN, &mut times.kswapd), (BEGUN, &mut times.direct_reclaim)] {
        // The first one: later ones find it awake, and looking all the time.
        let onset = seen.iter().find(|seen| seen.what == onset);
        // kswapd may be awake from before, and the trace keeps its end only.
        let Some(onset_us) = onset.map(|seen| seen.time_us) else { continue };
        let ran_us = reflex::ran(&seen, onset_us).context("the reflex never ran again")?;
        times.push(since_ms(onset_us, ran_us));
    }
    Ok(())
}

/// Below zero if it came before.
fn since_ms(onset_us: u64, woken_us: u64) -> f64 {
    (float(woken_us) - float(onset_us)) / 1e3
}
