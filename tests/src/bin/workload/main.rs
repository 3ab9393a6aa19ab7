//! Loads that scenarios put on a guest: memory, page cache, processes, processors.
//!
//! Each prints JSON lines on standard output: one with `"state":"ready"` once the load is there, one a second
//! with `"state":"running"`, and one with `"state":"done"` at the end, which SIGTERM, SIGINT or `--for` bring
//! about. Times are in microseconds or milliseconds, sizes in bytes, as the keys say.
mod cache;
mod fork;
mod memory;
mod report;
mod spin;
mod units;

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{Parser, Subcommand};

use crate::{
    report::Clock,
    units::{parse_duration, parse_size},
};

/// Puts a load on this machine until it is told to end.
#[derive(Debug, Parser)]
#[command(name = "workload")]
struct Cli {
    /// End by itself after this time
    #[arg(long = "for", global = true, value_name = "TIME", value_parser = parse_duration)]
    limit: Option<Duration>,
    #[command(subcommand)]
    load: Load,
}

/// The loads.
#[derive(Debug, Subcommand)]
enum Load {
    /// Keep memory in use and report the longest stall
    Hold {
        #[arg(long, value_parser = parse_size)]
        size: u64,
        /// How often some of it is written
        #[arg(long, default_value = "2ms", value_parser = parse_duration)]
        touch_every: Duration,
    },
    /// Take more and more memory, at a steady rate
    Ramp {
        /// A second
        #[arg(long, value_parser = parse_size)]
        rate: u64,
        /// Where to stop; then it is kept
        #[arg(long, value_parser = parse_size)]
        to: Option<u64>,
    },
    /// Take memory as fast as the kernel gives it, and keep it
    Spike {
        #[arg(long, value_parser = parse_size)]
        size: u64,
    },
    /// Fill the page cache: write a file and read it again, once a second
    Cache {
        #[arg(long)]
        file: PathBuf,
        #[arg(long, value_parser = parse_size)]
        size: u64,
    },
    /// Start processes that wait
    Fork {
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
        count: u32,
    },
    /// Keep processors busy and count the work done
    Spin {
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
        threads: u32,
    },
    /// What `fork` starts: wait for the end, and no longer than the parent lives
    #[command(hide = true)]
    Wait,
}

fn main() -> ExitCode {
    let Cli { limit, load } = Cli::parse();
    let run = || {
        // Signals are caught by those who report an end.
        let clock = || Clock::start(limit);
        match load {
            Load::Hold { size, touch_every } => memory::hold(&clock()?, size, touch_every),
            Load::Ramp { rate, to } => memory::ramp(&clock()?, rate, to),
            Load::Spike { size } => memory::spike(&clock()?, size),
            Load::Cache { file, size } => cache::cache(&clock()?, &file, size),
            Load::Fork { count } => fork::fork(&clock()?, count),
            Load::Spin { threads } => spin::spin(&clock()?, threads),
            Load::Wait => fork::wait(),
        }
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be closed as well; the status says it then.
            drop(writeln!(io::stderr(), "workload: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
