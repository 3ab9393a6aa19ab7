//! Shared memory that no process's death frees: files in a tmpfs.

use super::{Action, Actions, Engine, NodeSample, Resource, push};

impl Engine {
    /// Reports when a shortage begins in which shared memory that no process maps exceeds the threshold, and when it
    /// falls to half of that. In between no eviction frees the missing memory.
    pub(super) fn watch_shared_memory(&mut self, node: &NodeSample, actions: &mut Actions) {
        let (now_ns, bytes) = (node.now_ns, node.unmapped_shmem_bytes);
        match self.shared_memory_limit_bytes {
            None => {
                let due = self.pressure.due();
                let of_memory =
                    due.filter(|reclaim| Resource::of(reclaim.threshold.signal) == Some(Resource::Memory));
                let exceeded = of_memory.map(|reclaim| reclaim.amount).filter(|limit| bytes > *limit).min();
                if let Some(limit_bytes) = exceeded {
                    self.shared_memory_limit_bytes = Some(limit_bytes);
                    push(actions, Action::SharedMemoryHeld { now_ns, bytes, limit_bytes });
                }
            }
            Some(limit_bytes) if bytes <= limit_bytes / 2 => {
                self.shared_memory_limit_bytes = None;
                push(actions, Action::SharedMemoryFreed { now_ns, bytes });
            }
            Some(_) => {}
        }
    }
}
