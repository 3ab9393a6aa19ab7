//! Fuzzes `enforcer_fuzz::manifest`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enforcer_fuzz::manifest::check(bytes));
