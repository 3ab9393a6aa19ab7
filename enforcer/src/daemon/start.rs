//! Work that is done, and reported, once before anything runs.

use std::sync::Arc;

use enforcer_events::{
    Payload,
    node::{ConfigLoaded, Started},
};

use super::{
    emit,
    handover::{self, Refusal},
    host::Host,
    instance_lock::InstanceLock,
    open_files,
};
use crate::{
    cgroup::Permit,
    config::{Config, Mode},
    journal::{Journal, StoreError, Subject},
    metrics::Counts,
    policy::threshold::Signal,
    privilege::{self, Unfiltered},
    sense::{self, HostFacts, snapshot::BUDGET},
    serve::{self, Observe},
    threads,
};

impl Refusal for StoreError {
    fn is_held(&self) -> bool {
        matches!(self, Self::Locked { .. })
    }

    fn holder(&self) -> String {
        match self {
            Self::Locked { path: _, lock } => handover::holder(lock),
            Self::Io { .. } | Self::Unsafe { .. } => String::new(),
        }
    }
}

/// The permits to write.
#[derive(Debug, Default)]
pub(super) struct Permits {
    /// To write everything, if the daemon owns the cgroups.
    pub(super) all: Option<Permit>,
    /// To align scores with the ranking, whether the daemon owns the cgroups or not.
    pub(super) scores: Option<Permit>,
}

/// Opens the journal in the state directory, which a predecessor that is still ending may hold. If that is impossible
/// the journal is in memory only.
pub(super) async fn open_journal(config: &Config, host: &Host, counts: &Counts) -> anyhow::Result<Journal> {
    let open = async || {
        let Config { state_dir, run_dir, journal, .. } = config;
        Journal::open_with(&host.name, &host.boot_id, state_dir, run_dir, *journal)
    };
    let (journal, recovered) = match handover::take(handover::TIMEOUT, open).await {
        Ok(opened) => opened,
        Err(error @ StoreError::Unsafe { .. }) => return Err(error.into()),
        Err(error @ StoreError::Locked { .. }) => {
            let message = handover::not_ended(&error);
            return Err(anyhow::Error::from(error).context(message));
        }
        Err(error) => {
            let journal = Journal::new(&host.name, &host.boot_id).observed_by(Arc::new(counts.clone()));
            let message = format!(
                "events are kept in memory only, and end with this process: {}",
                crate::chain(&error)
            );
            emit::degraded(&journal, "journal", &message);
            return Ok(journal);
        }
    };
    let journal = journal.observed_by(Arc::new(counts.clone()));
    tracing::debug!(events = recovered.events, lost = recovered.lost, "the journal is open");
    if recovered.damaged > 0 || !recovered.set_aside.is_empty() {
        let names: Vec<_> =
            recovered.set_aside.iter().map(|(path, why)| format!("{} ({why})", path.display())).collect();
        let message = format!(
            "the journal was damaged: {} events cannot be read, and these files were set aside: [{}]",
            recovered.damaged,
            names.join(", ")
        );
        emit::degraded(&journal, "journal", &message);
    }
    if recovered.lost > 0 {
        let message = format!(
            "{} events that readers may have seen were lost: they were not on disk yet when the daemon was killed; \
             see the gap in the sequence",
            recovered.lost
        );
        emit::degraded(&journal, "journal", &message);
    }
    Ok(journal)
}

impl Refusal for serve::Error {
    fn is_held(&self) -> bool {
        matches!(self, Self::Taken { .. })
    }

    fn holder(&self) -> String {
        if let Self::Taken { path: _, pid: Some(pid) } = self {
            format!("process {pid}")
        } else {
            String::from("a process that is not visible here")
        }
    }
}

/// Takes what one daemon at a time holds here: the claim to evict, and the observe socket.
pub(super) async fn take(config: &Config) -> anyhow::Result<(InstanceLock, Observe)> {
    Ok((InstanceLock::take(config.mode).await?, bind(config).await?))
}

