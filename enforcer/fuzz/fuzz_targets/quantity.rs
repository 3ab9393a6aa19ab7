//! Fuzzes `enforcer_fuzz::quantity`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enforcer_fuzz::quantity::check(bytes));
