//! What is done and told once, before anything runs.

use serde_json::json;

use super::{NICE, desired::Permits, host::Host, open_files, telling};
use crate::{
    cgroup::Permit,
    config::{Config, Mode},
    journal::{Event, EventType, Journal, StoreError, Subject},
    policy::threshold::Signal,
    sense::{self, HostFacts, snapshot::BUDGET},
};

/// The log in the state directory; in memory alone where there can be none.
pub(super) fn open_journal(config: &Config, host: &Host) -> anyhow::Result<Journal> {
    let (journal, recovered) = match Journal::open_with(
        &host.name,
        &host.boot_id,
        &config.state_dir,
        &config.run_dir,
        config.journal,
    ) {
        Ok(opened) => opened,
        Err(error @ (StoreError::Locked { .. } | StoreError::Unsafe { .. })) => return Err(error.into()),
        Err(error) => {
            let journal = Journal::new(&host.name, &host.boot_id);
            let message = format!(
                "events are kept in memory alone, and end with this process: {}",
                crate::chain(&error)
            );
            telling::degraded(&journal, "journal", &message);
            return Ok(journal);
        }
    };
    tracing::info!(?recovered, "the journal is open");
    if recovered.damaged > 0 || !recovered.set_aside.is_empty() {
        let names: Vec<_> =
            recovered.set_aside.iter().map(|(path, why)| format!("{} ({why})", path.display())).collect();
        let message = format!(
            "the journal was damaged: {} events cannot be read, and these files were set aside: [{}]",
            recovered.damaged,
            names.join(", ")
        );
        telling::degraded(&journal, "journal", &message);
    }
    if recovered.lost > 0 {
        let message = format!(
            "{} events that readers may have seen were lost: no disk had taken them when the daemon was killed; \
             see the gap in the sequence",
            recovered.lost
        );
        telling::degraded(&journal, "journal", &message);
    }
    Ok(journal)
}

pub(super) fn tell_start(journal: &Journal, config: &Config, host: &Host, facts: &HostFacts) {
    let threshold = config.settings.eviction.hard(Signal::MemoryAvailable);
    let threshold = threshold.map(|threshold| threshold.value.amount(host.node.memory_bytes));
    journal.append(Event {
        kind: EventType::ConfigLoaded,
        subject: Subject::Node,
        data: json!({
            "mode": config.mode.as_str(),
            "configHash": config.hash(),
            "staticPodPath": config.static_pod_path,
            "memoryAvailableThresholdBytes": threshold,
            "memoryBytes": host.node.memory_bytes,
            "message": format!("mode {}", config.mode),
        }),
    });
    for message in config.unwatched() {
        telling::degraded(journal, "threshold", &message);
    }
    for lost in sense::host_lost(facts) {
        telling::degraded(journal, lost.what, &lost.message());
    }
    if let Err(error) = open_files::allow(host.node.pods, &BUDGET) {
        telling::degraded(journal, "openFiles", &error.to_string());
    }
    // Of this thread, and of those that it starts: all that matters are younger.
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        telling::degraded(
            journal,
            "priority",
            &format!("the daemon's nice value cannot be {NICE}, so on a busy node it may be late: {error}"),
        );
    }
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", "-999") {
        telling::degraded(
            journal,
            "oomScoreAdj",
            &format!(
                "the daemon's own oom_score_adj cannot be -999, so the kernel may kill it under pressure: {error}"
            ),
        );
    }
}

/// The leave to write, if the mode is `enforce`: everything if the cgroups are ours, else what `oomScorePolicy: ranked` needs.
pub(super) fn permits(config: &Config, kubelets: bool, journal: &Journal) -> Permits {
    if kubelets {
        telling::degraded(
            journal,
            "ownership",
            "the kubelet owns the pods' cgroups here: nothing is written, and only pods of staticPodPath are known; \
             where no kubelet is, set ownership: enforcer",
        );
    }
    let permit = |may: bool| (config.mode == Mode::Enforce && may).then(Permit::for_enforce_mode);
    Permits { all: permit(!kubelets), scores: permit(true) }
}
