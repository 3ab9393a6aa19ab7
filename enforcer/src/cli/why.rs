//! `enforcer why`: one eviction, or one kill by the kernel, on one screen.

mod data;
mod find;
mod fold;
mod ladder;
mod log;
mod oom;
mod screen;
mod sentence;

use ulid::Ulid;

use self::find::Subject;
use super::{Context, Failure, format};
use crate::recorder;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Of a pod, and without an argument, it explains the latest: an eviction, one that
was only decided or failed, a shortage in which no pod was evicted, or a kill by
the kernel's OOM killer. When the daemon is down, it reads the state directory.
As JSON it prints all events that belong together.")]
pub(super) struct Args {
    /// The id of an event, an eviction or an incident; a pod as NAME or
    /// NAMESPACE/NAME; or latest
    #[arg(value_name = "EVENT-ID|POD|latest", default_value = "latest")]
    what: String,
}

/// The printed screen about the latest case of a pod, `NAMESPACE/NAME`. May block.
pub(super) fn of_pod(context: &Context, pod: &str) -> Result<String, Failure> {
    let entries = log::read(context)?;
    let folded = fold::fold(&entries, &find::find(&entries, pod)?);
    Ok(if folded.kind == "oom" { oom::table(&folded) } else { screen::table(&folded) })
}

pub(super) fn why(context: &Context, args: &Args) -> Result<(), Failure> {
    let entries = log::read(context)?;
    let subject = find::find(&entries, &args.what)?;
    let mut folded = fold::fold(&entries, &subject);
    folded.is_recorded = is_recorded(context, &subject);
    format::print(context.output, &folded, || match folded.kind {
        "oom" => oom::table(&folded),
        _ => screen::table(&folded),
    })
}

/// Whether the decision can be replayed; also `false` if the recording is not accessible.
fn is_recorded(context: &Context, subject: &Subject) -> bool {
    let Subject::Eviction(id) = subject else { return false };
    Ulid::from_string(id).is_ok_and(|id| recorder::path(&context.config.state_dir, id).exists())
}
