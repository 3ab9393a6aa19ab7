//! `enforcer rank`: prints the eviction order of these pods, from statistics in a file.

mod document;
mod stats;

use std::path::{Path, PathBuf};

use anyhow::anyhow;

use self::{
    document::{Document, table},
    stats::Stats,
};
use super::{Context, Failure, format, manifests, plan};
use crate::{
    policy::threshold::Signal,
    source::{Gathered, Given},
};

/// How many pods are named in a message.
const MOST_NAMES: usize = 5;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Manifests, a folder of them, or - for standard input; may be repeated
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR|-", required = true, value_parser = manifests::given)]
    given: Vec<Given>,
    #[command(flatten)]
    manifests: manifests::Args,
    /// What the pods use: what `kubectl top pods -A` prints, a `PodMetricsList` or the
    /// kubelet's /stats/summary as JSON, or {"pods": {"default/web":
    /// {"workingSetBytes": 1048576, "processCount": 7}}}; - for standard input
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
    let is_stdin = |given: &Given| *given == Given::Stdin;
    if args.stats == Path::new("-") && args.given.iter().any(is_stdin) {
        return Err(Failure::usage(anyhow!(
            "manifests and statistics cannot both come from standard input: name a file for one of them"
        )));
    }
    let Gathered { pods, errors, warnings, notes: _ } =
        manifests::read(context, &args.given, &args.manifests)?;
    let stats = Stats::read(&args.stats, &pods)?;
    let shown = args.stats.display();
    if args.signal == Signal::PidAvailable && !stats.has_processes() {
        return Err(Failure::usage(anyhow!(
            "{shown} has no numbers of processes, by which pods are ranked for pid.available: the kubelet's /stats/summary \
             has them"
        )));
    }
    let unknown = stats.unknown(&pods);
    if !unknown.is_empty() {
        let these = if unknown.len() == 1 { "is" } else { "are" };
        manifests::say(&format!(
            "{shown}: {} {these} not among the pods given, and ignored: {}",
            counted(unknown.len()),
            some(unknown.iter().copied())
        ));
    }
    let missing: Vec<_> = pods.iter().filter(|pod| !stats.knows(pod, args.signal)).collect();
    if !missing.is_empty() {
        let (have, come) = if missing.len() == 1 { ("has", "comes") } else { ("have", "come") };
        let names: Vec<_> = missing.iter().map(|pod| pod.name.to_string()).collect();
        manifests::say(&format!(
            "{shown}: {} {have} no statistics there, and {come} first: {}",
            counted(missing.len()),
            some(names.iter().map(String::as_str))
        ));
    }
    let document =
        Document::new(args.signal, &pods, &stats, context.config.settings.eviction_priority_ceiling);
    format::print(context.output, &document, || table(&document, context.columns))?;
    // The document has no place for errors.
    if !context.output.is_table() {
        let warnings = warnings.iter().map(|odd| format!("warning: {}", odd.message));
        for message in warnings.chain(errors.iter().map(|wrong| wrong.message.clone())) {
            manifests::say(&message);
        }
    }
    plan::reported(context, &errors, "ranked")
}

fn counted(count: usize) -> String {
    if count == 1 { String::from("1 pod") } else { format!("{count} pods") }
}

/// The first few names.
fn some<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let further = names.len().saturating_sub(MOST_NAMES);
    let first: Vec<_> = names.take(MOST_NAMES).collect();
    let further = if further > 0 { format!(" and {further} more") } else { String::new() };
    format!("{}{further}", first.join(", "))
}
