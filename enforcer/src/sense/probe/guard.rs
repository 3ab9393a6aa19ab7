//! Which of the guard's programs can be used.
use enforcer_common::offsets::{ABSENT, Offsets};

use super::words;
use crate::sense::{Facts, PidNamespace, Sight};

/// Chooses them, if tracing works at all, and reports what is missing: what, why, and the consequence.
pub(super) fn choose(
    facts: &Facts,
    raw: bool,
    offsets: Option<&Offsets>,
    missing: &mut impl FnMut(&'static str, String, &'static str),
) -> Sight {
    let scores = raw && offsets.is_some_and(scores_are_readable);
    if raw && !scores {
        missing(
            "scoreEdge",
            "BTF does not describe a task's score and cgroup".to_owned(),
            words::NO_SCORE_EDGE,
        );
    }
    let described = facts.cgroup_file_write == Some(true) && offsets.is_some_and(writes_are_readable);
    let writes = raw && described && facts.fentry != Some(false);
    if raw && !writes {
        let why = if described {
            words::NO_FENTRY
        } else {
            "BTF does not describe the function cgroup_file_write and its arguments"
        };
        missing("writeEdge", why.to_owned(), words::NO_WRITE_EDGE);
    }
    if scores && !facts.pid_namespace.is_none_or(PidNamespace::is_initial) {
        missing("pidNamespace", "not in the machine's own PID namespace".to_owned(), words::OTHER_PIDS);
    }
    Sight { scores, writes }
}

/// Whether a task's score and cgroup can be read.
fn scores_are_readable(offsets: &Offsets) -> bool {
    [
        offsets.task_tgid,
        offsets.task_group_leader,
        offsets.task_signal,
        offsets.signal_oom_score_adj,
        offsets.task_cgroups,
        offsets.css_set_dfl_cgrp,
        offsets.cgroup_kn,
        offsets.kernfs_node_id,
        offsets.kernfs_node_parent,
    ]
    .iter()
    .all(|offset| *offset != ABSENT)
}

/// Whether the file and cgroup of an open file can be read.
fn writes_are_readable(offsets: &Offsets) -> bool {
    [
        offsets.kernfs_open_file_kn,
        offsets.kernfs_node_id,
        offsets.kernfs_node_name,
        offsets.kernfs_node_parent,
    ]
    .iter()
    .all(|offset| *offset != ABSENT)
}
