//! `enforcer plan`: computes everything for these pods, and changes nothing.

mod cpus;
mod document;
mod live;
mod table;

use std::io::{self, Write as _};

use anyhow::anyhow;

use self::document::Document;
use super::{
    Context, Failure,
    capacity::{self, Capacity},
    format, manifests, render,
};
use crate::{
    daemon::{self, Evictors},
    policy::{
        self, Plan, SettingsError,
        admission::{CpuAdmitter, admit_all_beside},
        cpus::Assignments,
    },
    source::{self, Gathered, Given, Wrong},
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Manifests, a folder of them, or - for standard input; may be repeated;
    /// with --live the daemon's folder if none is named
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR|-", value_parser = manifests::given)]
    given: Vec<Given>,
    #[command(flatten)]
    manifests: manifests::Args,
    /// Plan for a machine of this capacity: cpu and memory default to this
    /// machine's, and resources that are not named do not exist
    #[arg(long, value_name = "cpu=4,memory=8Gi,…")]
    capacity: Option<Capacity>,
    /// Plan for CPUs of that topology, each socket a NUMA node: for
    /// cpuManagerPolicy: static on another machine
    #[arg(long, value_name = "sockets=2,cores=8,threads=2")]
    topology: Option<cpus::Shape>,
}

pub(super) fn plan(context: &Context, args: &Args) -> Result<(), Failure> {
    let settings = &context.config.settings;
    settings.check().map_err(|errors| Failure::usage(anyhow!("{}", joined(&errors))))?;
    if context.live {
        return live(context, args);
    }
    if args.given.is_empty() {
        return Err(Failure::usage(anyhow!(
            "--filename is missing: name manifests with -f, or see with --live what would be written on this machine"
        )));
    }
    let capacity = with_cpus_of(args)?;
    let node = capacity::node(capacity.as_ref(), &context.config)?;
    let Gathered { pods, errors, warnings, notes: _ } =
        manifests::read(context, &args.given, &args.manifests)?;
    let cpus = cpus::of(context, &node, args.topology, args.capacity.is_some())?;
    let mut admitter = cpus.as_ref().map(|cpus| CpuAdmitter::new(cpus, &Assignments::default(), Vec::new()));
    let admissions = admit_all_beside(&node, settings, &[], &pods, &mut admitter);
    let decided: Vec<_> = pods.iter().zip(admissions).collect();
    let mut plan: Plan = policy::plan_decided(&node, settings, &decided);
    let assignments = admitter.map(CpuAdmitter::into_assignments);
    if let Some(assignments) = assignments.as_ref().filter(|known| !known.default_cpu_set.is_empty()) {
        plan.pin(assignments, settings);
    }
    // Another machine has no kubelet here.
    let evictors = match capacity {
        None => daemon::evictors(&context.config, &[])?,
        Some(_) => None,
    };
    let beside_kubelet = evictors.map(|Evictors { notes, problems: _ }| notes).unwrap_or_default();
    let mut document =
        Document { beside_kubelet, ..Document::new(&node, settings, &plan, &errors, &warnings) };
    if let Some((cpus, assignments)) = cpus.as_ref().zip(assignments.as_ref()) {
        cpus::add(&mut document, cpus, assignments, &pods);
    }
    format::print(context.output, &document, || {
        table::table(&document, context.verbose > 0, context.columns)
    })?;
    reported(context, &errors, "planned")
}

/// The capacity with the CPUs of the topology.
fn with_cpus_of(args: &Args) -> Result<Option<Capacity>, Failure> {
    let Some(shape) = args.topology else { return Ok(args.capacity.clone()) };
    let capacity = args.capacity.clone().unwrap_or_default();
    capacity.with_cpus(shape.cpus()).map(Some).ok_or_else(|| {
        Failure::usage(anyhow!("--topology has {} CPUs, and --capacity names another cpu", shape.cpus()))
    })
}

fn live(context: &Context, args: &Args) -> Result<(), Failure> {
    if args.capacity.is_some() || args.topology.is_some() {
        return Err(Failure::usage(anyhow!(
            "--live is about this machine: leave --capacity and --topology out"
        )));
    }
    if args.manifests.node.is_some() || args.manifests.recursive {
        return Err(Failure::usage(anyhow!(
            "--live reads manifests as the daemon does: leave --node and --recursive out"
        )));
    }
    if let Some(Evictors { notes, problems: _ }) = daemon::evictors(&context.config, &[])? {
        let document = live::Document::beside_kubelet(notes);
        return format::print(context.output, &document, || document.table());
    }
    let node = capacity::node(None, &context.config)?;
    let folder = [Given::Path(context.config.static_pod_path.clone())];
    let given = if args.given.is_empty() { &folder[..] } else { &args.given };
    let Gathered { pods, errors, .. } = manifests::judged(context, source::gather(given), &args.manifests)?;
    let document = live::Document::compute(context, &node, &pods, &errors)?;
    format::print(context.output, &document, || document.table())?;
    reported(context, &errors, "compared")
}

fn joined(errors: &[SettingsError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Reports the errors of the manifests. A printed document contains them too.
pub(super) fn reported(context: &Context, errors: &[Wrong], done: &str) -> Result<(), Failure> {
    if errors.is_empty() {
        return Ok(());
    }
    let is_table = context.output.is_table();
    let mut stderr = io::stderr().lock();
    for Wrong { source: _, message } in errors.iter().filter(|_| is_table) {
        // If this fails, there is nowhere to report it.
        drop(writeln!(stderr, "{}", render::escape(message)));
    }
    let count = errors.len();
    let things = if count == 1 { "thing is" } else { "things are" };
    Err(anyhow!("{count} {things} wrong with the manifests; what is right is {done}").into())
}
