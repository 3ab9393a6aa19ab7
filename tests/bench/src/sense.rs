//! How soon, how completely and at what cost the kernel's facts are sensed, one part a question.

mod allocator;
mod ooms;
mod overhead;
mod snapshot;
mod wake;

use clap::ValueEnum;

/// Measures sensing, each part against its bar.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to measure; everything by default
    #[arg(value_enum, value_name = "PART")]
    parts: Vec<Part>,
    /// How often what is repeated is repeated
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How many kills there are in each burst of the part `ooms`
    #[arg(long, value_delimiter = ',', default_values_t = [40, 400, 4_000])]
    bursts: Vec<usize>,
    /// How many while the daemon is held, of which the ring cannot hold all
    #[arg(long, default_value_t = 3_000)]
    held: usize,
}

/// A question.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Part {
    /// From the kernel's OOM kills to the events that report them, alone and thousands at once
    Ooms,
    /// What the programs cost those who are traced
    Overhead,
    /// From the kernel's onset of a shortage to the eviction thread running for it
    Wake,
    /// A snapshot of 500 pods: time, system calls, allocations, beside a plain loop over the same files
    Snapshot,
}

impl Part {
    /// Measures it; whether it is within its bar.
    fn measure(self, args: &Args) -> anyhow::Result<bool> {
        match self {
            Self::Overhead => overhead::measure(),
            Self::Ooms => ooms::measure(args.rounds, &args.bursts, args.held),
            Self::Wake => wake::measure(args.rounds),
            Self::Snapshot => snapshot::measure(args.rounds),
        }
    }
}

/// Whether every part is within its bar; one that is not does not keep the others from being measured.
pub(crate) fn bench(args: &Args) -> anyhow::Result<bool> {
    crate::each_part(&args.parts, |part| part.measure(args))
}
