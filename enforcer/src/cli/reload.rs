//! `enforcer reload`: the daemon reads its configuration again.

use super::{Context, Failure, orders};
use crate::serve::Wish;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A configuration that is wrong, or that changes what is fixed while the daemon
runs, leaves the running one in force; the reason is printed, with status 77.")]
pub(super) struct Args {
    /// Arm every threshold, also one that was crossed when it was loaded: it evicts from now on
    #[arg(long)]
    arm: bool,
}

pub(super) fn reload(context: &Context, args: &Args) -> Result<(), Failure> {
    orders::ask(context, &Wish::Reload { arm: args.arm })
}