/// Binds the observe socket. A predecessor's socket accepts connections until the process has ended.
async fn bind(config: &Config) -> anyhow::Result<Observe> {
    let bind = async || Observe::bind(&config.run_dir, &config.sockets).await;
    handover::take(handover::TIMEOUT, bind).await.map_err(|error| {
        let message = error.is_held().then(|| handover::not_ended(&error));
        let error = anyhow::Error::from(error);
        match message {
            Some(message) => error.context(message),
            None => error,
        }
    })
}

/// The facts with what cgroups show that did not exist before this daemon made them. Reports what is found to be lost by
/// that.
pub(super) fn filled_in(journal: &Journal, facts: HostFacts) -> HostFacts {
    let before = sense::host_lost(&facts);
    let facts = facts.filled_in();
    for lost in sense::host_lost(&facts).iter().filter(|lost| !before.contains(lost)) {
        emit::degraded(journal, lost.what, &lost.message());
    }
    facts
}

pub(super) fn emit_start(journal: &Journal, config: &Config, host: &Host, facts: &HostFacts) {
    let threshold = config.settings.eviction.hard(Signal::MemoryAvailable);
    let threshold = threshold.map(|threshold| threshold.value.amount(host.node.memory_bytes));
    let by_default = config.unwatched_defaults();
    let message =
        [format!("mode {}", config.mode)].into_iter().chain(by_default).collect::<Vec<_>>().join("; ");
    let data = Started {
        mode: config.mode.as_str().into(),
        config_hash: config.hash(),
        static_pod_path: config.static_pod_path.display().to_string(),
        memory_available_threshold_bytes: threshold,
        memory_bytes: host.node.memory_bytes,
        unwatched: config.notes(),
        message,
    };
    journal.emit(Subject::Node, Payload::ConfigLoaded(ConfigLoaded::Started(data)));
    for message in config.unwatched() {
        emit::degraded(journal, "threshold", &message);
    }
    for lost in sense::host_lost(facts) {
        emit::degraded(journal, lost.what, &lost.message());
    }
    if let Err(error) = open_files::allow(host.node.pods, &BUDGET) {
        emit::degraded(journal, "openFiles", &error.to_string());
    }
    // For this thread and the threads that it starts: all that matter are started later.
    if let Err(error) = rustix::process::setpriority_process(None, threads::NICE) {
        emit::degraded(
            journal,
            "priority",
            &format!(
                "cannot set the daemon's nice value to {}, so on a busy node it may be late: {error}",
                threads::NICE
            ),
        );
    }
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", "-999") {
        emit::degraded(
            journal,
            "oomScoreAdj",
            &format!(
                "cannot set the daemon's own oom_score_adj to -999, so the kernel may kill it under pressure: {error}"
            ),
        );
    }
}

/// Gives up the system calls that were for the start, in all threads.
pub(super) fn refuse_what_is_not_used(journal: &Journal) {
    match privilege::refuse_what_is_not_used() {
        // The kernel's lack is reported with all else that it lacks.
        Ok(()) | Err(Unfiltered::Missing(_)) => {}
        Err(error) => emit::degraded(
            journal,
            "callFilters",
            &format!("the daemon may make system calls that it does not use: {}", crate::chain(&error)),
        ),
    }
}

/// The permits in mode `enforce`: for everything if the daemon owns the cgroups, else for `oomScorePolicy: ranked`.
pub(super) fn permits(config: &Config, kubelets: bool, journal: &Journal) -> Permits {
    if kubelets {
        emit::degraded(
            journal,
            "ownership",
            "the kubelet owns the pods' cgroups here, so no limits are kept in them; where no kubelet is, set ownership: \
             enforcer (once one was seen, it owns them until the next boot)",
        );
    }
    let permit = |may: bool| (config.mode == Mode::Enforce && may).then(Permit::for_enforce_mode);
    Permits { all: permit(!kubelets), scores: permit(true) }
}
