//! Words of map values that several CPUs change concurrently.
//!
//! On the BPF target the standard library's atomic types have no methods that change them, because the oldest BPF has
//! only an atomic addition without a result. That is enough for sums, and every kernel accepts it.
use core::intrinsics::{AtomicOrdering, atomic_xadd};

/// A word of a map's value.
#[derive(Clone, Copy)]
pub(crate) struct Word(*mut u64);

impl Word {
    /// # Safety
    ///
    /// The pointer must point to a word of a map's value. The value is aligned, and the kernel keeps it in memory while
    /// the program runs, even if the entry is removed meanwhile.
    #[inline(always)]
    pub(crate) const unsafe fn new(pointer: *mut u64) -> Self {
        Self(pointer)
    }

    /// Its current value.
    #[inline(always)]
    pub(crate) fn load(self) -> u64 {
        // SAFETY: by the contract of `new`; a word is read as a whole.
        unsafe { self.0.read_volatile() }
    }

    /// Sets it.
    #[inline(always)]
    pub(crate) fn store(self, value: u64) {
        // SAFETY: by the contract of `new`; a word is written as a whole.
        unsafe { self.0.write_volatile(value) }
    }

    /// Adds to it. Does not return the previous value: that needs a newer instruction.
    #[inline(always)]
    pub(crate) fn add(self, more: u64) {
        // SAFETY: by the contract of `new`.
        unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(self.0, more) };
    }
}
