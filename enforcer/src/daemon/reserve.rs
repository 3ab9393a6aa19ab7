use serde_json::json;

use super::emit;
use crate::{
    journal::{Event, EventType, Journal, Subject},
    raw,
};

/// The degradation that says that the kernel gives no more address space.
const ADDRESS_SPACE: &str = "addressSpace";

/// The address space that is held back for the heap, for when the kernel gives no more.
#[derive(Debug, Default)]
pub(super) struct Reserve {
    is_reported: bool,
}

impl Reserve {
    /// Holds back again what was given up; reports when that cannot be done, and when it can again.
    pub(super) fn settle(&mut self, journal: &Journal) {
        let is_whole = raw::hold_back();
        match (is_whole, self.is_reported) {
            (true, true) => {
                let data = json!({"what": ADDRESS_SPACE, "message": "address space is held back again"});
                journal.append(Event { kind: EventType::DegradedLeft, subject: Subject::Node, data });
            }
            (false, false) => emit::degraded(
                journal,
                ADDRESS_SPACE,
                "the kernel gives no more address space: the daemon lives on what it held back, and ends when that is \
                 used up; see RLIMIT_AS of the service, vm.overcommit_memory and vm.overcommit_ratio",
            ),
            (true, false) | (false, true) => {}
        }
        self.is_reported = !is_whole;
    }
}
