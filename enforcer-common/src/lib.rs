//! Records that the eBPF programs write and the daemon reads, and small decisions that both share.
//!
//! Everything here is plain data with a fixed layout: `#[repr(C)]`, no padding, asserted size. A record begins
//! with a [`Header`](record::Header), so that a reader can identify it and skip unknown kinds.
#![no_std]
#![cfg_attr(not(feature = "user"), forbid(unsafe_code))]

pub mod counter;
pub mod guard;
pub mod incident;
pub mod life;
pub mod offsets;
pub mod plain;
pub mod reclaim;
pub mod record;
pub mod stall;

/// Lets aya pass these types to the kernel as map values and globals.
#[cfg(feature = "user")]
macro_rules! pod {
    ($($type:ty),+ $(,)?) => {
        $(
            #[expect(unsafe_code, reason = "aya asks for this marker on map values and globals")]
            // SAFETY: `#[repr(C)]` of integers and byte arrays without padding, as `IntoBytes` and `FromBytes`
            // prove at compile time: every bit pattern is a value, and every byte is initialised.
            unsafe impl aya::Pod for $type {}
        )+
    };
}

#[cfg(feature = "user")]
pod!(guard::Guarded, guard::Own, guard::Wanted, offsets::Offsets, plain::PlainFormat, reclaim::ReclaimTotals,);
#[cfg(feature = "user")]
pod!(stall::StallKey, stall::StallLimits, stall::StallTotals);
