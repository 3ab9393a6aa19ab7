//! The heap, with address space held back for when the kernel gives no more.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    ptr::null_mut,
    sync::atomic::{AtomicPtr, Ordering},
};

use rustix::mm::{MapFlags, ProtFlags};

/// What is held back is given up in such steps.
const STEP_BYTES: usize = 1 << 20;

/// How many of them are held: more than a scrape, a stream of events and a pass over all pods take together.
const STEPS: usize = 16;

/// Where they are; null where one has been given up.
static HELD: [AtomicPtr<u8>; STEPS] = [const { AtomicPtr::new(null_mut()) }; STEPS];

/// The system's allocator. Where it can get no memory from the kernel (`RLIMIT_AS`, `vm.overcommit_memory=2`), what
/// `hold_back` holds is given up for it, step by step: without that, the first allocation that fails ends the daemon.
#[derive(Clone, Copy, Debug)]
pub struct Heap;

// SAFETY: each call is the system allocator's own, made again with the same arguments where it answered null, in which case
// it has changed nothing.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is ours.
        persist(|| unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        persist(|| unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above; where it answers null, the block is as it was.
        persist(|| unsafe { System.realloc(block, layout, size) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Tries until it works, or nothing is held any longer.
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
        // SAFETY: the range was mapped by `hold_back` for nothing else, and nobody has used it. Whoever took its address
        // out of its place, as we did, is the only one that knows it.
        let freed = unsafe { rustix::mm::munmap(held.cast(), STEP_BYTES) };
        debug_assert_eq!(freed, Ok(()), "the range was mapped");
        let block = attempt();
        if !block.is_null() {
            return block;
        }
    }
    null_mut()
}

/// Holds back what is not held already: address space that is never touched, and takes no memory. Answers whether all of
/// it is held. Only a program whose allocator is [`Heap`] gets anything from it.
pub(crate) fn hold_back() -> bool {
    HELD.iter().all(|step| !step.load(Ordering::Acquire).is_null() || hold(step))
}

fn hold(step: &AtomicPtr<u8>) -> bool {
    // SAFETY: a new mapping at a place of the kernel's choosing takes no memory that is in use.
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
        // SAFETY: the range has just been mapped, and nobody else knows of it.
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
