//! Words of map values that several CPUs change at once.
//!
//! The standard library gives its atomic types no methods that change them on the BPF target, as its oldest form has only
//! an addition, which returns nothing. That is enough for sums, and every kernel takes it.
use core::intrinsics::{AtomicOrdering, atomic_xadd};

/// A word of a map's value.
#[derive(Clone, Copy)]
pub(crate) struct Word(*mut u64);

impl Word {
    /// # Safety
    ///
    /// The pointer must be to a word of a map's value. The kernel keeps that in memory while the program runs, even if the
    /// entry is removed meanwhile, and it is aligned.
    #[inline(always)]
    pub(crate) const unsafe fn new(pointer: *mut u64) -> Self {
        Self(pointer)
    }

    /// What it is now.
    #[inline(always)]
    pub(crate) fn load(self) -> u64 {
        // SAFETY: by the contract of `new`; a word is read whole.
        unsafe { self.0.read_volatile() }
    }

    /// Sets it.
    #[inline(always)]
    pub(crate) fn store(self, value: u64) {
        // SAFETY: by the contract of `new`; a word is written whole.
        unsafe { self.0.write_volatile(value) }
    }

    /// Adds to it. What it was before is not told: that needs a newer instruction.
    #[inline(always)]
    pub(crate) fn add(self, more: u64) {
        // SAFETY: by the contract of `new`.
        unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(self.0, more) };
    }
}
