//! An allocator that counts the bytes that are in use.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

/// How many bytes are in use, of all threads.
pub(crate) static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

struct Live;

#[expect(unsafe_code, reason = "an allocator cannot be written without")]
// SAFETY: hands everything to the system's allocator unchanged, and counts without allocating.
unsafe impl GlobalAlloc for Live {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Live = Live;
