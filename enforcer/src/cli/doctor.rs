//! `enforcer doctor`: what this host offers, what enforcer uses, what is lost, and how to get it.

mod table;
mod verdict;

use std::io::{self, Write as _};

use anyhow::anyhow;
use serde::Serialize;

use self::{
    table::table,
    verdict::{Shortcomings, Verdict},
};
use super::{Context, Failure, client, format};
use crate::{
    daemon::{self, Evictors},
    model::Common,
    sense::{self, Facility, Facts, HostFacts},
    serve::{Doctor, OrderView, PodView, Programs, View},
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Probe this host with this process's own rights, even if the daemon runs
    #[arg(long, conflicts_with = "live")]
    here: bool,
}

/// Which process probed the host.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Source {
    /// The daemon, when it started.
    Daemon,
    /// This process, now.
    Here,
}

/// The printed document.
#[derive(Debug, Serialize)]
struct Judged<'a> {
    verdict: String,
    /// Whether nothing is lost, as far as known.
    ok: bool,
    #[serde(flatten)]
    document: &'a Document,
}

/// What was found.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    source: Source,
    /// Why this process could not determine everything.
    limited: Option<&'static str>,
    facilities: Vec<Facility>,
    /// The daemon's programs; `None` if it was not asked.
    programs: Option<Programs>,
    /// The operators' orders in force.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    orders: Vec<OrderView>,
    /// The values that follow from the kubelet's, and where they are from.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    beside_kubelet: Vec<String>,
    /// What else on this node may evict at the same time, and what to change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    evictors: Vec<String>,
    /// Configured or default values without effect, as disks are not watched. They are no loss of this host.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

impl Document {
    const fn new(
        source: Source,
        limited: Option<&'static str>,
        facilities: Vec<Facility>,
        programs: Option<Programs>,
    ) -> Self {
        Self {
            source,
            limited,
            facilities,
            programs,
            orders: Vec::new(),
            beside_kubelet: Vec::new(),
            evictors: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn with_notes(self, notes: Vec<String>) -> Self {
        Self { notes, ..self }
    }

    fn with_evictors(self, evictors: Option<Evictors>) -> Self {
        let Some(Evictors { notes, problems }) = evictors else { return self };
        Self { beside_kubelet: notes, evictors: problems, ..self }
    }

    fn with_orders(self, orders: Vec<OrderView>) -> Self {
        Self { orders, ..self }
    }
}

/// Exits with status 1 if something is lost, and with 2 if nothing can be enforced or no pod evicted. Unknown facilities do
/// not count as lost.
pub(super) fn doctor(context: &Context, args: &Args) -> Result<(), Failure> {
    let (document, pods) = if args.here { (here(), Vec::new()) } else { from_daemon_or_here(context)? };
    let evictors = daemon::evictors(&context.config, &pods)?;
    let document = document.with_notes(context.config.notes()).with_evictors(evictors);
    let verdict = Verdict::of(&document);
    let judged = Judged { verdict: verdict.to_string(), ok: verdict.is_whole(), document: &document };
    format::print(context.output, &judged, || table(&document, context.color, context.verbose > 0))?;
    let lost = match verdict {
        Verdict::CannotEnforce(reason) => {
            return Err(Failure::cannot_enforce(anyhow!("this host lacks what enforcing needs: {reason}")));
        }
        Verdict::Ready(_) if verdict.is_whole() => return Ok(()),
        Verdict::Ready(lost) => lost,
    };
    Err(match (lost.lost(), lost) {
        (_, Shortcomings { paused: true, .. }) => {
            anyhow!("eviction is paused: `enforcer pause --end` resumes it")
        }
        (0, Shortcomings { evictors: true, .. }) => {
            anyhow!("something else on this node may evict at the same time: see the lines `another evictor`")
        }
        (0, _) => anyhow!("not every program could be attached"),
        (1, _) => anyhow!("1 thing is lost in part or whole; the rest works"),
        (lost, _) => anyhow!("{lost} things are lost in part or whole; the rest works"),
    }
    .into())
}

/// The document, and the pods that the daemon knows.
fn from_daemon_or_here(context: &Context) -> Result<(Document, Vec<Common<PodView>>), Failure> {
    let run_dir = &context.config.run_dir;
    let asked = client::block_on(async {
        let doctor: Doctor = client::get_json(run_dir, "/v1/doctor").await?;
        let View { pods, .. } = client::get_json(run_dir, "/v1/pods").await?;
        Ok((doctor, pods, client::get_json(run_dir, "/v1/orders").await?))
    });
    match asked {
        Ok((Doctor { facilities, programs }, pods, orders)) => {
            let document = Document::new(Source::Daemon, None, facilities, Some(programs));
            Ok((document.with_orders(orders), pods))
        }
        Err(failure) if failure.is_unreachable() && !context.live => {
            let mut err = io::stderr().lock();
            // If this fails, there is nowhere to report it.
            drop(writeln!(err, "the daemon cannot be asked: this is what this process finds"));
            Ok((here(), Vec::new()))
        }
        Err(failure) => Err(failure),
    }
}

fn here() -> Document {
    let (mut facts, mut host, mut limited) = (Facts::gather(), HostFacts::gather(), None);
    if host.root != Some(true) {
        // Our own rights say nothing about the daemon's.
        facts = Facts {
            ring_buffer: None,
            cap_bpf: None,
            cap_perfmon: None,
            bpf_call: None,
            tracefs: None,
            pid_namespace: facts.pid_namespace.filter(|namespace| namespace.is_initial()),
            ..facts
        };
        host = host.of_the_host_alone();
        limited = Some("not running as root: some facilities are unknown; run it as root to see them all");
    }
    let facilities = sense::ladder(&facts, &host, &sense::choose(&facts));
    Document::new(Source::Here, limited, facilities, None)
}
