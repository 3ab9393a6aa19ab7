//! `enforcer evict`: a pod is evicted now.

use super::{
    Context, Failure,
    orders::{self, Target},
};
use crate::{model::PodName, serve::OrderRequest};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Its processes are asked to end, and those that are left after the pod's grace
period are killed. It stays evicted until its manifest changes or goes. What is
never evicted is not either by order: critical pods, protected ones, and what
holds the node's own processes.")]
pub(super) struct Args {
    /// The pod
    #[arg(value_name = "NAMESPACE/POD")]
    pod: Target,
    /// Why; it stands in the event
    #[arg(long, value_name = "TEXT", value_parser = orders::reason)]
    reason: String,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn evict(context: &Context, args: Args) -> Result<(), Failure> {
    let Args { pod: Target(PodName { namespace, name }), reason, dry_run } = args;
    orders::ask(context, &OrderRequest::Evict { namespace, name, reason, dry_run })
}
