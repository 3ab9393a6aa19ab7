//! What the daemon costs while others do something without end, and how soon it looks after a storm of new processes.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use enforcer_tests::{
    cgroup::Cgroup,
    daemon::Daemon,
    figures::{float, rank},
    flood::Flood,
    plan::{Planned, folder, pids_below},
    process::Process,
};

use super::{print_threads, threads};

/// What is done again and again.
type Work = Box<dyn FnMut() + Send>;

/// What the daemon may use of one processor while a flood lasts.
const BAR_PERCENT: f64 = 2.0;
/// How long a flood goes on before it is measured.
const BEGINNING: Duration = Duration::from_secs(5);
/// That of a pod without requests and limits.
const BEST_EFFORT_SCORE: i64 = 1_000;
/// How many processes a storm has.
const STORM: u32 = 300;
/// How often the storm's scores are looked at, and for how long.
const LOOK: Duration = Duration::from_millis(2);
const STORM_PATIENCE: Duration = Duration::from_mins(1);

/// Measures each flood for so long. Whether the daemon stays within its bar, its processor time divided by `factor`.
pub(super) fn measure(
    (own, daemon): (&Cgroup, &Daemon),
    planned: &Planned,
    duration: Duration,
    factor: Option<f64>,
) -> anyhow::Result<bool> {
    let app = folder(planned.scores.keys().next().context("no container")?);
    let process = *pids_below(&app).first().context("no process in the first container")?;
    let (limit, score, inner) =
        (app.join("cpu.weight"), PathBuf::from(format!("/proc/{process}/oom_score_adj")), app.join("inner"));
    // Each of the cgroup's own files that a plan names is as good as another.
    let write = |file: PathBuf, value: &'static str| {
        move || {
            // The daemon may have ended meanwhile, which its figures show.
            drop(fs::write(&file, value));
        }
    };
    let cgroups = move || {
        drop(fs::create_dir(&inner));
        drop(fs::remove_dir(&inner));
    };
    let floods: [(&str, Work); 3] = [
        ("writes to one kept file", Box::new(write(limit, "77"))),
        ("writes to one score", Box::new(write(score, "1"))),
        ("cgroups made and removed in a container", Box::new(cgroups)),
    ];
    let mut is_within = true;
    println!("while others do something without end, for {} s each", duration.as_secs());
    for (name, step) in floods {
        let flood = Flood::start(step)?;
        thread::sleep(BEGINNING);
        let before = threads(daemon.pid())?;
        let (cpu_us, done) = (used_us(own)?, flood.done());
        thread::sleep(duration);
        let (cpu_us, done) = (used_us(own)? - cpu_us, flood.done() - done);
        let after = threads(daemon.pid())?;
        drop(flood);
        ensure!(done > 0, "{name}: nothing was done");
        let percent = float(cpu_us) / 1e4 / duration.as_secs_f64();
        let (scaled, verdict) = match factor {
            Some(factor) if percent / factor > BAR_PERCENT => (percent / factor, "TOO MUCH"),
            Some(factor) => (percent / factor, "ok"),
            None => (percent, "not judged"),
        };
        is_within &= verdict != "TOO MUCH";
        println!(
            "  {name:<42} {:>9.0} a second: {percent:>6.2} % of one processor here, {scaled:>5.2} % (bar {BAR_PERCENT} %: {verdict})",
            float(done) / duration.as_secs_f64()
        );
        print_threads(&before, &after);
    }
    planned.wait_until_held()?;
    Ok(is_within)
}

fn used_us(own: &Cgroup) -> anyhow::Result<u64> {
    own.number("cpu.stat", "usage_usec")
}

/// Prints how long processes of a storm have a wrong score: those that come into a container at once, each by itself.
pub(super) fn storm(planned: &Planned) -> anyhow::Result<()> {
    // Those with a limit hold fewer.
    let best_effort = planned.scores.iter().rfind(|(_, score)| **score == BEST_EFFORT_SCORE);
    let (path, score) = best_effort.context("no BestEffort container")?;
    let (app, score) = (folder(path), *score);
    let script = format!("echo 0 > {}/cgroup.procs && exec sleep 100000", app.display());
    let begin = Instant::now();
    let starting = thread::spawn(move || {
        let start = |_| {
            let mut command = Command::new("/bin/sh");
            let command = command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null());
            Ok(Process::new(command.spawn().context("cannot start sh")?))
        };
        (0..STORM).map(start).collect::<anyhow::Result<Vec<_>>>()
    });
    let (mut wrong, mut ages, mut right) = (BTreeMap::new(), Vec::new(), 0);
    while right < STORM {
        ensure!(begin.elapsed() < STORM_PATIENCE, "{right} of {STORM} processes have their score");
        right = 0;
        for pid in pids_below(&app) {
            match score_of(pid) {
                Some(found) if found == score => {
                    right += 1;
                    ages.extend(wrong.remove(&pid).map(|since: Instant| since.elapsed().as_secs_f64() * 1e3));
                }
                Some(_) => drop(wrong.entry(pid).or_insert_with(Instant::now)),
                None => drop(wrong.remove(&pid)),
            }
        }
        thread::sleep(LOOK);
    }
    let processes = starting.join().map_err(|_panic| anyhow::anyhow!("the storm panicked"))??;
    ages.sort_by(f64::total_cmp);
    println!(
        "{STORM} processes that come into a container at once: a wrong score was seen of {}",
        ages.len()
    );
    if !ages.is_empty() {
        println!(
            "  age of a wrong score, ms: median {:.1}, p99 {:.1}, max {:.1}",
            rank(&ages, 50),
            rank(&ages, 99),
            rank(&ages, 100)
        );
    }
    drop(processes);
    Ok(())
}

fn score_of(pid: u32) -> Option<i64> {
    fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("oom_score_adj"))
        .ok()?
        .trim()
        .parse()
        .ok()
}
