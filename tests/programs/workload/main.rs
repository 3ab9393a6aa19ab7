//! Loads that scenarios put on a guest: memory, page cache, processes, processors.
//!
//! Each prints JSON lines on standard output: one with `"state":"ready"` once the load is there, one a second
//! with `"state":"running"`, and one with `"state":"done"` at the end, which SIGTERM, SIGINT or `--for` bring
//! about. Times are in microseconds or milliseconds, sizes in bytes, as the keys say.
mod bomb;
mod cache;
mod fork;
mod headless;
mod memory;
mod report;
mod sharer;
mod spin;
mod units;
mod usurper;

use std::{
    env,
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

/// Puts a load on this machine until SIGTERM or SIGINT.
#[derive(Debug, Parser)]
#[command(name = "workload")]
struct Cli {
    /// End by itself after this time
    #[arg(long = "for", global = true, value_name = "TIME", value_parser = parse_duration)]
    limit: Option<Duration>,
    /// Unused: so is a kubelet called, which this is a copy of by name
    #[arg(long, global = true, hide = true)]
    config: Option<PathBuf>,
    /// Unused, for the same reason
    #[arg(long, global = true, hide = true)]
    hostname_override: Option<String>,
    /// Unused, for the same reason
    #[arg(long, global = true, hide = true)]
    root_dir: Option<PathBuf>,
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
        /// In huge pages, as far as there are some
        #[arg(long)]
        huge: bool,
        /// How often some of it is written
        #[arg(long, default_value = "100ms", value_parser = parse_duration)]
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
        /// Make up for no pause of this machine: it takes no more at a time than it is to
        #[arg(long)]
        no_catch_up: bool,
        /// In huge pages, as far as there are some: it grows by one of them at a time
        #[arg(long)]
        huge: bool,
    },
    /// Take memory as fast as the kernel gives it, and keep it
    Spike {
        #[arg(long, value_parser = parse_size)]
        size: u64,
    },
    /// The same from a thread whose main thread has ended, so that the process has a zombie for a leader
    Headless {
        #[arg(long, value_parser = parse_size)]
        size: u64,
    },
    /// Take memory in small steps and start children that share it until they run their program, which is none
    Spawn {
        #[arg(long, value_parser = parse_size)]
        size: u64,
    },
    /// Take memory at real-time priority, and before that kill a process on the same processor: it cannot end meanwhile
    Usurp {
        #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(2..))]
        victim: i32,
        #[arg(long, value_parser = parse_size)]
        size: u64,
        /// The processor
        #[arg(long, default_value_t = 1)]
        cpu: usize,
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
    /// Start small processes each of which starts another, and so on
    Bomb(bomb::Fuse),
    /// Keep processors busy and count the work done
    Spin {
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
        threads: u32,
        /// Take this processor at real-time priority, so that no other task runs on it
        #[arg(long, value_name = "CPU")]
        seize: Option<usize>,
    },
    /// What `fork` starts: wait for the end, and no longer than the parent lives
    #[command(hide = true)]
    Wait,
    /// What `bomb` starts, and what that starts
    #[command(hide = true)]
    Link(bomb::Fuse),
}

fn main() -> ExitCode {
    // There are hundreds of them at a time, and to look through all that there is to say takes an emulated machine long.
    if env::args_os().skip(1).eq(["wait"]) {
        return status(fork::wait());
    }
    let Cli { limit, config: _, hostname_override: _, root_dir: _, load } = Cli::parse();
    let run = || {
        // Signals are caught by those who report an end.
        let clock = || Clock::start(limit);
        match load {
            Load::Hold { size, huge, touch_every } => memory::hold(&clock()?, size, huge, touch_every),
            Load::Ramp { rate, to, no_catch_up, huge } => {
                memory::ramp(&clock()?, rate, to, !no_catch_up, huge)
            }
            Load::Spike { size } => memory::spike(&clock()?, size),
            Load::Headless { size } => headless::spike(clock()?, size),
            Load::Spawn { size } => sharer::spawn(&clock()?, size),
            Load::Usurp { victim, size, cpu } => usurper::usurp(&clock()?, victim, cpu, size),
            Load::Cache { file, size } => cache::cache(&clock()?, &file, size),
            Load::Fork { count } => fork::fork(&clock()?, count),
            Load::Spin { threads, seize } => {
                let clock = clock()?;
                seize.map_or(Ok(()), usurper::seize)?;
                spin::spin(&clock, threads)
            }
            Load::Bomb(fuse) => bomb::bomb(&clock()?, fuse),
            Load::Link(fuse) => bomb::link(&clock()?, fuse),
            Load::Wait => fork::wait(),
        }
    };
    status(run())
}

fn status(ended: anyhow::Result<()>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

/// Says what failed.
fn complain(error: &anyhow::Error) {
    // Standard error may be closed as well; the status says it then.
    drop(writeln!(io::stderr(), "workload: {error:#}"));
}
