//! `enforcer evict`: evicts a pod now.

use super::{
    Context, Failure,
    orders::{self, Target},
};
use crate::{model::PodName, serve::OrderRequest};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Its processes get SIGTERM, and those that are left after the pod's grace period
are killed. It stays evicted until its manifest changes or goes. Pods that are
never evicted are refused here too: critical pods, protected pods, and pods that
hold the node's own processes.")]
pub(super) struct Args {
    /// The pod
    #[arg(value_name = "NAMESPACE/POD")]
    pod: Target,
    /// The reason, which is recorded in the event
    #[arg(long, value_name = "TEXT", value_parser = orders::reason)]
    reason: String,
    /// Only print what would be done
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn evict(context: &Context, args: Args) -> Result<(), Failure> {
    let Args { pod: Target(PodName { namespace, name }), reason, dry_run } = args;
    orders::ask(context, &OrderRequest::Evict { namespace, name, reason, dry_run })
}
