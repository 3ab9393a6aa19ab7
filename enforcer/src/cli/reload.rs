//! `enforcer reload`: reloads the configuration and the manifests.

use super::{Context, Failure, orders};
use crate::{logging, serve::OrderRequest};

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
The same as SIGHUP, with an answer: what changed, or why the running
configuration stays in force (exit status 77).")]
pub(super) struct Args {
    /// Arm every threshold, even one that was crossed when it was loaded: it evicts from now on
    #[arg(long)]
    arm: bool,
    /// Accept the manifest folder in its present state, even if it is empty, missing
    /// or a different one: pods that it does not name are removed
    #[arg(long)]
    accept_empty: bool,
    /// Log that much from now on, until the daemon ends: error, warn, info, debug or
    /// trace
    #[arg(long, value_name = "LEVEL", value_parser = level)]
    log_level: Option<String>,
}

fn level(text: &str) -> Result<String, String> {
    logging::filter(text).map(|_filter| text.to_owned())
}

pub(super) fn reload(context: &Context, args: &Args) -> Result<(), Failure> {
    let Args { arm, accept_empty, log_level } = args.clone();
    orders::ask(context, &OrderRequest::Reload { arm, accept_empty, log_level })
}
