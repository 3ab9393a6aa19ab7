//! `enforcer pause`: nobody is evicted for a while.

use std::time::Duration;

use super::{Context, Failure, orders};
use crate::{policy::order::What, serve::OrderRequest};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
What would be done is decided and told meanwhile, as in dry-run. It ends by
itself; beginning and end are events. An eviction that is under way goes on,
and the kernel's own OOM killer does not pause.")]
pub(super) struct Args {
    /// For how long: 1s to 24h, such as 15m
    #[arg(long = "for", value_name = "TIME", value_parser = orders::time, required_unless_present = "end")]
    time: Option<Duration>,
    /// Why; it stands in the event
    #[arg(long, value_name = "TEXT", value_parser = orders::reason)]
    reason: String,
    /// End it before its time
    #[arg(long, conflicts_with = "time")]
    end: bool,
}

pub(super) fn pause(context: &Context, args: Args) -> Result<(), Failure> {
    let Args { time, reason, end: _ } = args;
    let request = match time {
        Some(time) => OrderRequest::Give { what: What::Pause, reason, for_ms: orders::milliseconds(time) },
        None => OrderRequest::End { what: What::Pause, reason },
    };
    orders::ask(context, &request)
}
