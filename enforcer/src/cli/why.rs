//! `enforcer why`: one eviction, one kill by the kernel, or why there was none, on one screen.

mod data;
mod find;
mod fold;
mod ladder;
mod log;
mod oom;
mod other;
mod screen;
mod sentence;

use anyhow::anyhow;
use ulid::Ulid;

use self::{find::Subject, fold::Folded};
use super::{
    Context, Failure,
    format::{self, Output},
    page::Style,
};
use crate::recorder;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Of a pod, and without an argument, it explains the latest: an eviction, one that
was only decided or failed, a shortage in which no pod was evicted, or a kill by
the kernel's OOM killer; of a pod also why it was rejected, or not evicted when
memory was short. When the daemon is down, it reads the state directory. As JSON
it prints all events that belong together.")]
pub(super) struct Args {
    /// The id of an event, an eviction or an incident; a pod as NAME or
    /// NAMESPACE/NAME; what is degraded, as btf or degraded; or latest
    #[arg(value_name = "EVENT-ID|POD|degraded|latest", default_value = "latest")]
    what: String,
    /// Print Markdown, for a ticket
    #[arg(long)]
    markdown: bool,
}

/// The printed screen about the latest case of a pod, `NAMESPACE/NAME`. May block.
pub(super) fn of_pod(context: &Context, pod: &str) -> Result<String, Failure> {
    let entries = log::read(context)?;
    let folded = fold::fold(&entries, &find::find(&entries, pod)?);
    Ok(table(&folded, Style::Screen(context.columns)))
}

fn table(folded: &Folded, style: Style) -> String {
    match folded.kind {
        "oom" => oom::table(folded, style),
        "eviction" | "suppression" => screen::table(folded, style),
        _ => other::table(folded, style),
    }
}

pub(super) fn why(context: &Context, args: &Args) -> Result<(), Failure> {
    if args.markdown && context.output != Output::Table {
        return Err(Failure::usage(anyhow!("--markdown is a format of its own: leave out -o")));
    }
    let entries = log::read(context)?;
    let subject = find::find(&entries, &args.what)?;
    let mut folded = fold::fold(&entries, &subject);
    folded.is_recorded = is_recorded(context, &subject);
    let style = if args.markdown { Style::Markdown } else { Style::Screen(context.columns) };
    format::print(context.output, &folded, || table(&folded, style))
}

/// Whether the decision can be replayed; also `false` if the recording is not accessible.
fn is_recorded(context: &Context, subject: &Subject) -> bool {
    let Subject::Eviction(id) = subject else { return false };
    Ulid::from_string(id).is_ok_and(|id| recorder::path(&context.config.state_dir, id).exists())
}
