//! Fuzzes `enforcer_fuzz::recording`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enforcer_fuzz::recording::check(bytes));
