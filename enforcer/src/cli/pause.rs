//! `enforcer pause`: pauses eviction for a while.

use std::time::Duration;

use super::{Context, Failure, orders};
use crate::{policy::order::What, serve::OrderRequest};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Meanwhile decisions are made and reported, but not carried out, as in dry-run.
The pause ends by itself; its beginning and end are events. An eviction that is
under way continues, and the kernel's own OOM killer does not pause.")]
pub(super) struct Args {
    /// For how long: 1s to 24h, such as 15m
    #[arg(long = "for", value_name = "TIME", value_parser = orders::time, required_unless_present = "end")]
    time: Option<Duration>,
    /// The reason, which is recorded in the event
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
