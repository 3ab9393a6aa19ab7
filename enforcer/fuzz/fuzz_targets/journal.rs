//! Fuzzes `enforcer_fuzz::journal`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enforcer_fuzz::journal::check(bytes));
