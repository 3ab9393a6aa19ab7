//! Keeps the heap's reserve full, and reports a kernel that grants no more address space.

use super::emit;
use crate::{journal::Journal, raw};

/// The `what` of the degradation while the kernel grants no more address space.
const ADDRESS_SPACE: &str = "addressSpace";

/// The reserve of the heap's blocks, for when the kernel grants no more.
#[derive(Debug, Default)]
pub(super) struct Reserve {
    is_reported: bool,
}

impl Reserve {
    /// Reserves again what was used; reports when that fails, and when it works again. Returns whether all of it is held.
    pub(super) fn settle(&mut self, journal: &Journal) -> bool {
        let is_whole = raw::hold_back();
        match (is_whole, self.is_reported) {
            (true, true) => {
                emit::recovered(journal, ADDRESS_SPACE, "address space is reserved again");
            }
            (false, false) => emit::degraded(
                journal,
                ADDRESS_SPACE,
                "the kernel grants no more address space: the daemon uses its reserve, and ends when that is \
                 used up; see RLIMIT_AS of the service, vm.overcommit_memory and vm.overcommit_ratio",
            ),
            (true, false) | (false, true) => {}
        }
        self.is_reported = !is_whole;
        is_whole
    }
}
