use crate::{
    sense::{self, Choice, Facts, Failure, HostFacts, Lost},
    serve::{Doctor, Programs, Refused},
};

/// What was found for tracing, what was chosen by it, and what came of that.
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

    /// These programs work, those were refused, and this of them ends with the daemon though it should not.
    pub(super) fn loaded(&mut self, attached: &[&'static str], failed: &[Failure], unpinned: &[Lost]) {
        unpinned.clone_into(&mut self.unpinned);
        attached.clone_into(&mut self.attached);
        failed.clone_into(&mut self.failed);
    }

    /// No program could be loaded.
    pub(super) fn refused(&mut self, error: String) {
        self.error = Some(error);
    }

    /// All of it, as it is told.
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
