//! `enforcer plan`: computes everything for these pods, and changes nothing.

mod document;
mod live;
mod table;

use std::io::{self, Write as _};

use anyhow::anyhow;

use self::document::Document;
use super::{
    Context, Failure,
    capacity::{self, Capacity},
    format, render,
};
use crate::{
    daemon::{self, Evictors},
    policy::{self, SettingsError},
    source::{self, Gathered, Given, Wrong},
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A manifest, a folder of them, or - for standard input; may be repeated;
    /// with --live the daemon's folder if none is named
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR|-", value_parser = given)]
    pub(super) given: Vec<Given>,
    /// Plan for a machine of this capacity: cpu and memory default to this
    /// machine's, and resources that are not named do not exist
    #[arg(long, value_name = "cpu=4,memory=8Gi,…")]
    capacity: Option<Capacity>,
}

#[expect(clippy::unnecessary_wraps, reason = "clap's parsers may fail")]
pub(super) fn given(text: &str) -> Result<Given, String> {
    Ok(if text == "-" { Given::Stdin } else { Given::Path(text.into()) })
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
    let node = capacity::node(args.capacity.as_ref(), &context.config)?;
    let Gathered { pods, errors } = source::gather(&args.given);
    let plan = policy::plan(&node, settings, &pods);
    // Another machine has no kubelet here.
    let evictors = match args.capacity {
        None => daemon::evictors(&context.config, &[])?,
        Some(_) => None,
    };
    let beside_kubelet = evictors.map(|Evictors { notes, problems: _ }| notes).unwrap_or_default();
    let document = Document { beside_kubelet, ..Document::new(&node, settings, &plan, &errors) };
    format::print(context.output, &document, || table::table(&document, context.verbose > 0))?;
    reported(context, &errors, "planned")
}

fn live(context: &Context, args: &Args) -> Result<(), Failure> {
    if args.capacity.is_some() {
        return Err(Failure::usage(anyhow!("--live is about this machine: leave --capacity out")));
    }
    if let Some(Evictors { notes, problems: _ }) = daemon::evictors(&context.config, &[])? {
        let document = live::Document::beside_kubelet(notes);
        return format::print(context.output, &document, || document.table());
    }
    let node = capacity::node(None, &context.config)?;
    let folder = [Given::Path(context.config.static_pod_path.clone())];
    let given = if args.given.is_empty() { &folder[..] } else { &args.given };
    let Gathered { pods, errors } = source::gather(given);
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
    let is_table = context.output == format::Output::Table;
    let mut stderr = io::stderr().lock();
    for Wrong { source: _, message } in errors.iter().filter(|_| is_table) {
        // If this fails, there is nowhere to report it.
        drop(writeln!(stderr, "{}", render::escape(message)));
    }
    let count = errors.len();
    let things = if count == 1 { "thing is" } else { "things are" };
    Err(anyhow!("{count} {things} wrong with the manifests; what is right is {done}").into())
}
