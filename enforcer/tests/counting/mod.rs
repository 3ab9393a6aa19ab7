//! An allocator that counts what one thread asks of it.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicI32, AtomicU64, Ordering},
};

/// The thread that is watched, by its id in the kernel; 0 watches none.
pub(crate) static WATCHED: AtomicI32 = AtomicI32::new(0);
/// How often it allocated or freed.
pub(crate) static COUNT: AtomicU64 = AtomicU64::new(0);

struct Counting;

fn count() {
    if rustix::thread::gettid().as_raw_nonzero().get() == WATCHED.load(Ordering::Relaxed) {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

#[expect(unsafe_code, reason = "an allocator cannot be written without")]
// SAFETY: hands everything to the system's allocator unchanged, and counts without allocating.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
