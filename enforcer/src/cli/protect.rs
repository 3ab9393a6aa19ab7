//! `enforcer protect`: protects a pod from eviction for a while.

use std::time::Duration;

use super::{
    Context, Failure,
    orders::{self, Target},
};
use crate::{policy::order::What, serve::OrderRequest};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
It ends by itself, and a later order for the same pod replaces it. Its beginning
and end are events. The kernel's own OOM killer does not know about it.")]
pub(super) struct Args {
    /// The pod
    #[arg(value_name = "NAMESPACE/POD", required_unless_present = "list")]
    pod: Option<Target>,
    /// For how long: 1s to 24h, such as 1h or 90m
    #[arg(long = "for", value_name = "TIME", value_parser = orders::time, required_unless_present_any = ["list", "end"])]
    time: Option<Duration>,
    /// The reason, which is recorded in the event
    #[arg(long, value_name = "TEXT", value_parser = orders::reason, required_unless_present = "list")]
    reason: Option<String>,
    /// End it before its time
    #[arg(long, conflicts_with = "time")]
    end: bool,
    /// Print the orders in force
    #[arg(long, conflicts_with_all = ["pod", "time", "reason", "end"])]
    list: bool,
}

pub(super) fn protect(context: &Context, args: Args) -> Result<(), Failure> {
    let Args { pod, time, reason, end: _, list: _ } = args;
    // The parser has checked that the required arguments exist.
    let (Some(Target(pod)), Some(reason)) = (pod, reason) else { return orders::list(context) };
    let what = What::protect(&pod);
    let request = match time {
        Some(time) => OrderRequest::Give { what, reason, for_ms: orders::milliseconds(time) },
        None => OrderRequest::End { what, reason },
    };
    orders::ask(context, &request)
}
