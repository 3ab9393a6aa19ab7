//! What is measured as root on a kernel of one's own: in a guest of `cargo xtask bench`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "printing figures is what a benchmark is for")]

mod agreement;
mod capture;
mod drift;
mod evict;
mod idle;
mod memory;
mod record;
mod resident;
mod response;
mod sense;
mod sources;

use std::{fmt, process::ExitCode};

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use enforcer_tests::figures::verdict;

/// Measures, prints, and judges by its bars.
#[derive(Debug, Parser)]
enum Bench {
    /// The share of random pod sets in which the kernel's OOM killer picks the ranking's first
    Agreement(agreement::Args),
    /// Print records of OOM kills, as tests on the host read them
    Capture,
    /// From a foreign write to the planned value again
    Drift(drift::Args),
    /// Eviction side by side with others: who dies, how soon, and at whose cost
    #[command(subcommand)]
    Evict(evict::Verb),
    /// What a converged daemon writes, and what processor time it takes
    Idle(idle::Args),
    /// What the daemon holds in memory with many pods, and what it is
    Memory(memory::Args),
    /// Print what a Kubernetes node's runtime, kubelet and API server answer, as tests on the host serve it
    Record(record::Args),
    /// What a node that fills meets: the warning, the hook, the kill, and a pod that comes back at once
    Response(response::Args),
    /// How soon, how completely and at what cost the kernel's facts are sensed
    Sense(sense::Args),
}

fn main() -> ExitCode {
    // As the program that it measures does, it starts itself to speak to others.
    if std::env::args().nth(1).as_deref() == Some(enforcer::specs::VERB) {
        return enforcer::specs::main();
    }
    verdict(match Bench::parse() {
        Bench::Agreement(args) => agreement::bench(&args),
        Bench::Capture => capture::capture().map(|()| true),
        Bench::Drift(args) => drift::bench(&args),
        Bench::Evict(verb) => evict::bench(verb),
        Bench::Idle(args) => idle::bench(&args),
        Bench::Memory(args) => memory::bench(&args),
        Bench::Record(args) => record::record(&args).map(|()| true),
        Bench::Response(args) => response::bench(&args),
        Bench::Sense(args) => sense::bench(&args),
    })
}

/// Measures each of these parts, or all if none is named. Returns whether every one is within its bar; one that is not
/// does not keep the others from being measured.
fn each_part<P: Copy + fmt::Debug + ValueEnum + 'static>(
    named: &[P],
    measure: impl Fn(P) -> anyhow::Result<bool>,
) -> anyhow::Result<bool> {
    let parts = if named.is_empty() { P::value_variants() } else { named };
    let mut all_hold = true;
    for (number, part) in parts.iter().enumerate() {
        if number > 0 {
            println!();
        }
        all_hold &= measure(*part).with_context(|| format!("{part:?}"))?;
    }
    Ok(all_hold)
}
