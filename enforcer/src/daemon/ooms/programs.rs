//! Loads the eBPF programs, and reports what is lost without some of them.
use std::io;

use super::super::{backlog::Backlog, emit};
#[cfg(feature = "bpf-log")]
use super::Ticks;
use crate::{
    journal::Journal,
    metrics::Counts,
    sense::{Attached, Choice, Inherited, Lost, Pins, Programs, SenseError, Version},
};

/// Loads the programs, and pins those that are to outlive the daemon where possible.
pub(super) fn load(
    choice: &Choice,
    journal: &Journal,
    backlog: &mut Backlog,
) -> Result<Attached, SenseError> {
    match Pins::open() {
        Ok(pins) => {
            Programs::load_pinned(choice, pins, Version::of(choice), &mut |record| backlog.inherit(record))
        }
        Err(error) => {
            // A missing bpffs was reported among the losses of this kernel.
            if !choice.lost.iter().any(|lost| lost.what == "bpffs") {
                let message =
                    format!("{}: OOM kills while the daemon restarts are not reported", crate::chain(&error));
                emit::degraded(journal, "bpffs", &message);
            }
            Programs::load(choice)
        }
    }
}

pub(super) fn emit_inherited(journal: &Journal, counts: &Counts, inherited: &Inherited) {
    let Inherited { programs, versions, records, drops } = inherited;
    if !programs.is_empty() {
        tracing::info!(programs = programs.join(", "), "eBPF programs taken over from the previous daemon");
    }
    for version in versions {
        tracing::info!(version = %version.display(), records, "eBPF programs of another version taken over");
    }
    for (stage, lost) in drops {
        emit_drops(journal, counts, stage, *lost);
    }
}

pub(super) fn emit_drops(journal: &Journal, counts: &Counts, stage: &str, lost: u64) {
    counts.lost_by_programs(stage, lost);
    emit::degraded(
        journal,
        "recordsLost",
        &format!("{lost} records of the eBPF programs were lost ({stage})"),
    );
}

/// Writes the programs' own diagnostics to the log, in a separate task.
#[cfg(feature = "bpf-log")]
pub(super) fn log_diagnostics(programs: &mut Programs, mut ticks: Ticks) {
    let mut logger = match programs.diagnostics() {
        Ok(logger) => logger,
        // The object was built without diagnostics.
        Err(error) => {
            tracing::debug!(%error, "the eBPF programs have no diagnostics");
            return;
        }
    };
    tokio::spawn(async move {
        loop {
            ticks.next().await;
            logger.flush();
        }
    });
}

pub(super) fn emit_lost(journal: &Journal, lost: &Lost) {
    emit::degraded(journal, lost.what, &lost.message());
}

pub(super) fn emit_unreadable(journal: &Journal, error: &io::Error) {
    let message = format!("the ring buffer of OOM kills can no longer be read: {error}");
    emit::degraded(journal, "ebpf", &message);
}
