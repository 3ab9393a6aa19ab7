//! Fuzzes `enforcer_fuzz::intent`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enforcer_fuzz::intent::check(bytes));
