//! `enforcer rank`: prints the eviction order of these pods, from statistics in a file.

mod document;
mod stats;

use std::{
    io::{self, Write as _},
    path::PathBuf,
};

use self::{
    document::{Document, table},
    stats::Stats,
};
use super::{Context, Failure, format, plan, render};
use crate::{
    policy::threshold::Signal,
    source::{self, Gathered, Given},
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A manifest, a folder of them, or - for standard input; may be repeated
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR|-", required = true, value_parser = plan::given)]
    given: Vec<Given>,
    /// What the pods use, as JSON: {"pods": {"default/web": {"workingSetBytes":
    /// 1048576, "processCount": 7}}}; - for standard input
    #[arg(long, value_name = "FILE")]
    stats: PathBuf,
    /// The signal that is short: memory.available or pid.available
    #[arg(long, value_name = "SIGNAL", default_value = "memory.available", value_parser = signal)]
    signal: Signal,
}

fn signal(text: &str) -> Result<Signal, String> {
    match Signal::from_name(text) {
        Some(signal @ (Signal::MemoryAvailable | Signal::PidAvailable)) => Ok(signal),
        Some(_) | None => Err(String::from("it must be memory.available or pid.available")),
    }
}

pub(super) fn rank(context: &Context, args: &Args) -> Result<(), Failure> {
    let stats = Stats::read(&args.stats)?;
    let Gathered { pods, errors } = source::gather(&args.given);
    for name in stats.unknown(&pods) {
        // If this fails, there is nowhere to report it.
        drop(writeln!(
            io::stderr(),
            "{}: no pod {} is given: ignored",
            args.stats.display(),
            render::escape(name)
        ));
    }
    let document =
        Document::new(args.signal, &pods, &stats, context.config.settings.eviction_priority_ceiling);
    format::print(context.output, &document, || table(&document, context.columns))?;
    // The document has no place for errors.
    for wrong in errors.iter().filter(|_| context.output != format::Output::Table) {
        drop(writeln!(io::stderr(), "{}", render::escape(&wrong.message)));
    }
    plan::reported(context, &errors, "ranked")
}
