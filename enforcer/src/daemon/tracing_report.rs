//! Gathers what eBPF tracing found, uses and lost, for `enforcer doctor`.

use crate::{
    sense::{self, Choice, Facts, Failure, HostFacts, Lost},
    serve::{Doctor, Programs, Refused},
};

/// The host's facts for tracing, the choice made from them, and its outcome.
#[derive(Debug)]
pub(super) struct TracingReport {
    facts: Facts,
    choice: Choice,
    attached: Vec<&'static str>,
    failed: Vec<Failure>,
    unpinned: Vec<Lost>,
    error: Option<String>,
}

impl TracingReport {
    pub(super) const fn new(facts: Facts, choice: Choice) -> Self {
        Self { facts, choice, attached: Vec::new(), failed: Vec::new(), unpinned: Vec::new(), error: None }
    }

    /// Notes the programs that work, those that were refused, and those that wrongly end with the daemon.
    pub(super) fn loaded(&mut self, attached: &[&'static str], failed: &[Failure], unpinned: &[Lost]) {
        unpinned.clone_into(&mut self.unpinned);
        attached.clone_into(&mut self.attached);
        failed.clone_into(&mut self.failed);
    }

    /// Notes that no program could be loaded.
    pub(super) fn refused(&mut self, error: String) {
        self.error = Some(error);
    }

    /// Builds the report of `enforcer doctor`.
    pub(super) fn doctor(self, host: &HostFacts) -> Doctor {
        let Self { facts, choice, attached, failed, unpinned, error } = self;
        let table = sense::ladder(&facts, host, &choice);
        Doctor {
            facilities: sense::without(table, &attached, &failed, &unpinned, error.as_deref()),
            programs: Programs {
                error,
                attached: attached.into_iter().map(str::to_owned).collect(),
                failed: failed.iter().map(Refused::from).collect(),
            },
        }
    }
}
