//! The eBPF programs of enforcer.
//!
//! One module per concern. A program is a thin shim over an `#[inline(always)]` function. Logic that does not need
//! the kernel is in `enforcer-common`, and tested there.
#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![expect(internal_features, reason = "atomic additions: see `atomic`")]

mod atomic;
mod cgroup;
#[macro_use]
mod diagnostics;
mod incident;
mod kernel;
mod life;
mod maps;
mod oom;
mod process;
mod reclaim;
mod stall;

/// Helpers such as `bpf_probe_read_kernel` require a GPL-compatible licence.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
