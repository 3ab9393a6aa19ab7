//! The programs' loading, and how it is told what of them is lost.
use std::io;

use super::super::{backlog::Backlog, emit};
#[cfg(feature = "bpf-log")]
use super::TICK;
use crate::{
    journal::Journal,
    metrics::Counts,
    sense::{Attached, Choice, Inherited, Lost, Pins, Programs, SenseError, Version},
};

/// Loads the programs, and pins what is to outlive us where that can be.
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
            // That there is no bpffs was told among what this kernel lacks.
            if !choice.lost.iter().any(|lost| lost.what == "bpffs") {
                let message =
                    format!("{}: OOM kills while the daemon restarts are not told", crate::chain(&error));
                emit::degraded(journal, "bpffs", &message);
            }
            Programs::load(choice)
        }
    }
}

pub(super) fn emit_inherited(journal: &Journal, counts: &Counts, inherited: &Inherited) {
    let Inherited { programs, versions, records, drops } = inherited;
    if !programs.is_empty() {
        tracing::info!(programs = programs.join(", "), "eBPF programs taken on from the daemon before");
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

/// Carries the programs' own diagnostics into the log, in a task of its own.
#[cfg(feature = "bpf-log")]
pub(super) fn log_diagnostics(programs: &mut Programs) {
    let mut logger = match programs.diagnostics() {
        Ok(logger) => logger,
        // The object was built without them.
        Err(error) => {
            tracing::debug!(%error, "the eBPF programs say nothing");
            return;
        }
    };
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(TICK);
        loop {
            tick.tick().await;
            logger.flush();
        }
    });
}

pub(super) fn emit_lost(journal: &Journal, lost: &Lost) {
    emit::degraded(journal, lost.what, &lost.message());
}

pub(super) fn emit_unreadable(journal: &Journal, error: &io::Error) {
    let message = format!("the ring buffer of OOM kills cannot be read any more: {error}");
    emit::degraded(journal, "ebpf", &message);
}
