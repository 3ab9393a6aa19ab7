//! The heap, with reserved address space for when the kernel provides no more.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    ptr::null_mut,
    sync::atomic::{AtomicPtr, Ordering},
};

use rustix::mm::{MapFlags, ProtFlags};

/// The size of a step of the reserve.
const STEP_BYTES: usize = 1 << 20;

/// The number of steps: more than a scrape, an event stream and a pass over all pods need together.
const STEPS: usize = 16;

/// The addresses of the steps; null if a step has been released.
static HELD: [AtomicPtr<u8>; STEPS] = [const { AtomicPtr::new(null_mut()) }; STEPS];

/// The system's allocator. If it gets no memory from the kernel (`RLIMIT_AS`, `vm.overcommit_memory=2`), the reserve of
/// `hold_back` is released for it, step by step: otherwise the first failed allocation would end the daemon.
#[derive(Clone, Copy, Debug)]
pub struct Heap;

// SAFETY: each call is the system allocator's own, repeated with the same arguments if it returned null, in which case
// it has changed nothing.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the same contract.
        persist(|| unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        persist(|| unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above; if it returns null, the block is unchanged.
        persist(|| unsafe { System.realloc(block, layout, size) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Tries until it succeeds, or the reserve is empty.
#[inline]
fn persist(attempt: impl Fn() -> *mut u8) -> *mut u8 {
    let block = attempt();
    if block.is_null() { persist_by_giving_up(&attempt) } else { block }
}

#[cold]
fn persist_by_giving_up(attempt: &dyn Fn() -> *mut u8) -> *mut u8 {
    for step in &HELD {
        let held = step.swap(null_mut(), Ordering::AcqRel);
        if held.is_null() {
            continue;
        }
        // SAFETY: the range was mapped by `hold_back` only for this, and nothing has used it. The swap made this thread
        // the only one that has its address.
        let freed = unsafe { rustix::mm::munmap(held.cast(), STEP_BYTES) };
        debug_assert_eq!(freed, Ok(()), "the range was mapped");
        let block = attempt();
        if !block.is_null() {
            return block;
        }
    }
    null_mut()
}

/// Fills up the reserve: address space that is never touched, and takes no memory. Returns whether all of it is held.
/// It only helps a program whose allocator is [`Heap`].
pub(crate) fn hold_back() -> bool {
    HELD.iter().all(|step| !step.load(Ordering::Acquire).is_null() || hold(step))
}

fn hold(step: &AtomicPtr<u8>) -> bool {
    // SAFETY: the kernel chooses the address, so the mapping replaces no memory in use.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(
            null_mut(),
            STEP_BYTES,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    };
    let Ok(mapped) = mapped else { return false };
    let is_ours =
        step.compare_exchange(null_mut(), mapped.cast(), Ordering::AcqRel, Ordering::Acquire).is_ok();
    if !is_ours {
        // SAFETY: the range has just been mapped, and nothing else uses it.
        let freed = unsafe { rustix::mm::munmap(mapped, STEP_BYTES) };
        debug_assert_eq!(freed, Ok(()), "the range was mapped");
    }
    true
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// One after the other: what is held is the whole process's.
    #[test]
    fn what_is_held_back_is_given_up_step_by_step_and_held_again() {
        let held = || HELD.iter().filter(|step| !step.load(Ordering::Acquire).is_null()).count();
        assert!(hold_back() && held() == STEPS);
        // An allocator that works at the third attempt.
        let attempts = Cell::new(0);
        let mut block = 1_u8;
        let place = &raw mut block;
        let third = || {
            attempts.set(attempts.get() + 1);
            if attempts.get() < 3 { null_mut() } else { place }
        };
        assert_eq!(persist(third), place);
        assert_eq!(held(), STEPS - 2);
        assert!(hold_back() && held() == STEPS);
        // One that never works has it all, and null is answered.
        assert!(persist(null_mut).is_null());
        assert_eq!(held(), 0);
        assert!(hold_back() && held() == STEPS);
    }
}
