//! Eviction side by side: enforcer, earlyoom, nohang, oomd, systemd-oomd, the bare kernel and a floor, in turn, in the
//! same guest, on the same work.
//!
//! No contender is asked what it did. A locked sampler of the real-time class sees when a threshold was crossed, and the
//! kernel's tracepoints who was signalled and died, all on one clock (`enforcer_tests::contest`). `run` prints a line of
//! JSON for each run; `judge` makes the table of such lines and holds our own figures to their bars.

mod contender;
mod cost;
mod course;
mod floor;
mod holder;
mod house;
mod scene;
mod tree;
mod workload;

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail, ensure};
use clap::{Subcommand, ValueEnum as _};
use enforcer_tests::{
    contest::{bars, outcome::Outcome, series, table},
    sampler::lock_memory,
};

use self::{
    contender::{Become, Contender},
    floor::Monitor,
    workload::Workload,
};

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run contenders at workloads, and print a line of JSON for each run
    Run {
        /// How often each contender runs at each workload
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
        runs: u16,
        /// How often a run is tried whose decisive moment the sampler did not see, as on a busy machine
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
        tries: u16,
        /// Only this one; may be repeated; all by default
        #[arg(long, value_enum)]
        contender: Vec<Contender>,
        /// Only this one; may be repeated; all by default
        #[arg(long, value_enum)]
        workload: Vec<Workload>,
        /// A kernel setting for all runs, such as `vm.percpu_pagelist_high_fraction=1000`; may be repeated
        #[arg(long, value_name = "NAME=VALUE")]
        sysctl: Vec<String>,
    },
    /// Print the table of such lines, and judge them
    Judge {
        /// The file of them
        file: PathBuf,
    },
    /// What the contender of that name is: kill cgroups, one at each crossing
    #[command(hide = true)]
    Floor(Monitor),
    /// Become a contender
    #[command(hide = true)]
    As(Become),
}

/// Whether every bar that can be judged holds.
pub(crate) fn bench(verb: Verb) -> anyhow::Result<bool> {
    match verb {
        Verb::Run { runs, tries, contender, workload, sysctl } => {
            for setting in &sysctl {
                set(setting)?;
            }
            run(runs, tries, &contender, &workload).map(|()| true)
        }
        Verb::Judge { file } => judge(&file),
        Verb::Floor(monitor) => monitor.watch().map(|()| true),
        Verb::As(program) => program.carry_out().map(|()| true),
    }
}

/// Writes a setting below `/proc/sys`, as `sysctl -w` does.
fn set(setting: &str) -> anyhow::Result<()> {
    let (name, value) = setting.split_once('=').with_context(|| format!("{setting} is not NAME=VALUE"))?;
    let file = Path::new("/proc/sys").join(name.replace('.', "/"));
    fs::write(&file, value).with_context(|| format!("cannot write {value} to {}", file.display()))
}

fn run(runs: u16, tries: u16, contenders: &[Contender], workloads: &[Workload]) -> anyhow::Result<()> {
    // Whoever looks for a victim must not find the bench.
    fs::write("/proc/self/oom_score_adj", "-1000").context("cannot protect the bench")?;
    lock_memory()?;
    let contenders = if contenders.is_empty() { Contender::value_variants() } else { contenders };
    let workloads = if workloads.is_empty() { Workload::value_variants() } else { workloads };
    for contender in contenders {
        contender.prepare().with_context(|| format!("cannot prepare {contender}"))?;
    }
    let mut failed = 0_usize;
    for run in 1..=usize::from(runs) {
        for workload in workloads {
            for turn in 0..contenders.len() {
                // Each comes first in turn, so that what changes with time changes for all.
                let Some(contender) = contenders.get((turn + run - 1) % contenders.len()) else { continue };
                match seen(*contender, *workload, run, tries) {
                    Ok(outcome) => emit(&outcome)?,
                    // A run that could not be measured is reported, and the others are measured.
                    Err(error) => {
                        failed += 1;
                        eprintln!("{run:>3} {workload:<12} {contender:<13} not measured: {error:#}");
                    }
                }
            }
        }
    }
    ensure!(failed == 0, "{failed} runs were not measured");
    Ok(())
}

/// A run that the sampler saw, or the last of so many tries.
fn seen(contender: Contender, workload: Workload, run: usize, tries: u16) -> anyhow::Result<Outcome> {
    for left in (0..tries).rev() {
        let outcome = course::run(contender, workload, run)?;
        if outcome.seen || left == 0 {
            return Ok(outcome);
        }
        eprintln!(
            "{run:>3} {workload:<12} {contender:<13} once more: nothing was seen for {:.0} ms when it mattered",
            outcome.uncertain_ms,
        );
    }
    bail!("no try was allowed")
}

fn emit(outcome: &Outcome) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(outcome)?);
    io::stdout().flush()?;
    let ms = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
    eprintln!(
        "{:>3} {:<12} {:<13} {} died {:<20} signal {:>8} dead {:>8} back {:>8} ms, stall {:>7.1} ms, kernel {}",
        outcome.run,
        outcome.workload,
        outcome.contender,
        match (outcome.right, outcome.seen) {
            (true, true) => "right",
            (true, false) => "right, but not seen:",
            (false, true) => "WRONG",
            (false, false) => "WRONG, but not seen:",
        },
        outcome.died.join(">"),
        ms(outcome.signal_ms),
        ms(outcome.dead_ms),
        ms(outcome.back_ms),
        outcome.stall_ms,
        outcome.kernel_kills,
    );
    Ok(())
}

fn judge(file: &Path) -> anyhow::Result<bool> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut outcomes: Vec<Outcome> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let outcome = serde_json::from_str(line)
            .with_context(|| format!("{}:{}: no figures of a run", file.display(), number + 1))?;
        outcomes.push(outcome);
    }
    let series = series::series(&outcomes);
    let bars = bars::bars(&series);
    print!("{}", table::table(&series, &bars));
    Ok(bars.iter().all(|bar| bar.verdict != bars::Verdict::Fails))
}
