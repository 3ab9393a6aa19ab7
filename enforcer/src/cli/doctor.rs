//! `enforcer doctor`: what this host offers, what enforcer uses, what is lost, and how to get it.

mod table;

use std::io::{self, Write as _};

use anyhow::anyhow;
use serde::Serialize;

use self::table::table;
use super::{Context, Failure, client, format};
use crate::{
    daemon::{self, Evictors},
    sense::{self, Facility, Facts, HostFacts, State},
    serve::{Common, Doctor, OrderView, PodView, Programs, View},
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
#[serde(rename_all = "camelCase")]
struct Document {
    source: Source,
    /// Whether nothing is lost, as far as known.
    ok: bool,
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
    fn new(
        source: Source,
        limited: Option<&'static str>,
        facilities: Vec<Facility>,
        programs: Option<Programs>,
    ) -> Self {
        let lost = facilities.iter().any(is_lost);
        let refused =
            programs.as_ref().is_some_and(|programs| programs.error.is_some() || !programs.failed.is_empty());
        Self {
            source,
            ok: !lost && !refused,
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
        Self { ok: self.ok && problems.is_empty(), beside_kubelet: notes, evictors: problems, ..self }
    }

    fn with_orders(self, orders: Vec<OrderView>) -> Self {
        let paused = orders.iter().any(OrderView::is_pause);
        Self { ok: self.ok && !paused, orders, ..self }
    }
}

fn is_lost(facility: &Facility) -> bool {
    match facility.state {
        State::Lesser | State::Missing => true,
        State::Full | State::Unknown => false,
    }
}

/// Whether no value can be written and no pod evicted without it, and it is not there.
fn is_indispensable_and_missing(facility: &Facility) -> bool {
    facility.name == sense::CGROUP2 && facility.state == State::Missing
}

/// Exits with status 1 if something is lost, and with 2 if nothing can be enforced. Unknown facilities do not count as
/// lost.
pub(super) fn doctor(context: &Context, args: &Args) -> Result<(), Failure> {
    let (document, pods) = if args.here { (here(), Vec::new()) } else { from_daemon_or_here(context)? };
    let evictors = daemon::evictors(&context.config, &pods)?;
    let document = document.with_notes(context.config.notes()).with_evictors(evictors);
    format::print(context.output, &document, || table(&document, context.color, context.verbose > 0))?;
    if document.ok {
        return Ok(());
    }
    if document.facilities.iter().any(is_indispensable_and_missing) {
        return Err(Failure::cannot_enforce(anyhow!("nothing can be enforced on this host")));
    }
    if document.orders.iter().any(OrderView::is_pause) {
        return Err(anyhow!("eviction is paused: `enforcer pause --end` resumes it").into());
    }
    let lost = document.facilities.iter().filter(|facility| is_lost(facility)).count();
    Err(match lost {
        0 if !document.evictors.is_empty() => {
            anyhow!("something else on this node may evict at the same time: see the lines `another evictor`")
        }
        0 => anyhow!("not every program could be attached"),
        1 => anyhow!("1 thing is lost in part or whole; the rest works"),
        lost => anyhow!("{lost} things are lost in part or whole; the rest works"),
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
