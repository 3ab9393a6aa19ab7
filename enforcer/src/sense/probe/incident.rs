//! Which of the programs that explain a mark can be used.
use enforcer_common::offsets::{ABSENT, Offsets};

use super::words;
use crate::sense::Facts;

/// What is reported of an OOM besides its marks and exits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Explained {
    /// When a victim's memory is freed.
    pub memory_back: bool,
    /// Creation and removal of cgroups, so that even a short-lived one has a name.
    pub life: bool,
}

/// Chooses them, if marks are reported at all, and reports what is missing: what, why, and the consequence.
pub(super) fn choose(
    facts: &Facts,
    marks: bool,
    offsets: Option<&Offsets>,
    missing: &mut impl FnMut(&'static str, String, &'static str),
) -> Explained {
    let described =
        facts.exit_mmap != Some(false) && offsets.is_some_and(|offsets| offsets.task_mm != ABSENT);
    let memory_back = marks && described && facts.fentry != Some(false);
    if marks && !memory_back {
        let why = if described {
            words::NO_FENTRY
        } else {
            "BTF does not describe the function exit_mmap and a task's memory"
        };
        missing("memoryBack", why.to_owned(), words::BACK_BY_EXIT);
    }
    // The names of the unified hierarchy are useless if memory is on another.
    let unified = facts.unified_memory != Some(false);
    let life = marks && unified && offsets.is_some_and(directories_are_readable);
    if marks && unified && !life {
        missing("cgroupLife", "BTF does not describe a cgroup's directory".to_owned(), words::NAMES_BY_LOOKS);
    }
    Explained { memory_back, life }
}

/// Whether the id, the name and the parent of a cgroup can be read.
fn directories_are_readable(offsets: &Offsets) -> bool {
    [offsets.cgroup_kn, offsets.kernfs_node_id, offsets.kernfs_node_name, offsets.kernfs_node_parent]
        .iter()
        .all(|offset| *offset != ABSENT)
}
