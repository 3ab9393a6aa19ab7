//! Fuzzes `enforcer_fuzz::configuration`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enforcer_fuzz::configuration::check(bytes));
