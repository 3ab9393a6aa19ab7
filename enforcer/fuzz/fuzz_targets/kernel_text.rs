//! Fuzzes `enforcer_fuzz::kernel_text`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enforcer_fuzz::kernel_text::check(bytes));
