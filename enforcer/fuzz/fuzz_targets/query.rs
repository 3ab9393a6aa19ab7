//! Fuzzes `enforcer_fuzz::query`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enforcer_fuzz::query::check(bytes));
